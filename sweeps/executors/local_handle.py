"""A job that runs on this machine: its ranks watched over as one, from the first fork until no process is left."""

import contextlib
import os
import time
import uuid
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from sweeps import process_tree
from sweeps.executors.fork_server import ForkServer
from sweeps.failures import blame_order
from sweeps.jobs import Event, Job
from sweeps.process_tree import ProcessId
from sweeps.trial_process import EXIT_PORT_IN_USE, STACKS_SIGNAL, Place, rank_log, run_rank

#: Rendezvous ports tried before a job fails.
MAX_PORTS = 5
#: Time the other ranks have to end after one failed, and all of them after the job's last word.
FAILURE_GRACE_S = 5.0
RESULT_GRACE_S = 10.0

#: Exit code by which multiprocessing says that the fork server is gone: the true one is lost, and the rank may live.
_SERVER_LOST = 255
_POLL_S = 0.02
_SERVER_LOST_POLL_S = 0.2
_REAP_TIMEOUT_S = 5.0
_STACKS_S = 0.3


class _Rank:
    """One rank's process, seen from the controller."""

    def __init__(self, number: int, process: ForkServerProcess, line: Connection) -> None:
        assert process.pid is not None
        self.number = number
        self.process = process
        self.line: Connection | None = line
        self.identity = process_tree.identify(process.pid)
        """None when it ended before anyone could look."""

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and for ever where the fork server took it to its grave."""
        return None if self.server_is_lost else self.process.exitcode

    @property
    def server_is_lost(self) -> bool:
        return self.process.exitcode == _SERVER_LOST

    def has_ended(self) -> bool:
        if self.server_is_lost:
            return self.identity is None or not process_tree.is_alive(self.identity)
        return self.process.exitcode is not None

    def read(self) -> list[Event]:
        """Events that have arrived; never waits."""
        events = []
        with contextlib.suppress(EOFError, OSError):
            while self.line is not None and self.line.poll(0):
                try:
                    events.append(Event(*self.line.recv()))
                except (EOFError, OSError):
                    self.close_line()
        return events

    def close_line(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None


class LocalHandle:
    """A started job. Its holder calls `poll` again and again, which also ends the other ranks when one is dead."""

    def __init__(self, server: ForkServer, job: Job, devices: tuple[str, ...], choose_port: Callable[[], int]) -> None:
        self.job = job
        self.is_over = False
        """Whether no process of the job is left."""
        self.exit_code: int | None = None
        """Exit code of the rank that failed first, else of rank 0; negative for a signal, None while unknown."""
        self._server = server
        self._devices = devices
        self._choose_port = choose_port
        self._num_ports = 0
        self._ranks: list[_Rank] = []
        self._started: list[ProcessId] = []
        self._mark = ""
        self._deadline: float | None = None
        self._news: list[Event] = []
        self._errors: list[Event] = []
        self._has_started = self._has_result = False
        self._failed_rank = 0
        self._start_ranks()

    def is_alive(self) -> bool:
        """Whether there is something to wait for or to take: False only once the last event was taken by `poll`."""
        self._watch()
        return not self.is_over or bool(self._news)

    def poll(self) -> list[Event]:
        """Events since the last call, oldest first; never waits."""
        self._watch()
        news, self._news = self._news, []
        return news

    def waitables(self) -> list[Any]:
        """What becomes ready when there is news, for `multiprocessing.connection.wait`."""
        if self.is_over:
            return []
        lines = [rank.line for rank in self._ranks if rank.line is not None]
        return lines + [rank.process.sentinel for rank in self._ranks if rank.process.exitcode is None]

    def deadline(self) -> float | None:
        """Time (monotonic clock) at which `poll` is due even if nothing became ready; None when there is none."""
        if self._news:
            return 0.0
        if self.is_over:
            return None
        if any(rank.server_is_lost for rank in self._ranks):
            return time.monotonic() + _SERVER_LOST_POLL_S
        return self._deadline

    def send(self, command: dict[str, Any]) -> None:
        """Gives a trial a command for its next step: `continue`, `prune` (with `reason`) or `stop`."""
        line = None if self.is_over else self._ranks[0].line
        if line is not None:
            # A rank that is gone is noticed by `poll`.
            with contextlib.suppress(OSError):
                line.send(command)

    def kill(self, grace_s: float = 0.0) -> None:
        """Ends all processes of the job and returns once none is left; events that came before can still be polled.

        With a grace the ranks are first asked to leave, a trial with a checkpoint, and have that long for it.

        Raises:
            RuntimeError: a process outlives SIGKILL.
        """
        if self.is_over:
            return
        if grace_s > 0:
            # What a rank started is no longer known as its descendant once the rank has left.
            self._started = process_tree.members(self._identities(), self._mark)
            self._lifeline.close()
            deadline = time.monotonic() + grace_s
            while time.monotonic() < deadline and not all(rank.has_ended() for rank in self._ranks):
                self._read()
                time.sleep(_POLL_S)
        self._note_exits()
        self._finish()

    def log_stacks(self) -> None:
        """Has every rank write the stacks of its threads to its log; returns when they had time for it."""
        process_tree.signal_all(self._identities(), STACKS_SIGNAL)
        time.sleep(_STACKS_S)

    def log_tail(self, num_lines: int = 20) -> str:
        """Last lines of the log of the rank that failed first, else of rank 0."""
        with contextlib.suppress(FileNotFoundError):
            text = rank_log(self.job.log_path, self._failed_rank).read_text(errors="replace")
            return "\n".join(text.splitlines()[-num_lines:])
        return ""

    def _start_ranks(self) -> None:
        self._num_ports += 1
        self._ranks, self._started, self._errors = [], [], []
        self._deadline = self.exit_code = None
        self._mark = uuid.uuid4().hex
        port = self._choose_port()
        lifeline, self._lifeline = Pipe(duplex=False)
        try:
            for number in range(self.job.num_ranks):
                place = Place(number, self._devices, port, self._mark, dict(os.environ))
                ours, theirs = Pipe()
                with theirs, contextlib.ExitStack() as on_failure:
                    on_failure.callback(ours.close)
                    process = self._server.launch(run_rank, self.job, place, theirs, lifeline)
                    on_failure.pop_all()
                self._ranks.append(_Rank(number, process, ours))
            process_tree.record_processes(Path(self.job.run_dir), self._identities(), self._mark)
        except BaseException:
            self._finish()
            raise
        finally:
            lifeline.close()

    def _identities(self) -> list[ProcessId]:
        return [rank.identity for rank in self._ranks if rank.identity is not None]

    def _watch(self) -> None:
        if self.is_over:
            return
        self._read()
        self._note_exits()
        port_in_use = self._ranks[0].exit_code == EXIT_PORT_IN_USE
        is_due = self._deadline is not None and time.monotonic() >= self._deadline
        if port_in_use and self._num_ports < MAX_PORTS:
            self._end_ranks()
            self._start_ranks()
        elif port_in_use or is_due or all(rank.has_ended() for rank in self._ranks):
            self._finish()

    def _read(self) -> None:
        for event in (event for rank in self._ranks for event in rank.read()):
            if event.kind == "error":
                # Which rank's error explains the others is known when all have ended.
                self._errors.append(event)
            elif event.kind != "started" or not self._has_started:
                self._has_started = True
                self._news.append(event)
            if event.kind in ("result", "error"):
                self._has_result |= event.kind == "result"
                self._set_deadline(RESULT_GRACE_S if event.kind == "result" else FAILURE_GRACE_S)

    def _note_exits(self) -> None:
        for rank in self._ranks:
            if rank.has_ended():
                self._set_deadline(RESULT_GRACE_S if rank.exit_code == 0 else FAILURE_GRACE_S)
        if self.exit_code is None:
            failed = [(code, rank.number) for rank in self._ranks if (code := rank.exit_code) not in (None, 0)]
            # Ranks whose peer was killed fail a moment later, of themselves: the signal is the cause.
            if failed:
                self.exit_code, self._failed_rank = min(failed)

    def _set_deadline(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def _end_ranks(self) -> None:
        process_tree.end([*self._identities(), *self._started], self._mark)
        self._lifeline.close()
        for rank in self._ranks:
            rank.process.join(_REAP_TIMEOUT_S)
        self._read()
        for rank in self._ranks:
            rank.close_line()

    def _finish(self) -> None:
        self._end_ranks()
        if self.exit_code is None and self._ranks:
            self.exit_code = self._ranks[0].exit_code
        if self._errors and not self._has_result:
            self._news.append(min(self._errors, key=lambda event: blame_order(event.data)))
        elif self.exit_code == EXIT_PORT_IN_USE:
            message = f"no free rendezvous port in {self._num_ports} tries; see {self.job.log_path}"
            data = {"rank": 0, "type": "PortInUse", "message": message, "traceback": "", "cause": "machine"}
            self._news.append(Event("error", data, time.time()))
        for rank in self._ranks:
            # One that the kernel still holds, or that was never reaped, cannot be closed.
            with contextlib.suppress(ValueError):
                rank.process.close()
        process_tree.forget_processes(Path(self.job.run_dir))
        self.is_over = True
