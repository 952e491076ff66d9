"""What a trial costs the controller, against the bare calls: `python -m tests.benchmarks.controller`.

500 trials that do nothing in 2 slots: the loop of a study with ask, records on disk, events, Optuna, MLflow, and with
the report that it orders now and then; beside it ask, suggest, report, should_prune and tell of Optuna and a run with
the same params, tags and metrics by MlflowClient, on stores set up alike (SQLite with a write-ahead log). Blocks of 100
trials take turns in one process, and our clock of a block runs until MLflow has all of it.
"""

import contextlib
import io
import json
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from sweeps import mlflow_records as records
from sweeps.config import load_sweep
from sweeps.continuation import write_sweep
from sweeps.controller_record import ControllerRecord
from sweeps.progress import open_progress
from sweeps.report_writer import ReportWriter
from sweeps.search_space import apply_params, suggest
from sweeps.sections import SweepConfig
from sweeps.study import SweepStudy
from sweeps.study_folder import StudyFolder, read_json
from sweeps.study_storage import open_storage
from sweeps.tracking import Tracker
from sweeps.trial_loop import TrialLoop
from tests.benchmarks.idle_trials import IdleExecutor, step_metrics
from tests.benchmarks.lines import Line
from tests.benchmarks.step_setups import SPACE

NUM_TRIALS, BLOCK = 500, 100
_POLL_S = 0.005


def measure() -> dict[str, Any]:
    """Seconds per trial of both in each block, and the median of the blocks' ratios."""
    overrides = (f"study.n_trials={NUM_TRIALS}", "train.num_steps=1", "train.eval.every=1", "study.pruner.min_steps=1")
    config = load_sweep(SPACE, overrides, profile="cpu")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        ours, bare = _in_turns(config, Path(folder))
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    return {
        "ours, ms a trial by block": [1e3 * seconds / BLOCK for seconds in ours],
        "bare, ms a trial by block": [1e3 * seconds / BLOCK for seconds in bare],
        "ours, ms a trial": 1e3 * sum(ours) / NUM_TRIALS,
        "bare, ms a trial": 1e3 * sum(bare) / NUM_TRIALS,
        "ratio": statistics.median(ratios),
    }


def lines(figures: dict[str, Any]) -> list[Line]:
    """The line of the table."""
    return [Line("controller, seconds a trial against the bare calls", figures["ratio"], at_most=1.5)]


def _in_turns(config: SweepConfig, folder: Path) -> tuple[list[float], list[float]]:
    ours: list[float] = []
    bare: list[float] = []
    peer = BareCalls(config, folder)
    study_folder = StudyFolder(folder / "runs" / config.study.name)
    write_sweep(study_folder, config)
    tracker = Tracker(config, study_folder, folder / "runs")
    block_started = 0.0

    def before_start(num_started: int) -> None:
        nonlocal block_started
        if num_started and num_started % BLOCK == 0:
            _wait_for(tracker, study_folder, num_started)
            ours.append(time.perf_counter() - block_started)
            bare.append(peer.run_block())
        if num_started % BLOCK == 0:
            block_started = time.perf_counter()

    tracker.start()
    while not study_folder.tracking_file.exists():
        time.sleep(_POLL_S)
    record = ControllerRecord(study_folder, config, [])
    with contextlib.closing(SweepStudy(config, study_folder)) as study, contextlib.closing(open_progress()) as progress:
        loop = TrialLoop(
            config,
            study_folder,
            study,
            IdleExecutor(before_start),
            tracker=tracker,
            report=ReportWriter(study_folder),
            record=record,
            progress=progress,
            should_stop=lambda: False,
        )
        loop.run()
        problem = tracker.close("done")
        assert problem is None, problem
        ours.append(time.perf_counter() - block_started)
        bare.append(peer.run_block())
    return ours, bare


def _wait_for(tracker: Tracker, folder: StudyFolder, num_started: int) -> None:
    """Until MLflow has every trial that has ended: all that were started but those still in a slot."""
    while True:
        tracker.wake()
        trials = (read_json(folder.tracking_file) or {}).get("trials", {})
        if sum(trial["ended"] for trial in trials.values()) >= num_started - IdleExecutor.capacity:
            return
        time.sleep(_POLL_S)


class BareCalls:
    """The same trials by Optuna and MLflow alone."""

    def __init__(self, config: SweepConfig, folder: Path) -> None:
        self._config = config
        sampler = optuna.samplers.TPESampler(seed=7, n_startup_trials=config.study.sampler.n_startup_trials)
        self._study = optuna.create_study(
            storage=open_storage(config, StudyFolder(folder / "bare")),
            direction=config.study.objective.direction,
            sampler=sampler,
            pruner=optuna.pruners.HyperbandPruner(min_resource=1, max_resource=1),
        )
        with contextlib.closing(sqlite3.connect(folder / "bare" / "mlflow.db")) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        self._client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'bare' / 'mlflow.db'}")
        self._experiment = self._client.create_experiment("bare", artifact_location=str(folder / "bare-artifacts"))

    def run_block(self) -> float:
        """Seconds of the next `BLOCK` trials."""
        started = time.perf_counter()
        for _ in range(BLOCK):
            self._run_trial()
        return time.perf_counter() - started

    def _run_trial(self) -> None:
        trial = self._study.ask()
        params = suggest(trial, self._config.search_space)
        train = apply_params(self._config.train, params).model_dump(mode="json")
        tags = records.trial_tags(self._config, {"number": trial.number, "source": "sampler"})
        run_id = self._client.create_run(self._experiment, tags=tags, run_name=f"trial {trial.number}").info.run_id
        items = [Param(key, value) for key, value in records.trial_params(train, params).items()]
        for start in range(0, len(items), 100):
            self._client.log_batch(run_id, params=items[start : start + 100])
        now_ms, metrics = int(time.time() * 1000), step_metrics(1, float(train["optim"]["lr"]) * 1e3)
        self._client.log_batch(run_id, metrics=[Metric(name, value, now_ms, 1) for name, value in metrics.items()])
        value = metrics[self._config.study.objective.metric]
        trial.report(value, 1)
        trial.should_prune()
        self._study.tell(trial, value)
        self._client.log_batch(run_id, tags=[RunTag("outcome", "complete")])
        self._client.set_terminated(run_id)


if __name__ == "__main__":
    measured = measure()
    print(json.dumps(measured, indent=2))
    for line in lines(measured):
        print(line.text())
