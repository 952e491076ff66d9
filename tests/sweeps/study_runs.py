"""Studies of the jobs in `study_jobs`, in this process or in one of their own, and what they left behind."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import psutil
from mlflow import MlflowClient
from optuna.trial import TrialState

from sweeps.process_tree import MARK
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder

HERE = Path(__file__).parent
#: What the jobs of these tests use; training is not among it.
PRELOAD = ["sweeps.trial_process", "sweeps.guard", "grpo_core.run_record"]
KINDS = {"trial": "study_jobs:trial", "preflight": "study_jobs:preflight", "final": "study_jobs:final"}


class Lines:
    """A progress that keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.views: list[Any] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def phase(self, text: str) -> None:
        self.said.append(text)

    def show(self, view: Any) -> None:
        self.views.append(view)

    def close(self) -> None:
        pass

    def __contains__(self, text: str) -> bool:
        return any(text in line for line in self.said)


def data_of(space: dict[str, Any], n_trials: int, num_steps: int = 12, **given: Any) -> dict[str, Any]:
    study = {"name": "s", "n_trials": n_trials, "sampler": {"name": "random", "seed": 7}, **given.pop("study", {})}
    train = {
        "num_steps": num_steps,
        "eval": {"every": 5, "num_problems": 16},
        "checkpoint": {"every": 3},
        "algorithm": {"clip_range": given.pop("clip_range", 0.2)},
        "optim": {"lr": given.pop("lr", 1e-4)},
    }
    band = {"entropy": {"min": 0.5, "max": 1.0, "warmup_steps": 2, "patience": 2}}
    return {"study": study, "search_space": space, "stability": band, "train": train, **given}


def make_config(space: dict[str, Any], n_trials: int, **given: Any) -> SweepConfig:
    return SweepConfig.model_validate(data_of(space, n_trials, **given))


RATES = {"lr": {"values": [1e-4, 2e-4, 5e-3, 4e-4]}}
CLIPS = {"clip_range": {"min": 0.15, "max": 0.3}}


def trials_of(runs_dir: Path, name: str = "s") -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=name, storage=f"sqlite:///{runs_dir / name / 'study.db'}").trials


def mlflow_runs(runs_dir: Path, query: str = "tags.kind = 'trial'", name: str = "s") -> list:
    client = MlflowClient(tracking_uri=f"sqlite:///{runs_dir / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(name)
    return sorted(client.search_runs([experiment.experiment_id], query), key=lambda run: run.info.run_name)


def steps_of(folder: StudyFolder, number: int) -> list[int]:
    return [line["step"] for line in folder.trial(number).steps()]


def starts_of(folder: StudyFolder, number: int) -> list[int]:
    return [int(line) for line in (folder.trial(number).path / "starts.txt").read_text().split()]


def job_processes() -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if MARK in process.environ():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


class Alone:
    """A controller in a process of its own."""

    def __init__(self, tmp_path: Path, runs_dir: Path, data: dict[str, Any]) -> None:
        self.folder = StudyFolder(runs_dir / "s")
        self.config_file = tmp_path / "config.json"
        self.config_file.write_text(json.dumps(data))
        self.command = [sys.executable, str(HERE / "run_study_alone.py"), str(self.config_file), str(runs_dir)]
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def wait_for_steps(self, num_steps: int) -> None:
        """Waits until two trials are that far."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            far = [trial for trial in self.folder.trials() if len(trial.steps()) >= num_steps and not trial.outcome()]
            if len(far) >= 2:
                return
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError(self.process.communicate()[0])

    def finish(self) -> tuple[int, str]:
        """Exit code and output of the controller."""
        output, _ = self.process.communicate(timeout=90)
        return self.process.returncode, output

    def again(self) -> tuple[int, str]:
        """The same launch once more, to its end."""
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr


SLOW = data_of({"lr": {"min": 1e-5, "max": 9e-4, "log": True}}, n_trials=5, num_steps=14, clip_range=0.15)


def assert_complete(folder: StudyFolder, runs_dir: Path, num_trials: int) -> None:
    """Exactly so many attempts, all ended, and no step lost or doubled, on disk and in MLflow."""
    trials = trials_of(runs_dir)
    assert [trial.number for trial in folder.trials()] == list(range(num_trials))
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * num_trials
    runs = mlflow_runs(runs_dir)
    assert [run.info.run_name for run in runs] == [f"trial {number:04d}" for number in range(num_trials)]
    assert {run.info.status for run in runs} == {"FINISHED"}
    client = MlflowClient(tracking_uri=f"sqlite:///{runs_dir / 'mlflow.db'}")
    for number, run in enumerate(runs):
        assert steps_of(folder, number) == list(range(1, 15))
        history = client.get_metric_history(run.info.run_id, "reward/mean")
        assert [point.step for point in history] == list(range(1, 15))
    assert mlflow_runs(runs_dir, "tags.kind = 'study'")[0].info.status == "FINISHED"
