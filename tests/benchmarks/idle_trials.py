"""Trials that do nothing: an executor whose jobs leave the records of one step and end at once."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_core import metric_names as names
from grpo_core.run_record import METRICS_FILE
from sweeps.jobs import Event, Job


def step_metrics(step: int, offset: float = 0.0) -> dict[str, float]:
    """Metrics of a step, as many as a run records."""
    recorded = [value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)]
    return {name: 0.5 + 0.4 * math.sin(step + offset + place) for place, name in enumerate(recorded)}


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
        now, metrics = time.time(), step_metrics(1, float(job.config["optim"]["lr"]) * 1e3)
        with (Path(job.run_dir) / METRICS_FILE).open("a") as file:
            file.write(json.dumps({"step": 1, "time": now, "metrics": metrics}) + "\n")
        result = {"status": "complete", "last_step": 1, "metrics": metrics, "reason": None, "checkpoint": None}
        self._news = [
            Event("started", {"pid": 0, "num_ranks": 1}, now),
            Event("step", {"step": 1, "metrics": metrics}, now),
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
        """Nobody listens."""

    def kill(self, grace_s: float = 0.0) -> None:
        """Nothing runs."""

    def log_tail(self, num_lines: int = 20) -> str:
        """Nothing was logged."""
        return ""
