"""Trials on this machine: ranks forked from one fork server, each trial in a slot of its own."""

import atexit
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from sweeps.executors.fork_server import PRELOAD, ForkServer, ServerCheck
from sweeps.executors.local_handle import LocalHandle
from sweeps.executors.slots import Slot, cuda_devices, plan_slots, usable_cores
from sweeps.jobs import Job
from sweeps.profiles import machine_profile
from sweeps.sections import SweepConfig


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class LocalExecutor:
    """Runs jobs on this machine, one in each slot at a time."""

    def __init__(
        self,
        slots: Sequence[Slot],
        *,
        preload: Sequence[str] = PRELOAD,
        choose_port: Callable[[], int] = free_port,
    ) -> None:
        self.slots = tuple(slots)
        self._choose_port = choose_port
        self._server = ForkServer(preload)
        self._handles: dict[int, LocalHandle] = {}

    @classmethod
    def for_sweep(cls, config: SweepConfig) -> "LocalExecutor":
        """An executor with the slots that the sweep's resources ask for on this machine.

        Raises:
            ValueError: this machine has fewer GPUs than a trial has ranks.
        """
        compute, resources = config.train.compute, config.resources
        uses_cuda = compute.device != "cpu" and machine_profile(os.environ)[0] == "gpu"
        return cls(
            plan_slots(
                device=compute.device,
                num_ranks=resources.processes_per_trial,
                num_threads=compute.num_threads,
                max_concurrent_trials=resources.max_concurrent_trials,
                devices=cuda_devices(os.environ) if uses_cuda else [],
                num_cores=usable_cores(),
            )
        )

    @property
    def capacity(self) -> int:
        """Number of slots; jobs are started in slots 0 to capacity - 1."""
        return len(self.slots)

    @property
    def is_ready(self) -> bool:
        """Whether the next start takes well under a second."""
        return self._server.is_ready

    def warm_up(self) -> None:
        """Begins to load what trials need and returns at once; the first start waits for the rest."""
        self._server.warm_up()
        # At exit multiprocessing waits for its children, and ranks that nobody stopped would run on.
        atexit.unregister(self.close)
        atexit.register(self.close)

    def check_server(self) -> ServerCheck:
        """Waits until the fork server can be used and gives what its first child saw; raises RuntimeError."""
        self.warm_up()
        return self._server.check()

    def start(self, job: Job, slot: int) -> LocalHandle:
        """Starts the ranks of `job` in a slot where nothing runs.

        Raises:
            RuntimeError: the fork server cannot be used.
            OSError: the job's folder cannot be written.
        """
        previous = self._handles.get(slot)
        assert previous is None or previous.is_over, f"slot {slot} is not free for {job.name}"
        self.check_server()
        self._handles[slot] = handle = LocalHandle(self._server, job, self.slots[slot].devices, self._choose_port)
        return handle

    def close(self) -> None:
        """Ends all ranks and the fork server."""
        with ExitStack() as last_will:
            last_will.callback(atexit.unregister, self.close)
            last_will.callback(self._server.close)
            for handle in self._handles.values():
                last_will.callback(handle.kill)
            self._handles = {}
