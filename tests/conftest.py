"""What every test shares: a private cache, one thread for each process, and services that must not be missing in CI."""

import os
import shutil
import socket
import subprocess
import tempfile
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
def postgres_url() -> Iterator[str]:
    """URL of a database on a PostgreSQL server of this session, on loopback, ended with it."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        missing_service("postgresql")
    folder = programs[-1].parent
    # The server refuses to run as root; Debian's package makes a user for it.
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    data = Path(tempfile.mkdtemp(prefix="grpo-sweeps-postgres-"))
    if as_user:
        shutil.chown(data, "postgres", "postgres")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data} -c fsync=off"
    start = [str(folder / "pg_ctl"), "-D", str(data / "cluster"), "-o", options, "-l", str(data / "log"), "-w", "start"]
    initialise = [str(folder / "initdb"), "-D", str(data / "cluster"), "-U", "postgres", "-A", "trust"]
    try:
        subprocess.run([*as_user, *initialise], check=True, stdout=subprocess.DEVNULL, cwd="/")
        subprocess.run([*as_user, *start], check=True, stdout=subprocess.DEVNULL, cwd="/")
        yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
    finally:
        stop = [str(folder / "pg_ctl"), "-D", str(data / "cluster"), "-m", "immediate", "stop"]
        subprocess.run([*as_user, *stop], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
        shutil.rmtree(data, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real problems beside the checkout."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        missing_service("../shared/data")
    return folder
