"""A rank's line to the controller: events out, commands in, and the lifeline whose end means to leave."""

import contextlib
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from sweeps.jobs import EventKind

#: Exit code of a rank that left because its controller was gone.
EXIT_ABANDONED = 75


class RankLink:
    """Both pipes of one rank. A controller that is gone makes nothing here raise."""

    def __init__(self, rank: int, events: Connection, lifeline: Connection, grace_s: float) -> None:
        """`grace_s`: time the rank has to leave by itself after the lifeline ended; then the process is ended."""
        self.rank = rank
        self._events = events
        self._lifeline = lifeline
        self._grace_s = grace_s
        self._gone = threading.Event()
        self._sending = threading.Lock()
        for connection in (events, lifeline):
            # Descriptors that came through the fork server would otherwise live on in programs that the job starts.
            os.set_inheritable(connection.fileno(), False)
        threading.Thread(target=self._watch_lifeline, name="lifeline", daemon=True).start()

    @property
    def is_gone(self) -> bool:
        """Whether the controller is gone; never waits."""
        return self._gone.is_set()

    def send(self, kind: EventKind, data: dict[str, Any]) -> None:
        """Sends one event; a controller that is gone gets none."""
        try:
            with self._sending:
                self._events.send((kind, data, time.time()))
        except OSError:
            self._gone.set()

    def report_preemption(self) -> None:
        """Has a SIGTERM, which every thread of this process must block, sent on as a `preempted` event.

        A machine that is taken away says so by that signal to whatever runs on it.
        """
        threading.Thread(target=self._wait_for_preemption, name="preemption", daemon=True).start()

    def _wait_for_preemption(self) -> None:
        while True:
            signal.sigwait({signal.SIGTERM})
            self.send("preempted", {"rank": self.rank})

    def take_commands(self) -> list[dict[str, Any]]:
        """Commands that have arrived, oldest first; never waits."""
        commands = []
        while (command := self.wait_command(0.0)) is not None:
            commands.append(command)
        return commands

    def wait_command(self, timeout_s: float) -> dict[str, Any] | None:
        """The next command, or None when none came within `timeout_s` or the controller is gone."""
        if self.is_gone:
            return None
        try:
            return self._events.recv() if self._events.poll(timeout_s) else None
        except (EOFError, OSError):
            self._gone.set()
            return None

    def close(self) -> None:
        """Closes the event line: the controller reads what was sent, then sees its end."""
        with contextlib.suppress(OSError):
            self._events.close()

    def _watch_lifeline(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            # Nothing is ever written to it: it becomes readable at its end.
            self._lifeline.recv_bytes()
        self._gone.set()
        time.sleep(self._grace_s)
        print(f"rank {self.rank}: ended {self._grace_s:g} s after its controller", file=sys.stderr, flush=True)
        os._exit(EXIT_ABANDONED)
