"""An executor for jobs without a model, a folder for studies with an empty store in it, and the launch of a study."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from sweeps.controller import StudyResult, run_study
from sweeps.executors.local import LocalExecutor
from sweeps.executors.slots import Slot
from sweeps.sections import SweepConfig

from .study_runs import HERE, KINDS, PRELOAD, Lines


@pytest.fixture(scope="module")
def _study_jobs() -> Iterator[None]:
    """Has ranks find the jobs of these folders by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield


@pytest.fixture(scope="module")
def executor(_study_jobs: None) -> Iterator[LocalExecutor]:
    executor = LocalExecutor([Slot(), Slot()], preload=PRELOAD)
    yield executor
    executor.close()


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow store with its tables made, which takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def runs_dir(tmp_path: Path, empty_store: Path) -> Path:
    runs_dir = tmp_path / "runs"
    runs_dir.mkdir()
    shutil.copy(empty_store, runs_dir / "mlflow.db")
    return runs_dir


@pytest.fixture
def launch(executor: LocalExecutor, runs_dir: Path) -> Callable[..., tuple[StudyResult, Lines]]:
    def launch(config: SweepConfig, kinds: dict[str, str] | None = None, **given: Any) -> tuple[StudyResult, Lines]:
        lines = Lines()
        kinds = {**KINDS, **(kinds or {})}
        result = run_study(config, runs_dir=runs_dir, executor=executor, progress=lines, job_kinds=kinds, **given)
        return result, lines

    return launch
