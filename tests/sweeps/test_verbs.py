import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from sweeps.continuation import write_sweep
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, write_json, write_text
from sweeps.verbs import main


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def add_study(runs_dir: Path, name: str = "s") -> StudyFolder:
    data = {"study": {"name": name, "n_trials": 3}, "search_space": {"lr": {"min": 1e-5, "max": 1e-3, "log": True}}}
    folder = StudyFolder(runs_dir / name)
    write_sweep(folder, SweepConfig.model_validate(data))
    return folder


def add_trial(folder: StudyFolder, number: int, state: str | None, **outcome: Any) -> None:
    trial = folder.trial(number)
    write_json(trial.params_file, {"number": number, "params": {"lr": 1e-4 * (number + 1)}, "seed": 0})
    metrics = {"eval/accuracy": 0.5, "eval/accuracy_se": 0.02}
    write_text(trial.metrics_file, json.dumps({"step": 20, "time": 1.0, "metrics": metrics}) + "\n")
    if state is not None:
        record = {"number": number, "state": state, "objective": None, "reason": None, "last_step": 60, **outcome}
        write_json(trial.outcome_file, {"checkpoint": None, **record})


def add_three_trials(folder: StudyFolder) -> None:
    add_trial(folder, 0, "complete", objective=0.5)
    add_trial(folder, 1, "pruned", last_step=9, reason={"rule": "entropy", "message": "policy/entropy is 1.4 nats"})
    add_trial(folder, 2, None)
    write_json(folder.preflight_file, {"eval/accuracy": 0.17, "eval/accuracy_se": 0.01})


def call(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main([*map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_status_of_one_study(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = add_study(runs_dir)
    add_three_trials(folder)
    write_json(folder.controller_file, {"state": "running", "pid": 1, "pid_start_time": 0.0})
    code, out, _ = call(capsys, "status", "s", "--runs-dir", runs_dir)
    assert code == 0
    assert out.splitlines() == [
        "s: killed, go on with: python -m sweeps resume s; 1 complete, 1 pruned, 1 open",
        "  trial 0: complete, eval/accuracy 0.5  (lr 0.0001)",
        "  trial 1: pruned at step 9: policy/entropy is 1.4 nats  (lr 0.0002)",
        "  trial 2: open, goes on with resume, step 20 of 60, eval/accuracy 0.5  (lr 0.0003)",
        "best: trial 0, eval/accuracy 0.500 ± 0.039",
        "  settings: lr 0.0001",
        "  before training: 0.170 ± 0.020",
    ]


def test_status_of_all_studies(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_study(runs_dir, "b")
    folder = add_study(runs_dir, "a")
    write_json(folder.controller_file, {"state": "failed", "message": "it broke"})
    code, out, _ = call(capsys, "status", "--runs-dir", runs_dir)
    assert code == 0
    assert out.splitlines() == ["a: failed (it broke); no trials yet", "b: not started; no trials yet"]


@pytest.mark.parametrize("verb", ["status", "resume", "best", "stop"])
def test_an_unknown_study_is_answered_with_those_there_are(
    runs_dir: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    add_study(runs_dir, "gsm8k")
    code, _, err = call(capsys, verb, "gsmk8", "--runs-dir", runs_dir)
    assert code == 2
    assert err == f"gsmk8: no such study under {runs_dir}; studies there: gsm8k\n"
    code, _, err = call(capsys, verb, "gsmk8", "--runs-dir", runs_dir / "none")
    assert code == 2 and "python -m sweeps.launch FILE" in err


def test_best_prints_the_command_and_exports_the_policy(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = add_study(runs_dir)
    add_three_trials(folder)
    policy = folder.trial(0).path / "checkpoints" / "step_000060" / "policy"
    policy.mkdir(parents=True)
    (policy / "config.json").write_text("{}")
    add_trial(folder, 0, "complete", objective=0.5, checkpoint="checkpoints/step_000060")
    target = runs_dir / "exported"
    code, out, _ = call(capsys, "best", "s", "--runs-dir", runs_dir, "--export", target)
    assert code == 0
    assert f"python -m grpo_core.train {folder.trial(0).config_file} --run-dir {folder.trial(0).path}-again" in out
    assert (target / "config.json").read_text() == "{}"
    code, _, err = call(capsys, "best", "s", "--runs-dir", runs_dir, "--export", target)
    assert code == 2 and "exists and is not empty" in err


def test_best_without_a_complete_trial(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_study(runs_dir)
    code, out, _ = call(capsys, "best", "s", "--runs-dir", runs_dir)
    assert code == 1
    assert out == "no trial completed; the report says why each one stopped\n"


def test_best_says_when_the_checkpoint_is_gone(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = add_study(runs_dir)
    add_trial(folder, 0, "complete", objective=0.5, checkpoint="checkpoints/step_000060")
    code, _, err = call(capsys, "best", "s", "--runs-dir", runs_dir, "--export", runs_dir / "exported")
    assert code == 1 and "has no checkpoint any more" in err


def test_stop_ends_the_controller_and_nobody_else(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = add_study(runs_dir)
    code, out, _ = call(capsys, "stop", "s", "--runs-dir", runs_dir)
    assert (code, out) == (0, "study s is not running\n")
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started = psutil.Process(sleeper.pid).create_time()
    write_json(folder.controller_file, {"state": "running", "pid": sleeper.pid, "pid_start_time": started - 60})
    call(capsys, "stop", "s", "--runs-dir", runs_dir)
    assert sleeper.poll() is None
    write_json(folder.controller_file, {"state": "running", "pid": sleeper.pid, "pid_start_time": started})
    code, out, _ = call(capsys, "stop", "s", "--runs-dir", runs_dir)
    assert code == 0 and "python -m sweeps resume s" in out
    assert sleeper.wait(10) == -signal.SIGTERM


def test_resume_of_a_study_that_runs_is_refused(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = add_study(runs_dir)
    write_json(folder.controller_file, {"state": "running", "pid": os.getpid()})
    with folder.lock():
        code, _, err = call(capsys, "resume", "s", "--runs-dir", runs_dir)
    assert code == 2 and f"(pid {os.getpid()})" in err


@pytest.mark.parametrize("given", [["--n-trials", "0"], ["--timeout", "soon"]])
def test_resume_with_a_budget_that_means_nothing(
    runs_dir: Path, capsys: pytest.CaptureFixture[str], given: list[str]
) -> None:
    add_study(runs_dir)
    code, _, err = call(capsys, "resume", "s", "--runs-dir", runs_dir, *given)
    assert code == 2 and given[1] in err
