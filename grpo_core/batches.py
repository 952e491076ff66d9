"""What an update learns from: rollouts with their advantages, cut into micro-batches."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.rollouts import Rollouts


@dataclass(frozen=True)
class Batch:
    """One rank's part of an update: B completions on P prompts."""

    rollouts: Rollouts
    advantages: Tensor
    """[B]"""
    loss_mask: Tensor
    """[B, T], True for tokens that count in the loss."""


def build_batch(rollouts: Rollouts, advantages: Tensor, mask_truncated: bool) -> Batch:
    """The batch of `rollouts` with `advantages [P, G]`; truncated completions left out of the loss where asked."""
    loss_mask = rollouts.completion_mask
    if mask_truncated:
        loss_mask = loss_mask & rollouts.ended.unsqueeze(1)
    return Batch(rollouts, advantages.reshape(-1).to(loss_mask.device, torch.float32), loss_mask)


def micro_batches(batch: Batch, size: int) -> Iterator[Batch]:
    """`batch` in parts of at most `size` completions of similar length, each trimmed to its own longest.

    How a batch is cut changes no loss and no gradient: the loss is normalised over the whole update.
    """
    order = batch.rollouts.lengths.argsort(stable=True)
    for rows in order.split(size):
        # Rows of one prompt side by side, so that a part computes each of its prompts once.
        yield _part(batch, rows.sort().values)


def _part(batch: Batch, rows: Tensor) -> Batch:
    whole = batch.rollouts
    prompts, prompt_index = whole.prompt_index[rows].unique(return_inverse=True)
    prompt_mask = whole.prompt_mask[prompts]
    first = int(prompt_mask.long().argmax(dim=1).min())
    longest = int(whole.lengths[rows].max())
    part = Rollouts(
        prompt_ids=whole.prompt_ids[prompts, first:],
        prompt_mask=prompt_mask[:, first:],
        prompt_index=prompt_index,
        completion_ids=whole.completion_ids[rows, :longest],
        completion_mask=whole.completion_mask[rows, :longest],
        logprobs=whole.logprobs[rows, :longest],
        entropy=whole.entropy[rows, :longest],
        ended=whole.ended[rows],
    )
    return Batch(part, batch.advantages[rows], batch.loss_mask[rows, :longest])


def forward_inputs(rollouts: Rollouts) -> dict[str, Tensor]:
    """Keyword arguments of `GroupForward.forward` for `rollouts`."""
    names = ("prompt_ids", "prompt_mask", "prompt_index", "completion_ids", "completion_mask")
    return {name: getattr(rollouts, name) for name in names}


def all_finite(*tensors: Tensor) -> bool:
    """True when no value of `tensors` is NaN or infinite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
