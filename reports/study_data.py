"""What a report knows of a study: plain data, and the questions that more than one part of the report asks."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from grpo_core.metric_names import OPTIM_GRAD_NORM, POLICY_ENTROPY
from reports.estimates import Estimate, measured


@dataclass(frozen=True)
class Curve:
    """One metric of one trial: steps in rising order and a value for each, which may be NaN or infinite."""

    steps: list[int]
    values: list[float]

    def last_finite(self, until: int | None = None) -> tuple[int, float] | None:
        """The last step and value that is finite, up to and with step `until`; None if there is none."""
        for step, value in zip(reversed(self.steps), reversed(self.values), strict=True):
            if math.isfinite(value) and (until is None or step <= until):
                return step, value
        return None

    def finite(self) -> list[float]:
        return [value for value in self.values if math.isfinite(value)]


@dataclass(frozen=True)
class Trial:
    """One trial as its folder tells it; `state` is complete, pruned, failed, running or interrupted."""

    number: int
    state: str
    params: dict[str, Any]
    source: str
    seed: int | None
    objective: float | None
    reason: dict[str, Any] | None
    last_step: int
    duration_s: float | None
    started_at: float | None
    ended_at: float | None
    checkpoint: str | None
    num_retries: int
    folder: Path
    curves: dict[str, Curve] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    """Settings that running out of memory has changed, by their dotted path."""

    @property
    def has_ended(self) -> bool:
        return self.state in ("complete", "pruned", "failed")

    def last(self, metric: str) -> float | None:
        """Last finite value of a metric, None if it has none."""
        found = self.curves[metric].last_finite() if metric in self.curves else None
        return found[1] if found else None

    def maximum(self, metric: str) -> float:
        """Largest finite value of a metric, 0 if it has none."""
        return max(self.curves[metric].finite(), default=0.0) if metric in self.curves else 0.0

    def estimate(self, metric: str) -> Estimate | None:
        """Last finite value of a metric with the standard error recorded at the same step."""
        found = self.curves[metric].last_finite() if metric in self.curves else None
        if found is None:
            return None
        errors = self.curves.get(f"{metric}_se")
        error = dict(zip(errors.steps, errors.values, strict=True)).get(found[0]) if errors else None
        return measured(found[1], error)

    @property
    def rule(self) -> str | None:
        """What stopped the trial: a guard rule, `pruner`, `crash`, …"""
        return str(self.reason.get("rule", "unknown")) if self.reason else None

    @property
    def stop_step(self) -> int:
        """Step at which the trial was stopped, or its last one."""
        step = self.reason.get("step") if self.reason else None
        return step if isinstance(step, int) else self.last_step

    @property
    def reason_text(self) -> str:
        """The reason in words, empty for a trial that has none."""
        if not self.reason:
            return ""
        message = self.reason.get("message")
        return str(message) if message else ", ".join(f"{key} {item}" for key, item in self.reason.items())


@dataclass(frozen=True)
class Dimension:
    """One searched setting: either `values` or a range."""

    name: str
    values: list[Any] | None
    low: float | None
    high: float | None
    log: bool
    when: dict[str, Any] | None = None

    @classmethod
    def read(cls, name: str, entry: dict[str, Any]) -> "Dimension":
        """The dimension that an entry of the sweep's search space describes."""
        values = list(entry["values"]) if entry.get("values") is not None else None
        return cls(name, values, entry.get("min"), entry.get("max"), bool(entry.get("log")), entry.get("when"))

    @property
    def is_numeric(self) -> bool:
        """True when the settings have an order: a range, or values that are all numbers."""
        return self.values is None or all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in self.values
        )

    def unit(self, value: Any) -> float | None:
        """Place of a setting in the dimension, 0 to 1, on its own scale; None for one outside of `values`."""
        if self.values is not None:
            ordered = sorted(self.values) if self.is_numeric else self.values
            if value not in ordered:
                return None
            return ordered.index(value) / (len(ordered) - 1) if len(ordered) > 1 else 0.5
        if not isinstance(value, int | float) or self.low is None or self.high is None or self.low == self.high:
            return None
        scale = math.log if self.log else float
        if self.log and value <= 0:
            return None
        return (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))


@dataclass(frozen=True)
class Study:
    """One study as its folder tells it."""

    name: str
    folder: Path
    config: dict[str, Any]
    config_text: str
    dimensions: list[Dimension]
    """The searched settings in the order of the file."""
    trials: list[Trial]
    preflight: dict[str, Any] | None
    final: dict[str, Any] | None
    controller: dict[str, Any]
    is_running: bool
    """Whether a controller works on it."""
    notes: list[str]

    def section(self, name: str) -> dict[str, Any]:
        """A section of the resolved sweep config, empty when it has none."""
        found = self.config.get(name)
        return found if isinstance(found, dict) else {}

    def train(self, *path: str, default: Any = None) -> Any:
        """A setting of the base TrainConfig: `train("algorithm", "group_size")`."""
        found: Any = self.section("train")
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        return default if found is None else found

    @property
    def objective(self) -> str:
        """Name of the metric that the study optimises."""
        return self.section("study").get("objective", {}).get("metric", "eval/accuracy")

    @property
    def maximize(self) -> bool:
        return self.section("study").get("objective", {}).get("direction", "maximize") == "maximize"

    @property
    def num_planned(self) -> int:
        return self.section("study").get("n_trials") or len(self.trials)

    @property
    def num_steps(self) -> int:
        """Steps of a whole trial."""
        return self.train("num_steps", default=max((trial.last_step for trial in self.trials), default=1))

    def in_state(self, *states: str) -> list[Trial]:
        return [trial for trial in self.trials if trial.state in states]

    @property
    def ended(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.has_ended]

    @property
    def defaults(self) -> Trial | None:
        """The trial that ran the file's own settings."""
        marked = [trial for trial in self.trials if trial.source == "defaults"]
        return marked[0] if marked else None

    @cached_property
    def ranked(self) -> list[Trial]:
        """Complete trials, best objective first, the earlier one of equals first."""
        sign = -1 if self.maximize else 1
        complete = [trial for trial in self.in_state("complete") if trial.objective is not None]
        return sorted(complete, key=lambda trial: (sign * (trial.objective or 0.0), trial.number))

    @property
    def best(self) -> Trial | None:
        return self.ranked[0] if self.ranked else None

    def score(self, trial: Trial) -> float | None:
        """Objective of a trial, or for one that was stopped the last value it reached."""
        return trial.objective if trial.objective is not None else trial.last(self.objective)

    def score_estimate(self, trial: Trial) -> Estimate | None:
        """The same with its standard error where the last evaluation is what the objective is."""
        measured, score = trial.estimate(self.objective), self.score(trial)
        if score is None:
            return None
        return measured if measured is not None and math.isclose(measured.mean, score) else Estimate(score)

    @cached_property
    def leaders(self) -> list[Trial]:
        """The best trial and the complete ones whose 95% interval overlaps its own."""
        best = self.score_estimate(self.best) if self.best else None
        if best is None or best.se is None:
            return self.ranked[:1]
        estimates = [(trial, self.score_estimate(trial)) for trial in self.ranked]
        return [trial for trial, found in estimates if found is not None and found.overlaps(best)]

    @property
    def wall_time_s(self) -> float | None:
        """Seconds that the study was run for, over all launches; without that record, from first start to last end."""
        if isinstance(active := self.controller.get("active_s"), int | float):
            return active
        times = [trial.started_at for trial in self.trials] + [trial.ended_at for trial in self.trials]
        known = [time for time in times if isinstance(time, int | float)]
        return max(known) - min(known) if len(known) > 1 else None

    @property
    def entropy_band(self) -> dict[str, Any] | None:
        return self.section("stability").get("entropy")

    @property
    def grad_norm_limit(self) -> dict[str, Any] | None:
        return self.section("stability").get("grad_norm")

    def base_value(self, metric: str) -> float | None:
        """A metric of the untouched policy, as measured before the first trial."""
        found = (self.preflight or {}).get(metric)
        return found if isinstance(found, int | float) and math.isfinite(found) else None

    def limits(self, metric: str) -> list[float]:
        """Values at which the stability guard stops a trial for this metric."""
        band = {POLICY_ENTROPY: self.entropy_band, OPTIM_GRAD_NORM: self.grad_norm_limit}.get(metric) or {}
        return [band[key] for key in ("min", "max") if isinstance(band.get(key), int | float)]
