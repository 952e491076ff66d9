"""The faults, a function each: it makes a study meet one, brings it to its end, and raises where anything is wrong.

Each gives in words how the study came out of it.
"""

import contextlib
import io
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from grpo_core.checkpoints import all_checkpoints
from sweeps.verbs import main as verb
from tests.faults.study import NUM_STEPS, ROOT, Broken, Study, job_processes

TWO_RANKS = ("resources.processes_per_trial=2", "resources.max_concurrent_trials=1")
#: Faults by what they are; the order of the table.
FAULTS: dict[str, Callable[[Path], str]] = {}


def fault(name: str) -> Callable[[Callable[[Path], str]], Callable[[Path], str]]:
    """Adds a function to the table."""

    def add(function: Callable[[Path], str]) -> Callable[[Path], str]:
        FAULTS[name] = function
        return function

    return add


def expect(code: int, wanted: int) -> None:
    """Raises Broken for another exit code."""
    if code != wanted:
        raise Broken(f"exit code {code}, not {wanted}")


def resumed(study: Study) -> str:
    """Launches again without a fault; everything must then be complete."""
    study.fault = ""
    expect(study.launch(), 0)
    study.check_whole()
    return "resumed, complete"


def retried(study: Study, rule: str) -> str:
    """Waits for the end; one trial must have been tried again for `rule`."""
    expect(study.finish(), 0)
    study.check_whole()
    tries = sum((outcome or {}).get("num_retries", 0) for outcome in study.outcomes())
    if tries != 1:
        raise Broken(f"{tries} retries")
    study.said(rule)
    return f"retried from its checkpoint, next new step after {study.seconds_lost():.1f} s, complete"


def begun(runs_dir: Path, *settings: str, fault: str = "", step: int = 3) -> Study:
    """A study whose trial 0 has recorded `step`."""
    study = Study(runs_dir, settings, fault)
    study.start()
    study.wait_for_step(step)
    return study


def killed(runs_dir: Path, step: int = 3) -> Study:
    """A study whose controller was killed after trial 0 had recorded `step`."""
    study = begun(runs_dir, step=step)
    study.send(signal.SIGKILL)
    study.finish()
    return study


# Processes


@fault("controller: kill -9")
def _(runs_dir: Path) -> str:
    return resumed(killed(runs_dir))


@fault("controller: SIGTERM")
def _(runs_dir: Path) -> str:
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


@fault("controller: Ctrl-C")
def _(runs_dir: Path) -> str:
    study = begun(runs_dir)
    study.send(signal.SIGINT)
    expect(study.finish(), 130)
    study.check_books()
    return resumed(study)


@fault("controller: Ctrl-C twice")
def _(runs_dir: Path) -> str:
    study = begun(runs_dir)
    study.send(signal.SIGINT)
    time.sleep(0.02)
    study.send(signal.SIGINT)
    expect(study.finish(), 130)
    study.check_books()
    return resumed(study)


@fault("controller: stopped for 4 s, then goes on")
def _(runs_dir: Path) -> str:
    study = begun(runs_dir)
    study.send(signal.SIGSTOP)
    time.sleep(4)
    study.send(signal.SIGCONT)
    expect(study.finish(), 0)
    study.check_whole()
    return "complete"


@fault("rank 0 of two: kill -9")
def _(runs_dir: Path) -> str:
    study = begun(runs_dir, *TWO_RANKS)
    study.kill_rank(0)
    return retried(study, "ended by signal 9")


@fault("rank 1 of two: kill -9")
def _(runs_dir: Path) -> str:
    study = begun(runs_dir, *TWO_RANKS)
    study.kill_rank(1)
    return retried(study, "ended by signal 9")


@fault("rank 0: SIGTERM (preempted)")
def _(runs_dir: Path) -> str:
    study = begun(runs_dir)
    study.kill_rank(0, how=signal.SIGTERM)
    return retried(study, "it was sent SIGTERM and left a checkpoint")


@fault("rank 1 of two: SIGTERM (preempted)")
def _(runs_dir: Path) -> str:
    study = begun(runs_dir, *TWO_RANKS)
    study.kill_rank(1, how=signal.SIGTERM)
    return retried(study, "it was sent SIGTERM and left a checkpoint")


@fault("rank 1 of two: stopped for good")
def _(runs_dir: Path) -> str:
    study = begun(runs_dir, *TWO_RANKS, "resources.hang_timeout=3s")
    study.kill_rank(1, how=signal.SIGSTOP)
    return retried(study, "no news for 3 s")


@fault("rank 0: stopped for 2 s, then goes on")
def _(runs_dir: Path) -> str:
    study = begun(runs_dir)
    pid = study.rank(0)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    os.kill(pid, signal.SIGCONT)
    expect(study.finish(), 0)
    study.check_whole()
    return "complete"


@fault("fork server: kill -9")
def _(runs_dir: Path) -> str:
    study = begun(runs_dir)
    os.kill(psutil.Process(study.rank(0)).ppid(), signal.SIGKILL)
    expect(study.finish(), 0)
    study.check_whole()
    return "complete"


@fault("rank killed while it writes a checkpoint")
def _(runs_dir: Path) -> str:
    study = Study(runs_dir, ("study.n_trials=1",), "once:killed in a checkpoint")
    study.start()
    expect(study.finish(), 0)
    study.check_whole(num_trials=1)
    return "retried from the start, complete"


# Tracking


@fault("tracking server: kill -9, back after 3 s")
def _(runs_dir: Path) -> str:
    with server(runs_dir) as first:
        study = begun(runs_dir, f"tracking.uri={first}", f"train.num_steps={NUM_STEPS * 5}", step=2)
        port = int(first.rpartition(":")[2])
    time.sleep(3)
    with server(runs_dir, port):
        expect(study.finish(), 0)
        study.check_books()
    for number in range(2):
        if (points := study.points(number)) != list(range(1, NUM_STEPS * 5 + 1)):
            raise Broken(f"MLflow has steps {points} of trial {number}")
    return "complete, records replayed in order"


@fault("tracking server: refuses connections")
def _(runs_dir: Path) -> str:
    study = Study(runs_dir, ("tracking.uri=http://127.0.0.1:1",))
    expect(study.launch(), 0)
    study.said("MLflow at http://127.0.0.1:1 lacks the latest records")
    return synced(study)


@fault("tracking server: accepts and never answers")
def _(runs_dir: Path) -> str:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(64)
        study = Study(runs_dir, (f"tracking.uri=http://127.0.0.1:{silent.getsockname()[1]}",))
        expect(study.launch(), 0)
    study.said("lacks the latest records")
    return synced(study)


@fault("tracking store: lost after the study")
def _(runs_dir: Path) -> str:
    study = Study(runs_dir)
    expect(study.launch(), 0)
    for file in runs_dir.glob("mlflow.db*"):
        file.unlink()
    return synced(study)


def synced(study: Study) -> str:
    with contextlib.redirect_stdout(io.StringIO()):
        code = verb(["sync", study.folder.name, "--runs-dir", str(study.runs_dir), "--tracking-uri", study.uri])
    expect(code, 0)
    study.check_whole()
    return "complete; sync brought the store up to date"


@contextmanager
def server(runs_dir: Path, port: int = 0) -> Iterator[str]:
    """An MLflow server on the study's own store, killed at the end; its address."""
    command = [sys.executable, "-m", "mlflow_server", "--runs-dir", str(runs_dir), "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "http://" in line:
                yield "http://" + line.partition("http://")[2].split()[0].rstrip("/,.;")
                break
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.communicate()


# Disk


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """A file system of its own."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@fault("disk full")
def _(runs_dir: Path) -> str:
    with small_disk(runs_dir, "60m"):
        study = begun(runs_dir, step=1)
        filler = runs_dir / "filler"
        with filler.open("wb") as file:
            try:
                while True:
                    file.write(bytes(65536))
                    file.flush()
            except OSError:
                pass
        expect(study.finish(), 1)
        study.said("No space left on device|disk is full")
        study.said("go on with: python -m sweeps resume")
        filler.unlink(missing_ok=True)
        return resumed(study)


@fault("disk read-only at the next launch")
def _(runs_dir: Path) -> str:
    with small_disk(runs_dir, "60m"):
        study = killed(runs_dir)
        wait_for_ranks(study)
        subprocess.run(["mount", "-o", "remount,ro", runs_dir], check=True)
        expect(study.launch(), 2)
        study.said("cannot be written to: Read-only file system")
        subprocess.run(["mount", "-o", "remount,rw", runs_dir], check=True)
        return f"refused, exit code 2; writable again: {resumed(study)}"


@fault("metrics.jsonl: torn last line")
def _(runs_dir: Path) -> str:
    study = killed(runs_dir)
    with study.folder.trial(0).metrics_file.open("a") as file:
        file.write('{"step": 99, "time": 17')
    return resumed(study)


@fault("newest checkpoint: a bit flipped")
def _(runs_dir: Path) -> str:
    study = killed(runs_dir)
    wait_for_ranks(study)
    folder = all_checkpoints(study.folder.trial(0).path)[-1]
    file = next((folder / "policy").glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-5] ^= 4
    file.write_bytes(data)
    said = resumed(study)
    if not list((study.folder.trial(0).path / "checkpoints").glob("damaged_*")):
        raise Broken("the damaged checkpoint was not set aside")
    return said


@fault("newest checkpoint: half written")
def _(runs_dir: Path) -> str:
    study = killed(runs_dir)
    wait_for_ranks(study)
    folder = all_checkpoints(study.folder.trial(0).path)[-1]
    (folder / "state.json").unlink()
    (folder / "optimizer.pt").write_bytes(b"half")
    return resumed(study)


@fault("study.db: overwritten")
def _(runs_dir: Path) -> str:
    study = killed(runs_dir)
    for log in study.folder.path.glob("study.db-*"):
        log.unlink()
    study.folder.study_db.write_bytes(b"no database at all" * 999)
    said = resumed(study)
    study.said("study.db is damaged")
    return said


@fault("study.db: deleted")
def _(runs_dir: Path) -> str:
    study = killed(runs_dir)
    for file in study.folder.path.glob("study.db*"):
        file.unlink()
    return resumed(study)


@fault("study.db: locked for 5 s")
def _(runs_dir: Path) -> str:
    study = begun(runs_dir, step=1)
    connection = sqlite3.connect(study.folder.study_db, isolation_level=None, timeout=20)
    connection.execute("BEGIN EXCLUSIVE")
    time.sleep(5)
    connection.execute("ROLLBACK")
    connection.close()
    expect(study.finish(), 0)
    study.check_whole()
    return "complete"


@fault("outcome.json: cut in half")
def _(runs_dir: Path) -> str:
    study = Study(runs_dir)
    expect(study.launch(), 0)
    cut(study.folder.trial(0).outcome_file)
    study.configure("study.n_trials=3")
    expect(study.launch(), 0)
    study.said("outcome.json is not readable")
    study.check_whole(num_trials=3)
    return "set aside and made again, complete"


@fault("controller.json and tracking.json: cut in half")
def _(runs_dir: Path) -> str:
    study = killed(runs_dir)
    cut(study.folder.controller_file)
    cut(study.folder.tracking_file)
    said = resumed(study)
    if len(study.runs("tags.kind = 'study'")) != 1:
        raise Broken("MLflow has two parent runs")
    return said


@fault("folder of a running trial: deleted after kill -9")
def _(runs_dir: Path) -> str:
    study = killed(runs_dir)
    wait_for_ranks(study)
    shutil.rmtree(study.folder.trial(0).path)
    return resumed(study)


@fault("sweep.yaml: cut in half")
def _(runs_dir: Path) -> str:
    study = killed(runs_dir)
    wait_for_ranks(study)
    kept = study.folder.sweep_file.read_bytes()
    study.folder.sweep_file.write_bytes(b"study: [" + kept[:40])
    expect(study.launch(), 2)
    study.said("is not readable")
    study.folder.sweep_file.write_bytes(kept)
    return f"refused, exit code 2; brought back: {resumed(study)}"


def cut(file: Path) -> None:
    """Takes the second half of a file away."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def wait_for_ranks(study: Study) -> None:
    """Waits until ranks whose controller is gone have left."""
    deadline = time.monotonic() + 40
    while job_processes(study.runs_dir):
        if time.monotonic() > deadline:
            raise Broken("ranks outlived their controller by 40 s")
        time.sleep(0.1)


# People


@fault("two controllers on one study")
def _(runs_dir: Path) -> str:
    study = begun(runs_dir)
    other = Study(runs_dir)
    expect(other.launch(), 2)
    other.said("is being run by another process")
    expect(study.finish(), 0)
    study.check_whole()
    return "the second is refused, exit code 2; complete"


@fault("file changed under a running study")
def _(runs_dir: Path) -> str:
    study = begun(runs_dir)
    study.configure("search_space.lr.max=0.01")
    expect(study.finish(), 0)
    study.check_whole()
    expect(study.launch(), 2)
    study.said("search_space.lr: 1e-05 to 0.0001")
    return "complete by its own settings; the next launch names the change, exit code 2"


@fault("clock: jumps back an hour")
def _(runs_dir: Path) -> str:
    study = Study(runs_dir)
    expect(study.launch(), 0)
    # As if the clock had been an hour ahead until now.
    record = study.folder.trial(0).metrics_file
    ahead = record.stat().st_mtime + 3600
    os.utime(record, (ahead, ahead))
    study.configure("study.n_trials=3")
    expect(study.launch(), 0)
    study.check_whole(num_trials=3)
    return "complete"


# Inside a trial


def inside(name: str, states: tuple[str, ...], said: str, code: int = 0, **more: str) -> None:
    """Adds a fault that `injections` makes in every trial."""

    @fault(name)
    def _(runs_dir: Path) -> str:
        settings = tuple(f"{key.replace('__', '.')}={value}" for key, value in more.items())
        study = Study(runs_dir, settings, name)
        expect(study.launch(), code)
        study.check_whole(states=states)
        if said:
            study.said(said)
        return f"{', '.join(states)}; exit code {code}"


inside("NaN in the loss", ("pruned",), "loss/policy is nan at step 3")
inside("NaN in the gradient", ("pruned",), "is nan at step 3")
inside("NaN in the weights", ("pruned",), "at step [34]")
inside("reward is NaN", ("complete", "pruned"), "")
inside("reward is 1e30", ("complete", "pruned"), "")
inside("reward is None", ("complete", "pruned"), "")
inside("reward is a string", ("complete", "pruned"), "")
inside("reward raises", ("complete", "pruned"), "")
inside("reward hangs", ("failed",), "no news for 2 s", resources__hang_timeout="2s", study__retries="1")
inside("the code raises", ("failed",), "KeyError: 'a bug in the code'")


@fault("memory limit")
def _(runs_dir: Path) -> str:
    hungry = (
        *("study.n_trials=1", "resources.max_concurrent_trials=1", "train.policy.hidden_size=128"),
        *("train.rollout.completions_per_step=256", "train.rollout.max_new_tokens=96"),
        *("train.optim.micro_batch_size=256", "search_space.group_size=null", "train.eval.num_problems=4"),
    )
    study = Study(runs_dir, hungry, "memory limit")
    expect(study.launch(), 0)
    study.check_whole(num_trials=1)
    [outcome] = study.outcomes()
    assert outcome is not None
    if not outcome["changes"]:
        raise Broken("it never ran out of memory")
    return f"complete with {outcome['changes']}"


@fault("rendezvous port in use")
def _(runs_dir: Path) -> str:
    taken = [socket.socket() for _ in range(64)]
    stop = threading.Event()
    try:
        for each in taken:
            each.bind(("127.0.0.1", 0))
            each.listen()
        study = Study(runs_dir, TWO_RANKS)
        expect(study.launch(), 0)
        study.check_whole()
    finally:
        stop.set()
        for each in taken:
            each.close()
    return "complete"
