"""Everything a run holds before its first step: task, policy, learner, ranks, record."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import Accelerator

from grpo_core.checkpoints import checkpoint_policy_folder, load_optimizer, load_state, newest_checkpoint
from grpo_core.config import TrainConfig
from grpo_core.group_forward import GroupForward
from grpo_core.policy import Policy, load_policy
from grpo_core.ranks import Ranks, close_ranks, open_ranks
from grpo_core.run_record import RunRecord
from grpo_core.tasks import Task, load_task
from grpo_core.update import Learner
from grpo_core.warm_start import ensure_warm_start


@dataclass
class Run:
    config: TrainConfig
    run_dir: Path
    task: Task
    policy: Policy
    learner: Learner
    accelerator: Accelerator
    ranks: Ranks
    record: RunRecord | None
    """Written by rank 0 alone."""
    last_step: int
    """Steps done before; 0 for a fresh run."""
    num_skipped: float = 0.0
    """Updates not applied since the run began, because a number was not finite."""


@contextmanager
def open_run(config: TrainConfig, run_dir: Path) -> Iterator[Run]:
    """A run ready for its next step: fresh, or where the newest checkpoint in `run_dir` left it."""
    accelerator, ranks = open_ranks(config.compute)
    try:
        task = load_task(config.task)
        # transformers writes files on the first rank only, so that rank trains and the others wait for the folder.
        start = ranks.from_first(ensure_warm_start(config) if ranks.is_first else None)
        checkpoint = ranks.from_first(newest_checkpoint(run_dir))
        policy = load_policy(config.policy, task, checkpoint_policy_folder(checkpoint) if checkpoint else start)
        reference = None
        if config.algorithm.kl_coef:
            initial = load_policy(config.policy, task, start) if checkpoint else policy
            reference = _reference(initial, config, accelerator)
        learner = build_learner(policy, config, accelerator, ranks, reference)
        state: dict[str, Any] = {"step": 0, "num_skipped": 0.0}
        if checkpoint:
            load_optimizer(checkpoint, learner.optimizer)
            state = load_state(checkpoint)
        record = None
        if ranks.is_first:
            record = RunRecord(run_dir)
            (run_dir / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        yield Run(
            config, run_dir, task, policy, learner, accelerator, ranks, record, state["step"], state["num_skipped"]
        )
    finally:
        close_ranks(ranks)


def build_learner(
    policy: Policy, config: TrainConfig, accelerator: Accelerator, ranks: Ranks, reference: torch.nn.Module | None
) -> Learner:
    """The training side of `policy`, wrapped by Accelerate for this process's device and ranks."""
    if config.compute.activation_checkpointing:
        model = policy.model
        # transformers before 5.24 has only the older name, which the newer one deprecates.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    forward = GroupForward(
        policy.model, config.rollout.temperature, share_prompts=not config.compute.activation_checkpointing
    )
    forward.train()
    optim = config.optim
    optimizer = torch.optim.AdamW(
        forward.parameters(),
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        weight_decay=optim.weight_decay,
        fused=accelerator.device.type == "cuda",
    )
    module, prepared = accelerator.prepare(forward, optimizer)
    return Learner(module, reference, prepared, accelerator, ranks)


def _reference(initial: Policy, config: TrainConfig, accelerator: Accelerator) -> Any:
    frozen = copy.deepcopy(initial.model).to(accelerator.device).requires_grad_(False).eval()
    return GroupForward(frozen, config.rollout.temperature)
