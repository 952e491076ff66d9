"""Ends processes for certain: ranks, what they started, and what an earlier controller left behind.

A process is known by pid and start time, since the kernel gives a pid to the next one. What belongs to a job is found
in three ways, so that a program in a session of its own is found too: as a descendant of a rank, as a member of a
rank's session, and by the job's mark in the environment.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from sweeps.study_folder import live_process, read_json, write_json

#: Environment variable that marks every program started by a job's ranks.
MARK = "GRPO_SWEEPS_JOB"
PROCESSES_FILE = "processes.json"

_POLL_S = 0.02
#: Time in which a process must be gone after SIGKILL; one that hangs in the kernel may take longer.
_KILL_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ProcessId:
    """A process that no later one can be mistaken for."""

    pid: int
    start_time: float
    """Seconds since the epoch."""


def identify(pid: int) -> ProcessId | None:
    """The identity of the process that has `pid` now, or None when there is none."""
    try:
        return ProcessId(pid, psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


def is_alive(process: ProcessId) -> bool:
    """Whether that process still runs; one that only waits to be reaped does not."""
    return live_process(process.pid, process.start_time) is not None


def members(ranks: Iterable[ProcessId], mark: str) -> list[ProcessId]:
    """Living processes of the job whose rank processes are `ranks` and whose mark is `mark`, the ranks included."""
    known = list(ranks)
    living = [process for rank in known if (process := live_process(rank.pid, rank.start_time)) is not None]
    found = {process.pid for process in living}
    for process in living:
        with contextlib.suppress(psutil.Error):
            found.update(child.pid for child in process.children(recursive=True))
    # A session keeps its id after its leader is gone, and the kernel gives that pid to nobody while a member lives.
    # So a pid that belongs to a stranger by now names no session of ours.
    sessions = {rank.pid for rank in known if rank.pid in found or not _is_taken(rank.pid)}
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(pid) in sessions or psutil.Process(pid).environ().get(MARK) == mark:
                found.add(pid)
    found.discard(os.getpid())
    return [identity for pid in sorted(found) if (identity := identify(pid)) is not None and is_alive(identity)]


def end(ranks: Sequence[ProcessId], mark: str, grace_s: float = 0.0) -> int:
    """Ends the job's processes: terminates, waits `grace_s`, kills, and returns once none is left.

    Returns the number of processes that had to be killed.

    Raises:
        RuntimeError: a process outlives SIGKILL, as one does that hangs in the kernel.
    """
    targets = set(members(ranks, mark))
    if grace_s > 0 and targets:
        signal_all(targets, signal.SIGTERM)
        wait_gone(targets, grace_s)
    killed: set[ProcessId] = set()
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while left := {target for target in targets | set(members(ranks, mark)) if is_alive(target)}:
        if time.monotonic() > deadline:
            pids = ", ".join(str(target.pid) for target in left)
            raise RuntimeError(f"processes {pids} outlive SIGKILL; look at them with: ps -o pid,stat,wchan,cmd {pids}")
        # What they started since the last look is found in the next round.
        targets |= left
        signal_all(left, signal.SIGKILL)
        killed |= left
        wait_gone(left, 0.5)
    return len(killed)


def signal_all(processes: Iterable[ProcessId], number: int) -> None:
    """Sends the signal `number` to those of `processes` that still live."""
    for target in processes:
        process = live_process(target.pid, target.start_time)
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def wait_gone(processes: Iterable[ProcessId], timeout_s: float) -> bool:
    """Waits until none of `processes` lives, at most `timeout_s`; whether that came true."""
    left, deadline = list(processes), time.monotonic() + timeout_s
    while left := [process for process in left if is_alive(process)]:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def record_processes(run_dir: Path, ranks: Sequence[ProcessId], mark: str) -> None:
    """Leaves word in `run_dir` of a job's processes, for a controller that comes after this one."""
    write_json(run_dir / PROCESSES_FILE, {"ranks": [asdict(rank) for rank in ranks], "mark": mark})


def forget_processes(run_dir: Path) -> None:
    """Takes the record of `record_processes` away again."""
    (run_dir / PROCESSES_FILE).unlink(missing_ok=True)


def end_orphans(run_dir: Path | str, wait_s: float = 10.0) -> int:
    """Ends what a controller that died left running for the job in `run_dir`; returns how many had to be killed.

    Ranks whose controller is gone write a checkpoint and leave by themselves: they have `wait_s` for it. Never call it
    while another controller runs the study.
    """
    folder = Path(run_dir)
    record = read_json(folder / PROCESSES_FILE)
    if record is None:
        return 0
    ranks = [ProcessId(**rank) for rank in record["ranks"]]
    wait_gone(ranks, wait_s)
    killed = end(ranks, record["mark"])
    forget_processes(folder)
    return killed


def _is_taken(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
