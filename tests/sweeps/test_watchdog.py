import pytest

from sweeps.watchdog import FIRST_STEP_S, LATER_STEP_S, Watchdog


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def pass_time(watchdog: Watchdog, clock: Clock, seconds: float, tick_s: float = 0.5) -> bool:
    """Looks every `tick_s`, as the controller does; the last answer."""
    hung = False
    for _ in range(round(seconds / tick_s)):
        clock.now += tick_s
        hung = watchdog.is_hung()
    return hung


def test_silence_beyond_the_limit_is_a_hang_and_a_step_ends_silence() -> None:
    clock = Clock()
    watchdog = Watchdog(10.0, clock)
    assert not pass_time(watchdog, clock, 9)
    watchdog.step()
    assert not pass_time(watchdog, clock, 9.5)
    assert pass_time(watchdog, clock, 1)
    assert watchdog.silent_s == pytest.approx(10.5)


def test_auto_goes_by_the_longest_step() -> None:
    clock = Clock()
    watchdog = Watchdog("auto", clock)
    assert watchdog.limit_s == FIRST_STEP_S
    pass_time(watchdog, clock, 30)
    watchdog.step()
    assert watchdog.limit_s == LATER_STEP_S
    pass_time(watchdog, clock, 100)
    watchdog.step()
    pass_time(watchdog, clock, 2)
    watchdog.step()
    assert watchdog.limit_s == pytest.approx(1000)


def test_off_waits_for_ever() -> None:
    clock = Clock()
    watchdog = Watchdog(None, clock)
    assert not pass_time(watchdog, clock, 100_000, tick_s=100)


def test_a_controller_that_slept_blames_nobody() -> None:
    """A closed laptop, SIGSTOP, a clock that jumps: the trial had no chance to be heard."""
    clock = Clock()
    watchdog = Watchdog(10.0, clock)
    clock.now += 7200
    assert not watchdog.is_hung()
    assert watchdog.silent_s == 5.0
