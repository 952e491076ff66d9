import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.thinning import MAX_POINTS, MIN_POINTS, points_per_line, thinned

VALUES = st.lists(
    st.floats(allow_nan=True, allow_infinity=True) | st.integers(-3, 3).map(float), min_size=1, max_size=400
)


def test_a_chart_of_many_lines_gives_each_fewer_points_down_to_a_least_number():
    assert [points_per_line(count) for count in (0, 1, 80, 400, 1000, 5000)] == [MAX_POINTS] * 3 + [100, 40, MIN_POINTS]


def test_a_short_curve_is_drawn_whole():
    assert thinned([3.0, 1.0, 2.0], 3) == [0, 1, 2]


def test_a_spike_of_one_step_is_drawn():
    values = [0.5] * 1000
    values[617], values[618] = 9.0, -9.0
    assert {617, 618} <= set(thinned(values, 40))


@given(VALUES, st.integers(4, 60))
def test_both_ends_the_extremes_and_gaps_are_kept_within_the_limit(values, limit):
    kept = thinned(values, limit)
    assert kept == sorted(set(kept))
    assert kept[0] == 0 and kept[-1] == len(values) - 1
    finite = [value for value in values if math.isfinite(value)]
    drawn = [values[place] for place in kept if math.isfinite(values[place])]
    if finite:
        assert (min(drawn), max(drawn)) == (min(finite), max(finite))
    assert (len(finite) < len(values)) == any(not math.isfinite(values[place]) for place in kept)
    # A stretch may add a gap to its two extremes.
    assert len(kept) <= max(limit, 1.5 * limit + 2)


@pytest.mark.parametrize("count", [501, 1000, 10_000])
def test_about_as_many_points_as_asked_for(count):
    assert 0.5 * 100 <= len(thinned([math.sin(place) for place in range(count)], 100)) <= 100
