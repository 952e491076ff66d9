"""The process that ranks are forked from: torch and the training code loaded once, CUDA never touched.

A fork copies only the calling thread, so the server must have one thread and must have run no tensor operation. The
first child checks that, and that everything was preloaded, before the server is used.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

import psutil

#: What a trial uses before its first sampled token, and at its end. `datasets` starts threads: never here.
PRELOAD = (
    "torch",
    "torch.distributed",
    "accelerate",
    "transformers.models.llama.modeling_llama",
    "grpo_core.train",
    "sweeps.trial_process",
    "sweeps.step_judge",
)
#: No thread pools, a check for CUDA that does not initialise it, no progress bars in the logs.
SERVER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
_READY_TIMEOUT_S = 180.0

_context = get_context("forkserver")
_lock = threading.Lock()
#: multiprocessing has one fork server in a process; it stops with its last user.
_num_users = 0


@dataclass(frozen=True)
class ServerCheck:
    """What the first child saw of its fork server."""

    pid: int
    num_threads: int
    missing: tuple[str, ...]
    """Modules that were to be preloaded and were not."""
    cuda_touched: bool


class ForkServer:
    """A fork server with `preload` imported. Start it with `warm_up` and do other work: it takes seconds."""

    def __init__(self, preload: Sequence[str] = PRELOAD) -> None:
        self._preload = tuple(preload)
        self._thread: threading.Thread | None = None
        self._check: ServerCheck | None = None
        self._failure: BaseException | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a start would not wait for the preloading."""
        return self._check is not None

    def warm_up(self) -> None:
        """Starts the server if it does not run, and returns at once."""
        global _num_users
        if self._thread is not None:
            return
        with _lock:
            if _num_users == 0:
                forkserver.set_forkserver_preload(list(self._preload))
                with _server_environment():
                    forkserver.ensure_running()
            _num_users += 1
        self._thread = threading.Thread(target=self._ask_first_child, name="fork-server-check", daemon=True)
        self._thread.start()

    def check(self, timeout_s: float = _READY_TIMEOUT_S) -> ServerCheck:
        """Waits for the server and gives what its first child saw.

        Raises:
            RuntimeError: it did not start, lacks a module, has more than one thread, or has touched CUDA.
        """
        self.warm_up()
        assert self._thread is not None
        deadline = time.monotonic() + timeout_s
        # In slices, so that the main thread gets to its signal handlers.
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(0.1)
        if self._check is None:
            raise RuntimeError(f"the fork server did not start: {self._failure or 'it is still loading'}")
        if self._check.missing:
            raise RuntimeError(
                f"the fork server could not import {', '.join(self._check.missing)}; "
                f"try: {sys.executable} -c 'import {self._check.missing[0]}'"
            )
        assert self._check.num_threads == 1, f"the fork server has {self._check.num_threads} threads"
        assert not self._check.cuda_touched, "a preloaded module initialised CUDA in the fork server"
        return self._check

    def launch(self, function: Callable[..., None], *arguments: Any) -> ForkServerProcess:
        """Forks a process that calls `function(*arguments)`; connections among the arguments are passed on.

        Raises:
            RuntimeError: the server cannot be used.
        """
        self.check()
        process = _context.Process(target=function, args=arguments)
        try:
            with _server_environment():
                # It may have been killed since.
                forkserver.ensure_running()
            process.start()
        except (OSError, EOFError) as error:
            raise RuntimeError(f"the fork server started no process: {error}") from error
        return process

    def close(self) -> None:
        """Ends the server. Processes forked from it must be gone."""
        global _num_users
        if self._thread is None:
            return
        with _lock:
            _num_users -= 1
            if _num_users == 0:
                self._stop()
        self._thread.join()
        self._thread = self._check = self._failure = None

    def _stop(self) -> None:
        # multiprocessing lets a fork server end with its last client only, and has no public way to stop it. It keeps
        # no state: killing it before the wait in `_stop` bounds that wait.
        server: Any = forkserver._forkserver  # type: ignore[attr-defined]
        assert self._thread is not None
        while True:
            if server._forkserver_pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server._forkserver_pid, signal.SIGKILL)
            self._thread.join(0.5)
            if not self._thread.is_alive():
                break
        server._stop()

    def _ask_first_child(self) -> None:
        ours, theirs = _context.Pipe(duplex=False)
        try:
            process = _context.Process(target=_look_around, args=(theirs, self._preload))
            process.start()
            theirs.close()
            self._check = ours.recv()
            process.join()
            process.close()
        except (OSError, EOFError) as error:
            self._failure = error
        finally:
            ours.close()
            theirs.close()


def _look_around(answer: Connection, preload: Sequence[str]) -> None:
    server = psutil.Process(os.getppid())
    torch = sys.modules.get("torch")
    answer.send(
        ServerCheck(
            pid=server.pid,
            num_threads=server.num_threads(),
            missing=tuple(name for name in preload if name not in sys.modules),
            cuda_touched=torch is not None and torch.cuda._is_in_bad_fork(),
        )
    )


@contextlib.contextmanager
def _server_environment() -> Iterator[None]:
    # The server takes the environment of the moment it starts; the controller's own stays as it was.
    before = {name: os.environ.get(name) for name in SERVER_ENVIRONMENT}
    os.environ.update(SERVER_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
