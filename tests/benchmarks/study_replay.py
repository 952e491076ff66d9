"""TPE, guard and pruner against random search at full length, replayed: `python -m tests.benchmarks.study_replay`.

Settings of the default space were trained once at full length (`record_curves`). A trial at settings that a sampler
proposes takes the curve of one of their `NUM_NEIGHBOURS` nearest recorded settings, drawn at random; the learning rate
counts `LR_WEIGHT` times, which is where neighbours tell each other's reward best (see `neighbour_error`). Both sides
have two slots, the same trials, evaluations and seconds; one has the sampler, guard and pruner of the space file, the
other draws at random and ends nothing early. Neither is given the file's defaults as a first trial.

The reward of a setting is the mean over the last steps, which is less a matter of luck than one evaluation. Targets are
what random search reaches with as many trials as the space file asks for, `NUM_TARGETS` such studies; the ratio is that
of the median times to reach them. The settings are drawn again with replacement, which gives the interval.
"""

import heapq
import json
import math
import multiprocessing
import random
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import optuna

from sweeps.config import load_sweep
from sweeps.sampling import build_pruner, build_sampler
from sweeps.search_space import suggest
from sweeps.sections import SweepConfig
from sweeps.study import CONSTRAINT
from tests.benchmarks.lines import Line
from tests.benchmarks.recorded_settings import Recorded, nearest, point_of, read_settings
from tests.benchmarks.step_setups import SPACE

NUM_SLOTS = 2
#: From a free slot to a trial's first step, seconds; the same for both sides.
TURNAROUND_S = 0.2
NUM_RESAMPLES, NUM_TARGETS = 200, 60
#: Studies of random search whose median time to a target counts.
NUM_RANDOM_STUDIES = 15
#: Trials after which a study has failed to reach its target.
MAX_TRIALS = 60
_NEVER = math.inf

Draw = Callable[[tuple[float, ...]], Recorded]


@cache
def recorded() -> tuple[SweepConfig, list[Recorded]]:
    """The sweep and its recorded settings."""
    config = load_sweep(SPACE, profile="cpu")
    return config, read_settings(config)


def neighbours(pool: Sequence[Recorded], draws: random.Random) -> Draw:
    """What becomes of a trial at a point, drawn among the nearest settings of `pool`."""
    return lambda point: draws.choice(nearest(pool, point))


def random_point(config: SweepConfig, draws: random.Random) -> tuple[float, ...]:
    """A point of the space as random search draws it."""
    params: dict[str, Any] = {}
    for key, dimension in config.search_space.items():
        if dimension.values:
            params[key] = draws.choice(dimension.values)
        elif dimension.log:
            params[key] = math.exp(draws.uniform(math.log(dimension.min), math.log(dimension.max)))
        else:
            params[key] = draws.uniform(dimension.min, dimension.max)
    return point_of(config, params)


def best_of_random(config: SweepConfig, trial_at: Draw, draws: random.Random) -> float:
    """The best reward of a random search with as many full-length trials as the sweep asks for."""
    return max(trial_at(random_point(config, draws)).reward for _ in range(config.study.n_trials))


def random_search_s(config: SweepConfig, trial_at: Draw, target: float, draws: random.Random) -> float:
    """Seconds until a full-length trial of random search reaches `target`."""
    free_at, best_s = [0.0] * NUM_SLOTS, _NEVER
    num_evaluations = math.ceil(config.train.num_steps / config.train.eval.every)
    for _ in range(5 * MAX_TRIALS):
        started = heapq.heappop(free_at)
        if started >= best_s:
            break
        setting = trial_at(random_point(config, draws))
        ended = started + TURNAROUND_S + setting.ends_at_s[-1] + num_evaluations * setting.eval_s
        if setting.reward >= target:
            best_s = min(best_s, ended)
        heapq.heappush(free_at, ended)
    return best_s


class ReplayedStudy:
    """A study with the sweep's sampler, guard and pruner on recorded curves."""

    def __init__(self, config: SweepConfig, trial_at: Draw, seed: int) -> None:
        sampler = config.study.sampler.model_copy(update={"seed": seed})
        self._config = config.model_copy(update={"study": config.study.model_copy(update={"sampler": sampler})})
        self._trial_at = trial_at
        self._pruner = build_pruner(self._config)
        self._study = optuna.create_study(
            study_name=f"{config.study.name}-{seed}",
            sampler=build_sampler(self._config),
            pruner=optuna.pruners.NopPruner(),
            direction=config.study.objective.direction,
        )
        #: (time, order of arrival, trial, setting, step reached)
        self._events: list[tuple[float, int, optuna.Trial, Recorded, int]] = []
        self._num_events = 0
        self._num_trials = 0

    def seconds_to(self, target: float) -> float:
        """Seconds until a complete trial reaches `target`."""
        for _ in range(NUM_SLOTS):
            self._start(0.0)
        while self._events:
            now, _, trial, setting, step = heapq.heappop(self._events)
            if not self._has_ended(now, trial, setting, step):
                continue
            if setting.breach is None and step == self._config.train.num_steps and setting.reward >= target:
                return now
            self._start(now)
        return _NEVER

    def _start(self, now: float) -> None:
        if self._num_trials == MAX_TRIALS:
            return
        self._num_trials += 1
        trial = self._study.ask()
        params = suggest(trial, self._config.search_space)
        self._follow(now + TURNAROUND_S, trial, self._trial_at(point_of(self._config, params)), 0)

    def _follow(self, now: float, trial: optuna.Trial, setting: Recorded, step: int) -> None:
        """Queues what comes next of a trial after `step`: an evaluation, or the step at which the guard ends it."""
        every, last = self._config.train.eval.every, self._config.train.num_steps
        until = min(step + every, last)
        if setting.breach is not None:
            until = min(until, setting.breach.step)
        spent = setting.ends_at_s[until - 1] - (setting.ends_at_s[step - 1] if step else 0.0)
        spent += setting.eval_s * (until % every == 0 or until == last)
        heapq.heappush(self._events, (now + spent, self._num_events, trial, setting, until))
        self._num_events += 1

    def _has_ended(self, now: float, trial: optuna.Trial, setting: Recorded, step: int) -> bool:
        """Judges a trial at `step` as a study does, and tells Optuna where that ends it."""
        pruned = optuna.trial.TrialState.PRUNED
        if setting.breach is not None and setting.breach.step == step:
            trial.set_constraint(CONSTRAINT, setting.breach.constraint)
            self._study.tell(trial, state=pruned)
            return True
        trial.report(setting.accuracy[step], step)
        is_last = step == self._config.train.num_steps
        frozen = self._study.get_trials(deepcopy=False)[trial.number]
        if not is_last and not self._pruner.prune(self._study, frozen):
            self._follow(now, trial, setting, step)
            return False
        trial.set_constraint(CONSTRAINT, 0.0)
        if is_last:
            self._study.tell(trial, setting.accuracy[step])
        else:
            self._study.tell(trial, state=pruned)
        return True


def resample(seed: int) -> dict[str, float]:
    """Median seconds of both sides on settings drawn again with replacement."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    config, settings = recorded()
    draws = random.Random(seed)
    pool = [draws.choice(settings) for _ in settings]
    trial_at = neighbours(pool, draws)
    by_random, by_sweep, targets = [], [], []
    for number in range(NUM_TARGETS):
        target = best_of_random(config, trial_at, draws)
        times = [random_search_s(config, trial_at, target, draws) for _ in range(NUM_RANDOM_STUDIES)]
        targets.append(target)
        by_random.append(statistics.median(times))
        by_sweep.append(ReplayedStudy(config, trial_at, NUM_TARGETS * seed + number).seconds_to(target))
    random_s, sweep_s = statistics.median(by_random), statistics.median(by_sweep)
    return {
        "target": statistics.median(targets),
        "random_s": random_s,
        "sweep_s": sweep_s,
        "ratio": random_s / sweep_s,
        "never": statistics.fmean(map(math.isinf, by_sweep)),
    }


def measure() -> dict[str, Any]:
    """The ratio of median times over resamples of the settings."""
    with ProcessPoolExecutor(NUM_SLOTS, mp_context=multiprocessing.get_context("spawn")) as workers:
        found = list(workers.map(resample, range(1, NUM_RESAMPLES + 1), chunksize=5))
    ratios = sorted(each["ratio"] for each in found)
    cut = round(0.025 * len(ratios))
    settings = recorded()[1]
    return {
        "num_settings": len(settings),
        "num_breaching": sum(setting.breach is not None for setting in settings),
        **{key: statistics.median(each[key] for each in found) for key in ("target", "random_s", "sweep_s", "ratio")},
        "low": ratios[cut],
        "high": ratios[-1 - cut],
        "share of studies that never reached the target": statistics.fmean(each["never"] for each in found),
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
