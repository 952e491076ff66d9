"""The tasks a policy can be trained on, by name. A new task is one module and one line in `TASKS`."""

from collections.abc import Callable
from dataclasses import replace

from grpo_core.config import TaskConfig
from grpo_core.tasks.grade_school import load_grade_school
from grpo_core.tasks.gsm8k import load_gsm8k
from grpo_core.tasks.problem import Completion, Problem, Task

__all__ = ["TASKS", "Completion", "Problem", "Task", "load_task"]

TASKS: dict[str, Callable[[TaskConfig], Task]] = {
    "grade_school": load_grade_school,
    "gsm8k": load_gsm8k,
}


def load_task(config: TaskConfig) -> Task:
    """The task that `config` names, with its problems and reward weights.

    Raises ValueError for an unknown task, an unknown reward part, or a source that cannot be read.
    """
    if config.name not in TASKS:
        raise ValueError(f"task.name={config.name!r}: not a task; use one of {', '.join(TASKS)}")
    task = TASKS[config.name](config)
    for part, weight in config.reward_weights.items():
        if part not in task.reward_weights:
            raise ValueError(
                f"task.reward_weights.{part}={weight}: {task.name} has no such reward part; "
                f"use {', '.join(task.reward_weights)}"
            )
    return replace(task, reward_weights={**task.reward_weights, **config.reward_weights})
