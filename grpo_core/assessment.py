"""What the policies say of sampled completions before the updates: one pass over a step's rollouts, no gradient."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo_core.batches import forward_inputs
from grpo_core.group_forward import TokenPredictions
from grpo_core.rollouts import Rollouts, select_rows

Forward = Callable[..., TokenPredictions]


@torch.no_grad()
def assess(
    forward: Forward,
    rollouts: Rollouts,
    micro_batch_size: int,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
) -> TokenPredictions:
    """`forward`'s predictions for the B completions of `rollouts`, `[B, T]`; 0 where a completion has ended."""
    logprobs, entropy = torch.zeros_like(rollouts.logprobs), torch.zeros_like(rollouts.logprobs)
    values: Tensor | None = None
    for rows in torch.arange(len(logprobs), device=logprobs.device).split(micro_batch_size):
        part = select_rows(rollouts, rows)
        with autocast():
            predicted = forward(**forward_inputs(part))
        width = part.completion_ids.shape[1]
        logprobs[rows, :width] = torch.where(part.completion_mask, predicted.logprobs, 0.0).to(logprobs.dtype)
        entropy[rows, :width] = torch.where(part.completion_mask, predicted.entropy, 0.0).to(entropy.dtype)
        if predicted.values is not None:
            values = torch.zeros_like(rollouts.logprobs) if values is None else values
            values[rows, :width] = torch.where(part.completion_mask, predicted.values, 0.0).to(values.dtype)
    return TokenPredictions(logprobs, entropy, values)
