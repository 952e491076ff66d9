"""GSM8K, real grade-school problems (Cobbe et al. 2021, arXiv:2110.14168), from the hub or from local JSONL.

A row is `{"question": ..., "answer": ...}`; the answer is a worked solution that ends in `#### number`.
"""

import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grpo_core.config import TaskConfig
from grpo_core.rewards import extract_number, numbers_match
from grpo_core.tasks.problem import Completion, Problem, Task

HUB_ID, HUB_CONFIG = "openai/gsm8k", "main"
INSTRUCTION = "Reason step by step, then end with a line that says only: #### <number>"
MAX_BAD_ROWS_SHOWN = 10

_CALCULATOR_ANNOTATION = re.compile(r"<<[^<>\n]*>>")
_FINAL_LINE = re.compile(r"#### *[-\u2212]?\$?[0-9][0-9,]*(\.[0-9]+)?")


def load_gsm8k(config: TaskConfig) -> Task:
    """The task with a validation split set apart from the training problems by `config.seed`.

    A single local file is cut in three, a test split of `num_test` (or `num_validation`) problems set apart too. Raises
    ValueError for a file that cannot be read, for bad rows, for too few problems, and where the hub is out of reach.
    """
    train, test = _read_path(Path(config.path)) if config.path is not None else _read_hub()
    test = _distinct(test)
    train = _distinct(train, known={problem.question for problem in test})
    random.Random(config.seed).shuffle(train)
    validation, train = _set_apart(train, config.num_validation, "num_validation")
    if not test:
        test, train = _set_apart(train, config.num_test or config.num_validation, "num_test")
    return Task(
        name="gsm8k",
        train=_take(train, config.num_train, "num_train"),
        validation=validation,
        test=_take(test, config.num_test, "num_test"),
        prompt=_prompt,
        warm_start_completion=_worked_solution,
        score=score,
        reward_weights={"correct": 1.0, "format": 0.0},
    )


def score(problem: Problem, completion: Completion) -> dict[str, float]:
    """`correct` by the lenient answer checker; `format` for a closed completion whose last line is `#### number`."""
    last_line = completion.text.rstrip().rpartition("\n")[2].strip()
    formatted = completion.ended and _FINAL_LINE.fullmatch(last_line) is not None
    return {"correct": float(numbers_match(completion.text, problem.answer)), "format": float(formatted)}


def _prompt(problem: Problem) -> str:
    return f"{problem.question}\n{INSTRUCTION}"


def _worked_solution(problem: Problem, rng: random.Random) -> str:
    return problem.solution


def _distinct(problems: list[Problem], known: Iterable[str] = ()) -> list[Problem]:
    """The first problem with each question that is not `known`: no split may hold another's questions."""
    seen, kept = set(known), []
    for problem in problems:
        if problem.question not in seen:
            seen.add(problem.question)
            kept.append(problem)
    return kept


def _take(problems: list[Problem], num: int | None, field: str) -> list[Problem]:
    if num is not None and num > len(problems):
        raise ValueError(f"task.{field}={num}: there are only {len(problems)} problems; lower it or leave it out")
    return problems[:num]


def _set_apart(problems: list[Problem], num: int, field: str) -> tuple[list[Problem], list[Problem]]:
    if num >= len(problems):
        raise ValueError(
            f"task.{field}={num}: there are only {len(problems)} problems to set them apart from, and none would be "
            f"left for training; lower task.{field}"
        )
    return problems[:num], problems[num:]


def _read_path(path: Path) -> tuple[list[Problem], list[Problem]]:
    """Training and test problems of a folder; of a file all problems, and none."""
    if not path.is_dir():
        return _read_jsonl(path, path), []
    return _read_jsonl(path, path / "train.jsonl"), _read_jsonl(path, path / "test.jsonl")


def _read_jsonl(source: Path, file: Path) -> list[Problem]:
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8 text ({error.reason})"
        raise ValueError(
            f"task.path={str(source)!r}: cannot read {file}: {reason}; "
            "give a JSONL file, or a folder with train.jsonl and test.jsonl"
        ) from error
    rows = [(number, _parse(line)) for number, line in enumerate(lines, 1) if line.strip()]
    return _problems(rows, str(file), f"task.path={str(source)!r}")


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # not JSON; a row of None is reported with all other bad rows
        return None


def _read_hub() -> tuple[list[Problem], list[Problem]]:
    try:
        splits = _load_from_hub()
    except Exception as error:  # each version of the hub's client has its own exception types
        raise ValueError(
            f"task.path=None: the hub was not reachable for {HUB_ID} ({type(error).__name__}: {error}); "
            "set task.path to a local JSONL file, or to a folder with train.jsonl and test.jsonl"
        ) from error
    train, test = (
        _problems(enumerate(splits[name], 1), f"{HUB_ID}/{name}", "task.path=None") for name in ("train", "test")
    )
    return train, test


def _load_from_hub() -> Any:
    # Imported here: `datasets` is slow to import and starts threads, which a process that forks must not have.
    import datasets
    from huggingface_hub import HfApi

    if not Path(datasets.config.HF_DATASETS_CACHE, HUB_ID.replace("/", "___")).exists():
        HfApi().dataset_info(HUB_ID, timeout=10)  # fails at once, where load_dataset would retry for half a minute
    return datasets.load_dataset(HUB_ID, HUB_CONFIG)


def _problems(rows: Iterable[tuple[int, Any]], source: str, field: str) -> list[Problem]:
    """The problems of numbered rows; raises ValueError with every bad row's number and what it lacks."""
    problems, faults = [], []
    for number, row in rows:
        if fault := _fault(row):
            faults.append(f"{source} line {number}: {fault}")
            continue
        solution = _CALCULATOR_ANNOTATION.sub("", row["answer"]).strip()
        answer = str(extract_number(solution))
        problems.append(Problem(f"{Path(source).stem}/{number}", row["question"].strip(), answer, solution))
    if not problems and not faults:
        faults.append(f"{source}: no rows")
    if faults:
        shown = faults[:MAX_BAD_ROWS_SHOWN]
        if len(faults) > len(shown):
            shown.append(f"... and {len(faults) - len(shown)} more")
        rule = 'each row is {"question": "...", "answer": "... #### 18"}'
        raise ValueError(f"{field}: {rule}\n" + "\n".join(shown))
    return problems


def _fault(row: Any) -> str | None:
    """What is wrong with a row, or None."""
    if not isinstance(row, dict):
        return "not a JSON object"
    for key in ("question", "answer"):
        if key not in row:
            return f'"{key}" is missing'
        if not isinstance(row[key], str) or not row[key].strip():
            return f'"{key}" is not a text: {row[key]!r}'[:120]
    if "####" not in row["answer"] or extract_number(row["answer"]) is None:
        return '"answer" does not end in #### and a number'
    return None
