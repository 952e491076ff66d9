"""How a study stands at one moment, as plain data: for controller.json, `/healthz`, `/metrics` and the alerts."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class RunningTrial:
    """A trial that runs now."""

    number: int
    step: int
    num_steps: int
    silent_s: float
    """Seconds since its last news."""


@dataclass(frozen=True)
class Health:
    """One study, seen by its controller."""

    study: str
    n_trials: int
    running: tuple[RunningTrial, ...] = ()
    ended: Mapping[str, int] = field(default_factory=dict)
    """Ended trials by state: complete, pruned, failed."""
    num_breaches: int = 0
    """Trials among them that the stability guard pruned."""
    num_retries: int = 0
    best: float | None = None
    """Best objective so far."""
    progress_at: float = 0.0
    """When any trial last made a step or ended, seconds since the epoch."""
    tracking_problem: str | None = None
    at: float = field(default_factory=time.time)
    """When this was seen, seconds since the epoch."""

    @property
    def num_ended(self) -> int:
        return sum(self.ended.values())

    def record(self) -> dict[str, Any]:
        """The same as data for JSON."""
        return asdict(self)


@dataclass
class EndedTrials:
    """Counts over the trials that have ended, kept up to date one by one."""

    direction: str
    states: Counter[str] = field(default_factory=Counter)
    num_breaches: int = 0
    num_retries: int = 0
    best: float | None = None

    def add(self, outcome: Mapping[str, Any]) -> None:
        """Takes one outcome record."""
        self.states[outcome["state"]] += 1
        self.num_breaches += outcome["state"] == "pruned" and (outcome.get("constraint") or 0.0) > 0
        self.num_retries += outcome.get("num_retries") or 0
        value = outcome.get("objective")
        if outcome["state"] == "complete" and value is not None:
            better = max if self.direction == "maximize" else min
            self.best = value if self.best is None else better(self.best, value)
