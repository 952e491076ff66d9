"""What a rank of the two-rank tests runs: `python rank_jobs.py JOB FOLDER` under RANK and WORLD_SIZE."""

import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo_core import collection
from grpo_core import train as training
from grpo_core.batches import build_batch
from grpo_core.collection import Collection, collect
from grpo_core.config import TrainConfig
from grpo_core.policy import Policy, load_policy
from grpo_core.ranks import PeerFailed, Signal, close_ranks, open_ranks
from grpo_core.rollouts import Rollouts
from grpo_core.run_setup import build_learner
from grpo_core.tasks import Task, load_task
from grpo_core.train import Verdict, train
from grpo_core.update import accumulate_gradients


def gradient(folder: Path) -> None:
    """Gradient of this rank's half of the batch in `folder`; rank 0 saves it."""
    config = TrainConfig.model_validate_json((folder / "config.json").read_text())
    accelerator, ranks = open_ranks(config.compute)
    whole = torch.load(folder / "batch.pt", weights_only=True)
    num_prompts, num_rows = len(whole["prompt_ids"]) // ranks.size, len(whole["ended"]) // ranks.size
    prompts = slice(ranks.rank * num_prompts, (ranks.rank + 1) * num_prompts)
    rows = slice(ranks.rank * num_rows, (ranks.rank + 1) * num_rows)
    own = {
        name: values[prompts if name in ("prompt_ids", "prompt_mask", "advantages") else rows]
        for name, values in whole.items()
    }
    own["prompt_index"] = whole["prompt_index"][rows] - prompts.start
    advantages = own.pop("advantages")
    batch = build_batch(Rollouts(**own, temperature=config.rollout.temperature), advantages, mask_truncated=False)
    policy = load_policy(config.policy, load_task(config.task))
    learner = build_learner(policy, config, accelerator, ranks)
    sums, finite = accumulate_gradients(learner, batch, config)
    assert finite
    if ranks.is_first:
        grads = torch.cat([weight.grad.flatten() for weight in policy.model.parameters()])
        torch.save({"gradient": grads, "loss": sums["loss"]}, folder / "two_ranks.pt")
    close_ranks(ranks)


def pruned(folder: Path) -> None:
    """A run that rank 0 prunes at step 2; every rank writes where it ended."""
    config = TrainConfig.model_validate_json((folder / "config.json").read_text())
    verdict = Verdict("prune", {"rule": "test"})
    result = train(config, run_dir=folder / "run", on_step=lambda step, _: verdict if step == 2 else None)
    rank = os.environ["RANK"]
    (folder / f"rank{rank}.json").write_text(json.dumps([result.status, result.last_step, result.reason]))


def pooled(folder: Path) -> None:
    """Sums and maxima over ranks, and an error of one rank heard by the other."""
    config = TrainConfig.model_validate_json((folder / "config.json").read_text())
    _, ranks = open_ranks(config.compute)
    clipped, tokens = (3.0, 12.0) if ranks.rank == 0 else (3.0, 4.0)
    sums = ranks.add_up({"clipped": clipped, "tokens": tokens})
    largest = ranks.largest({"ratio": float(ranks.rank), "lost": float("nan") if ranks.rank else 1.0})
    heard = None
    try:
        ranks.agree(Signal.ERROR if ranks.rank == 1 else Signal.GO)
    except PeerFailed as error:
        heard = str(error)
    record = {"frac": sums["clipped"] / sums["tokens"], "largest": largest, "heard": heard}
    (folder / f"rank{ranks.rank}.json").write_text(json.dumps(record))
    close_ranks(ranks)


def raises(folder: Path) -> None:
    """A run in which rank 1 fails while it samples; rank 0 writes what it heard."""
    config = TrainConfig.model_validate_json((folder / "config.json").read_text())
    rank = os.environ["RANK"]
    if rank == "1":
        collection.sample_groups = lambda *_, **__: 1 / 0
    try:
        train(config, run_dir=folder / "run")
    except (PeerFailed, ZeroDivisionError) as error:
        (folder / f"rank{rank}.json").write_text(json.dumps(type(error).__name__))


def whole_run(folder: Path) -> None:
    """A run to its end; its record is rank 0's."""
    config = TrainConfig.model_validate_json((folder / "config.json").read_text())
    train(config, run_dir=folder / "run")


def uneven(folder: Path) -> None:
    """Dynamic sampling where only rank 0 finds groups with a signal; each rank writes what came of its step."""
    config = TrainConfig.model_validate_json((folder / "config.json").read_text())
    rank = os.environ["RANK"]
    times = itertools.count()
    training.collect = partial(collect_scored_by, lambda: float(next(times) % 2) if rank == "0" else 0.0)
    train(config, run_dir=folder / "run")


def collect_scored_by(reward: Callable[[], float], policy: Policy, task: Task, *others: Any) -> Collection:
    """`collect` with `reward()` in place of the task's score."""
    scored = dataclasses.replace(task, score=lambda problem, completion: {"correct": reward(), "format": 0.0})
    return collect(policy, scored, *others)


if __name__ == "__main__":
    {
        "whole_run": whole_run,
        "uneven": uneven,
        "gradient": gradient,
        "pruned": pruned,
        "pooled": pooled,
        "raises": raises,
    }[sys.argv[1]](Path(sys.argv[2]))
