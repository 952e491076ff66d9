"""Finds a trial whose ranks live and do nothing: one that waits in a collective, in a dead mount or in a reward."""

import time
from collections.abc import Callable

#: Time that `auto` gives a trial at least: until its first step, when models load and kernels compile, and later.
FIRST_STEP_S = 1800.0
LATER_STEP_S = 600.0
#: `auto` waits for this many times the longest silence so far.
LONGEST_TIMES = 10.0
#: A look that comes later than this after the one before counts as this much: the machine slept, or this process was
#: stopped, and the trial's news could not be taken.
MAX_LOOK_S = 5.0


class Watchdog:
    """Counts the time since a trial's last news, as far as somebody looked."""

    def __init__(self, timeout_s: float | str | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`timeout_s`: silence in seconds after which a trial hangs, `auto` for one by its own pace, None for never."""
        self._timeout_s = timeout_s
        self._clock = clock
        self._looked_at = clock()
        self._longest_s: float | None = None
        self.silent_s = 0.0
        """Seconds without news."""

    @property
    def limit_s(self) -> float | None:
        """Silence that is too long now; None where nothing is."""
        if self._timeout_s != "auto":
            return None if self._timeout_s is None else float(self._timeout_s)
        return FIRST_STEP_S if self._longest_s is None else max(LATER_STEP_S, LONGEST_TIMES * self._longest_s)

    def step(self) -> None:
        """Takes note of a step; its length is what `auto` goes by."""
        self._look()
        self._longest_s = max(self._longest_s or 0.0, self.silent_s)
        self.silent_s = 0.0

    def is_hung(self) -> bool:
        """Whether the trial has been silent for too long; call it often."""
        self._look()
        return self.limit_s is not None and self.silent_s > self.limit_s

    def _look(self) -> None:
        now = self._clock()
        self.silent_s += min(now - self._looked_at, MAX_LOOK_S)
        self._looked_at = now
