"""Trials that hang, run out of memory, are preempted or find the disk full: real processes, back or accounted for."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeps.controller import run_study
from sweeps.executors.local import LocalExecutor
from sweeps.executors.slots import Slot
from sweeps.process_tree import PROCESSES_FILE
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, read_json

from .study_runs import (
    KINDS,
    PRELOAD,
    SLOW,
    Alone,
    Lines,
    assert_complete,
    data_of,
    job_processes,
    make_config,
    mlflow_runs,
    starts_of,
    steps_of,
    trials_of,
)

# MLflow's own models use what SQLAlchemy is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ONE = {"lr": {"values": [1e-4]}}


def retries_of(folder: StudyFolder, number: int) -> list[str]:
    record = read_json(folder.trial(number).path / "retries.json")
    return [] if record is None else [each["rule"] for each in record["history"]]


def test_a_trial_that_hangs_is_ended_with_its_stacks_and_goes_on(launch: Callable, runs_dir: Path) -> None:
    config = make_config(ONE, n_trials=1, clip_range=0.16, resources={"hang_timeout": 1})
    result, lines = launch(config)
    folder = StudyFolder(runs_dir / "s")
    assert result.exit_code == 0
    assert "trial 0: no news for 1 s, though its processes lived; their stacks are in the log; it goes on" in lines
    outcome = folder.trial(0).outcome()
    assert outcome is not None
    assert (outcome["state"], outcome["num_retries"], outcome["changes"]) == ("complete", 1, {})
    assert retries_of(folder, 0) == ["hang"]
    assert starts_of(folder, 0) == [0, 3]
    assert steps_of(folder, 0) == list(range(1, 13))
    assert "study_jobs.py" in folder.trial(0).log_file.read_text()
    assert job_processes() == []


def test_a_rank_that_hangs_in_a_collective_takes_the_whole_trial_with_it(runs_dir: Path, _study_jobs: None) -> None:
    data = data_of(ONE, n_trials=1, num_steps=3, resources={"hang_timeout": 8, "processes_per_trial": 2})
    data["train"]["compute"] = {"num_ranks": 2}
    executor, lines = LocalExecutor([Slot()], preload=PRELOAD), Lines()
    kinds = {**KINDS, "trial": "study_jobs:waits_in_a_collective"}
    try:
        config = SweepConfig.model_validate(data)
        result = run_study(config, runs_dir=runs_dir, executor=executor, progress=lines, job_kinds=kinds)
    finally:
        executor.close()
    folder = StudyFolder(runs_dir / "s")
    assert result.exit_code == 0, lines.said
    outcome = folder.trial(0).outcome()
    assert outcome is not None and (outcome["state"], outcome["num_retries"]) == ("complete", 1)
    assert retries_of(folder, 0) == ["hang"]
    assert steps_of(folder, 0) == [1, 2, 3]
    # Both ranks say where they were.
    logs = [folder.trial(0).path / name for name in ("trial.log", "trial.rank1.log")]
    assert all("waits_in_a_collective" in log.read_text() for log in logs)
    assert job_processes() == []
    [child] = mlflow_runs(runs_dir)
    assert child.info.status == "FINISHED"


def test_out_of_memory_halves_what_is_in_memory_and_says_so(launch: Callable, runs_dir: Path) -> None:
    # 64 and 32 completions of 8 MB are more than 300 MB hold less what is taken already; 16 are not.
    result, lines = launch(make_config(ONE, n_trials=1, clip_range=0.17))
    folder = StudyFolder(runs_dir / "s")
    assert result.exit_code == 0
    outcome = folder.trial(0).outcome()
    assert outcome is not None and outcome["state"] == "complete", lines.said
    changed = outcome["changes"]
    assert changed["optim.micro_batch_size"] in (16, 32) and changed["rollout.chunk_size"] in (64, 128)
    assert set(retries_of(folder, 0)) == {"out_of_memory"}
    assert f"optim.micro_batch_size {changed['optim.micro_batch_size']}" in lines
    assert steps_of(folder, 0) == list(range(1, 13))


def test_what_does_not_fit_with_one_completion_fails_and_says_what_helps(launch: Callable, runs_dir: Path) -> None:
    data = data_of(ONE, n_trials=1, clip_range=0.17)
    data["train"]["optim"]["micro_batch_size"] = 1
    result, _ = launch(SweepConfig.model_validate(data), kinds={"trial": "study_jobs:never_fits"})
    outcome = StudyFolder(runs_dir / "s").trial(0).outcome()
    assert result.exit_code == 0 and outcome is not None
    assert (outcome["state"], outcome["reason"]["rule"], outcome["num_retries"]) == ("failed", "out_of_memory", 0)
    assert "one completion at a time is still too much: take a smaller policy" in outcome["reason"]["message"]


def test_a_full_disk_stops_the_study_and_leaves_it_resumable(launch: Callable, runs_dir: Path) -> None:
    result, _ = launch(make_config(ONE, n_trials=2, clip_range=0.18))
    folder = StudyFolder(runs_dir / "s")
    assert (result.exit_code, result.state) == (1, "failed")
    assert "No space left on device" in result.message and "make room" in result.message
    assert f"go on with: python -m sweeps resume s --runs-dir {runs_dir}" in result.message
    assert [trial.outcome() for trial in folder.trials()] == [None] * len(folder.trials())
    assert {run.info.status for run in mlflow_runs(runs_dir)} == {"KILLED"}
    assert job_processes() == []


def test_a_trial_that_is_preempted_leaves_a_checkpoint_and_goes_on_from_it(tmp_path: Path, runs_dir: Path) -> None:
    alone = Alone(tmp_path, runs_dir, SLOW)
    alone.wait_for_steps(5)
    record = read_json(alone.folder.trial(0).path / PROCESSES_FILE)
    assert record is not None
    sent = time.monotonic()
    os.kill(record["ranks"][0]["pid"], signal.SIGTERM)
    while len(starts_of(alone.folder, 0)) < 2:
        assert time.monotonic() - sent < 10
        time.sleep(0.02)
    code, output = alone.finish()
    assert code == 0, output
    assert "trial 0: it was sent SIGTERM and left a checkpoint; it goes on from its last checkpoint" in output
    assert_complete(alone.folder, runs_dir, num_trials=5)
    # From the step that it stopped at, which no multiple of checkpoint.every need be.
    assert starts_of(alone.folder, 0)[1] >= 5
    assert retries_of(alone.folder, 0) == ["preempted"]
    assert job_processes() == []


def test_retries_are_remembered_by_the_next_controller(launch: Callable, runs_dir: Path) -> None:
    """A trial that crashed once before the controller was stopped has no more tries than in one sitting."""
    folder = StudyFolder(runs_dir / "s")
    launch(make_config(ONE, n_trials=1, clip_range=0.12))
    first = folder.trial(0).outcome()
    assert first is not None and first["num_retries"] == 1
    folder.trial(0).outcome_file.unlink()
    (folder.path / "study.db").unlink()
    launch(make_config(ONE, n_trials=1, clip_range=0.12))
    second = folder.trial(0).outcome()
    assert second is not None and second["state"] == "failed"
    assert retries_of(folder, 0) == ["crash"]
    assert len(trials_of(runs_dir)) == 1
