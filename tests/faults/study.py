"""A small study with real training under faults, and what must hold of it afterwards."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import psutil
from mlflow import MlflowClient
from optuna.trial import TrialState

from grpo_core.run_record import read_metrics
from sweeps.config import load_sweep
from sweeps.process_tree import MARK, PROCESSES_FILE
from sweeps.study_folder import StudyFolder, read_json

ROOT = Path(__file__).parents[2]
NAME, NUM_TRIALS, NUM_STEPS = "faults", 2, 6
SETTINGS = (
    f"study.name={NAME}",
    f"study.n_trials={NUM_TRIALS}",
    f"train.num_steps={NUM_STEPS}",
    "train.checkpoint.every=2",
    "train.eval.every=3",
    "resources.max_concurrent_trials=2",
    "resources.hang_timeout=20s",
)
TWO_RANKS = ("resources.processes_per_trial=2", "resources.max_concurrent_trials=1")
_TIMEOUT_S = 120.0


class Broken(AssertionError):
    """Something that must hold after a fault does not."""


class Study:
    """One study in a folder of its own, its controller a process that can be killed."""

    def __init__(self, runs_dir: Path, settings: tuple[str, ...] = (), fault: str = "") -> None:
        self.runs_dir = runs_dir
        self.runs_dir.mkdir(parents=True, exist_ok=True)
        self.folder = StudyFolder(runs_dir / NAME)
        self.fault = fault
        self.output = ""
        self.struck_at = 0.0
        self._config_file = runs_dir.parent / f"{runs_dir.name}.json"
        self.process: subprocess.Popen[str] | None = None
        self.configure(*settings)

    def configure(self, *settings: str) -> None:
        """Sets what the next launch asks for."""
        config = load_sweep(ROOT / "search_spaces" / "smoke.yaml", [*SETTINGS, *settings])
        self._config_file.write_text(json.dumps(config.dump()))

    def start(self) -> None:
        """Launches a controller."""
        environment = {**os.environ, "GRPO_FAULT": self.fault, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "tests.faults.controller", str(self._config_file), str(self.runs_dir)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def finish(self) -> int:
        """Waits for the controller; its exit code, its output added to `output`."""
        assert self.process is not None
        try:
            text, _ = self.process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            text, _ = self.process.communicate()
            self.output += text
            raise Broken(f"the controller has not ended after {_TIMEOUT_S:.0f} s") from None
        self.output += text
        return self.process.returncode

    def launch(self) -> int:
        """Launches a controller and waits for its end."""
        self.start()
        return self.finish()

    def wait_for_step(self, step: int, number: int = 0) -> None:
        """Waits until a trial has recorded a step."""
        self.wait(lambda: any(line["step"] >= step for line in self.folder.trial(number).steps()), f"step {step}")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Waits until something holds while the controller runs."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not condition():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Broken(f"{what} did not come; exit code {self.process.poll()}")
            time.sleep(0.02)

    def send(self, number: int) -> None:
        """Sends a signal to the controller."""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def rank(self, number: int, trial: int = 0) -> int:
        """Process id of a rank of a trial that runs."""
        record = read_json(self.folder.trial(trial).path / PROCESSES_FILE)
        if record is None:
            raise Broken(f"trial {trial} does not run")
        return int(record["ranks"][number]["pid"])

    def kill_rank(self, number: int, trial: int = 0, how: int = signal.SIGKILL) -> None:
        """Sends a signal to a rank."""
        pid = self.rank(number, trial)
        self.struck_at = time.time()
        os.kill(pid, how)

    def seconds_lost(self, trial: int = 0) -> float:
        """From the blow to the next new step of a trial, steps that were repeated included."""
        later = [line["time"] for line in self.folder.trial(trial).steps() if line["time"] > self.struck_at]
        return min(later) - self.struck_at

    def outcomes(self) -> list[dict[str, Any] | None]:
        """Outcome records by number, None for a trial that is open."""
        return [trial.outcome() for trial in self.folder.trials()]

    def said(self, pattern: str) -> None:
        """Raises Broken unless the terminal said so."""
        if not re.search(pattern, self.output):
            raise Broken(f"nothing in the output matches {pattern!r}")

    def check_whole(self, *, num_trials: int = NUM_TRIALS, states: tuple[str, ...] = ("complete",)) -> None:
        """Raises Broken unless attempts are exact, each ended in one of `states`, and no step is lost or doubled, in
        Optuna, on disk and in MLflow."""
        outcomes = self.outcomes()
        found = [None if outcome is None else outcome["state"] for outcome in outcomes]
        if len(found) != num_trials or not set(found) <= set(states):
            raise Broken(f"trials ended {found}")
        self.check_books()
        for trial, outcome in zip(self.folder.trials(), outcomes, strict=True):
            steps = [line["step"] for line in read_metrics(trial.metrics_file)]
            last = NUM_STEPS if outcome is not None and outcome["state"] == "complete" else len(steps)
            if steps != list(range(1, last + 1)):
                raise Broken(f"trial {trial.number} has steps {steps}")
            if steps and (points := self.points(trial.number)) != steps:
                raise Broken(f"MLflow has steps {points} of trial {trial.number}, not {steps}")

    def check_books(self) -> None:
        """Raises Broken where a process is left or anything is RUNNING."""
        if left := job_processes(self.runs_dir):
            raise Broken(f"processes {left} are left")
        if self.folder.study_db.exists():
            with closing(optuna.storages.RDBStorage(f"sqlite:///{self.folder.study_db}").engine.raw_connection()):
                trials = optuna.load_study(study_name=NAME, storage=f"sqlite:///{self.folder.study_db}").trials
            open_ones = [trial.number for trial in trials if trial.state == TrialState.RUNNING]
            still_open = [trial.number for trial in self.folder.trials() if trial.outcome() is None]
            if not set(open_ones) <= set(still_open):
                raise Broken(f"Optuna has trials {open_ones} RUNNING")
        for run in self.runs():
            if run.info.status == "RUNNING":
                raise Broken(f"MLflow has {run.info.run_name} RUNNING")

    @property
    def uri(self) -> str:
        return f"sqlite:///{(self.runs_dir / 'mlflow.db').resolve()}"

    def runs(self, query: str = "") -> list[Any]:
        """MLflow's runs of the study in the embedded store."""
        if not (self.runs_dir / "mlflow.db").exists():
            return []
        client = MlflowClient(tracking_uri=self.uri)
        experiment = client.get_experiment_by_name(NAME)
        return [] if experiment is None else list(client.search_runs([experiment.experiment_id], query))

    def points(self, number: int) -> list[int]:
        """Steps of a trial's reward that MLflow has, as often as it has them."""
        found = self.runs(f"tags.number = '{number}'")
        if len(found) != 1:
            raise Broken(f"MLflow has {len(found)} runs of trial {number}")
        history = MlflowClient(tracking_uri=self.uri).get_metric_history(found[0].info.run_id, "policy/entropy")
        return [point.step for point in history]


def job_processes(runs_dir: Path) -> list[int]:
    """Living processes that belong to jobs of the studies under `runs_dir`."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            if MARK in environment and str(runs_dir) in " ".join([*environment.values(), *_files(process)]):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def _files(process: psutil.Process) -> list[str]:
    return [os.readlink(f"/proc/{process.pid}/fd/1")] if Path(f"/proc/{process.pid}/fd/1").is_symlink() else []


def expect(code: int, wanted: int) -> None:
    """Raises Broken for another exit code."""
    if code != wanted:
        raise Broken(f"exit code {code}, not {wanted}")


def resumed(study: Study) -> str:
    """Launches again without a fault; everything must then be complete."""
    study.fault = ""
    expect(study.launch(), 0)
    study.check_whole()
    return "resumed, complete"


def retried(study: Study, rule: str) -> str:
    """Waits for the end; one trial must have been tried again for `rule`."""
    expect(study.finish(), 0)
    study.check_whole()
    tries = sum((outcome or {}).get("num_retries", 0) for outcome in study.outcomes())
    if tries != 1:
        raise Broken(f"{tries} retries")
    study.said(rule)
    return f"retried from its checkpoint, next new step after {study.seconds_lost():.1f} s, complete"


def begun(runs_dir: Path, *settings: str, fault: str = "", step: int = 3) -> Study:
    """A study whose trial 0 has recorded `step`."""
    study = Study(runs_dir, settings, fault)
    study.start()
    study.wait_for_step(step)
    return study


def killed(runs_dir: Path, step: int = 3) -> Study:
    """A study whose controller was killed after trial 0 had recorded `step`."""
    study = begun(runs_dir, step=step)
    study.send(signal.SIGKILL)
    study.finish()
    return study


def wait_for_ranks(study: Study) -> None:
    """Waits until ranks whose controller is gone have left."""
    deadline = time.monotonic() + 40
    while job_processes(study.runs_dir):
        if time.monotonic() > deadline:
            raise Broken("ranks outlived their controller by 40 s")
        time.sleep(0.1)
