"""What every test shares: a private cache, one thread for each process, and services that must not be missing in CI."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True, scope="session")
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Warm starts of tests go to a folder of this session, and no setting of the user reaches a test."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_SWEEPS_CACHE", str(folder))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield folder


def missing_service(what: str) -> None:
    """Skips a test by name of what it lacks, or fails it where CI promises that nothing is lacking."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and CI must have it", pytrace=False)
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser."""
    found = shutil.which("chromium")
    if found is None:
        missing_service("chromium")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real problems beside the checkout."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        missing_service("../shared/data")
    return folder
