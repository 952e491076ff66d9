"""Trials that do nothing: an executor whose jobs leave the records of a few steps and end at once."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_core import metric_names as names
from grpo_core.run_record import METRICS_FILE
from sweeps.jobs import Event, Job

#: Steps of a trial, and the one of them that has the objective: as far along as the step at which the default file's
#: pruner decides, so that it is asked.
NUM_STEPS, EVALUATED = 3, 2
#: Metrics that the settings of the default file give no meaning.
_UNUSED = {
    *(names.REWARD_SMOOTHED, names.POLICY_KL_COEF, names.LOSS_VALUE, names.VALUE_EXPLAINED_VARIANCE),
    *(names.POLICY_SAMPLER_RATIO, names.POLICY_SAMPLER_RATIO_MAX, names.POLICY_SAMPLER_TRUNCATED_FRAC),
    *(names.ROLLOUT_TEMPERATURE, names.OPTIM_ROLLBACKS),
}
_AT_EVALUATIONS = (*names.EVALUATION_METRICS, names.TIME_EVAL_S)
_NAMED = [value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)]
#: The 25 metrics of a step, those of the reward's two parts among them.
_AT_STEPS = [
    *(name for name in _NAMED if name not in _UNUSED and name not in _AT_EVALUATIONS),
    "reward/correct",
    "reward/format",
]


def step_metrics(step: int, offset: float = 0.0, is_evaluated: bool = False) -> dict[str, float]:
    """Metrics of a step, as many as a run of the default file records."""
    recorded = [*_AT_STEPS, *(_AT_EVALUATIONS if is_evaluated else ())]
    return {name: 0.5 + 0.4 * math.sin(step + offset + place) for place, name in enumerate(recorded)}


def trial_steps(lr: float) -> dict[int, dict[str, float]]:
    """Metrics of a trial by step; the objective follows from the learning rate."""
    return {step: step_metrics(step, lr * 1e3, step == EVALUATED) for step in range(1, NUM_STEPS + 1)}


class IdleExecutor:
    """Two slots; `before_start` is called with the number of jobs started so far."""

    capacity = 2

    def __init__(self, before_start: Callable[[int], None]) -> None:
        self._before_start = before_start
        self._num_started = 0

    def warm_up(self) -> None:
        """Nothing has to be loaded."""

    def start(self, job: Job, slot: int) -> "IdleHandle":
        """A job that is over already, with its events still to be taken."""
        self._before_start(self._num_started)
        self._num_started += 1
        return IdleHandle(job)

    def close(self) -> None:
        """Nothing runs."""


class IdleHandle:
    """A job that ended as it began."""

    exit_code = 0

    def __init__(self, job: Job) -> None:
        now, metrics = time.time(), trial_steps(float(job.config["optim"]["lr"]))
        with (Path(job.run_dir) / METRICS_FILE).open("a") as file:
            for step, recorded in metrics.items():
                file.write(json.dumps({"step": step, "time": now, "metrics": recorded}) + "\n")
        result = {
            "status": "complete",
            "last_step": NUM_STEPS,
            "metrics": metrics[NUM_STEPS] | metrics[EVALUATED],
            "reason": None,
            "checkpoint": None,
        }
        self._news = [
            Event("started", {"pid": 0, "num_ranks": 1}, now),
            *(Event("step", {"step": step, "metrics": recorded}, now) for step, recorded in metrics.items()),
            Event("result", result, now),
        ]

    def poll(self) -> list[Event]:
        """All events at the first call."""
        news, self._news = self._news, []
        return news

    def is_alive(self) -> bool:
        """Whether events are left."""
        return bool(self._news)

    def deadline(self) -> float | None:
        """At once, while events are left."""
        return 0.0 if self._news else None

    def waitables(self) -> list[Any]:
        """Nothing has to be waited for."""
        return []

    def send(self, command: dict[str, Any]) -> None:
        """Nobody listens: a trial that the pruner would stop is over already."""

    def kill(self, grace_s: float = 0.0) -> None:
        """Nothing runs."""

    def log_stacks(self) -> None:
        """Nothing runs."""

    def log_tail(self, num_lines: int = 20) -> str:
        """Nothing was logged."""
        return ""
