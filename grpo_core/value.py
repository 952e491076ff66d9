"""What a value head learns from, and how well it knows: Schulman et al. 2017 (arXiv:1707.06347).

B completions, T tokens. `mask [B, T]` is True where a token counts; what lies under False may hold anything, NaN
included, and reaches neither loss nor gradient.
"""

import torch
from torch import Tensor

from grpo_core.token_credit import AddUp, moments


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    clip_range: float | None,
    denominator: Tensor | float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of the values of a batch, or of a part of it, and sums for its metrics.

    loss = sum 1/2 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / denominator, without the second term where
    `clip_range` c is None.

    `values, old_values, returns, mask [B, T]`; `denominator` is the number of counted tokens of the whole update, over
    all micro-batches and ranks, so that the losses of its parts add up. The sums: `value_error` (R - V)^2,
    `value_clipped` tokens where the clipped term is the larger, so that they have no gradient.
    """
    mask = mask.bool()
    values, old_values, returns = (torch.where(mask, each, 0.0) for each in (values, old_values, returns))
    error = larger = (values - returns).square()
    if clip_range is not None:
        near_old = old_values + (values - old_values).clamp(-clip_range, clip_range)
        larger = torch.maximum(error, (near_old - returns).square())
    metrics = {"value_error": error.detach().sum(), "value_clipped": (larger > error).sum()}
    return 0.5 * larger.sum() / denominator, metrics


def explained_variance(old_values: Tensor, returns: Tensor, mask: Tensor, add_up: AddUp = dict) -> float:
    """1 - Var(R - V) / Var(R) over the counted tokens of all ranks; 0 where the returns are all equal.

    `old_values, returns, mask [B, T]`. 1 is a head that knows every return, 0 one that knows their mean alone; a head
    that misleads is below 0.
    """
    of_returns = moments(returns, mask, add_up)
    of_errors = moments(returns - old_values, mask, add_up)
    return 0.0 if of_returns.equal or of_returns.squares == 0 else 1 - of_errors.squares / of_returns.squares
