"""Tracking that is away, silent or lost.

Each function makes a study meet one fault, brings it to its end, and gives in words how it came out; it raises where
anything is wrong.
"""

import contextlib
import io
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from sweeps.verbs import main as verb
from tests.faults.study import NUM_STEPS, ROOT, Broken, Study, begun, expect


def tracking_server_killed_back_after_3_s(runs_dir: Path) -> str:
    with server(runs_dir) as first:
        study = begun(runs_dir, f"tracking.uri={first}", f"train.num_steps={NUM_STEPS * 5}", step=2)
        port = int(first.rpartition(":")[2])
    time.sleep(3)
    with server(runs_dir, port):
        expect(study.finish(), 0)
        study.check_books()
    for number in range(2):
        if (points := study.points(number)) != list(range(1, NUM_STEPS * 5 + 1)):
            raise Broken(f"MLflow has steps {points} of trial {number}")
    return "complete, records replayed in order"


def tracking_server_refuses_connections(runs_dir: Path) -> str:
    study = Study(runs_dir, ("tracking.uri=http://127.0.0.1:1",))
    expect(study.launch(), 0)
    study.said("MLflow at http://127.0.0.1:1 lacks the latest records")
    return synced(study)


def tracking_server_accepts_and_never_answers(runs_dir: Path) -> str:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        study = Study(runs_dir, (f"tracking.uri=http://127.0.0.1:{silent.getsockname()[1]}",))
        expect(study.launch(), 0)
    study.said("lacks the latest records")
    return synced(study)


def tracking_store_lost_after_the_study(runs_dir: Path) -> str:
    study = Study(runs_dir)
    expect(study.launch(), 0)
    for file in runs_dir.glob("mlflow.db*"):
        file.unlink()
    return synced(study)


def synced(study: Study) -> str:
    with contextlib.redirect_stdout(io.StringIO()):
        code = verb(["sync", study.folder.name, "--runs-dir", str(study.runs_dir), "--tracking-uri", study.uri])
    expect(code, 0)
    study.check_whole()
    return "complete; sync brought the store up to date"


@contextmanager
def server(runs_dir: Path, port: int = 0) -> Iterator[str]:
    """An MLflow server on the study's own store, killed at the end; its address."""
    command = [sys.executable, "-m", "mlflow_server", "--runs-dir", str(runs_dir), "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "http://" in line:
                yield "http://" + line.partition("http://")[2].split()[0].rstrip("/,.;")
                break
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.communicate()


TRACKING_FAULTS: dict[str, Callable[[Path], str]] = {
    "tracking server: kill -9, back after 3 s": tracking_server_killed_back_after_3_s,
    "tracking server: refuses connections": tracking_server_refuses_connections,
    "tracking server: accepts and never answers": tracking_server_accepts_and_never_answers,
    "tracking store: lost after the study": tracking_store_lost_after_the_study,
}
