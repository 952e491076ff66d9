"""Bytes from anywhere: the loader of sweep files, the metrics reader and the answer checker answer, and in time."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_core.rewards import extract_number, numbers_match
from grpo_core.run_record import RunRecord, parse_step, read_metrics
from sweeps.config import ConfigError, load_sweep
from sweeps.study_folder import read_lines

NUM_EXAMPLES = 20_000
#: No answer may take longer, on a machine that does other things as well.
MAX_S = 5.0

at_length = settings(
    max_examples=NUM_EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    database=None,
)

yaml_pieces = st.sampled_from(
    [
        *("study:", "search_space:", "train:", "stability:", "profiles:", "name: s", "n_trials: 4", "lr:", "values:"),
        *("{", "}", "[", "]", "- ", "? ", ": ", ", ", "&a ", "*a", "!!python/object/apply:os.system", "!x ", "<<: *a"),
        *(
            "\n",
            "\n  ",
            "\n    ",
            "\t",
            "#",
            "'",
            '"',
            "|",
            ">",
            "%YAML 1.1",
            "---",
            "...",
            "~",
            "1e-5",
            "010",
            "12:30",
        ),
        *("off", ".inf", ".nan", "0x1f", "2026-12-07", "\0", "\x85", "\ufeff", "💥", "a" * 300),
    ]
)


@pytest.mark.slow
@at_length
@given(content=st.lists(yaml_pieces, max_size=24).map("".join).map(str.encode) | st.binary(max_size=120))
def test_any_sweep_file_loads_or_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "any.yaml"
    file.write_bytes(content)
    started = time.monotonic()
    try:
        load_sweep(file)
    except ConfigError as error:
        assert error.problems and all(problem.message for problem in error.problems)
    assert time.monotonic() - started < MAX_S


json_values = (
    st.sampled_from(
        [None, True, 0, 1, -1, 2.5, 10**400, "", "1", [], [1], {}, {"a": 1}, {"a": None}, {"a": {"b": 1}}, {"": "x"}]
    )
    | st.floats()
    | st.integers()
)
json_lines = st.fixed_dictionaries({}, optional={"step": json_values, "time": json_values, "metrics": json_values}).map(
    lambda record: json.dumps(record).encode()
)
good_steps = st.builds(
    lambda step, values: json.dumps({"step": step, "time": 1.5, "metrics": values}).encode(),
    st.integers(1, 9),
    st.dictionaries(st.text(max_size=4), st.floats(), max_size=3),
)


any_lines = st.lists(st.binary(max_size=40) | json_lines | good_steps, max_size=6)


@pytest.mark.slow
@at_length
@given(lines=any_lines, is_torn=st.booleans())
def test_any_metrics_file_is_read(tmp_path: Path, lines: list[bytes], is_torn: bool) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"\n".join(lines) + (b"" if is_torn else b"\n"))
    found = list(read_metrics(file))
    # As text, since NaN equals nothing.
    assert repr(found) == repr(read_lines(file)[0])
    assert all(line["step"] >= 1 and isinstance(line["metrics"], dict) for line in found)


@settings(at_length, max_examples=1000)
@given(lines=any_lines, is_torn=st.booleans())
def test_a_run_goes_on_behind_any_metrics_file(tmp_path: Path, lines: list[bytes], is_torn: bool) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"\n".join(lines) + (b"" if is_torn else b"\n"))
    record = RunRecord(tmp_path)
    last = record.last_step
    assert last == max((line["step"] for line in read_metrics(file)), default=0)
    assert record.write(last + 1, {"reward/mean": 0.5}, [])
    assert list(read_metrics(file))[-1]["step"] == last + 1


@pytest.mark.parametrize(
    "line",
    ['{"step": 1e3, "time": 1, "metrics": {}}', "[" * 200_000, '{"step": true, "time": 1, "metrics": {}}', "9" * 9999],
)
def test_lines_that_look_like_steps_are_none(line: str) -> None:
    assert parse_step(line) is None


answer_pieces = st.sampled_from(
    [
        *(
            "#### ",
            "\\boxed{",
            "}",
            "answer is ",
            "Answer: ",
            "A: ",
            "\\frac{1}{2}",
            "{,}",
            "$",
            "€",
            "%",
            ",",
            ".",
            "/",
        ),
        *(
            "1",
            "2",
            "000",
            "999999999999999999",
            "1,000",
            "1e400",
            "-",
            "\u2212",
            "\u2013",
            "=",
            " ",
            "\n",
            "(",
            "x",
            "*",
        ),
        *("9" * 600, "1/0", "NaN", "inf", "{" * 50, "1 " * 50),
    ]
)


@pytest.mark.slow
@at_length
@given(text=st.lists(answer_pieces, max_size=30).map("".join) | st.text(max_size=80))
def test_any_text_has_a_number_or_none(text: str) -> None:
    started = time.monotonic()
    number = extract_number(text)
    assert numbers_match(text, number) is (number is not None)
    assert time.monotonic() - started < MAX_S
