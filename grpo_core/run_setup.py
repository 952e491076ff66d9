"""Everything a run holds before its first step: task, policy, learner, ranks, record."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate import Accelerator

from grpo_core.assessment import Forward
from grpo_core.checkpoints import (
    checkpoint_policy_folder,
    load_optimizer,
    load_state,
    load_value_head,
    newest_sound_checkpoint,
)
from grpo_core.config import TrainConfig
from grpo_core.group_forward import GroupForward, TokenPredictions
from grpo_core.lora import adapters_off
from grpo_core.policy import Policy, load_policy
from grpo_core.ranks import Ranks, close_ranks, open_ranks
from grpo_core.run_record import RunRecord
from grpo_core.run_state import RunState
from grpo_core.tasks import Task, load_task
from grpo_core.update import LR_FACTOR, Learner
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
    state: RunState
    record: RunRecord | None = None
    """Written by rank 0 alone."""


@contextmanager
def open_run(config: TrainConfig, run_dir: Path) -> Iterator[Run]:
    """A run ready for its next step: fresh, or where the newest checkpoint in `run_dir` left it."""
    accelerator, ranks = open_ranks(config.compute)
    try:
        record = checkpoint = None
        if ranks.is_first:
            record = RunRecord(run_dir)
            # One of a step that the record lost with the power would leave that step out.
            checkpoint = newest_sound_checkpoint(run_dir, record.last_step)
        run = build_run(config, run_dir, accelerator, ranks, ranks.from_first(checkpoint))
        run.record = record
        if ranks.is_first:
            (run_dir / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        yield run
    finally:
        close_ranks(ranks)


def build_run(
    config: TrainConfig, run_dir: Path, accelerator: Accelerator, ranks: Ranks, checkpoint: Path | None = None
) -> Run:
    """Task, policy and learner of a run without a record: as they were at `checkpoint`, or before the first step."""
    task = load_task(config.task)
    # transformers writes files on the first rank only, so that rank trains and the others wait for the folder.
    start = ranks.from_first(ensure_warm_start(config) if ranks.is_first else None)
    policy = load_policy(config.policy, task, start, checkpoint_policy_folder(checkpoint) if checkpoint else None)
    learner = build_learner(policy, config, accelerator, ranks)
    if config.algorithm.kl_coef:
        learner.reference = build_reference(config, task, start, learner)
    state = RunState.at_start(config.algorithm)
    if checkpoint:
        load_optimizer(checkpoint, learner.optimizer)
        load_value_head(checkpoint, learner.forward.value_head)
        state = RunState.from_record(load_state(checkpoint), config.algorithm)
    return Run(config, run_dir, task, policy, learner, accelerator, ranks, state)


def build_learner(policy: Policy, config: TrainConfig, accelerator: Accelerator, ranks: Ranks) -> Learner:
    """The training side of `policy`, wrapped by Accelerate for this process's device and ranks; without a reference."""
    if config.compute.activation_checkpointing:
        model = policy.model
        # transformers before 5.24 has only the older name, which the newer one deprecates.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    forward = GroupForward(policy.model, with_values=config.algorithm.baseline == "value")
    forward.train()
    optim = config.optim
    trained = [weight for weight in policy.model.parameters() if weight.requires_grad]
    groups: list[dict[str, Any]] = [{"params": trained, LR_FACTOR: 1.0}]
    if forward.value_head is not None:
        groups.append({"params": list(forward.value_head.parameters()), LR_FACTOR: optim.value_lr_factor})
    optimizer = torch.optim.AdamW(
        groups,
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        weight_decay=optim.weight_decay,
        # One pass over weights, gradients and moments instead of a dozen.
        fused=True,
    )
    module, prepared = accelerator.prepare(forward, optimizer)
    return Learner(module, forward, None, prepared, accelerator, ranks)


def build_reference(config: TrainConfig, task: Task, start: Path | None, learner: Learner) -> Forward:
    """The initial policy as a forward pass without a gradient: the adapters switched off, or a frozen copy."""
    if config.policy.lora is not None:
        forward = learner.forward

        def without_adapters(**inputs: Any) -> TokenPredictions:
            with adapters_off(forward.model):
                return forward(**inputs)

        return without_adapters
    model = load_policy(config.policy, task, start).model.requires_grad_(False).eval()
    # Half the memory where the forward pass computes in half precision anyway.
    half = config.compute.precision == "bfloat16" and learner.accelerator.device.type == "cuda"
    return GroupForward(model.to(learner.accelerator.device, torch.bfloat16 if half else torch.float32))
