"""SIGINT and SIGTERM, which only the controller handles: the first stops the study, the second ends it at once."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

#: Exit code for each signal, as a shell has it.
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class StopSignals:
    """While entered, notes the first signal in `exit_code` and raises KeyboardInterrupt at the second.

    Outside the main thread (a notebook's worker, a test) signals stay as they are.
    """

    def __init__(self) -> None:
        self.exit_code: int | None = None
        """What to exit with, once a signal has come."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in EXIT_CODES:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.exit_code is not None:
            raise KeyboardInterrupt
        self.exit_code = EXIT_CODES[signal.Signals(number)]
