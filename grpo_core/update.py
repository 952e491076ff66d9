"""The updates of a step: losses and gradients of a rollout batch, applied only where every number is finite."""

import contextlib
import math
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from grpo_core.assessment import Forward
from grpo_core.batches import Batch, all_finite, forward_inputs, micro_batches, minibatch
from grpo_core.config import TrainConfig
from grpo_core.group_forward import GroupForward
from grpo_core.losses import kl_divergence, loss_denominator, policy_loss
from grpo_core.ranks import Ranks, Signal
from grpo_core.value import value_loss

#: float16 gradients overflow while the loss scale is being found: a try is repeated at half the scale this often.
MAX_SCALE_TRIES = 24
#: Key of an optimiser's group of weights: its learning rate as a multiple of the policy's.
LR_FACTOR = "lr_factor"
_SUMS = ("loss", "value_loss", "tokens", "clipped", "kl")


@dataclass
class Learner:
    """What an update changes, and with what."""

    module: nn.Module
    """`forward` as wrapped by Accelerate."""
    forward: GroupForward
    reference: Forward | None
    """The initial policy, frozen; None where no KL is asked for."""
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    ranks: Ranks


@dataclass
class UpdateStats:
    """What a step's updates were like, pooled over micro-batches and ranks; the defaults are those of a step without
    any."""

    loss: float = 0.0
    """Policy loss of the last update tried."""
    value_loss: float | None = None
    """Loss of the value head in that update, unweighted; None without a value head."""
    grad_norm: float = 0.0
    """Largest global gradient norm before clipping among the step's updates."""
    clip_frac: float = 0.0
    ratio_max: float = 1.0
    kl: float = 0.0
    """Mean per token: to the reference where there is one, else to the policy that sampled (k3)."""
    num_skipped: int = 0
    """Updates not applied because a number was not finite."""


def update_policy(learner: Learner, batch: Batch, config: TrainConfig, step: int = 1) -> UpdateStats:
    """All updates of `step` on one rollout batch, each on the whole of it or on a minibatch in turn.

    An update whose loss, log-probabilities or gradient norm is not finite is not applied and ends the step's updates:
    weights stay those of the last finite one.
    """
    algorithm = config.algorithm
    stats = UpdateStats(ratio_max=0.0)
    norms: list[float] = []
    clipped = counted = 0.0
    for number in range(algorithm.updates_per_batch):
        part = minibatch(batch, number, algorithm.num_minibatches, config.seed, step)
        sums, norm = _try_update(learner, part, config)
        finite = math.isfinite(norm)
        norms.append(norm)
        stats.loss = sums["loss"]
        stats.value_loss = sums["value_loss"] if batch.returns is not None else None
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


def _try_update(learner: Learner, part: Batch, config: TrainConfig) -> tuple[dict[str, float], float]:
    """Gradients of one update, clipped, on the weights; gives its sums and the norm, NaN where a number is not finite.

    Where a loss scale is in use, gradients that overflow under it lower it and are computed again.
    """
    for _ in range(MAX_SCALE_TRIES):
        sums, finite = accumulate_gradients(learner, part, config)
        if not finite:
            return sums, math.nan
        learner.accelerator.unscale_gradients(learner.optimizer)
        norm = float(nn.utils.clip_grad_norm_(learner.module.parameters(), config.optim.max_grad_norm))
        if math.isfinite(norm) or learner.accelerator.scaler is None:
            break
        # The scaler leaves the weights alone here and lowers its scale.
        learner.optimizer.step()
        learner.optimizer.zero_grad(set_to_none=True)
    return sums, norm if math.isfinite(norm) else math.nan


def accumulate_gradients(learner: Learner, batch: Batch, config: TrainConfig) -> tuple[dict[str, float], bool]:
    """Gradients of the loss over the whole update (all micro-batches, all ranks), left on the weights.

    Gives the pooled sums `loss, value_loss, tokens, clipped, kl` and the maximum `ratio_max`, and whether all was
    finite.
    """
    ranks = learner.ranks
    own = {"loss": float(loss_denominator(batch.loss_mask, config.loss_algorithm)), "value": 0.0}
    if batch.value_mask is not None:
        own["value"] = float(batch.value_mask.sum())
    denominators = {name: max(total, 1.0) for name, total in ranks.add_up(own).items()}
    sums = dict.fromkeys(_SUMS, 0.0)
    ratio_max = 0.0
    # Every rank runs as many passes as the others, since each holds as many completions.
    parts = list(micro_batches(batch, config.micro_batch_size))
    finite = True
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        synchronised = contextlib.nullcontext() if last else learner.accelerator.no_sync(learner.module)
        with synchronised:
            loss, metrics, part_finite = _part_loss(learner, part, config, denominators)
            # DDP averages gradients over ranks; the loss is already divided by all ranks' denominator.
            learner.accelerator.backward(loss * ranks.size)
        finite = finite and part_finite and all_finite(loss.detach())
        for name in _SUMS:
            sums[name] += float(metrics[name])
        ratio_max = max(ratio_max, float(metrics["ratio_max"]))
    pooled = ranks.add_up(sums) | ranks.largest({"ratio_max": ratio_max})
    return pooled, ranks.agree(Signal.GO if finite else Signal.SKIP) is Signal.GO


def _part_loss(
    learner: Learner, part: Batch, config: TrainConfig, denominators: dict[str, float]
) -> tuple[Tensor, dict[str, Tensor], bool]:
    """Policy loss and weighted value loss of a micro-batch in one number, its sums, and whether inputs are finite."""
    with learner.accelerator.autocast():
        predicted = learner.module(**forward_inputs(part.rollouts))
    counted = part.loss_mask
    finite = all_finite(predicted.logprobs.detach()[counted], part.old_logprobs[counted])
    loss, metrics = policy_loss(
        predicted.logprobs,
        part.old_logprobs,
        part.advantages,
        counted,
        config.loss_algorithm,
        ref_logprobs=part.ref_logprobs,
        entropy=predicted.entropy,
        importance=part.importance,
        denominator=denominators["loss"],
    )
    metrics |= {"loss": loss.detach(), "value_loss": loss.new_zeros(())}
    if part.ref_logprobs is None:
        to_sampler = kl_divergence(predicted.logprobs.detach(), part.old_logprobs, "k3")
        metrics["kl"] = torch.where(counted, to_sampler, 0.0).sum()
    if part.returns is not None:
        assert part.old_values is not None and part.value_mask is not None and predicted.values is not None
        of_values, _ = value_loss(
            predicted.values,
            part.old_values,
            part.returns,
            part.value_mask,
            config.algorithm.value_clip_range,
            denominators["value"],
        )
        metrics["value_loss"] = of_values.detach()
        loss = loss + config.algorithm.value_coef * of_values
    return loss, metrics, finite


def set_learning_rate(learner: Learner, lr: float) -> None:
    """Gives every group of weights its multiple of `lr`."""
    for group in learner.optimizer.param_groups:
        group["lr"] = lr * group[LR_FACTOR]


def learning_rate(config: TrainConfig, step: int) -> float:
    """Learning rate of step 1, 2, …: a linear rise over `lr_warmup_steps`, then the schedule down to the last step."""
    optim = config.optim
    if step <= optim.lr_warmup_steps:
        return optim.lr * step / (optim.lr_warmup_steps + 1)
    if optim.lr_schedule == "constant":
        return optim.lr
    done = (step - optim.lr_warmup_steps - 1) / max(config.num_steps - optim.lr_warmup_steps, 1)
    return optim.lr * (1 - done if optim.lr_schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)
