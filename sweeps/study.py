"""The study in Optuna: which settings come next, what the pruner says, what the sampler is told.

Optuna's storage is written by one controller only and follows the records on disk: a storage that was lost is rebuilt.
"""

import json
import math
import warnings
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import optuna
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeps.grid import combinations
from sweeps.sampling import READS_ONLY_COMPLETE, build_pruner, build_sampler
from sweeps.search_space import covered_params, default_params, suggest
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, TrialFolder
from sweeps.study_storage import open_storage, patiently

#: Name of the constraint that every finished trial carries, 0 where nothing was breached.
CONSTRAINT = "stability"
_SKIPPED = "skipped"
_TOLD = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


@dataclass(frozen=True)
class Draw:
    """What one trial is to run; `repeat_of` names the trial whose settings it runs again with another seed."""

    number: int
    params: dict[str, Any]
    distributions: dict[str, str]
    source: str
    seed: int
    repeat_of: int | None = None

    def record(self) -> dict[str, Any]:
        """The content of params.json."""
        return {key: value for key, value in asdict(self).items() if key != "repeat_of" or value is not None}


class SweepStudy:
    """One study in Optuna's storage, opened by its only controller.

    Opening creates it, with the file's own defaults as trial 0, or takes up what an earlier controller left: outcomes
    on disk that were not told are told, and trials without one are handed out again by `draw`.
    """

    def __init__(self, config: SweepConfig, folder: StudyFolder) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.config = config
        self._folder = folder
        self._storage = open_storage(config, folder)
        sampler = build_sampler(config)
        # The sampler must not see the pruner: under Hyperband Optuna would show it only the trials of one bracket,
        # a third of a study of 16. `report` asks the pruner itself.
        self._pruner = build_pruner(config)
        self._study = optuna.create_study(
            study_name=config.study.name,
            storage=self._storage,
            direction=config.study.objective.direction,
            sampler=sampler,
            pruner=optuna.pruners.NopPruner(),
            load_if_exists=True,
        )
        self._handed_out: dict[int, optuna.Trial] = {}
        # Steps whose objective the storage has, of the trials handed out.
        self._reported: dict[int, set[int]] = {}
        # Settings of the trials that have ended, as `_key` gives them: they do not change any more.
        self._keys: dict[int, str] = {}
        if not self._trials():
            self._rebuild()
        self._queue_covered()
        self._study.sampler = build_sampler(config, num_trials=len(self._trials()))
        for trial in self._trials():
            outcome = folder.trial(trial.number).outcome()
            if trial.state == TrialState.RUNNING and outcome is not None:
                self.tell(outcome)

    def close(self) -> None:
        """Lets go of the storage's connections."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    @property
    def disagrees_with_disk(self) -> bool:
        """Whether the storage has the end of a trial that the records on disk, which are the truth, have open."""
        ended = (trial for trial in self._trials() if trial.state.is_finished() and not _is_skipped(trial))
        folders = (self._folder.trial(trial.number) for trial in ended)
        return any(folder.params_file.exists() and folder.outcome() is None for folder in folders)

    @property
    def num_attempts(self) -> int:
        """Trials that were started, ended or not; draws that were skipped for a repetition do not count."""
        return sum(map(_is_attempt, self._trials()))

    @property
    def num_waiting(self) -> int:
        """Trials that an earlier controller left open and that were not handed out again."""
        return len(self._waiting(self._trials()))

    @property
    def num_left(self) -> int:
        """Trials that this study may still start or go on with."""
        return self.num_waiting + max(0, self.config.study.n_trials - self.num_attempts)

    def draw(self) -> Draw | None:
        """The next trial to run, one that an earlier controller left before a new one; None when none is left."""
        while True:
            trials = self._trials()
            waiting = self._waiting(trials)
            if waiting:
                trial = self._attach(trials[waiting[0]])
            elif sum(map(_is_attempt, trials)) < self.config.study.n_trials:
                trial = self._ask(trials)
            else:
                return None
            draw = self._take_up(trial, trials)
            if draw is not None:
                return draw

    def report(self, number: int, step: int, value: float) -> bool:
        """Records the objective at an evaluation step; True when the pruner would stop the trial there."""
        trial = self._handed_out[number]
        if step not in self._reported[number]:
            patiently(lambda: trial.report(value, step))
            self._reported[number].add(step)
        # A trial at its last step has cost all that it can cost; covered settings are there to be compared, all of them
        # at their full length.
        if step >= self.config.train.num_steps or self._is_covered(trial.params):
            return False
        # As `should_prune` of Optuna hands it over: what was reported, without another reading of all trials.
        return self._pruner.prune(self._study, trial._get_latest_trial())

    def tell(self, outcome: dict[str, Any]) -> None:
        """Ends a trial as its outcome record says; a second telling changes nothing."""
        number = outcome["number"]
        state, value = self._as_told(outcome)
        trial = self._handed_out.get(number) or self._attach(self._trials()[number])
        with warnings.catch_warnings():
            # Optuna looks itself whether the trial has one, keeps it, and says so.
            warnings.filterwarnings("ignore", message="The constraint value is ignored")
            if state != TrialState.FAIL:
                patiently(lambda: trial.set_constraint(CONSTRAINT, outcome.get("constraint", 0.0)))
            # CMA-ES learns of a breach by its objective, and says each time that it will not by its constraint.
            warnings.filterwarnings("ignore", message="Constraints have been set")
            patiently(lambda: self._study.tell(trial, value, state=state, skip_if_finished=True))

    def _ask(self, trials: list[FrozenTrial]) -> optuna.Trial:
        """Creates the next trial in the storage, without its params; `trials` are those before it."""
        is_queued = any(trial.state == TrialState.WAITING for trial in trials)
        if self.config.study.sampler.name in ("grid", "random") and not is_queued:
            # Drawn without repetition where the space is finite, rather than drawn and skipped.
            unvisited = self._unvisited(trials)
            if unvisited is not None:
                self._study.enqueue_trial(unvisited)
        return patiently(self._study.ask)

    def _take_up(self, trial: optuna.Trial, trials: list[FrozenTrial]) -> Draw | None:
        """Draws what `trial` lacks, and hands it out; None where it would only repeat another of `trials`."""
        number = trial.number
        # An earlier controller may have died between two of these draws: what is there already stays as it is.
        params = patiently(lambda: suggest(trial, self.config.search_space))
        recorded = self._folder.trial(number).params()
        if recorded is not None:
            known: dict[str, Any] = {field.name: recorded.get(field.name) for field in fields(Draw)}
            draw = Draw(**known)
        else:
            twins = self._twins(number, params, trials)
            if twins and self._skip_for_another(trial, twins[0], trials):
                return None
            is_default = number == 0 and params == default_params(self.config)
            draw = Draw(
                number=number,
                params=params,
                distributions={name: distribution_to_json(value) for name, value in trial.distributions.items()},
                source="defaults" if is_default else "sampler" if twins or not self._is_covered(params) else "cover",
                seed=self.config.train.seed + len(twins),
                repeat_of=twins[0] if twins else None,
            )
        self._handed_out[number] = trial
        # A trial that was asked for just now is not among them.
        self._reported[number] = set(trials[number].intermediate_values) if number < len(trials) else set()
        return draw

    def _skip_for_another(self, trial: optuna.Trial, twin: int, trials: list[FrozenTrial]) -> bool:
        """Ends a trial that would repeat `twin` and queues settings that no trial ran; False where there are none."""
        unvisited = self._unvisited(trials)
        if unvisited is None:
            return False
        # Its number is used up, but it is no attempt: nothing ever ran under it.
        trial.set_user_attr(_SKIPPED, f"settings of trial {twin}")
        self._study.enqueue_trial(unvisited)
        self._study.tell(trial, state=TrialState.FAIL)
        return True

    def _attach(self, trial: FrozenTrial) -> optuna.Trial:
        """The handle on a trial that this controller did not ask for."""
        return patiently(lambda: optuna.Trial(self._study, trial._trial_id))

    def _trials(self) -> list[FrozenTrial]:
        return patiently(lambda: self._study.get_trials(deepcopy=False))

    def _waiting(self, trials: list[FrozenTrial]) -> list[int]:
        running = (trial.number for trial in trials if trial.state == TrialState.RUNNING)
        return [number for number in running if number not in self._handed_out]

    def _twins(self, number: int, params: dict[str, Any], trials: list[FrozenTrial]) -> list[int]:
        """Earlier trials with these params; failed ones do not count, since their settings were never measured."""
        alive = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
        same = (trial for trial in trials if trial.number < number and trial.state in alive and _is_attempt(trial))
        key = _key(params)
        return [trial.number for trial in same if self._key_of(trial) == key]

    def _key_of(self, trial: FrozenTrial) -> str:
        key = self._keys.get(trial.number) or _key(trial.params)
        if trial.state.is_finished():
            self._keys[trial.number] = key
        return key

    def _unvisited(self, trials: list[FrozenTrial]) -> dict[str, Any] | None:
        """Settings that no trial ran, in seeded order; None where all did, or they are endless."""
        visited = {self._key_of(trial) for trial in trials if not _is_skipped(trial)}
        visited |= {_key(trial.system_attrs.get("fixed_params", {})) for trial in trials}
        return next((params for params in self._points if _key(params) not in visited), None)

    @cached_property
    def _points(self) -> list[dict[str, Any]]:
        return combinations(self.config.search_space, seed=self.config.study.sampler.seed)

    def _as_told(self, outcome: dict[str, Any]) -> tuple[TrialState, float | None]:
        state = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}[
            outcome["state"]
        ]
        breach = state == TrialState.PRUNED and outcome.get("constraint", 0.0) > 0
        if breach and self.config.study.sampler.name in READS_ONLY_COMPLETE:
            worst = self._worst_objective()
            if worst is not None:
                return TrialState.COMPLETE, worst
        return state, outcome["objective"] if state == TrialState.COMPLETE else None

    def _worst_objective(self) -> float | None:
        values = [value for trial in self._trials() for value in (*trial.intermediate_values.values(), trial.value)]
        finite = [value for value in values if value is not None and math.isfinite(value)]
        worst = min if self.config.study.objective.direction == "maximize" else max
        return worst(finite, default=None)

    def _rebuild(self) -> None:
        """Fills an empty storage from the trials on disk, or with trial 0 where there are none."""
        folders = {folder.number: folder for folder in self._folder.trials()}
        if 0 not in folders:
            self._study.enqueue_trial(default_params(self.config))
        for number in range(0 if 0 in folders else 1, max(folders, default=-1) + 1):
            self._study.add_trial(self._from_disk(folders[number]) if number in folders else _skipped_trial())

    def _queue_covered(self) -> None:
        """Queues the settings of `study.cover` that no trial ran and that are not queued yet."""
        trials = self._trials()
        known = {_key(trial.params) for trial in trials}
        known |= {_key(trial.system_attrs.get("fixed_params", {})) for trial in trials}
        for key, params in self._covered.items():
            if key not in known:
                self._study.enqueue_trial(params)

    def _is_covered(self, params: dict[str, Any]) -> bool:
        return _key(params) in self._covered

    @cached_property
    def _covered(self) -> dict[str, dict[str, Any]]:
        return {_key(params): params for params in covered_params(self.config)}

    def _from_disk(self, folder: TrialFolder) -> FrozenTrial:
        record, outcome = folder.params(), folder.outcome()
        assert record is not None
        state, value = (TrialState.RUNNING, None) if outcome is None else self._as_told(outcome)
        reported = {
            line["step"]: line["metrics"][self.config.study.objective.metric]
            for line in folder.steps()
            if math.isfinite(line["metrics"].get(self.config.study.objective.metric, math.nan))
        }
        if state == TrialState.PRUNED and reported:
            value = reported[max(reported)]
        learned = outcome is not None and state != TrialState.FAIL
        return create_trial(
            state=state,
            value=value,
            params=record["params"],
            distributions={name: json_to_distribution(text) for name, text in record["distributions"].items()},
            intermediate_values=reported,
            constraints={CONSTRAINT: outcome.get("constraint", 0.0)} if learned and outcome else None,
        )


def _is_skipped(trial: FrozenTrial) -> bool:
    return _SKIPPED in trial.user_attrs


def _is_attempt(trial: FrozenTrial) -> bool:
    return trial.state != TrialState.WAITING and not _is_skipped(trial)


def _skipped_trial() -> FrozenTrial:
    return create_trial(state=TrialState.FAIL, user_attrs={_SKIPPED: "no record on disk"})


def _key(params: dict[str, Any]) -> str:
    """Params as text that is equal for equal settings, float error in the last places aside."""
    rounded = {k: float(f"{v:.12g}") if isinstance(v, float) else v for k, v in params.items()}
    return json.dumps(rounded, sort_keys=True)
