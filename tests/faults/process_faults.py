"""Processes that are killed, stopped or signalled.

Each function makes a study meet one fault, brings it to its end, and gives in words how it came out; it raises where
anything is wrong.
"""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.faults.study import TWO_RANKS, Broken, Study, begun, expect, killed, resumed, retried


def controller_killed(runs_dir: Path) -> str:
    return resumed(killed(runs_dir))


def controller_sigterm(runs_dir: Path) -> str:
    study = begun(runs_dir)
    sent = time.monotonic()
    study.send(signal.SIGTERM)
    expect(study.finish(), 143)
    seconds = time.monotonic() - sent
    if seconds > 10:
        raise Broken(f"took {seconds:.1f} s")
    study.said("go on with: python -m sweeps resume")
    study.check_books()
    return f"{resumed(study)}; down in {seconds:.1f} s"


def controller_ctrl_c(runs_dir: Path) -> str:
    study = begun(runs_dir)
    study.send(signal.SIGINT)
    expect(study.finish(), 130)
    study.check_books()
    return resumed(study)


def controller_ctrl_c_twice(runs_dir: Path) -> str:
    study = begun(runs_dir)
    study.send(signal.SIGINT)
    time.sleep(0.02)
    study.send(signal.SIGINT)
    expect(study.finish(), 130)
    study.check_books()
    return resumed(study)


def controller_stopped_for_4_s_then_goes_on(runs_dir: Path) -> str:
    study = begun(runs_dir)
    study.send(signal.SIGSTOP)
    time.sleep(4)
    study.send(signal.SIGCONT)
    expect(study.finish(), 0)
    study.check_whole()
    return "complete"


def rank_0_of_two_killed(runs_dir: Path) -> str:
    study = begun(runs_dir, *TWO_RANKS)
    study.kill_rank(0)
    return retried(study, "ended by signal 9")


def rank_1_of_two_killed(runs_dir: Path) -> str:
    study = begun(runs_dir, *TWO_RANKS)
    study.kill_rank(1)
    return retried(study, "ended by signal 9")


def rank_0_sigterm_preempted(runs_dir: Path) -> str:
    study = begun(runs_dir)
    study.kill_rank(0, how=signal.SIGTERM)
    return retried(study, "it was sent SIGTERM and left a checkpoint")


def rank_1_of_two_sigterm_preempted(runs_dir: Path) -> str:
    study = begun(runs_dir, *TWO_RANKS)
    study.kill_rank(1, how=signal.SIGTERM)
    return retried(study, "it was sent SIGTERM and left a checkpoint")


def rank_1_of_two_stopped_for_good(runs_dir: Path) -> str:
    study = begun(runs_dir, *TWO_RANKS, "resources.hang_timeout=3s")
    study.kill_rank(1, how=signal.SIGSTOP)
    return retried(study, "no news for 3 s")


def rank_0_stopped_for_2_s_then_goes_on(runs_dir: Path) -> str:
    study = begun(runs_dir)
    pid = study.rank(0)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    os.kill(pid, signal.SIGCONT)
    expect(study.finish(), 0)
    study.check_whole()
    return "complete"


def fork_server_killed(runs_dir: Path) -> str:
    study = begun(runs_dir)
    os.kill(psutil.Process(study.rank(0)).ppid(), signal.SIGKILL)
    expect(study.finish(), 0)
    study.check_whole()
    return "complete"


def rank_killed_while_it_writes_a_checkpoint(runs_dir: Path) -> str:
    study = Study(runs_dir, ("study.n_trials=1",), "once:killed in a checkpoint")
    study.start()
    expect(study.finish(), 0)
    study.check_whole(num_trials=1)
    return "retried from the start, complete"


PROCESS_FAULTS: dict[str, Callable[[Path], str]] = {
    "controller: kill -9": controller_killed,
    "controller: SIGTERM": controller_sigterm,
    "controller: Ctrl-C": controller_ctrl_c,
    "controller: Ctrl-C twice": controller_ctrl_c_twice,
    "controller: stopped for 4 s, then goes on": controller_stopped_for_4_s_then_goes_on,
    "rank 0 of two: kill -9": rank_0_of_two_killed,
    "rank 1 of two: kill -9": rank_1_of_two_killed,
    "rank 0: SIGTERM (preempted)": rank_0_sigterm_preempted,
    "rank 1 of two: SIGTERM (preempted)": rank_1_of_two_sigterm_preempted,
    "rank 1 of two: stopped for good": rank_1_of_two_stopped_for_good,
    "rank 0: stopped for 2 s, then goes on": rank_0_stopped_for_2_s_then_goes_on,
    "fork server: kill -9": fork_server_killed,
    "rank killed while it writes a checkpoint": rank_killed_while_it_writes_a_checkpoint,
}
