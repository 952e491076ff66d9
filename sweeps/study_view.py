"""A study as its records on disk show it: the rows of the progress table, also from outside the controller."""

import time
from collections.abc import Mapping
from typing import Any

from grpo_core.metric_names import POLICY_ENTROPY, REWARD_MEAN
from sweeps.progress import Progress, StudyView, TrialRow
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, TrialFolder, read_lines
from sweeps.summary import settings

#: Time between two looks at the records.
WATCH_INTERVAL_S = 1.0


def row_of_ended(trial: TrialFolder, outcome: Mapping[str, Any], config: SweepConfig) -> TrialRow:
    """The row of a trial that has ended."""
    return TrialRow(
        number=trial.number,
        state=outcome["state"],
        step=outcome["last_step"],
        num_steps=config.train.num_steps,
        objective=outcome["objective"],
        settings=settings((trial.params() or {}).get("params", {})),
        note=(outcome["reason"] or {}).get("rule", ""),
    )


class WatchedStudy:
    """Follows a study from outside; each look reads only what was added since the last one."""

    def __init__(self, folder: StudyFolder, config: SweepConfig) -> None:
        self._folder = folder
        self._config = config
        self._ended: dict[int, TrialRow] = {}
        self._offsets: dict[int, int] = {}
        self._metrics: dict[int, dict[str, float]] = {}
        self._steps: dict[int, int] = {}

    def look(self) -> StudyView:
        """The study as it stands now."""
        is_live = self._folder.live_controller() is not None
        rows = [self._row(trial, is_live) for trial in self._folder.trials()]
        return StudyView(
            name=self._folder.name,
            objective=self._config.study.objective.metric,
            n_trials=self._config.study.n_trials,
            rows=rows,
            elapsed_s=self._elapsed_s(is_live),
        )

    def _row(self, trial: TrialFolder, is_live: bool) -> TrialRow:
        if (known := self._ended.get(trial.number)) is not None:
            return known
        outcome = trial.outcome()
        if outcome is not None:
            self._ended[trial.number] = row_of_ended(trial, outcome, self._config)
            return self._ended[trial.number]
        lines, self._offsets[trial.number] = read_lines(trial.metrics_file, self._offsets.get(trial.number, 0))
        metrics = self._metrics.setdefault(trial.number, {})
        for line in lines:
            metrics |= line["metrics"]
            self._steps[trial.number] = line["step"]
        return TrialRow(
            number=trial.number,
            state="running" if is_live else "open",
            step=self._steps.get(trial.number, 0),
            num_steps=self._config.train.num_steps,
            objective=metrics.get(self._config.study.objective.metric),
            reward=metrics.get(REWARD_MEAN),
            entropy=metrics.get(POLICY_ENTROPY),
            settings=settings((trial.params() or {}).get("params", {})),
        )

    def _elapsed_s(self, is_live: bool) -> float:
        record = self._folder.controller()
        since = time.time() - record.get("heartbeat", time.time()) if is_live else 0.0
        return float(record.get("active_s", 0.0)) + max(0.0, since)


def watch(folder: StudyFolder, config: SweepConfig, progress: Progress, interval_s: float = WATCH_INTERVAL_S) -> None:
    """Shows a study until nobody runs it any more; the last look is shown too. Ctrl-C ends the watching alone."""
    study = WatchedStudy(folder, config)
    try:
        while folder.live_controller() is not None:
            progress.show(study.look())
            time.sleep(interval_s)
    finally:
        progress.close()
    progress.say(study.look().status())
