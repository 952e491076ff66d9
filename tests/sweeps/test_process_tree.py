import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from sweeps.process_tree import (
    MARK,
    PROCESSES_FILE,
    ProcessId,
    end,
    end_orphans,
    forget_processes,
    identify,
    is_alive,
    members,
    record_processes,
    wait_gone,
)

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
if len(sys.argv) > 1:
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    children = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
    print(*(child.pid for child in children), flush=True)
else:
    print(flush=True)
time.sleep(600)
"""


@pytest.fixture
def start():
    """Starts programs that ignore SIGTERM, each a session leader as ranks are, and ends what a test left of them."""
    started, known = [], []

    def start_one(*arguments, mark):
        process = subprocess.Popen(
            [sys.executable, "-c", STUBBORN, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, MARK: mark},
        )
        started.append(process)
        children = [int(pid) for pid in process.stdout.readline().split()]
        identities = [identify(pid) for pid in (process.pid, *children)]
        known.extend(identities)
        return process, identities

    yield start_one
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    for identity in known:
        if is_alive(identity):
            os.kill(identity.pid, signal.SIGKILL)


@pytest.fixture
def mark(tmp_path):
    """A mark that no other test uses."""
    return str(tmp_path)


def test_a_pid_is_another_process_at_another_time(start, mark):
    process, (identity,) = start(mark=mark)
    assert identity.pid == process.pid and abs(identity.start_time - time.time()) < 5
    assert is_alive(identity)
    assert not is_alive(ProcessId(process.pid, identity.start_time - 3600))


def test_a_process_that_waits_to_be_reaped_is_not_alive(start, mark):
    process, (identity,) = start(mark=mark)
    process.kill()
    assert wait_gone([identity], 5)
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    process.wait()
    assert identify(process.pid) is None


def test_wait_gone_gives_up_in_time(start, mark):
    _, identities = start(mark=mark)
    started = time.monotonic()
    assert not wait_gone(identities, 0.2)
    assert 0.2 <= time.monotonic() - started < 1
    assert wait_gone([], 0)


def test_members_are_descendants_and_what_bears_the_mark(start, mark):
    _, (rank, same_session, own_session) = start("with children", mark=mark)
    _, (stranger,) = start(mark=f"{mark}/two")
    assert set(members([rank], mark)) == {rank, same_session, own_session}
    assert set(members([], f"{mark}/two")) == {stranger}
    assert members([], f"{mark}/three") == []


def test_members_outlive_their_rank(start, mark):
    process, (rank, same_session, own_session) = start("with children", mark=mark)
    process.kill()
    process.wait()
    assert set(members([rank], mark)) == {same_session, own_session}
    # Without the mark, the session still tells; the other one has left it.
    assert members([rank], "another") == [same_session]
    assert end([rank], mark) == 2
    assert not is_alive(same_session) and not is_alive(own_session)


def test_end_kills_those_that_ignore_the_request(start, mark):
    _, identities = start("with children", mark=mark)
    assert end(identities[:1], mark, grace_s=0.3) == 3
    assert not any(is_alive(identity) for identity in identities)
    assert end(identities[:1], mark) == 0


def test_end_waits_for_those_that_obey(mark):
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    started = time.monotonic()
    assert end([identify(process.pid)], mark, grace_s=10) == 0
    assert time.monotonic() - started < 5
    assert process.wait() == -signal.SIGTERM


def test_end_never_touches_a_later_process_with_the_pid(start, mark):
    process, (identity,) = start(mark=f"{mark}/two")
    assert end([ProcessId(identity.pid, identity.start_time - 3600)], mark) == 0
    assert is_alive(identity) and process.poll() is None


def test_orphans_are_found_by_their_record(start, tmp_path, mark):
    _, identities = start("with children", mark=mark)
    record_processes(tmp_path, identities[:1], mark)
    record = json.loads((tmp_path / PROCESSES_FILE).read_text())
    assert record["ranks"] == [{"pid": identities[0].pid, "start_time": identities[0].start_time}]
    assert end_orphans(tmp_path, wait_s=0.1) == 3
    assert not any(is_alive(identity) for identity in identities)
    assert not (tmp_path / PROCESSES_FILE).exists()
    assert end_orphans(tmp_path) == 0


def test_orphans_that_leave_by_themselves_are_not_killed(tmp_path, mark):
    program = "import time; time.sleep(0.5)"
    process = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    identity = identify(process.pid)
    record_processes(tmp_path, [identity], mark)
    started = time.monotonic()
    assert end_orphans(tmp_path, wait_s=10) == 0
    assert time.monotonic() - started < 5
    assert process.wait() == 0


def test_a_stale_record_ends_nobody(start, tmp_path, mark):
    process, (identity,) = start(mark=f"{mark}/two")
    record_processes(tmp_path, [ProcessId(identity.pid, identity.start_time - 3600)], mark)
    assert end_orphans(tmp_path, wait_s=5) == 0
    assert process.poll() is None
    forget_processes(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
