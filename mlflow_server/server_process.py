"""The server's processes: a record of the first one on disk, and the end of all of them."""

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

#: /proc counts a start time in clock ticks from a boot time that drifts.
_START_TIME_TOLERANCE_S = 2.0
_GRACE_S = 5.0


@dataclass(frozen=True)
class ServerRecord:
    """A server that was started: its first process and where it answers."""

    pid: int
    start_time: float
    """Seconds since the epoch; tells the process from a later one with the same pid."""
    address: str
    store: str

    def process(self) -> psutil.Process | None:
        """The server's first process, None when it is gone."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.start_time) < _START_TIME_TOLERANCE_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


def record_path(runs_dir: Path) -> Path:
    """The file that tells `check` and `stop` which server serves the store under `runs_dir`."""
    return runs_dir / "mlflow_server.json"


def write_record(runs_dir: Path, record: ServerRecord) -> None:
    """Puts the record down in one step: a reader sees none or all of it."""
    path = record_path(runs_dir)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    draft.write_text(json.dumps(asdict(record), indent=1) + "\n")
    os.replace(draft, path)


def read_record(runs_dir: Path) -> ServerRecord | None:
    """The record of the last server, or None when there is none that can be read."""
    try:
        return ServerRecord(**json.loads(record_path(runs_dir).read_text()))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None


def remove_record(runs_dir: Path, pid: int) -> None:
    """Removes the record if it is still that of the server with this pid."""
    record = read_record(runs_dir)
    if record is not None and record.pid == pid:
        record_path(runs_dir).unlink(missing_ok=True)


def end_server(pid: int, grace_s: float = _GRACE_S) -> bool:
    """Ends the process `pid`, which leads a session, with all that belongs to it; True when none of them is left."""
    members = _members(pid)
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    alive = _wait(members, grace_s)
    # Looked up again: a worker may have been started between the first look and the signal.
    late = [process for process in _members(pid) if process not in alive]
    for process in [*alive, *late]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return not _wait([*alive, *late], grace_s)


def _wait(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that are still alive after at most `timeout_s` seconds.

    A zombie has ended: its memory and ports are free, whether or not its parent ever asks for its exit code.
    """
    deadline = time.monotonic() + timeout_s
    while (alive := [process for process in processes if _is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return alive


def _members(leader: int) -> list[psutil.Process]:
    """Living processes of the session that `leader` leads, and all descendants of it."""
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(leader)
        found = {each.pid: each for each in [process, *process.children(recursive=True)]}
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == leader:
                found[process.pid] = process
    return [process for process in found.values() if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
