import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.trial import TrialState

from sweeps.continuation import Refused, StudyChanged
from sweeps.controller import run_study
from sweeps.executors.local import LocalExecutor
from sweeps.executors.slots import Slot
from sweeps.mistakes import ConfigError
from sweeps.study_folder import StudyBusy, StudyFolder, read_json

from .study_runs import (
    CLIPS,
    KINDS,
    PRELOAD,
    RATES,
    SLOW,
    Alone,
    Lines,
    assert_complete,
    job_processes,
    make_config,
    mlflow_runs,
    starts_of,
    steps_of,
    trials_of,
)

# MLflow's own models use what SQLAlchemy is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_a_study_from_launch_to_report(launch: Callable, runs_dir: Path) -> None:
    config = make_config(RATES, n_trials=4)
    result, lines = launch(config)
    folder = StudyFolder(runs_dir / "s")
    assert (result.exit_code, result.state) == (0, "done")
    outcomes = {trial.params()["params"]["lr"]: trial.outcome() for trial in folder.trials()}
    assert set(outcomes) == {1e-4, 2e-4, 4e-4, 5e-3}
    assert outcomes[4e-4]["state"] == "complete" and outcomes[4e-4]["objective"] == pytest.approx(0.04)
    assert outcomes[4e-4]["checkpoint"] == "checkpoints/newest.json"
    assert result.best == outcomes[4e-4]
    # Entropy is 0.7 + step / 10: above 1.0 from step 4 on, the second time in a row at step 5.
    breach = outcomes[5e-3]
    assert (breach["state"], breach["last_step"], breach["reason"]["rule"]) == ("pruned", 5, "entropy")
    assert breach["constraint"] == pytest.approx(1 - 1 / 1.2)
    states = {trial.params["lr"]: trial for trial in trials_of(runs_dir)}
    assert states[5e-3].state == TrialState.PRUNED and states[5e-3].constraints["stability"] > 0
    assert states[1e-4].number == 0 and states[1e-4].value == pytest.approx(0.01)
    assert states[1e-4].intermediate_values == {5: 0.01, 10: 0.01, 12: 0.01}
    children = mlflow_runs(runs_dir)
    assert [run.info.status for run in children].count("FINISHED") == 3
    assert [run.data.tags["outcome"] for run in children].count("pruned") == 1
    [parent] = mlflow_runs(runs_dir, "tags.kind = 'study'")
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["base/eval/accuracy"] == 0.17
    assert parent.data.metrics["test/winner/eval/accuracy"] == 0.4
    controller = folder.controller()
    assert (controller["state"], controller["exit_code"], controller["message"]) == ("done", 0, "3 complete, 1 pruned")
    assert 0 < controller["overhead_frac"] < 1
    assert read_json(folder.final_file)["trial"] == outcomes[4e-4]["number"]
    assert folder.report_file.exists()
    assert "best: trial" in lines and "before training: 0.170 ± 0.039" in lines and "--n-trials 8" in lines
    # Slots are filled again within half a second.
    gaps = [outcome["slot_gap_s"] for outcome in outcomes.values() if outcome["slot_gap_s"] is not None]
    assert len(gaps) == 2 and max(gaps) < 0.5
    assert job_processes() == []

    again, lines = launch(config)
    assert again.exit_code == 0
    assert "study s is complete (3 complete, 1 pruned); no trial was run" in lines
    assert len(trials_of(runs_dir)) == 4

    more = make_config(RATES, n_trials=5)
    extended, lines = launch(more)
    assert extended.exit_code == 0
    repeat = folder.trial(4).params()
    twin = folder.trial(repeat["repeat_of"]).params()
    assert repeat["params"] == twin["params"] and repeat["seed"] != twin["seed"]
    assert len(mlflow_runs(runs_dir)) == 5


def test_a_crash_goes_on_from_the_checkpoint_in_the_same_trial_and_run(launch: Callable, runs_dir: Path) -> None:
    result, lines = launch(make_config({"lr": {"values": [1e-4]}}, n_trials=1, clip_range=0.11))
    folder = StudyFolder(runs_dir / "s")
    assert result.exit_code == 0
    assert "the trial's process ended by signal 9 and left no result; it goes on from its last checkpoint" in lines
    outcome = folder.trial(0).outcome()
    assert (outcome["state"], outcome["num_retries"]) == ("complete", 1)
    assert starts_of(folder, 0) == [0, 2]
    assert steps_of(folder, 0) == list(range(1, 13))
    [child] = mlflow_runs(runs_dir)
    assert child.info.status == "FINISHED"


def test_a_crash_that_comes_back_fails_with_its_log(launch: Callable, runs_dir: Path) -> None:
    result, _ = launch(make_config({"lr": {"values": [1e-4]}}, n_trials=1, clip_range=0.12))
    assert result.exit_code == 0 and result.best is None
    outcome = StudyFolder(runs_dir / "s").trial(0).outcome()
    assert (outcome["state"], outcome["num_retries"], outcome["reason"]["rule"]) == ("failed", 1, "crash")
    [child] = mlflow_runs(runs_dir)
    assert child.info.status == "FAILED"
    assert "ended by signal 9" in child.data.tags["mlflow.note.content"]
    assert trials_of(runs_dir)[0].state == TrialState.FAIL


def test_a_study_whose_first_trials_fail_alike_stops(launch: Callable, runs_dir: Path) -> None:
    result, _ = launch(make_config({"lr": {"min": 1e-5, "max": 1e-3}}, n_trials=8, clip_range=0.13))
    folder = StudyFolder(runs_dir / "s")
    assert (result.exit_code, result.state) == (1, "failed")
    assert "KeyError: 'answer'" in result.message
    assert all(trial.outcome()["num_retries"] == 0 for trial in folder.trials() if trial.outcome())
    assert 3 <= len(folder.trials()) <= 4
    assert folder.controller()["state"] == "failed"
    assert mlflow_runs(runs_dir, "tags.kind = 'study'")[0].info.status == "FAILED"


def test_an_objective_that_is_not_finite_prunes_with_a_reason(launch: Callable, runs_dir: Path) -> None:
    result, _ = launch(make_config({"lr": {"values": [1e-4]}}, n_trials=1, clip_range=0.14))
    outcome = StudyFolder(runs_dir / "s").trial(0).outcome()
    assert result.exit_code == 0
    assert (outcome["state"], outcome["last_step"], outcome["constraint"]) == ("pruned", 5, 1.0)
    assert outcome["reason"]["message"] == "eval/accuracy is nan at step 5"
    assert trials_of(runs_dir)[0].constraints == {"stability": 1.0}


def test_a_trial_that_falls_behind_is_pruned_at_its_evaluation(launch: Callable, runs_dir: Path) -> None:
    pruner = {"name": "median", "min_steps": 5, "options": {"n_startup_trials": 1}}
    config = make_config({"lr": {"values": [4e-4, 1e-4]}}, n_trials=2, lr=4e-4, study={"pruner": pruner})
    one_slot = config.model_copy(update={"resources": config.resources})
    executor = LocalExecutor([Slot()], preload=PRELOAD)
    try:
        run_study(one_slot, runs_dir=runs_dir, executor=executor, progress=Lines(), job_kinds=KINDS)
    finally:
        executor.close()
    outcome = StudyFolder(runs_dir / "s").trial(1).outcome()
    assert (outcome["state"], outcome["reason"]["rule"], outcome["last_step"]) == ("pruned", "pruner", 5)
    assert steps_of(StudyFolder(runs_dir / "s"), 1) == [1, 2, 3, 4, 5]
    assert trials_of(runs_dir)[1].value == pytest.approx(0.01)


def test_eight_trials_at_once_and_a_reader_on_one_database(runs_dir: Path) -> None:
    executor = LocalExecutor([Slot()] * 8, preload=PRELOAD)
    done = threading.Event()
    errors: list[str] = []

    def read() -> None:
        while not done.is_set():
            try:
                # Here as from a dashboard: a connection of its own each time.
                if (runs_dir / "s" / "study.db").exists():
                    trials_of(runs_dir)
            except Exception as error:
                errors.append(str(error))
            time.sleep(0.05)

    reader = threading.Thread(target=read)
    reader.start()
    config = make_config({"lr": {"min": 1e-5, "max": 9e-4}}, n_trials=16)
    try:
        result = run_study(config, runs_dir=runs_dir, executor=executor, progress=Lines(), job_kinds=KINDS)
    finally:
        done.set()
        reader.join()
        executor.close()
    assert result.exit_code == 0
    assert [trial.state for trial in trials_of(runs_dir)] == [TrialState.COMPLETE] * 16
    assert not [error for error in errors if "locked" in error]
    assert {run.info.status for run in mlflow_runs(runs_dir)} == {"FINISHED"}


def test_preflight_refuses_a_study_that_could_only_be_pruned(launch: Callable, runs_dir: Path) -> None:
    result, _ = launch(make_config(RATES, n_trials=4), kinds={"preflight": "study_jobs:preflight_too_hot"})
    folder = StudyFolder(runs_dir / "s")
    assert (result.exit_code, result.state) == (2, "failed")
    assert "policy/entropy 1.7 nats, above 1" in result.message and "set stability.entropy.max to 2.1" in result.message
    assert folder.trials() == []
    assert folder.controller()["state"] == "failed"
    # What the message asks for is done without ceremony, since there is no trial yet that it could make worthless.
    wider = {"entropy": {"min": 0.5, "max": 2.1, "warmup_steps": 2, "patience": 2}}
    again, _ = launch(
        make_config(RATES, n_trials=4, stability=wider), kinds={"preflight": "study_jobs:preflight_too_hot"}
    )
    assert (again.exit_code, len(folder.trials())) == (0, 4)


def test_when_time_is_up_nothing_is_left_open(launch: Callable, runs_dir: Path) -> None:
    config = make_config(CLIPS, n_trials=50, num_steps=400, clip_range=0.15, study={"timeout": 2.0})
    started = time.monotonic()
    result, _ = launch(config)
    assert time.monotonic() - started < 20
    assert result.exit_code == 0
    assert "study.timeout passed with" in result.message
    outcomes = [trial.outcome() for trial in StudyFolder(runs_dir / "s").trials()]
    assert outcomes[0]["state"] == "pruned" and outcomes[0]["reason"]["rule"] == "timeout"
    assert all(outcome is not None for outcome in outcomes)
    assert TrialState.RUNNING not in {trial.state for trial in trials_of(runs_dir)}
    assert job_processes() == []


def test_one_controller_at_a_time(launch: Callable, runs_dir: Path) -> None:
    with StudyFolder(runs_dir / "s").lock(), pytest.raises(StudyBusy, match="being run by another process"):
        launch(make_config(RATES, n_trials=1))
    assert not (runs_dir / "s").exists()


def test_what_a_person_got_wrong_leaves_nothing_on_disk(launch: Callable, runs_dir: Path) -> None:
    config = make_config(RATES, n_trials=1, study={"sampler": {"name": "tpe", "options": {"no_such": 1}}})
    with pytest.raises(ConfigError, match="not accepted by tpe"):
        launch(config)
    with pytest.raises(Refused, match="--import nobody: no such study"):
        launch(make_config(RATES, n_trials=1), import_from="nobody")
    assert [path.name for path in runs_dir.iterdir()] == ["mlflow.db"]


def test_changed_choices_are_named_and_fitting_trials_go_along(launch: Callable, runs_dir: Path) -> None:
    launch(make_config(RATES, n_trials=4))
    changed = {"lr": {"values": [1e-4, 2e-4, 8e-4]}}
    with pytest.raises(StudyChanged) as refusal:
        launch(make_config(changed, n_trials=4))
    text = str(refusal.value)
    assert "search_space.lr: [0.0001, 0.0002, 0.005, 0.0004] -> [0.0001, 0.0002, 0.0008]" in text
    assert "--study s-2 --import s" in text and "--fresh" in text
    renamed = make_config(changed, n_trials=3, study={"name": "s-2"})
    result, lines = launch(renamed, import_from="s")
    assert result.exit_code == 0
    assert "2 of 4 finished trials of s fit and are taken over" in lines
    folder = StudyFolder(runs_dir / "s-2")
    assert [trial.params()["params"]["lr"] for trial in folder.trials()] == [1e-4, 2e-4, 8e-4]
    assert folder.trial(1).params()["imported_from"].startswith("s/")
    assert [trial.state for trial in trials_of(runs_dir, "s-2")] == [TrialState.COMPLETE] * 3
    assert len(mlflow_runs(runs_dir, name="s-2")) == 3


def test_a_larger_budget_is_no_change_and_fresh_keeps_the_old_study(launch: Callable, runs_dir: Path) -> None:
    launch(make_config(RATES, n_trials=1))
    more, _ = launch(make_config(RATES, n_trials=2, study={"timeout": 3600, "retries": 3}))
    assert more.exit_code == 0 and len(trials_of(runs_dir)) == 2
    again, lines = launch(make_config(RATES, n_trials=1), fresh=True)
    assert again.exit_code == 0 and len(trials_of(runs_dir)) == 1
    [old] = runs_dir.glob("s.old-*")
    assert f"the old study is kept in {old}" in lines
    assert len(list((old / "trials").iterdir())) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything_resumably_within_10_seconds(tmp_path: Path, runs_dir: Path, number: int) -> None:
    alone = Alone(tmp_path, runs_dir, SLOW)
    alone.wait_for_steps(4)
    started = time.monotonic()
    alone.process.send_signal(number)
    code, output = alone.finish()
    assert time.monotonic() - started < 10
    assert code == {signal.SIGTERM: 143, signal.SIGINT: 130}[number], output
    assert "python -m sweeps resume s" in output
    assert job_processes() == []
    assert alone.folder.controller()["state"] == "interrupted"
    assert {run.info.status for run in mlflow_runs(runs_dir)} == {"KILLED"}
    assert mlflow_runs(runs_dir, "tags.kind = 'study'")[0].info.status == "KILLED"
    open_before = [trial.number for trial in alone.folder.trials() if trial.outcome() is None]
    assert open_before == [0, 1]
    code, output = alone.again()
    assert code == 0, output
    assert_complete(alone.folder, runs_dir, num_trials=5)
    # Stopped trials left a checkpoint at the step where they stopped.
    assert all(starts_of(alone.folder, number)[1] >= 4 for number in open_before)


def test_a_second_signal_ends_at_once(tmp_path: Path, runs_dir: Path) -> None:
    alone = Alone(tmp_path, runs_dir, {**SLOW, "train": {**SLOW["train"], "num_steps": 2000}})
    alone.wait_for_steps(2)
    alone.process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    alone.process.send_signal(signal.SIGINT)
    code, output = alone.finish()
    assert code == 130, output
    assert job_processes() == []


def test_a_controller_that_was_killed_is_taken_up_where_it_was(tmp_path: Path, runs_dir: Path) -> None:
    alone = Alone(tmp_path, runs_dir, SLOW)
    alone.wait_for_steps(5)
    os.kill(alone.process.pid, signal.SIGKILL)
    alone.finish()
    assert [trial.state for trial in trials_of(runs_dir)].count(TrialState.RUNNING) >= 2
    code, output = alone.again()
    assert code == 0, output
    assert_complete(alone.folder, runs_dir, num_trials=5)
    assert job_processes() == []


def test_a_stop_during_a_phase_is_no_failure(tmp_path: Path, runs_dir: Path, executor: LocalExecutor) -> None:
    lines = Lines()
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    kinds = {**KINDS, "preflight": "study_jobs:preflight_hangs"}
    result = run_study(make_config(RATES, 1), runs_dir=runs_dir, executor=executor, progress=lines, job_kinds=kinds)
    assert (result.exit_code, result.state) == (143, "interrupted")
    assert job_processes() == []
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
