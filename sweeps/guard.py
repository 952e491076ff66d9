"""The stability guard: which metrics of a step mean that a trial is not worth continuing, and why.

A rule is a function from its section of `StabilityConfig` to a check of one step; it is found by its YAML key in
`GUARD_RULES`. Steps count from 1. A metric that a step lacks is not judged; one that is NaN is never inside a limit.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_core.metric_names import (
    LOSS_POLICY,
    OPTIM_GRAD_NORM,
    OPTIM_SKIPPED_STEPS,
    POLICY_ENTROPY,
    REWARD_MEAN,
    ROLLOUT_TRUNCATED_FRAC,
)
from sweeps.sections import EntropyBand, GradNormLimit, RewardCollapse, StabilityConfig

MUST_BE_FINITE = (LOSS_POLICY, OPTIM_GRAD_NORM, POLICY_ENTROPY, REWARD_MEAN)


@dataclass(frozen=True)
class Breach:
    """A limit that a trial has broken: which rule, at which step, by which value; `limit` is None for not finite."""

    rule: str
    step: int
    value: float
    limit: float | None
    message: str

    @property
    def constraint(self) -> float:
        """How far beyond the limit, in (0, 1]: x / (1 + x) of the relative excess x, 1 for what is not finite."""
        if self.limit is None or not math.isfinite(self.value):
            return 1.0
        excess = abs(self.value - self.limit) / (abs(self.limit) or 1.0)
        return max(1.0 - 1.0 / (1.0 + excess), 1e-6)


Check = Callable[[int, Mapping[str, float]], Breach | None]


@dataclass
class _Streak:
    """Counts judged steps in a row that are outside a limit."""

    patience: int
    length: int = 0

    def outlasts(self, outside: bool) -> bool:
        """Takes one judged step; True once `patience` in a row were outside."""
        self.length = self.length + 1 if outside else 0
        return self.length >= self.patience


def nonfinite(action: str) -> Check:
    """Breach at once where a loss, norm, entropy or reward is NaN or infinite, or a non-finite update was skipped."""

    def check(step: int, metrics: Mapping[str, float]) -> Breach | None:
        for name in MUST_BE_FINITE:
            value = metrics.get(name)
            if value is not None and not math.isfinite(value):
                message = f"{name} is {value} at step {step}, which no later step mends; lower optim.lr or reward_scale"
                return Breach("nonfinite", step, value, None, message)
        skipped = metrics.get(OPTIM_SKIPPED_STEPS)
        if skipped is not None and not skipped <= 0:
            message = (
                f"{OPTIM_SKIPPED_STEPS} is {skipped:g} at step {step}: an update was not finite and was not applied; "
                "lower optim.lr or reward_scale"
            )
            return Breach("nonfinite", step, skipped, None, message)
        return None

    return check


def entropy(band: EntropyBand) -> Check:
    """Breach where policy/entropy (nats a token) is outside the band for `patience` steps in a row after warm-up."""
    streak = _Streak(band.patience)

    def check(step: int, metrics: Mapping[str, float]) -> Breach | None:
        value = metrics.get(POLICY_ENTROPY)
        if value is None or step <= band.warmup_steps:
            return None
        if not streak.outlasts(not band.min <= value <= band.max):
            return None
        below = value < band.min
        limit = band.min if below else band.max
        message = (
            f"{POLICY_ENTROPY} is {value:.3g} nats at step {step}, {'below' if below else 'above'} {limit:g} for "
            f"{_steps(streak.length)}{_truncation(metrics)}; "
        )
        if below:
            message += "lower optim.lr, or raise algorithm.entropy_coef, or lower stability.entropy.min"
        else:
            message += "lower optim.lr or algorithm.entropy_coef, or raise stability.entropy.max"
        return Breach("entropy", step, value, limit, message)

    return check


def reward_collapse(config: RewardCollapse) -> Check:
    """Breach where the mean reward of a window stays `drop` times |best| below the best for `patience` steps."""
    streak = _Streak(config.patience)
    window: deque[float] = deque(maxlen=config.window)
    best = -math.inf

    def check(step: int, metrics: Mapping[str, float]) -> Breach | None:
        nonlocal best
        value = metrics.get(REWARD_MEAN)
        if value is None or step <= config.warmup_steps:
            return None
        if math.isfinite(value):
            window.append(value)
        if len(window) < config.window:
            return None
        current = math.fsum(window) / config.window
        best = max(best, current)
        if not streak.outlasts(not math.isfinite(value) or best - current > config.drop * abs(best)):
            return None
        limit = best - config.drop * abs(best)
        message = (
            f"{REWARD_MEAN} averages {current:.3g} over the {_steps(config.window)} to step {step}, below {limit:.3g} "
            f"(the best window had {best:.3g}) for {_steps(streak.length)}{_truncation(metrics)}; "
            "lower optim.lr or reward_scale, or raise stability.reward_collapse.drop"
        )
        return Breach("reward_collapse", step, current, limit, message)

    return check


def grad_norm(config: GradNormLimit) -> Check:
    """Breach where optim/grad_norm (before clipping) is above `max` for `patience` steps in a row after warm-up."""
    streak = _Streak(config.patience)

    def check(step: int, metrics: Mapping[str, float]) -> Breach | None:
        value = metrics.get(OPTIM_GRAD_NORM)
        if value is None or step <= config.warmup_steps or not streak.outlasts(not value <= config.max):
            return None
        message = (
            f"{OPTIM_GRAD_NORM} is {value:.3g} at step {step}, above {config.max:g} for {_steps(streak.length)}; "
            "lower optim.lr or reward_scale, or raise stability.grad_norm.max"
        )
        return Breach("grad_norm", step, value, config.max, message)

    return check


#: Rule by its key under `stability`; the key is a field of `StabilityConfig`.
GUARD_RULES: dict[str, Callable[[Any], Check]] = {
    "nonfinite": nonfinite,
    "entropy": entropy,
    "reward_collapse": reward_collapse,
    "grad_norm": grad_norm,
}


class StabilityGuard:
    """Judges the steps of one trial, in order; holds no more than its rules' counters."""

    def __init__(self, config: StabilityConfig) -> None:
        sections = {name: getattr(config, name) for name in GUARD_RULES}
        self._checks = [
            GUARD_RULES[name](section) for name, section in sections.items() if section not in (None, "off")
        ]

    def check(self, step: int, metrics: Mapping[str, float]) -> Breach | None:
        """The first breach of this step in the order of `GUARD_RULES`, or None; every rule sees every step."""
        breaches = [check(step, metrics) for check in self._checks]
        return next((breach for breach in breaches if breach is not None), None)


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"


def _truncation(metrics: Mapping[str, float]) -> str:
    """What share of completions was cut, since cut completions move entropy and reward by themselves."""
    value = metrics.get(ROLLOUT_TRUNCATED_FRAC)
    if value is None:
        return ""
    return f" ({ROLLOUT_TRUNCATED_FRAC} {value:.0%})"
