"""Trials that do nothing by calls of Optuna and MLflow alone: what a person would write, with nothing to go on from.

`ask`, `suggest_*`, `report`, `should_prune` and `tell` with the study's own sampler and pruner, and in MLflow a run
with the same tags, params and metrics in as few calls as hold them. No record on disk, no artifacts, no constraint.
"""

import contextlib
import sqlite3
import time
from pathlib import Path

import optuna
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from sweeps import mlflow_records as records
from sweeps.sampling import build_pruner, build_sampler
from sweeps.search_space import apply_params, suggest
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder
from sweeps.study_storage import open_storage
from tests.benchmarks.idle_trials import EVALUATED, trial_steps


class BareCalls:
    """A study on stores of its own: set up as the controller sets up its own, or as the libraries make them."""

    def __init__(self, config: SweepConfig, folder: Path, *, is_set_up_as_ours: bool) -> None:
        self._config = config
        folder.mkdir()
        storage = open_storage(config, StudyFolder(folder)) if is_set_up_as_ours else f"sqlite:///{folder}/study.db"
        if is_set_up_as_ours:
            with contextlib.closing(sqlite3.connect(folder / "mlflow.db")) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
        self._study = optuna.create_study(
            storage=storage,
            direction=config.study.objective.direction,
            sampler=build_sampler(config),
            pruner=build_pruner(config),
        )
        self._client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
        self._experiment = self._client.create_experiment("bare", artifact_location=str(folder / "artifacts"))

    def run_trials(self, num_trials: int) -> float:
        """Seconds of the next trials."""
        started = time.perf_counter()
        for _ in range(num_trials):
            self._run_trial()
        return time.perf_counter() - started

    def _run_trial(self) -> None:
        trial = self._study.ask()
        params = suggest(trial, self._config.search_space)
        train = apply_params(self._config.train, params).model_dump(mode="json")
        tags = records.trial_tags(self._config, {"number": trial.number, "source": "sampler"})
        run_id = self._client.create_run(self._experiment, tags=tags, run_name=f"trial {trial.number}").info.run_id
        items = [Param(key, value) for key, value in records.trial_params(train, params).items()]
        self._client.log_batch(run_id, params=items)
        now_ms, steps = int(time.time() * 1000), trial_steps(float(train["optim"]["lr"]))
        value = steps[EVALUATED][self._config.study.objective.metric]
        trial.report(value, EVALUATED)
        trial.should_prune()
        self._study.tell(trial, value)
        points = [
            Metric(name, number, now_ms, step) for step, metrics in steps.items() for name, number in metrics.items()
        ]
        self._client.log_batch(run_id, metrics=points, tags=[RunTag("outcome", "complete")])
        self._client.set_terminated(run_id)
