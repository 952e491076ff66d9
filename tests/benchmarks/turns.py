"""Processes that take turns: each does one piece of work when asked to, so that peers are measured interleaved."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: What a figure is printed behind, among whatever else a library says.
MARK = "TURN "


class Worker:
    """A process `python -m module arguments` that answers each turn with a record."""

    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def turn(self) -> dict[str, Any]:
        """Lets the process do its next piece of work, and gives its record."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        raise SystemExit(f"{self._process.args} ended with code {self._process.wait()}")

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()


@contextmanager
def workers(*commands: tuple[str, ...]) -> Iterator[list[Worker]]:
    """A worker for each `(module, *arguments)`, ended at the end."""
    running = [Worker(*command) for command in commands]
    try:
        yield running
    finally:
        for worker in running:
            worker.close()


def wait_for_turn() -> None:
    """In a worker: waits until the next piece of work is asked for; ends the process when nobody asks any more."""
    if not sys.stdin.readline():
        sys.exit(0)


def answer(**figures: Any) -> None:
    """In a worker: the record of the piece of work just done."""
    print(MARK + json.dumps(figures), flush=True)


def timed(function: Callable[..., Any], into: dict[str, float], name: str) -> Callable[..., Any]:
    """`function`, whose seconds are added to `into[name]`."""

    def measured(*arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            into[name] = into.get(name, 0.0) + time.perf_counter() - started

    return measured
