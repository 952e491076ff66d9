"""TPE, guard and pruner against random search at full length, replayed: `python -m tests.benchmarks.study_replay`.

Settings of the default space were trained once at full length (`record_curves`). A study is replayed on them by the
study's own sampler, guard and pruner, with two slots and a clock that the recorded seconds move; what the sampler
proposes is replaced by the nearest recorded setting that the study has not had. The target is what random search
reaches in the median with as many trials as the space file asks for. Time is that until a complete trial reaches it.
Neither side is given the file's defaults as a first trial, and random search pays for its last evaluations alone.

The settings are drawn again with replacement, so that the interval shows what other settings would have made of it.
"""

import heapq
import json
import math
import multiprocessing
import random
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import optuna

from sweeps.config import load_sweep
from sweeps.guard import Breach, StabilityGuard
from sweeps.sampling import build_pruner, build_sampler
from sweeps.search_space import suggest
from sweeps.sections import SweepConfig
from sweeps.study import CONSTRAINT
from tests.benchmarks.lines import Line
from tests.benchmarks.record_curves import CURVES

NUM_SLOTS = 2
#: Proposals that the sampler makes for a trial: with many, one lies near a recorded setting.
NUM_PROPOSALS = 8
#: From a free slot to a trial's first step, seconds; the same for both sides.
TURNAROUND_S = 0.2
NUM_RESAMPLES = 200
NUM_STUDIES = 5
NUM_RANDOM_STUDIES = 200
#: Draws of a study that never reaches the target: all that there are.
_NEVER = math.inf


class Recorded(NamedTuple):
    """One setting and what became of it."""

    params: dict[str, Any]
    point: tuple[float, ...]
    """The params in [0, 1] along each key."""
    accuracy: dict[int, float]
    """The objective at every evaluation, by step."""
    ends_at_s: list[float]
    """Seconds from the start to the end of each step, evaluations aside."""
    eval_s: float
    """Seconds of one evaluation."""
    breach: Breach | None


@cache
def recorded_settings() -> tuple[SweepConfig, list[Recorded]]:
    """The sweep and its recorded settings, each with the guard's verdict."""
    data = json.loads(CURVES.read_text())
    config = load_sweep(data["space"], profile="cpu")
    return config, [_recorded(config, trial, data["eval_every"]) for trial in data["trials"]]


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
        params=trial["params"],
        point=point_of(config, trial["params"]),
        accuracy={eval_every * (place + 1): value for place, value in enumerate(trial["accuracy"])},
        ends_at_s=ends_at_s,
        eval_s=statistics.fmean(trial["eval_s"]),
        breach=next((breach for breach in breaches if breach is not None), None),
    )


def point_of(config: SweepConfig, params: dict[str, Any]) -> tuple[float, ...]:
    """Params as a point of the unit cube; lists of numbers and keys marked `log` by their logarithms."""
    point = []
    for key, dimension in config.search_space.items():
        low, high = dimension.min, dimension.max
        is_log = dimension.log
        if dimension.values:
            low, high, is_log = min(dimension.values), max(dimension.values), True
        scale = math.log if is_log else float
        point.append((scale(params[key]) - scale(low)) / (scale(high) - scale(low)))
    return tuple(point)


def random_search_s(pool: Sequence[Recorded], num_steps: int, target: float, draws: random.Random) -> float:
    """Seconds until a full-length trial of random search reaches `target`."""
    free_at = [0.0] * NUM_SLOTS
    best_s = _NEVER
    for trial in draws.sample(pool, len(pool)):
        started = heapq.heappop(free_at)
        if started >= best_s:
            break
        ended = started + TURNAROUND_S + trial.ends_at_s[-1] + trial.eval_s
        if trial.accuracy[num_steps] >= target:
            best_s = min(best_s, ended)
        heapq.heappush(free_at, ended)
    return best_s


def best_of_random(pool: Sequence[Recorded], num_steps: int, num_trials: int, draws: random.Random) -> float:
    """The best objective among `num_trials` random settings at full length."""
    return max(trial.accuracy[num_steps] for trial in draws.sample(pool, num_trials))


def sweep_s(config: SweepConfig, pool: Sequence[Recorded], target: float, seed: int) -> float:
    """Seconds until a complete trial of a study with the sweep's sampler, guard and pruner reaches `target`."""
    sampler_config = config.study.sampler.model_copy(update={"seed": seed})
    config = config.model_copy(update={"study": config.study.model_copy(update={"sampler": sampler_config})})
    pruner = build_pruner(config)
    study = optuna.create_study(
        study_name=f"{config.study.name}-{seed}",
        sampler=build_sampler(config),
        pruner=optuna.pruners.NopPruner(),
        direction=config.study.objective.direction,
    )
    every, last = config.train.eval.every, config.train.num_steps
    left = list(pool)
    #: (time, order of arrival, trial, setting, step reached)
    events: list[tuple[float, int, optuna.Trial, Recorded, int]] = []
    num_events = 0

    def follow(now: float, trial: optuna.Trial, setting: Recorded, step: int) -> None:
        nonlocal num_events
        until = min(step + every, last)
        if setting.breach is not None:
            until = min(until, setting.breach.step)
        spent = setting.ends_at_s[until - 1] - (setting.ends_at_s[step - 1] if step else 0.0)
        spent += setting.eval_s * (until % every == 0 or until == last)
        heapq.heappush(events, (now + spent, num_events, trial, setting, until))
        num_events += 1

    def start(now: float) -> None:
        if left:
            trial, setting = _ask(config, study, left)
            follow(now + TURNAROUND_S, trial, setting, 0)

    for _ in range(NUM_SLOTS):
        start(0.0)
    while events:
        now, _, trial, setting, step = heapq.heappop(events)
        if setting.breach is not None and setting.breach.step == step:
            trial.set_constraint(CONSTRAINT, setting.breach.constraint)
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            start(now)
            continue
        value = setting.accuracy[step]
        trial.report(value, step)
        if step < last and not pruner.prune(study, study.get_trials(deepcopy=False)[trial.number]):
            follow(now, trial, setting, step)
            continue
        trial.set_constraint(CONSTRAINT, 0.0)
        if step < last:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, value)
            if value >= target:
                return now
        start(now)
    return _NEVER


def _ask(config: SweepConfig, study: optuna.Study, left: list[Recorded]) -> tuple[optuna.Trial, Recorded]:
    """The proposal of the sampler that lies nearest to a setting of `left`, replaced by it; it is taken out."""
    wanted = []
    for _ in range(NUM_PROPOSALS):
        proposal = study.ask()
        wanted.append(point_of(config, suggest(proposal, config.search_space)))
        study.tell(proposal, state=optuna.trial.TrialState.FAIL)
    nearest = min(left, key=lambda setting: min(math.dist(setting.point, point) for point in wanted))
    left.remove(nearest)
    study.enqueue_trial(nearest.params)
    trial = study.ask()
    suggest(trial, config.search_space)
    return trial, nearest


def resample(seed: int) -> dict[str, float]:
    """Median seconds of both sides on settings drawn again with replacement (0: as they were recorded)."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    config, settings = recorded_settings()
    draws = random.Random(seed)
    pool = [draws.choice(settings) for _ in settings] if seed else settings
    last, num_trials = config.train.num_steps, config.study.n_trials
    bests = [best_of_random(pool, last, num_trials, draws) for _ in range(NUM_RANDOM_STUDIES)]
    target = statistics.median_low(bests)
    by_random = statistics.median(random_search_s(pool, last, target, draws) for _ in range(NUM_RANDOM_STUDIES))
    by_sweep = statistics.median(sweep_s(config, pool, target, 1000 * seed + which) for which in range(NUM_STUDIES))
    return {"target": target, "random_s": by_random, "sweep_s": by_sweep, "ratio": by_random / by_sweep}


def measure() -> dict[str, Any]:
    """The ratio of median times on the recorded settings, and its distribution over resamples of them."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as workers:
        found = list(workers.map(resample, range(1, NUM_RESAMPLES + 1), chunksize=10))
    ratios = sorted(each["ratio"] for each in found)
    cut = round(0.025 * len(ratios))
    return {
        "num_settings": len(recorded_settings()[1]),
        "num_breaching": sum(setting.breach is not None for setting in recorded_settings()[1]),
        "target": statistics.median(each["target"] for each in found),
        "random_s": statistics.median(each["random_s"] for each in found),
        "sweep_s": statistics.median(each["sweep_s"] for each in found),
        "ratio": statistics.median(ratios),
        "low": ratios[cut],
        "high": ratios[-1 - cut],
    }


def lines(figures: dict[str, Any]) -> list[Line]:
    """The lines of the table."""
    return [
        Line("study: time to random search's reward, median", figures["ratio"], at_least=1.8),
        Line("study: the same, lower end of the 95% interval", figures["low"], at_least=1.3),
    ]


if __name__ == "__main__":
    measured = measure()
    print(json.dumps(measured, indent=2))
    for line in lines(measured):
        print(line.text())
