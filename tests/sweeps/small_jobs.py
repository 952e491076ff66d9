"""Job functions that the executor tests run in real ranks: `small_jobs:<name>`."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time


class PeerFailed(RuntimeError):
    """Named like the error of `grpo_core.ranks`, without its imports."""


def count(job, link):
    """Reports `num_steps` steps."""
    for step in range(1, job.options["num_steps"] + 1):
        link.send("step", {"step": step, "metrics": {"reward/mean": float(step)}})
    return {"status": "complete", "last_step": job.options["num_steps"], "metrics": {}}


def look_around(job, link):
    """What a rank sees of itself."""
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    # The thread that takes it gets its turn.
    time.sleep(0.3)
    print("to the log")
    print("to the log as well", file=sys.stderr)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "CUDA_VISIBLE_DEVICES")
    return {
        "environ": {name: os.environ[name] for name in names},
        "port": int(os.environ["MASTER_PORT"]),
        "is_session_leader": os.getsid(0) == os.getpid(),
        "num_threads": sys.modules["torch"].get_num_threads(),
        "omp": os.environ["OMP_NUM_THREADS"],
        "of_the_controller": os.environ["SET_BY_THE_CONTROLLER"],
        "heavy": [name for name in ("datasets", "optuna", "mlflow") if name in sys.modules],
    }


def wait_for_ever(job, link):
    """Never ends by itself; leaves word of its pid, and of what it started if it was told to."""
    if job.options.get("spawn"):
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        same = subprocess.Popen(sleep)
        own = subprocess.Popen(sleep, start_new_session=True)
        bare = subprocess.Popen(sleep, env={})
        link.send("progress", {"pids": [os.getpid(), same.pid, own.pid, bare.pid]})
    else:
        link.send("progress", {"pids": [os.getpid()]})
    while True:
        time.sleep(0.05)


def wait_for_command(job, link):
    """Ends with the first command, or once the controller is gone."""
    link.send("progress", {"pids": [os.getpid()]})
    while (command := link.wait_command(0.05)) is None:
        if link.is_gone:
            return {"status": "stopped", "command": None}
    return {"status": "stopped", "command": command}


def raise_error(job, link):
    """Raises `error` in the rank `in_rank`; the others end for its sake."""
    if link.rank != job.options.get("in_rank", 0):
        raise PeerFailed(f"rank {link.rank} ends because another rank failed")
    time.sleep(0.2)
    raise {"ValueError": ValueError, "MemoryError": MemoryError, "KeyError": KeyError}[job.options["error"]]("said why")


def crash(job, link):
    """Dies of a segmentation fault."""
    print("about to crash")
    ctypes.string_at(0)


def hang_after_result(job, link):
    """Rank 0 ends well, rank 1 never does."""
    if link.rank == 1:
        link.send("progress", {"pids": [os.getpid()]})
        time.sleep(600)
    return {"status": "complete"}


def leave_a_thread(job, link):
    """Ends with a thread that does not."""
    threading.Thread(target=time.sleep, args=(600,)).start()
    return {"status": "complete"}
