"""MLflow brought up to date from disk: after an outage, after its store was lost, after runs were deleted in it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from sweeps.study_folder import StudyFolder
from sweeps.verbs import main

from .study_runs import make_config, mlflow_runs, steps_of

# MLflow's own models use what SQLAlchemy is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

RATES = {"lr": {"values": [1e-4, 5e-3]}}


def picture(runs_dir: Path) -> list[tuple]:
    """All that MLflow has of the trials, run ids aside."""
    client = MlflowClient(tracking_uri=f"sqlite:///{runs_dir / 'mlflow.db'}")
    return [
        (
            run.info.run_name,
            run.info.status,
            run.info.end_time,
            {key: value for key, value in run.data.tags.items() if key != "mlflow.parentRunId"},
            run.data.params,
            {
                name: [
                    (point.step, point.value, point.timestamp)
                    for point in client.get_metric_history(run.info.run_id, name)
                ]
                for name in run.data.metrics
            },
        )
        for run in mlflow_runs(runs_dir)
    ]


def dispose_of_stores() -> None:
    """Has MLflow open its stores anew: it keeps them by their URI."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for engine in SqlAlchemyStore._engine_map.values():
        engine.dispose()


def test_a_store_that_was_lost_is_rebuilt_as_it_was(
    launch: Callable, runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch(make_config(RATES, n_trials=2))
    before = picture(runs_dir)
    assert [row[1] for row in before] == ["FINISHED", "KILLED"]
    for file in runs_dir.glob("mlflow.db*"):
        file.unlink()
    # In a process of its own: this one still has the old store open.
    command = [sys.executable, "-m", "sweeps", "sync", "s", "--runs-dir", str(runs_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    num_steps = sum(len(steps_of(StudyFolder(runs_dir / "s"), number)) for number in (0, 1))
    assert done.returncode == 0 and f"{num_steps} steps were sent; MLflow at sqlite:///" in done.stdout, done.stderr
    dispose_of_stores()
    assert picture(runs_dir) == before
    [parent] = mlflow_runs(runs_dir, "tags.kind = 'study'")
    assert (parent.info.status, parent.data.tags["outcome"]) == ("FINISHED", "done")
    assert main(["sync", "s", "--runs-dir", str(runs_dir)]) == 0
    assert capsys.readouterr().out.startswith("0 steps were sent")
    assert picture(runs_dir) == before


def test_runs_that_somebody_deleted_come_back_alone(
    launch: Callable, runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch(make_config(RATES, n_trials=2))
    before = picture(runs_dir)
    kept, gone = mlflow_runs(runs_dir)
    MlflowClient(tracking_uri=f"sqlite:///{runs_dir / 'mlflow.db'}").delete_run(gone.info.run_id)
    assert main(["sync", "s", "--runs-dir", str(runs_dir)]) == 0
    assert "1 runs were lost and are there again" in capsys.readouterr().out
    assert picture(runs_dir) == before
    assert mlflow_runs(runs_dir)[0].info.run_id == kept.info.run_id


def test_a_store_that_is_away_is_said_in_one_line(
    launch: Callable, runs_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(make_config(RATES, n_trials=1))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    uri = "http://ann:s3cret@127.0.0.1:1"
    assert main(["sync", "s", "--runs-dir", str(runs_dir), "--tracking-uri", uri]) == 1
    error = capsys.readouterr().err
    assert (
        error.startswith("MLflow at http://***@127.0.0.1:1 could not be brought up to date") and "s3cret" not in error
    )
