import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.config import TaskConfig
from grpo_core.tasks import Completion, Problem, Task, gsm8k, load_task

REAL_DATA = Path(__file__).parents[3] / "shared/data/gsm8k"


def row(i: int) -> dict[str, str]:
    return {
        "question": f"What is {i} + 1,000?",
        "answer": f"It is {i}+1000=<<{i}+1000={i + 1000}>>{i + 1000}.\n#### {i + 1000:,}",
    }


def write(file: Path, rows: list) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def load(path: Path | None, **fields: object) -> Task:
    return load_task(TaskConfig.model_validate({"name": "gsm8k", "path": path and str(path), **fields}))


def questions(*splits: object) -> set[str]:
    return {problem.question for split in splits for problem in split}  # type: ignore[attr-defined]


def test_a_row_becomes_a_problem(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [row(i) for i in range(3)])
    write(tmp_path / "test.jsonl", [row(234)])
    task = load(tmp_path, num_validation=1)
    assert task.test == [
        Problem(
            id="test/1",
            question="What is 234 + 1,000?",
            answer="1234",
            solution="It is 234+1000=1234.\n#### 1,234",
        )
    ]
    assert task.prompt(task.test[0]) == (
        "What is 234 + 1,000?\nReason step by step, then end with a line that says only: #### <number>"
    )
    assert task.warm_start_completion(task.test[0], random.Random(0)) == "It is 234+1000=1234.\n#### 1,234"
    assert task.words is None


def test_validation_is_set_apart_from_training_by_the_seed(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [row(i) for i in range(100)])
    write(tmp_path / "test.jsonl", [row(i) for i in range(100, 120)])
    task = load(tmp_path, num_validation=30)
    assert (len(task.train), len(task.validation), len(task.test)) == (70, 30, 20)
    assert questions(task.train, task.validation) == {row(i)["question"] for i in range(100)}
    assert questions(task.test) == {row(i)["question"] for i in range(100, 120)}
    assert questions(load(tmp_path, num_validation=30, num_train=5).validation) == questions(task.validation)
    assert questions(load(tmp_path, num_validation=30, seed=1).validation) != questions(task.validation)


def test_a_single_file_is_cut_in_three(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", [row(i) for i in range(100)])
    task = load(file, num_validation=20)
    assert (len(task.train), len(task.validation), len(task.test)) == (60, 20, 20)
    assert len(questions(task.train, task.validation, task.test)) == 100
    assert len(load(file, num_validation=20, num_test=50).test) == 50
    assert len(load(file, num_validation=20, num_train=10).train) == 10


def test_a_question_that_occurs_twice_is_in_one_split_only(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [row(i % 50) for i in range(100)])
    write(tmp_path / "test.jsonl", [row(7), row(7), row(60)])
    task = load(tmp_path, num_validation=10)
    assert (len(task.train), len(task.validation), len(task.test)) == (39, 10, 2)
    assert len(questions(task.train, task.validation, task.test)) == 51


def test_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(json.dumps(row(i)) for i in range(9)).encode() + b"\n \n")
    assert len(load(file, num_validation=3).train) == 3


def test_every_bad_row_is_reported_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    lines = [
        json.dumps(row(0)),
        '{"question": "cut',
        "",
        '["question"]',
        json.dumps({"query": "?", "answer": "#### 1"}),
        json.dumps({"question": "?"}),
        json.dumps({"question": "?", "answer": 7}),
        json.dumps({"question": " ", "answer": "#### 1"}),
        json.dumps({"question": "?", "answer": "it is 7"}),
        json.dumps({"question": "?", "answer": "#### seven"}),
        "[" * 100_000,
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        load(file)
    assert str(caught.value).splitlines() == [
        f"task.path={str(file)!r}: each row is " + '{"question": "...", "answer": "... #### 18"}',
        f"{file} line 2: not a JSON object",
        f"{file} line 4: not a JSON object",
        f'{file} line 5: "question" is missing',
        f'{file} line 6: "answer" is missing',
        f'{file} line 7: "answer" is not a text: 7',
        f"{file} line 8: \"question\" is not a text: ' '",
        f'{file} line 9: "answer" does not end in #### and a number',
        f'{file} line 10: "answer" does not end in #### and a number',
        f"{file} line 11: not a JSON object",
    ]


def test_of_very_many_bad_rows_ten_are_shown(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 10: .*\n\.\.\. and 90 more$"):
        load(write(tmp_path / "mine.jsonl", [{}] * 100))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*nowhere\.jsonl: No such file or directory; give a JSONL file"):
        load(tmp_path / "nowhere.jsonl")
    write(tmp_path / "train.jsonl", [row(0)])
    with pytest.raises(
        ValueError, match=r"cannot read .*test\.jsonl: No such file.*or a folder with train\.jsonl and test"
    ):
        load(tmp_path)
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "\xe9t\xe9"}')
    with pytest.raises(ValueError, match="not UTF-8 text"):
        load(tmp_path / "latin.jsonl")
    with pytest.raises(ValueError, match=r"empty\.jsonl: no rows"):
        load(write(tmp_path / "empty.jsonl", []))


def test_too_few_problems(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", [row(i) for i in range(10)])
    with pytest.raises(ValueError, match=r"task\.num_validation=512: there are only 10 problems"):
        load(file)
    with pytest.raises(ValueError, match=r"task\.num_test=5: there are only 5 problems"):
        load(file, num_validation=5)
    with pytest.raises(ValueError, match=r"task\.num_train=9: there are only 6 problems"):
        load(file, num_validation=2, num_train=9)
    write(tmp_path / "train.jsonl", [row(i) for i in range(10)])
    write(tmp_path / "test.jsonl", [row(10)])
    with pytest.raises(ValueError, match=r"task\.num_test=2: there are only 1 problems"):
        load(tmp_path, num_validation=5, num_test=2)


@pytest.mark.parametrize(
    ("text", "ended", "correct", "formatted"),
    [
        ("16 - 3 - 4 = 9\n9 * 2 = 18\n#### 18", True, 1.0, 1.0),
        ("#### $18.00", True, 1.0, 1.0),
        ("#### 18", False, 1.0, 0.0),
        ("#### 18 dollars", True, 1.0, 0.0),
        ("The answer is 18.", True, 1.0, 0.0),
        ("#### 17", True, 0.0, 1.0),
        ("#### 18\nor #### 17", True, 0.0, 0.0),
        ("no idea", True, 0.0, 0.0),
    ],
)
def test_score(tmp_path: Path, text: str, ended: bool, correct: float, formatted: float) -> None:
    problem = Problem(id="x", question="", answer="18")
    assert gsm8k.score(problem, Completion(text=text, ended=ended, num_tokens=9)) == {
        "correct": correct,
        "format": formatted,
    }


def test_the_hub_layout_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    splits = datasets.DatasetDict(
        train=datasets.Dataset.from_list([row(i) for i in range(8)]),
        test=datasets.Dataset.from_list([row(i) for i in range(8, 12)]),
    )
    monkeypatch.setattr(gsm8k, "_load_from_hub", lambda: splits)
    task = load(None, num_validation=2)
    assert (len(task.train), len(task.validation)) == (6, 2)
    assert [problem.id for problem in task.test] == ["test/1", "test/2", "test/3", "test/4"]


def test_a_hub_out_of_reach_is_said_with_the_local_option(tmp_path: Path) -> None:
    code = (
        "from grpo_core.config import TaskConfig; from grpo_core.tasks import load_task\n"
        "try: load_task(TaskConfig(name='gsm8k'))\n"
        "except ValueError as error: print(error)"
    )
    # Port 9 of the loopback is closed: the refusal comes at once.
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert re.match(r"task\.path=None: the hub was not reachable for openai/gsm8k \(", done.stdout), done.stderr
    assert done.stdout.endswith("set task.path to a local JSONL file, or to a folder with train.jsonl and test.jsonl\n")


def test_the_real_problems() -> None:
    if not REAL_DATA.exists():
        assert "CI" not in os.environ, f"{REAL_DATA} is missing"
        pytest.skip(f"{REAL_DATA} is not on this machine")
    task = load(REAL_DATA)
    assert (len(task.train), len(task.validation), len(task.test)) == (6961, 512, 1319)
    assert len(questions(task.train, task.validation, task.test)) == 6961 + 512 + 1319
    assert task.test[0].answer == "18"
    assert task.test[0].solution.endswith("\nShe makes 9 * 2 = $18 every day at the farmer\u2019s market.\n#### 18")
    for problem in [*task.train, *task.validation, *task.test]:
        completion = Completion(text=problem.solution, ended=True, num_tokens=100)
        assert task.score(problem, completion) == {"correct": 1.0, "format": 1.0}
