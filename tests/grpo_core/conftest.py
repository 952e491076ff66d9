import dataclasses

import pytest
import torch

from grpo_core.config import PolicyConfig, TaskConfig, TrainConfig
from grpo_core.policy import Policy, load_policy
from grpo_core.tasks import TASKS, Completion, Problem, Task, load_task
from grpo_core.tasks.grade_school import load_grade_school

torch.set_num_threads(1)


def load_odd_words(config: TaskConfig) -> Task:
    """Grade-school problems, but right is an odd number of different words: random weights get half of them right."""

    def score(problem: Problem, completion: Completion) -> dict[str, float]:
        return {"correct": float(len(set(completion.text.split())) % 2), "format": float(completion.ended)}

    return dataclasses.replace(load_grade_school(config), name="odd_words", score=score)


@pytest.fixture(autouse=True)
def odd_words(monkeypatch: pytest.MonkeyPatch) -> None:
    # During tests only, not at import: contract tests collect every entry of the registry.
    monkeypatch.setitem(TASKS, "odd_words", load_odd_words)


SMALL = {
    "task": {"name": "odd_words", "num_validation": 16, "num_test": 16},
    "policy": {"num_layers": 1, "hidden_size": 32},
    "warm_start": {"num_steps": 5, "batch_size": 16},
    "rollout": {"completions_per_step": 16, "max_new_tokens": 24},
    "algorithm": {"group_size": 4},
    "optim": {"lr": 1e-3},
    "eval": {"every": 2, "num_problems": 8, "samples_per_problem": 2, "num_test_problems": 8},
    "compute": {"device": "cpu"},
    "num_steps": 3,
}


def small_config(**sections) -> TrainConfig:
    """The smallest run that does all a run does; `sections` are merged into it."""
    merged = {
        key: {**value, **sections.pop(key, {})} if isinstance(value, dict) else value for key, value in SMALL.items()
    }
    return TrainConfig.model_validate({**merged, **sections})


@pytest.fixture(scope="session")
def task() -> Task:
    return load_task(TaskConfig(num_validation=16))


@pytest.fixture
def tiny_policy(task: Task) -> Policy:
    return load_policy(PolicyConfig(num_layers=2, hidden_size=32), task)
