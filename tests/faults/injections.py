"""What is broken inside a trial: `GRPO_FAULT=name` in the controller's environment, from step `AT_STEP` on.

A fault named `once:…` strikes a trial's first start alone. Every step takes a while, so that a fault from outside finds
the trial where it looks for it.
"""

import dataclasses
import math
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from grpo_core import checkpoints
from grpo_core import train as training
from grpo_core.run_setup import Run
from grpo_core.tasks import Completion, Problem
from sweeps.jobs import Job
from sweeps.rank_link import RankLink
from sweeps.trial_process import run_trial

AT_STEP = 3
STEP_S = 0.15
_MARK = "fault-was-here"


def trial(job: Job, link: RankLink) -> dict[str, Any]:
    """`run_trial` with a pause at every step and the fault of the environment."""
    fault = os.environ.get("GRPO_FAULT", "")
    mark = Path(job.run_dir) / f"{_MARK}.{link.rank}"
    if fault.startswith("once:") and mark.exists():
        fault = ""
    mark.touch()
    step_before = training.train_step
    fault = fault.removeprefix("once:")

    def slowed(run: Run, step: int) -> Any:
        time.sleep(STEP_S)
        if fault in AT_ITS_STEP and step == AT_STEP:
            AT_ITS_STEP[fault](run)
        return step_before(run, step)

    training.train_step = slowed
    if fault in FROM_THE_START:
        FROM_THE_START[fault]()
    return run_trial(job, link)


def _score_with(score: Callable[[Problem, Completion], Any]) -> Callable[[Run], None]:
    def inject(run: Run) -> None:
        run.task = dataclasses.replace(run.task, score=score)

    return inject


def _raise(*_: Any) -> Any:
    raise RuntimeError("a bug in the reward")


def _nan_weights(run: Run) -> None:
    with torch.no_grad():
        next(run.policy.model.parameters()).fill_(math.nan)


def _nan_gradient(run: Run) -> None:
    weight = next(run.policy.model.parameters())
    weight.register_hook(lambda gradient: torch.full_like(gradient, math.nan))


def _nan_loss(run: Run) -> None:
    before = training.learning_batch

    def poisoned(*given: Any) -> Any:
        batch, metrics = before(*given)
        if batch is not None:
            batch.advantages[0] = math.nan
        return batch, metrics

    training.learning_batch = poisoned


def _code(run: Run) -> None:
    raise KeyError("a bug in the code")


def _memory_limit() -> None:
    # Really too little for the whole micro-batch of MEMORY_HUNGRY, and enough for a part of it.
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 420_000_000, resource.RLIM_INFINITY))


def _killed_while_it_writes_a_checkpoint() -> None:
    def killed(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    before = checkpoints.torch.save

    def save(*given: Any) -> None:
        before(*given)
        killed()

    checkpoints.torch.save = save


AT_ITS_STEP: dict[str, Callable[[Run], None]] = {
    "reward raises": _score_with(_raise),
    "reward hangs": _score_with(lambda *_: time.sleep(600)),
    "reward is None": _score_with(lambda *_: None),
    "reward is a string": _score_with(lambda *_: {"correct": "yes", "format": 1.0}),
    "reward is 1e30": _score_with(lambda problem, completion: {"correct": 1e30 * len(completion.text), "format": 0.0}),
    "reward is NaN": _score_with(lambda *_: {"correct": math.nan, "format": 0.0}),
    "NaN in the loss": _nan_loss,
    "NaN in the gradient": _nan_gradient,
    "NaN in the weights": _nan_weights,
    "the code raises": _code,
}
FROM_THE_START: dict[str, Callable[[], None]] = {
    "memory limit": _memory_limit,
    "killed in a checkpoint": _killed_while_it_writes_a_checkpoint,
}
