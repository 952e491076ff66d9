"""What an update learns from: rollouts with their advantages, cut into minibatches and micro-batches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_core.rollouts import Rollouts, select_rows
from grpo_core.seeds import shuffled


@dataclass(frozen=True)
class Batch:
    """One rank's part of an update: B completions on P prompts, at most T tokens long."""

    rollouts: Rollouts
    advantages: Tensor
    """[B], or [B, T] where each token has its own."""
    loss_mask: Tensor
    """[B, T], True for tokens that count in the loss."""
    old_logprobs: Tensor
    """[B, T], what ratios are taken to: the sampler's log-probabilities, or the trainer's own before the updates."""
    ref_logprobs: Tensor | None = None
    """[B, T], log-probabilities of the reference policy."""
    importance: Tensor | None = None
    """[B, T], weights of tokens where sampler and trainer differ."""
    old_values: Tensor | None = None
    """[B, T], what the value head expected before the updates."""
    returns: Tensor | None = None
    """[B, T], what it is taught to expect."""
    value_mask: Tensor | None = None
    """[B, T], True for tokens that count in the loss of the value head."""

    def mean_advantages(self) -> Tensor:
        """[B], the advantage of each completion, or the mean over its tokens."""
        if self.advantages.dim() == 1:
            return self.advantages
        counted = torch.where(self.loss_mask, self.advantages, 0.0).sum(dim=1)
        return counted / self.loss_mask.sum(dim=1).clamp(min=1)

    def select(self, rows: Tensor) -> "Batch":
        """The part of the batch that holds the completions `rows` (indices)."""
        rollouts = select_rows(self.rollouts, rows)
        width = rollouts.completion_ids.shape[1]

        def cut(values: Any) -> Any:
            return values if values is None else values[rows, :width] if values.dim() == 2 else values[rows]

        names = (name for name in self.__dataclass_fields__ if name != "rollouts")
        return Batch(rollouts, **{name: cut(getattr(self, name)) for name in names})


def build_batch(rollouts: Rollouts, advantages: Tensor, mask_truncated: bool, **scored: Tensor | None) -> Batch:
    """The batch of `rollouts` with `advantages` `[P, G]`, `[B]` or `[B, T]`; `scored` are further fields of `Batch`.

    Truncated completions are left out of the loss where asked.
    """
    loss_mask = scored.pop("loss_mask", None)
    loss_mask = rollouts.completion_mask if loss_mask is None else loss_mask
    if mask_truncated:
        loss_mask = loss_mask & rollouts.ended.unsqueeze(1)
    if advantages.shape != loss_mask.shape:
        advantages = advantages.reshape(-1)
    old_logprobs = scored.pop("old_logprobs", None)
    return Batch(
        rollouts,
        advantages.to(loss_mask.device, torch.float32),
        loss_mask,
        rollouts.logprobs if old_logprobs is None else old_logprobs,
        **scored,
    )


def minibatch(batch: Batch, number: int, num_minibatches: int, *seed_parts: int | str) -> Batch:
    """What update `number` (0, 1, …) of a step learns from: one of `num_minibatches` parts of whole groups.

    Each pass over the batch cuts it anew, in an order drawn by `seed_parts` and the pass. A batch that dynamic
    sampling left with fewer groups than that is cut into single groups.
    """
    num_groups = len(batch.rollouts.prompt_ids)
    num_parts = min(num_minibatches, num_groups)
    if num_parts == 1:
        return batch
    completed_passes, part = divmod(number, num_parts)
    order = torch.tensor(shuffled(num_groups, *seed_parts, "minibatch", completed_passes))
    groups = order.tensor_split(num_parts)[part].to(batch.rollouts.prompt_index.device)
    return batch.select(torch.isin(batch.rollouts.prompt_index, groups).nonzero().squeeze(1))


def micro_batches(batch: Batch, size: int) -> Iterator[Batch]:
    """`batch` in parts of at most `size` completions, neighbours together, so that few prompts are in two parts.

    How a batch is cut changes no loss and no gradient: the loss is normalised over the whole update.
    """
    for rows in torch.arange(len(batch.loss_mask), device=batch.loss_mask.device).split(size):
        yield batch.select(rows)


def forward_inputs(rollouts: Rollouts) -> dict[str, Any]:
    """Keyword arguments of `GroupForward.forward` for `rollouts`."""
    names = ("prompt_ids", "prompt_mask", "prompt_index", "completion_ids", "completion_mask", "temperature")
    return {name: getattr(rollouts, name) for name in names}


def all_finite(*tensors: Tensor) -> bool:
    """True when no value of `tensors` is NaN or infinite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
