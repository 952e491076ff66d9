"""Executors start a study's jobs, watch over their processes, and end them. A new one is a file and a line here.

The controller's loop is the same for all: `start`, then `wait_any` and `poll` until no handle `is_alive`.
"""

import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any, Protocol

from sweeps.executors.local import LocalExecutor
from sweeps.jobs import Event, Job
from sweeps.sections import SweepConfig


class Handle(Protocol):
    """A started job. Its holder polls it, which is also what keeps watch over its processes."""

    @property
    def exit_code(self) -> int | None:
        """Exit code of the rank that failed first, else of rank 0; negative for a signal, None while unknown."""

    def poll(self) -> list[Event]:
        """Events since the last call, oldest first; never waits. A job that crashed gives no `result` or `error`."""

    def is_alive(self) -> bool:
        """Whether there is something to wait for or to take: False only once the last event was taken by `poll`."""

    def send(self, command: dict[str, Any]) -> None:
        """Gives a trial a command for its next step: `continue`, `prune` (with `reason`) or `stop`.

        At a step that has the job's `report_metric` the trial waits up to 2 s for one.
        """

    def kill(self, grace_s: float = 0.0) -> None:
        """Ends all processes of the job and returns once none is left; with a grace, they are asked to leave first."""

    def log_stacks(self) -> None:
        """Has every rank write the stacks of its threads to its log; returns when they had time for it."""

    def log_tail(self, num_lines: int = 20) -> str:
        """Last lines that the job wrote, of the rank that failed first."""

    def waitables(self) -> list[Any]:
        """What becomes ready when there is news, for `multiprocessing.connection.wait`."""

    def deadline(self) -> float | None:
        """Time (monotonic clock) at which `poll` is due even if nothing became ready; None when there is none."""


class Executor(Protocol):
    """Where jobs run."""

    @property
    def capacity(self) -> int:
        """Number of slots; jobs are started in slots 0 to capacity - 1."""

    def warm_up(self) -> None:
        """Begins to load what trials need and returns at once; the first start waits for the rest."""

    def start(self, job: Job, slot: int) -> Handle:
        """Starts the ranks of `job` in a slot where nothing runs; raises RuntimeError or OSError when it cannot."""

    def close(self) -> None:
        """Ends everything that was started."""


EXECUTORS: dict[str, Callable[[SweepConfig], Executor]] = {"local": LocalExecutor.for_sweep}


def wait_any(handles: Sequence[Handle], timeout_s: float) -> list[Handle]:
    """Waits until a handle is due to be polled, at most `timeout_s`; the handles that are."""
    now = time.monotonic()
    due_at = {id(handle): due for handle in handles if (due := handle.deadline()) is not None}
    owners = [(waitable, handle) for handle in handles for waitable in handle.waitables()]
    ready = wait([waitable for waitable, _ in owners], max(0.0, min([now + timeout_s, *due_at.values()]) - now))
    woken = {id(handle) for waitable, handle in owners if waitable in ready}
    now = time.monotonic()
    return [handle for handle in handles if id(handle) in woken or due_at.get(id(handle), now + 1) <= now]
