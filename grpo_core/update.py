"""The update: losses and gradients of a rollout batch, applied only where every number is finite."""

import contextlib
import math
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from grpo_core.batches import Batch, all_finite, forward_inputs, micro_batches
from grpo_core.config import AlgorithmConfig, TrainConfig
from grpo_core.losses import loss_denominator, policy_loss
from grpo_core.ranks import Ranks, Signal


@dataclass
class Learner:
    """What an update changes, and with what."""

    module: nn.Module
    """`GroupForward` as wrapped by Accelerate."""
    reference: nn.Module | None
    """`GroupForward` of the initial policy, frozen; None where no KL is asked for."""
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    ranks: Ranks


@dataclass
class UpdateStats:
    """What a step's updates were like, pooled over micro-batches and ranks."""

    loss: float = math.nan
    """Policy loss of the last update tried."""
    grad_norm: float = math.nan
    """Largest global gradient norm before clipping among the step's updates."""
    clip_frac: float = 0.0
    ratio_max: float = 0.0
    kl: float = 0.0
    """Mean per token: to the reference where there is one, else to the policy that sampled (k3)."""
    num_skipped: int = 0
    """Updates not applied because a number was not finite."""


def update_policy(learner: Learner, batch: Batch, config: TrainConfig) -> UpdateStats:
    """All updates of one step on one rollout batch.

    An update whose loss, log-probabilities or gradient norm is not finite is not applied and ends the step's updates:
    weights stay those of the last finite one.
    """
    stats = UpdateStats()
    norms: list[float] = []
    clipped = counted = 0.0
    for _ in range(config.algorithm.updates_per_batch):
        sums, finite = accumulate_gradients(learner, batch, config)
        norm = float(
            nn.utils.clip_grad_norm_(learner.module.parameters(), config.optim.max_grad_norm)
            if finite
            else torch.tensor(math.nan)
        )
        finite = finite and math.isfinite(norm)
        norms.append(norm)
        stats.loss = sums["loss"]
        stats.kl = sums["kl"] / max(sums["tokens"], 1)
        stats.ratio_max = max(stats.ratio_max, sums["ratio_max"])
        clipped, counted = clipped + sums["clipped"], counted + sums["tokens"]
        if learner.ranks.agree(Signal.GO if finite else Signal.SKIP) is not Signal.GO:
            learner.optimizer.zero_grad(set_to_none=True)
            stats.num_skipped += 1
            break
        learner.optimizer.step()
        learner.optimizer.zero_grad(set_to_none=True)
    # max() would let a NaN pass or not by its place.
    stats.grad_norm = math.nan if any(math.isnan(norm) for norm in norms) else max(norms)
    stats.clip_frac = clipped / max(counted, 1)
    return stats


def accumulate_gradients(learner: Learner, batch: Batch, config: TrainConfig) -> tuple[dict[str, float], bool]:
    """Gradients of the loss over the whole update (all micro-batches, all ranks), left on the weights.

    Gives the pooled sums `loss, tokens, clipped, kl` and the maximum `ratio_max`, and whether all was finite.
    """
    algorithm, ranks = config.loss_algorithm, learner.ranks
    own = float(loss_denominator(batch.loss_mask, algorithm))
    denominator = max(ranks.add_up({"denominator": own})["denominator"], 1.0)
    sums = {"loss": 0.0, "tokens": 0.0, "clipped": 0.0, "kl": 0.0}
    ratio_max = 0.0
    # Every rank runs as many passes as the others, since each holds as many completions.
    parts = list(micro_batches(batch, config.micro_batch_size))
    finite = True
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        synchronised = contextlib.nullcontext() if last else learner.accelerator.no_sync(learner.module)
        with synchronised:
            loss, metrics, part_finite = _part_loss(learner, part, algorithm, denominator)
            # DDP averages gradients over ranks; the loss is already divided by all ranks' denominator.
            learner.accelerator.backward(loss * ranks.size)
        finite = finite and part_finite and all_finite(loss.detach())
        sums["loss"] += float(loss.detach())
        for name in ("tokens", "clipped", "kl"):
            sums[name] += float(metrics[name])
        ratio_max = max(ratio_max, float(metrics["ratio_max"]))
    pooled = ranks.add_up(sums) | ranks.largest({"ratio_max": ratio_max})
    return pooled, ranks.agree(Signal.GO if finite else Signal.SKIP) is Signal.GO


def _part_loss(
    learner: Learner, part: Batch, algorithm: AlgorithmConfig, denominator: float
) -> tuple[Tensor, dict[str, Tensor], bool]:
    rollouts = part.rollouts
    inputs = forward_inputs(rollouts)
    with learner.accelerator.autocast():
        logprobs, entropy = learner.module(**inputs)
    ref_logprobs = None
    if learner.reference is not None:
        with torch.no_grad(), learner.accelerator.autocast():
            ref_logprobs = learner.reference(**inputs)[0]
    counted = part.loss_mask
    finite = all_finite(logprobs.detach()[counted], rollouts.logprobs[counted])
    loss, metrics = policy_loss(
        logprobs,
        rollouts.logprobs,
        part.advantages,
        counted,
        algorithm,
        ref_logprobs=ref_logprobs,
        entropy=entropy,
        denominator=denominator,
    )
    if ref_logprobs is None:
        difference = torch.where(counted, rollouts.logprobs - logprobs.detach(), 0.0)
        metrics["kl"] = (difference.expm1() - difference).sum()
    return loss, metrics, finite


def learning_rate(config: TrainConfig, step: int) -> float:
    """Learning rate of step 1, 2, …: a linear rise over `lr_warmup_steps`, then the schedule down to the last step."""
    optim = config.optim
    if step <= optim.lr_warmup_steps:
        return optim.lr * step / (optim.lr_warmup_steps + 1)
    if optim.lr_schedule == "constant":
        return optim.lr
    done = (step - optim.lr_warmup_steps - 1) / max(config.num_steps - optim.lr_warmup_steps, 1)
    return optim.lr * (1 - done if optim.lr_schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)
