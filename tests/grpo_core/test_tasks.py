import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.config import TaskConfig
from grpo_core.tasks import TASKS, Completion, Task, load_task

SPLITS = ("train", "validation", "test")


@pytest.fixture(params=sorted(TASKS))
def config(request: pytest.FixtureRequest, tmp_path: Path) -> TaskConfig:
    """A config for each task, with local rows for those that read a file."""
    if request.param == "grade_school":
        return TaskConfig(name=request.param, num_train=100, num_validation=20, num_test=30)
    for name, num in (("train", 120), ("test", 30)):
        rows = [
            {"question": f"What is {i} + {num}?", "answer": f"<<{i}+{num}={i + num}>>\n#### {i + num}"}
            for i in range(num)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return TaskConfig(name=request.param, path=str(tmp_path), num_train=100, num_validation=20, num_test=30)


@pytest.fixture
def task(config: TaskConfig) -> Task:
    return load_task(config)


def ended(text: str) -> Completion:
    return Completion(text=text, ended=True, num_tokens=len(text.split()))


def test_splits_are_disjoint_and_as_large_as_asked(task: Task) -> None:
    assert [len(getattr(task, split)) for split in SPLITS] == [100, 20, 30]
    problems = [problem for split in SPLITS for problem in getattr(task, split)]
    assert len({problem.question for problem in problems}) == len({problem.id for problem in problems}) == 150


def test_the_same_config_gives_the_same_problems(config: TaskConfig, task: Task) -> None:
    again = load_task(config)
    assert [list(getattr(again, split)) for split in SPLITS] == [list(getattr(task, split)) for split in SPLITS]
    other = load_task(config.model_copy(update={"seed": config.seed + 1}))
    assert list(other.validation) != list(task.validation)


def test_a_prompt_asks_the_question_and_keeps_the_answer_back(task: Task) -> None:
    for problem in task.train[:20]:
        assert problem.question in task.prompt(problem)
        assert task.prompt(problem) == task.prompt(problem)
        assert "#### " + problem.answer not in task.prompt(problem)


def test_the_solution_of_the_source_is_scored_correct_and_another_answer_is_not(task: Task) -> None:
    for problem in [*task.train[:20], *task.validation, *task.test]:
        right = task.score(problem, ended(problem.solution))
        wrong = task.score(problem, ended(f"#### {int(problem.answer) + 1}"))
        assert (right["correct"], wrong["correct"]) == (1.0, 0.0)
        assert set(right) == set(wrong) == set(task.reward_weights)
        assert (task.reward(right), task.reward(wrong)) == (1.0, 0.0)


@pytest.mark.parametrize(
    "text", ["", " ", "####", "#### ####", "18", "\n", "é ∞ \\boxed{", "9" * 5000, "#### " + "9" * 5000]
)
def test_any_completion_gets_a_score(task: Task, text: str) -> None:
    for closed in (True, False):
        parts = task.score(task.train[0], Completion(text=text, ended=closed, num_tokens=0))
        assert parts["correct"] == 0.0
        assert set(parts) == set(task.reward_weights)


def test_a_worked_solution_contains_the_answer(task: Task) -> None:
    rng = random.Random(0)
    for problem in task.train[:50]:
        assert problem.answer in task.warm_start_completion(problem, rng).split()


def test_weights_of_the_config_override_those_of_the_task(config: TaskConfig) -> None:
    task = load_task(config.model_copy(update={"reward_weights": {"format": 0.25}}))
    assert task.reward_weights == {"correct": 1.0, "format": 0.25}
    assert task.reward({"correct": 1.0, "format": 1.0}) == 1.25
    assert task.reward({"correct": 0.0, "format": 1.0}) == 0.25
    only_format = load_task(config.model_copy(update={"reward_weights": {"correct": 0.0, "format": -2.0}}))
    assert only_format.reward({"correct": float("nan"), "format": 1.0}) == -2.0


def test_an_unknown_reward_part_is_named_with_those_there_are(config: TaskConfig) -> None:
    message = f"task.reward_weights.length=0.5: {config.name} has no such reward part; use correct, format"
    with pytest.raises(ValueError, match=re.escape(message)):
        load_task(config.model_copy(update={"reward_weights": {"length": 0.5}}))


def test_an_unknown_task_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=re.escape("task.name='gsm9k': not a task; use one of grade_school, gsm8k")):
        load_task(TaskConfig(name="gsm9k"))


def test_tasks_import_neither_torch_nor_datasets() -> None:
    code = (
        "import sys; from grpo_core.config import TaskConfig; from grpo_core.tasks import load_task; "
        "load_task(TaskConfig()).train[0]; print({'torch', 'datasets', 'transformers'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
