import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from grpo_core.config import TrainConfig
from sweeps.executors import EXECUTORS, local_handle, wait_any
from sweeps.executors.fork_server import ForkServer
from sweeps.executors.local import LocalExecutor, free_port
from sweeps.executors.slots import Slot
from sweeps.jobs import Job
from sweeps.process_tree import MARK, PROCESSES_FILE, end_orphans
from sweeps.rank_link import EXIT_ABANDONED
from sweeps.sections import SweepConfig

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def _small_jobs():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        yield


def environ():
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture(scope="module")
def environ_before():
    return environ()


@pytest.fixture(scope="module")
def server(environ_before):
    """Keeps one fork server for all tests of this file, which each close their own executor."""
    keeper = LocalExecutor([Slot()])
    keeper.warm_up()
    yield keeper.check_server()
    keeper.close()


@pytest.fixture
def executor(server):
    executor = LocalExecutor([Slot(), Slot()])
    yield executor
    executor.close()
    assert rank_pids() == []


def rank_pids():
    """All that runs below a fork server of this process, and all that bears the mark of a job."""
    this = psutil.Process()
    direct = {child.pid for child in this.children()}
    marked = [child.pid for child in this.children(recursive=True) if child.pid not in direct]
    for process in psutil.process_iter():
        try:
            if MARK in process.environ():
                marked.append(process.pid)
        except psutil.Error:
            continue
    return [pid for pid in marked if is_running(pid)]


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def small_job(tmp_path, function, num_ranks=1, **options):
    folder = tmp_path / "trials" / "0001"
    return Job(
        kind=f"small_jobs:{function}",
        name="0001",
        config={"compute": {"num_threads": 2}},
        run_dir=str(folder),
        log_path=str(folder / "trial.log"),
        num_ranks=num_ranks,
        options=options,
    )


def trial_job(tmp_path, num_ranks=1, num_steps=3, eval_every=3, stability=None):
    """A real trial, as small as it gets."""
    config = TrainConfig.model_validate(
        {
            "policy": {"num_layers": 1, "hidden_size": 32},
            "task": {"num_train": 64, "num_validation": 8, "num_test": 8},
            "rollout": {"completions_per_step": 16, "max_new_tokens": 12},
            "algorithm": {"group_size": 4},
            "eval": {"every": eval_every, "num_problems": 4},
            "compute": {"num_ranks": num_ranks, "device": "cpu"},
            "num_steps": num_steps,
        }
    )
    folder = tmp_path / "trials" / "0007"
    return Job(
        kind="trial",
        name="0007",
        config=config.model_dump(mode="json"),
        run_dir=str(folder),
        log_path=str(folder / "trial.log"),
        num_ranks=num_ranks,
        options={"stability": stability or {}, "report_metric": "eval/accuracy"},
    )


def run_to_end(handle, answer=None, timeout_s=60):
    """All events of a job; `answer(event)` may give a command to send back."""
    events, deadline = [], time.monotonic() + timeout_s
    while handle.is_alive():
        assert time.monotonic() < deadline, f"still alive after {timeout_s} s: {handle.log_tail()}"
        wait_any([handle], 1.0)
        for event in handle.poll():
            events.append(event)
            command = answer(event) if answer else None
            if command:
                handle.send(command)
    return events


def go_on(event):
    """The answer to every report."""
    if event.kind == "step" and "eval/accuracy" in event.data["metrics"]:
        return {"command": "continue"}
    return None


def wait_for(handle, kind, timeout_s=30):
    """Polls until an event of this kind comes, and gives it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        wait_any([handle], 1.0)
        for event in handle.poll():
            if event.kind == kind:
                return event
    raise AssertionError(f"no {kind} event in {timeout_s} s")


def wait_until_gone(pids, timeout_s):
    deadline = time.monotonic() + timeout_s
    while any(is_running(pid) for pid in pids):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def recorded_pids(run_dir):
    return [rank["pid"] for rank in json.loads((Path(run_dir) / PROCESSES_FILE).read_text())["ranks"]]


def recorded_steps(job):
    return [json.loads(line)["step"] for line in (Path(job.run_dir) / "metrics.jsonl").read_text().splitlines()]


def test_fork_server_has_one_thread_everything_loaded_and_no_cuda_before_the_first_fork(server, environ_before):
    assert server.num_threads == 1
    assert server.missing == ()
    assert not server.cuda_touched
    assert psutil.Process(server.pid).num_threads() == 1
    assert environ() == environ_before
    assert psutil.Process(server.pid).environ()["OMP_NUM_THREADS"] == "1"
    assert psutil.Process(server.pid).environ()["TOKENIZERS_PARALLELISM"] == "false"


def test_a_module_that_cannot_be_preloaded_is_named(server):
    lacking = ForkServer(preload=("torch", "no_such_module"))
    with pytest.raises(RuntimeError, match="could not import no_such_module"):
        lacking.check()
    lacking.close()


def test_events_arrive_in_order_and_soon(executor, tmp_path):
    started = time.time()
    handle = executor.start(small_job(tmp_path, "count", num_steps=5), slot=0)
    assert (tmp_path / "trials" / "0001" / PROCESSES_FILE).exists()
    events = run_to_end(handle)
    assert [event.kind for event in events] == ["started", "step", "step", "step", "step", "step", "result"]
    assert [event.data["step"] for event in events[1:6]] == [1, 2, 3, 4, 5]
    assert events[-1].data == {"status": "complete", "last_step": 5, "metrics": {}}
    assert sorted(event.time for event in events) == [event.time for event in events]
    assert events[0].time - started < 5
    assert handle.exit_code == 0 and handle.is_over
    assert not (tmp_path / "trials" / "0001" / PROCESSES_FILE).exists()


def test_a_rank_has_its_session_environment_and_log(server, tmp_path, monkeypatch):
    monkeypatch.setenv("SET_BY_THE_CONTROLLER", "later")
    executor = LocalExecutor([Slot(("GPU-1f", "GPU-2e"))])
    job = small_job(tmp_path, "look_around", num_ranks=2)
    handle = executor.start(job, slot=0)
    events = run_to_end(handle)
    result = events[-1].data
    executor.close()
    # SIGINT is the controller's to handle, SIGTERM a preemption that it hears of.
    assert {event.data["rank"] for event in events if event.kind == "preempted"} == {0, 1}
    assert result["environ"] == {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "CUDA_VISIBLE_DEVICES": "GPU-1f,GPU-2e",
    }
    assert 1024 < result["port"] < 65536
    assert result["is_session_leader"]
    assert (result["num_threads"], result["omp"]) == (2, "2")
    assert result["of_the_controller"] == "later" and result["heavy"] == []
    for log, rank in (("trial.log", 0), ("trial.rank1.log", 1)):
        text = (Path(job.run_dir) / log).read_text()
        assert f"small_jobs:look_around 0001: rank {rank} of 2" in text
        assert "to the log\n" in text and "to the log as well\n" in text


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_real_trial_runs_to_its_result(executor, tmp_path, num_ranks):
    job = trial_job(tmp_path, num_ranks)
    handle = executor.start(job, slot=0)
    events = run_to_end(handle, go_on)
    assert [event.kind for event in events] == ["started", "step", "step", "step", "result"]
    result = events[-1].data
    assert (result["status"], result["last_step"], result["reason"]) == ("complete", 3, None)
    assert result["metrics"].items() >= events[3].data["metrics"].items()
    assert Path(result["checkpoint"]).is_dir()
    assert recorded_steps(job) == [1, 2, 3]
    assert handle.exit_code == 0


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_pruned_trial_stops_at_the_reported_step_with_all_its_ranks(executor, tmp_path, num_ranks):
    job = trial_job(tmp_path, num_ranks, num_steps=200, eval_every=2)
    reason = {"rule": "pruner", "step": 4}

    def answer(event):
        return {"command": "prune", "reason": reason} if event.data.get("step") == 4 else go_on(event)

    handle = executor.start(job, slot=0)
    result = run_to_end(handle, answer)[-1]
    took_s = time.time() - result.time
    assert (result.data["status"], result.data["last_step"], result.data["reason"]) == ("pruned", 4, reason)
    assert recorded_steps(job) == [1, 2, 3, 4]
    assert took_s < 5 and handle.exit_code == 0


def test_the_guard_prunes_and_a_resumed_trial_remembers(executor, tmp_path):
    band = {"entropy": {"min": 0.1, "max": 1.0, "warmup_steps": 0, "patience": 2}}
    job = trial_job(tmp_path, num_steps=9, stability=band)
    for _ in range(2):
        events = run_to_end(executor.start(job, slot=0))
        result = events[-1].data
        assert (result["status"], result["last_step"]) == ("pruned", 2)
        assert (result["reason"]["rule"], result["reason"]["step"], result["reason"]["limit"]) == ("entropy", 2, 1.0)
        assert 0 < result["reason"]["constraint"] <= 1
        assert recorded_steps(job) == [1, 2]
    # The second time nothing was left to train.
    assert [event.kind for event in events] == ["started", "result"]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_stop_leaves_a_checkpoint_to_go_on_from(executor, tmp_path, num_ranks):
    job = trial_job(tmp_path, num_ranks, num_steps=400, eval_every=400)
    handle = executor.start(job, slot=0)
    wait_for(handle, "step")
    handle.send({"command": "stop"})
    result = run_to_end(handle)[-1].data
    assert result["status"] == "stopped" and result["last_step"] == recorded_steps(job)[-1] < 400
    assert Path(result["checkpoint"]).name == f"step_{result['last_step']:06d}"

    handle = executor.start(job, slot=0)
    assert wait_for(handle, "step").data["step"] == result["last_step"] + 1
    handle.kill(grace_s=20)
    # Asked by the end of its lifeline it left a checkpoint too.
    assert handle.poll()[-1].data["status"] == "stopped" and handle.exit_code == 0
    steps = recorded_steps(job)
    assert steps == list(range(1, len(steps) + 1))


def test_a_rank_that_dies_in_training_ends_the_others(executor, tmp_path):
    job = trial_job(tmp_path, num_ranks=2, num_steps=2000, eval_every=2000)
    handle = executor.start(job, slot=0)
    wait_for(handle, "step")
    os.kill(recorded_pids(job.run_dir)[1], signal.SIGKILL)
    killed_at = time.monotonic()
    events = run_to_end(handle)
    assert time.monotonic() - killed_at < 8
    assert events[-1].kind != "error" or events[-1].data["cause"] == "machine"
    assert "result" not in [event.kind for event in events]
    assert handle.exit_code == -signal.SIGKILL


def test_a_rank_that_dies_ends_another_that_would_wait_for_ever(executor, tmp_path, monkeypatch):
    monkeypatch.setattr(local_handle, "FAILURE_GRACE_S", 0.3)
    job = small_job(tmp_path, "wait_for_ever", num_ranks=2)
    handle = executor.start(job, slot=0)
    wait_for(handle, "progress")
    pids = recorded_pids(job.run_dir)
    os.kill(pids[1], signal.SIGKILL)
    assert [event.kind for event in run_to_end(handle, timeout_s=10) if event.kind in ("result", "error")] == []
    assert handle.exit_code == -signal.SIGKILL
    assert wait_until_gone(pids, 0)


def test_a_rank_that_hangs_after_the_result_is_ended_and_the_result_stands(executor, tmp_path, monkeypatch):
    monkeypatch.setattr(local_handle, "RESULT_GRACE_S", 0.3)
    handle = executor.start(small_job(tmp_path, "hang_after_result", num_ranks=2), slot=0)
    events = run_to_end(handle, timeout_s=10)
    assert [event.data for event in events if event.kind == "result"] == [{"status": "complete"}]
    assert handle.exit_code == 0


def test_a_thread_left_behind_does_not_keep_the_process(executor, tmp_path):
    handle = executor.start(small_job(tmp_path, "leave_a_thread"), slot=0)
    assert run_to_end(handle, timeout_s=10)[-1].kind == "result" and handle.exit_code == 0


@pytest.mark.parametrize(
    ("error", "cause"), [("ValueError", "config"), ("MemoryError", "out_of_memory"), ("KeyError", "code")]
)
@pytest.mark.parametrize("in_rank", [0, 1])
def test_the_rank_at_fault_is_the_one_that_reports(executor, tmp_path, error, cause, in_rank):
    handle = executor.start(small_job(tmp_path, "raise_error", num_ranks=2, error=error, in_rank=in_rank), slot=0)
    events = run_to_end(handle)
    assert [event.kind for event in events] == ["started", "error"]
    data = events[-1].data
    assert (data["type"], data["cause"], data["rank"]) == (error, cause, in_rank)
    assert "said why" in data["message"] and "in raise_error" in data["traceback"]
    assert handle.exit_code == 1


def test_a_crash_gives_no_last_word_but_a_signal_and_a_log(executor, tmp_path):
    handle = executor.start(small_job(tmp_path, "crash"), slot=0)
    assert [event.kind for event in run_to_end(handle)] == ["started"]
    assert handle.exit_code == -signal.SIGSEGV
    assert "about to crash" in handle.log_tail(80) and "Segmentation fault" in handle.log_tail(80)


def test_an_unknown_kind_of_job_is_named(executor, tmp_path):
    job = Job("trail", "0001", {}, str(tmp_path), str(tmp_path / "trial.log"))
    error = run_to_end(executor.start(job, slot=0))[-1].data
    assert error["cause"] == "config"
    expected = "kind='trail': no such job; use one of trial, warm_start, preflight, final, or module:function"
    assert error["message"] == expected


def test_kill_ends_ranks_and_whatever_they_started(executor, tmp_path):
    handle = executor.start(small_job(tmp_path, "wait_for_ever", spawn=True), slot=0)
    pids = wait_for(handle, "progress").data["pids"]
    assert len(pids) == 4 and all(psutil.pid_exists(pid) for pid in pids)
    started = time.monotonic()
    handle.kill()
    assert time.monotonic() - started < 5
    assert wait_until_gone(pids, 0)
    assert not handle.is_alive()


@pytest.mark.parametrize("grace_s", [0.0, 5.0])
def test_kill_reports_how_the_ranks_went(executor, tmp_path, grace_s):
    handle = executor.start(small_job(tmp_path, "wait_for_ever", spawn=True), slot=0)
    pids = wait_for(handle, "progress").data["pids"]
    handle.kill(grace_s)
    # With a grace the rank left when it was asked to.
    assert handle.exit_code == (EXIT_ABANDONED if grace_s else -signal.SIGKILL)
    assert wait_until_gone(pids, 0)


def test_what_a_dead_rank_started_is_gone_when_its_slot_is_free(executor, tmp_path):
    handle = executor.start(small_job(tmp_path, "wait_for_ever", spawn=True), slot=0)
    pids = wait_for(handle, "progress").data["pids"]
    os.kill(pids[0], signal.SIGKILL)
    run_to_end(handle)
    assert wait_until_gone(pids[:3], 0)
    # The one that was given an empty environment is found by its session.
    assert wait_until_gone(pids[3:], 0)


def occupied_port():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener, listener.getsockname()[1]


def test_a_port_in_use_is_given_up_for_another(server, tmp_path):
    listener, port = occupied_port()
    ports = [port, port, free_port()]
    executor = LocalExecutor([Slot()], choose_port=lambda: ports.pop(0))
    with listener:
        events = run_to_end(executor.start(trial_job(tmp_path, num_ranks=2), slot=0), go_on)
    executor.close()
    assert [event.kind for event in events] == ["started", "step", "step", "step", "result"]
    assert ports == []


def test_five_ports_in_use_are_an_error_of_the_machine(server, tmp_path):
    listener, port = occupied_port()
    asked = []
    executor = LocalExecutor([Slot()], choose_port=lambda: asked.append(port) or port)
    with listener:
        events = run_to_end(executor.start(trial_job(tmp_path, num_ranks=2), slot=0))
    executor.close()
    assert [event.kind for event in events] == ["started", "error"]
    assert events[-1].data["cause"] == "machine"
    assert events[-1].data["message"].startswith("no free rendezvous port in 5 tries")
    assert len(asked) == 5


CONTROLLER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from sweeps.executors import wait_any
from sweeps.executors.local import LocalExecutor
from sweeps.executors.slots import Slot
from sweeps.jobs import Job

if __name__ == "__main__":
    executor = LocalExecutor([Slot()], preload=("sweeps.trial_process",))
    folder = sys.argv[2]
    job = Job("small_jobs:" + sys.argv[3], "0001", {}, folder, folder + "/trial.log", num_ranks=2)
    handle = executor.start(job, 0)
    while not os.path.exists(folder + "/finish"):
        wait_any([handle], 0.1)
        for event in handle.poll():
            if event.kind == "progress":
                open(folder + "/ready", "w").close()
    if sys.argv[4:] == ["close"]:
        executor.close()
        executor.close()
        time.sleep(600)
"""


def start_controller(tmp_path, function, *how):
    """A controller in a process of its own with one job of two ranks; its folder, and pids of ranks and fork server."""
    script, folder = tmp_path / "controller.py", tmp_path / "0001"
    script.write_text(CONTROLLER)
    folder.mkdir()
    process = subprocess.Popen([sys.executable, script, HERE, folder, function, *how], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (folder / "ready").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    ranks = recorded_pids(folder)
    server = psutil.Process(ranks[0]).ppid()
    assert psutil.Process(server).ppid() == process.pid
    return process, folder, [*ranks, server]


@pytest.mark.parametrize("function", ["wait_for_command", "wait_for_ever"])
def test_ranks_and_fork_server_leave_when_their_controller_is_killed(tmp_path, function):
    process, folder, family = start_controller(tmp_path, function)
    process.kill()
    process.wait()
    assert wait_until_gone(family, 10)
    assert end_orphans(folder) == 0
    assert not (folder / PROCESSES_FILE).exists()


def test_ranks_that_do_not_leave_are_ended_by_the_next_controller(tmp_path):
    process, folder, family = start_controller(tmp_path, "wait_for_ever")
    ranks = recorded_pids(folder)
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    process.kill()
    process.wait()
    assert not wait_until_gone(ranks, 0.5)
    assert end_orphans(folder, wait_s=0.2) == 2
    assert wait_until_gone(family, 5)


def test_ranks_survive_their_fork_server_and_the_next_job_gets_a_new_one(server, tmp_path):
    executor = LocalExecutor([Slot()])
    handle = executor.start(small_job(tmp_path, "wait_for_command"), slot=0)
    wait_for(handle, "progress")
    os.kill(server.pid, signal.SIGKILL)
    time.sleep(0.5)
    assert handle.is_alive() and handle.poll() == []
    handle.send({"command": "stop"})
    assert run_to_end(handle)[-1].data == {"status": "stopped", "command": {"command": "stop"}}
    assert handle.exit_code is None
    events = run_to_end(executor.start(small_job(tmp_path, "count", num_steps=1), slot=0))
    assert [event.kind for event in events] == ["started", "step", "result"]
    executor.close()


@pytest.mark.parametrize("how", ["close", "exit"])
def test_nothing_is_left_after_close_or_a_forgotten_close(tmp_path, how):
    process, folder, family = start_controller(tmp_path, "wait_for_ever", how)
    (folder / "finish").touch()
    assert wait_until_gone(family, 10)
    if how == "close":
        assert process.poll() is None
        process.kill()
    process.wait(10)


def test_two_jobs_run_at_once_and_a_taken_slot_is_refused(executor, tmp_path):
    assert executor.capacity == 2
    handles = [executor.start(small_job(tmp_path / str(slot), "wait_for_command"), slot) for slot in (0, 1)]
    with pytest.raises(AssertionError, match="slot 1 is not free"):
        executor.start(small_job(tmp_path, "count", num_steps=1), slot=1)
    for handle in handles:
        wait_for(handle, "progress")
    assert wait_any(handles, 0.05) == []
    handles[1].send({"command": "stop"})
    deadline = time.monotonic() + 10
    while handles[1].is_alive() and time.monotonic() < deadline:
        assert wait_any(handles, 5.0) == [handles[1]]
        handles[1].poll()
    assert handles[0].is_alive()


def test_every_executor_is_made_from_a_sweep():
    train = {"compute": {"device": "cpu", "num_threads": 1, "num_ranks": 2}}
    resources = {"processes_per_trial": 2, "max_concurrent_trials": 3}
    study = {"name": "slots", "n_trials": 1, "objective": {"metric": "eval/accuracy", "direction": "maximize"}}
    config = SweepConfig.model_validate({"study": study, "search_space": {}, "train": train, "resources": resources})
    assert list(EXECUTORS) == ["local"]
    for make in EXECUTORS.values():
        executor = make(config)
        assert executor.capacity == 3
        executor.close()
