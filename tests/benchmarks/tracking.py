"""Metrics a second that tracking sustains from 8 trials at once, against bare `log_batch` of 1,000.

`python -m tests.benchmarks.tracking`: 8 trials that write steps as fast as tracking takes them, a pass of the feed
after each portion; beside it as many metrics in calls of `MlflowClient.log_batch` with 1,000 each, made beforehand, on
stores set up alike (SQLite with a write-ahead log). They take turns, and take turns to go first.
"""

import contextlib
import json
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric

from grpo_core.run_record import METRICS_FILE
from sweeps.config import load_sweep
from sweeps.continuation import write_sweep
from sweeps.mlflow_feed import Feed
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, write_json
from tests.benchmarks.idle_trials import step_metrics
from tests.benchmarks.lines import Line
from tests.benchmarks.step_setups import SPACE

NUM_TRIALS, NUM_ROUNDS = 8, 9
#: Steps that each trial has written since the last pass: 2,000 metrics.
STEPS_PER_ROUND = 80
_BATCH = 1000


def measure() -> dict[str, Any]:
    """Rates of both in each round, and the median of the rounds' ratios."""
    config = load_sweep(SPACE, profile="cpu")
    with tempfile.TemporaryDirectory() as temporary:
        tracked, bare = Tracked(config, Path(temporary)), Bare(Path(temporary))
        pairs = [_round(tracked, bare, number) for number in range(NUM_ROUNDS + 1)][1:]
    ours, theirs = (list(rates) for rates in zip(*pairs, strict=True))
    return {
        "metrics of each": NUM_ROUNDS * STEPS_PER_ROUND * NUM_TRIALS * len(step_metrics(1)),
        "tracking, metrics/s": ours,
        "bare log_batch, metrics/s": theirs,
        "tracking, metrics/s, median": statistics.median(ours),
        "bare log_batch, metrics/s, median": statistics.median(theirs),
        "ratio": statistics.median(a / b for a, b in pairs),
    }


def lines(figures: dict[str, Any]) -> list[Line]:
    """The line of the table."""
    return [Line("tracking from 8 trials, rate against bare log_batch(1000)", figures["ratio"], at_least=0.8)]


def _round(tracked: "Tracked", bare: "Bare", number: int) -> tuple[float, float]:
    """Rates of both; the first of them in one round is the second in the next."""
    if number % 2:
        rate = bare.run_round(number)
        return tracked.run_round(number), rate
    return tracked.run_round(number), bare.run_round(number)


def _steps(round_number: int) -> range:
    return range(round_number * STEPS_PER_ROUND + 1, (round_number + 1) * STEPS_PER_ROUND + 1)


class Tracked:
    """A study with 8 trials that run, and its feed."""

    def __init__(self, config: SweepConfig, folder: Path) -> None:
        self._folder = StudyFolder(folder / "runs" / config.study.name)
        write_sweep(self._folder, config)
        for number in range(NUM_TRIALS):
            write_json(self._folder.trial(number).params_file, {"number": number, "params": {}, "source": "sampler"})
        self._feed = Feed(config, self._folder, f"sqlite:///{folder / 'runs' / 'mlflow.db'}", folder / "runs")
        self._feed.send(range(NUM_TRIALS), "running")

    def run_round(self, number: int) -> float:
        """Metrics a second of a pass over what the trials have written by now."""
        num_metrics = 0
        for trial in range(NUM_TRIALS):
            with (self._folder.trial(trial).path / METRICS_FILE).open("a") as file:
                for step in _steps(number):
                    metrics = step_metrics(step, trial)
                    num_metrics += len(metrics)
                    file.write(json.dumps({"step": step, "time": time.time(), "metrics": metrics}) + "\n")
        started = time.perf_counter()
        self._feed.send(range(NUM_TRIALS), "running")
        return num_metrics / (time.perf_counter() - started)


class Bare:
    """8 runs of a store, and nothing but `log_batch`."""

    def __init__(self, folder: Path) -> None:
        with contextlib.closing(sqlite3.connect(folder / "bare.db")) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        self._client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'bare.db'}")
        experiment = self._client.create_experiment("bare", artifact_location=str(folder))
        self._runs = [self._client.create_run(experiment).info.run_id for _ in range(NUM_TRIALS)]

    def run_round(self, number: int) -> float:
        """Metrics a second of calls with as many metrics as fit."""
        now_ms = int(time.time() * 1000)
        points = [
            [
                Metric(name, value, now_ms, step)
                for step in _steps(number)
                for name, value in step_metrics(step, trial).items()
            ]
            for trial in range(NUM_TRIALS)
        ]
        started = time.perf_counter()
        for run_id, of_run in zip(self._runs, points, strict=True):
            for start in range(0, len(of_run), _BATCH):
                self._client.log_batch(run_id, metrics=of_run[start : start + _BATCH])
        return sum(map(len, points)) / (time.perf_counter() - started)


if __name__ == "__main__":
    measured = measure()
    print(json.dumps(measured, indent=2))
    for line in lines(measured):
        print(line.text())
