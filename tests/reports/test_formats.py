import pytest

from reports import formats


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (None, formats.NONE),
        (8, "8"),
        (True, "True"),
        ("dapo", "dapo"),
        (0.0, "0"),
        (0.2, "0.2"),
        (1.23456, "1.235"),
        (0.0001, "1e-4"),
        (0.00036017, "3.6e-4"),
        (float("nan"), "NaN"),
        (float("inf"), "∞"),
    ],
)
def test_values_are_written_short(item, text: str):
    assert formats.value(item) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, formats.NONE), (7.04, "7.0 s"), (42, "42 s"), (372, "6 min 12 s"), (11100, "3 h 05 min")],
)
def test_durations_in_the_unit_that_fits(seconds, text: str):
    assert formats.duration(seconds) == text


def test_lists_and_counts_in_words():
    assert formats.listed([1]) == "1"
    assert formats.listed([1, 2, 3]) == "1, 2 and 3"
    assert formats.listed([]) == ""
    assert formats.counted(1, "trial") == "1 trial"
    assert formats.counted(0, "trial") == "0 trials"


def test_chart_text_is_escaped_and_wrapped():
    assert formats.chart_text("<b>a</b>") == "&lt;b&gt;a&lt;/b&gt;"
    assert formats.chart_text("one two three", width=8) == "one two<br>three"
