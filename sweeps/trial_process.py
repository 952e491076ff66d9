"""What one rank's process runs, from the fork to its end. Imports nothing heavy: the controller reads this module too.

The process leads its own session, ignores SIGINT (the controller's to handle), passes SIGTERM on to the controller as
a preemption, writes its output to the job's log, does the job, and reports its last word to the controller.
"""

import faulthandler
import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from grpo_core.config import TrainConfig
from sweeps.failures import describe, is_port_in_use
from sweeps.jobs import Job
from sweeps.process_tree import MARK
from sweeps.rank_link import RankLink

EXIT_FAILED = 1
#: Makes a rank write the stacks of its threads to its log.
STACKS_SIGNAL = signal.SIGUSR1
#: Exit code of a rank whose rendezvous port was taken: the ranks are started again on another.
EXIT_PORT_IN_USE = 76

#: Time that a trial has for its checkpoint once its controller is gone. Other jobs have nothing to save.
TRIAL_GRACE_S = 30.0


@dataclass(frozen=True)
class Place:
    """Where a rank runs."""

    rank: int
    devices: tuple[str, ...]
    """CUDA devices of all ranks of the job; empty on CPU."""
    port: int
    """Port of the ranks' rendezvous on the loopback interface."""
    mark: str
    """Tells the programs that this job starts from all others."""
    environ: dict[str, str] = field(default_factory=dict)
    """The controller's environment; the fork server has that of an earlier time."""


JobFunction = Callable[[Job, RankLink], dict[str, Any]]


def run_trial(job: Job, link: RankLink) -> dict[str, Any]:
    """Trains one trial in `job.run_dir`, or goes on from its newest checkpoint; the data of its `result` event."""
    from grpo_core.run_record import METRICS_FILE
    from grpo_core.train import train
    from sweeps.guard import StabilityGuard
    from sweeps.sections import StabilityConfig
    from sweeps.step_judge import StepJudge, breach_reason, replay

    run_dir = Path(job.run_dir)
    guard = StabilityGuard(StabilityConfig.model_validate(job.options.get("stability", {})))
    # Every rank reads the same record and so agrees, before training opens a collective, that nothing is left to do.
    breach, recorded = replay(guard, run_dir / METRICS_FILE)
    if breach is not None:
        return {"status": "pruned", **recorded, "reason": breach_reason(breach), "checkpoint": None}
    judge = StepJudge(guard, link, job.options.get("report_metric")) if link.rank == 0 else None
    result = train(TrainConfig.model_validate(job.config), run_dir=run_dir, on_step=judge)
    return {
        "status": result.status,
        "last_step": result.last_step,
        "metrics": result.metrics,
        "reason": result.reason,
        "checkpoint": result.checkpoint,
    }


def run_warm_start(job: Job, link: RankLink) -> dict[str, Any]:
    """Makes sure that the warm-started policy is in the cache; `path` of its folder, None where there is none."""
    from grpo_core.warm_start import ensure_warm_start

    config = TrainConfig.model_validate(job.config)
    folder = ensure_warm_start(config, lambda progress: link.send("progress", progress))
    return {"path": None if folder is None else str(folder)}


def run_preflight(job: Job, link: RankLink) -> dict[str, Any]:
    """Measures the untouched policy; what it measured."""
    from grpo_core.preflight import measure_base_policy

    return measure_base_policy(TrainConfig.model_validate(job.config), Path(job.run_dir))


def run_final(job: Job, link: RankLink) -> dict[str, Any]:
    """Compares the winner with the base policy on the test problems; what it measured."""
    from grpo_core.evaluation import compare_on_test

    config = TrainConfig.model_validate(job.config)
    return compare_on_test(config, job.options["checkpoint"], Path(job.options["out"]))


JOB_KINDS: dict[str, JobFunction] = {
    "trial": run_trial,
    "warm_start": run_warm_start,
    "preflight": run_preflight,
    "final": run_final,
}


def job_function(kind: str) -> JobFunction:
    """The function of a job kind, one of JOB_KINDS or `module:function`; raises ValueError for any other."""
    if kind in JOB_KINDS:
        return JOB_KINDS[kind]
    module, colon, name = kind.partition(":")
    if not colon:
        raise ValueError(f"kind={kind!r}: no such job; use one of {', '.join(JOB_KINDS)}, or module:function")
    return getattr(importlib.import_module(module), name)


def run_rank(job: Job, place: Place, events: Connection, lifeline: Connection) -> None:
    """The life of one rank's process: sets it up, does the job, reports, and ends the process."""
    code = EXIT_FAILED
    # Before any thread is there: all of them inherit it, and none but the one that waits for it takes the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    link = RankLink(place.rank, events, lifeline, TRIAL_GRACE_S if job.kind == "trial" else 0.0)
    try:
        _set_up(job, place)
        link.report_preemption()
        if place.rank == 0:
            link.send("started", {"pid": os.getpid(), "num_ranks": job.num_ranks})
        result = job_function(job.kind)(job, link)
        if place.rank == 0:
            link.send("result", result)
        code = 0
    except BaseException as error:
        traceback.print_exc()
        if job.num_ranks > 1 and is_port_in_use(error):
            code = EXIT_PORT_IN_USE
        else:
            link.send("error", describe(error, place.rank, Path(job.run_dir)))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        link.close()
        # Threads and communicators of a job that failed must not keep the process from ending.
        os._exit(code)


def rank_log(log_path: str | Path, rank: int) -> Path:
    """File that a rank's output goes to: `trial.log`, `trial.rank1.log`, …"""
    path = Path(log_path)
    return path if rank == 0 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def _set_up(job: Job, place: Place) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Path(job.run_dir).mkdir(parents=True, exist_ok=True)
    _redirect_output(rank_log(job.log_path, place.rank))
    faulthandler.enable()
    faulthandler.register(STACKS_SIGNAL, all_threads=True)
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    print(f"{started} {job.kind} {job.name}: rank {place.rank} of {job.num_ranks}, pid {os.getpid()}")

    num_threads = int(job.config.get("compute", {}).get("num_threads", 1))
    os.environ.update(place.environ)
    os.environ.update(
        RANK=str(place.rank),
        WORLD_SIZE=str(job.num_ranks),
        LOCAL_RANK=str(place.rank),
        LOCAL_WORLD_SIZE=str(job.num_ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(place.port),
        CUDA_VISIBLE_DEVICES=",".join(place.devices),
        OMP_NUM_THREADS=str(num_threads),
        OPENBLAS_NUM_THREADS=str(num_threads),
        MKL_NUM_THREADS=str(num_threads),
    )
    os.environ[MARK] = place.mark
    # Those variables were read when the fork server loaded torch.
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(num_threads)
    if (tqdm := sys.modules.get("tqdm")) is not None:
        # Its own lock is a named semaphore, which a rank that is killed would leave behind.
        tqdm.tqdm.set_lock(threading.RLock())


def _redirect_output(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
