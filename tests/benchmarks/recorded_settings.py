"""Settings of the default space that were trained at full length, and which of them are near to a proposal."""

import heapq
import json
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from grpo_core.metric_names import REWARD_MEAN
from sweeps.guard import Breach, StabilityGuard
from sweeps.sections import SweepConfig
from sweeps.train_fields import path_of
from tests.benchmarks.record_curves import CURVES

NUM_NEIGHBOURS, LR_WEIGHT = 3, 6.0
#: Steps at the end whose mean reward is a setting's reward.
LAST_STEPS = 10


class Recorded(NamedTuple):
    """One setting and what became of it."""

    point: tuple[float, ...]
    """The params in [0, 1] along each key, the learning rate in [0, LR_WEIGHT]."""
    accuracy: dict[int, float]
    """The objective at every evaluation, by step."""
    reward: float
    """Mean over the last steps of the full length."""
    ends_at_s: list[float]
    """Seconds from the start to the end of each step, evaluations aside."""
    eval_s: float
    """Seconds of one evaluation."""
    breach: Breach | None
    """What the guard says of the curves."""


def read_settings(config: SweepConfig) -> list[Recorded]:
    """All settings of curves.json, judged by the guard of `config`."""
    data = json.loads(CURVES.read_text())
    return [_recorded(config, trial, data["eval_every"]) for trial in data["trials"]]


def _recorded(config: SweepConfig, trial: dict[str, Any], eval_every: int) -> Recorded:
    guard = StabilityGuard(config.stability)
    curves = trial["curves"]
    steps = range(1, config.train.num_steps + 1)
    rows = ({name: values[step - 1] for name, values in curves.items()} for step in steps)
    breaches = (guard.check(step, metrics) for step, metrics in zip(steps, rows, strict=True))
    elapsed, ends_at_s = 0.0, []
    for seconds in trial["step_s"]:
        elapsed += seconds
        ends_at_s.append(elapsed)
    return Recorded(
        point=point_of(config, trial["params"]),
        accuracy={eval_every * (place + 1): value for place, value in enumerate(trial["accuracy"])},
        reward=statistics.fmean(curves[REWARD_MEAN][-LAST_STEPS:]),
        ends_at_s=ends_at_s,
        eval_s=statistics.fmean(trial["eval_s"]),
        breach=next((breach for breach in breaches if breach is not None), None),
    )


def point_of(config: SweepConfig, params: dict[str, Any]) -> tuple[float, ...]:
    """Params as a point, [0, 1] along each key, [0, LR_WEIGHT] for the learning rate; lists of numbers and keys marked
    `log` by their logarithms."""
    point = []
    for key, dimension in config.search_space.items():
        low, high, is_log = dimension.min, dimension.max, dimension.log
        if dimension.values:
            low, high, is_log = min(dimension.values), max(dimension.values), True
        assert low is not None and high is not None
        scale = math.log if is_log else float
        share = (scale(params[key]) - scale(low)) / (scale(high) - scale(low))
        point.append(share * (LR_WEIGHT if path_of(key) == "optim.lr" else 1.0))
    return tuple(point)


def nearest(pool: Sequence[Recorded], point: tuple[float, ...]) -> list[Recorded]:
    """The settings of `pool` nearest to `point`."""
    return heapq.nsmallest(NUM_NEIGHBOURS, pool, key=lambda setting: math.dist(setting.point, point))


def neighbour_error(settings: Sequence[Recorded]) -> float:
    """How far the reward of a setting is from that of its nearest others, root mean square: what `LR_WEIGHT` and
    `NUM_NEIGHBOURS` make least."""
    errors = []
    for setting in settings:
        others = [other for other in settings if other is not setting]
        errors += [(other.reward - setting.reward) ** 2 for other in nearest(others, setting.point)]
    return math.sqrt(statistics.fmean(errors))
