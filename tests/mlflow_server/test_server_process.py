import os
import subprocess
import sys
from pathlib import Path

import psutil

from mlflow_server.server_process import (
    ServerRecord,
    end_server,
    read_record,
    record_path,
    remove_record,
    write_record,
)

# A leader with a child that ignores SIGTERM.
STUBBORN = """
import signal, subprocess, sys, time
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", child])
time.sleep(60)
"""


def test_the_whole_session_ends_even_if_a_child_ignores_the_signal():
    leader = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    assert leader.stdout.readline() == b"up\n"
    [child] = psutil.Process(leader.pid).children()
    assert end_server(leader.pid, grace_s=0.5)
    leader.wait()
    leader.stdout.close()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_children_of_a_leader_that_died_first_are_found():
    leader = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    leader.stdout.readline()
    [child] = psutil.Process(leader.pid).children()
    leader.kill()
    leader.wait()
    leader.stdout.close()
    assert end_server(leader.pid, grace_s=0.5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_record_is_that_of_one_process_and_not_of_a_later_one_with_its_pid(tmp_path: Path):
    own = ServerRecord(os.getpid(), psutil.Process().create_time(), "http://127.0.0.1:5000", "sqlite:///mlflow.db")
    write_record(tmp_path, own)
    assert read_record(tmp_path) == own
    assert own.process() is not None
    assert ServerRecord(own.pid, own.start_time - 100, own.address, own.store).process() is None
    remove_record(tmp_path, own.pid + 1)
    assert record_path(tmp_path).exists()
    remove_record(tmp_path, own.pid)
    assert read_record(tmp_path) is None


def test_a_record_that_is_no_record_is_none(tmp_path: Path):
    record_path(tmp_path).write_text('{"pid": 1')
    assert read_record(tmp_path) is None
    record_path(tmp_path).write_text('{"pid": 1}')
    assert read_record(tmp_path) is None
