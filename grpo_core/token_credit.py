"""Advantages of single tokens: rewards placed on tokens, generalised advantages, and their scaling over a step.

B completions, T tokens. `mask [B, T]` is True for the tokens of a completion; what lies under False may hold anything,
NaN included, and gets 0.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_core.advantages import STD_EPSILON
from grpo_core.config import AlgorithmConfig

#: Pools named sums over ranks, as `Ranks.add_up` does; `dict` where there is one rank.
AddUp = Callable[[Mapping[str, float]], dict[str, float]]
#: Relative distance from their mean within which values count as equal: above what a mean in float64 is rounded by,
#: below the distance between neighbouring float32 numbers.
_SAME = 1e-9


def token_rewards(scores: Tensor, mask: Tensor, kl: Tensor | None, kl_coef: float) -> Tensor:
    """Rewards of tokens, `[B, T]`: the completion's score `[B]` at its last token, less `kl_coef * kl [B, T]` at each.

    A completion without a score (NaN) gets zeros throughout.
    """
    mask = mask.bool()
    # The last token is the one after which the mask has no further True.
    last = mask & (mask.flip(-1).cumsum(dim=-1).flip(-1) == 1)
    rewards = torch.where(last, scores.unsqueeze(-1), 0.0)
    if kl is not None:
        rewards = rewards - kl_coef * torch.where(mask, kl, 0.0)
    return torch.where(scores.isnan().unsqueeze(-1), 0.0, rewards)


def generalised_advantages(
    rewards: Tensor, values: Tensor | None, mask: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """Advantages and returns `[B, T]` of Schulman et al. 2015 (arXiv:1506.02438), from `rewards, values, mask [B, T]`.

    A_t = delta_t + gamma lambda A_{t+1} with delta_t = r_t + gamma V_{t+1} - V_t, and returns A + V; after the last
    token V is 0, also where the completion was cut. Without `values` they are 0 everywhere, and with lambda 1 the
    advantages are the discounted rewards to come (REINFORCE++, Hu et al. 2025, arXiv:2501.03262).
    """
    mask = mask.bool()
    rewards = torch.where(mask, rewards, 0.0)
    known = torch.zeros_like(rewards) if values is None else torch.where(mask, values, 0.0)
    advantages = torch.zeros_like(rewards)
    advantage = next_value = rewards.new_zeros(len(rewards))
    for token in reversed(range(rewards.shape[1])):
        here = mask[:, token]
        gain = rewards[:, token] + gamma * gae_lambda * advantage
        if values is not None:
            gain = gain + gamma * next_value - known[:, token]
            next_value = torch.where(here, known[:, token], next_value)
        # A place under False passes on what it was given, so that a gap inside a completion costs no discount.
        advantages[:, token] = advantage = torch.where(here, gain, advantage)
    advantages = torch.where(mask, advantages, 0.0)
    return advantages, advantages + known


def scale_token_advantages(
    advantages: Tensor, mask: Tensor, algorithm: AlgorithmConfig, add_up: AddUp = dict
) -> Tensor:
    """Advantages `[B, T]` centred and divided over all tokens of the step under `mask [B, T]`, on all ranks.

    The mean is taken off under `baseline: batch_mean`, and under `baseline: value` where they are divided too;
    baselines of a group were taken off the scores before. They are divided by the sample's standard deviation under
    `advantage_scale: batch_std`. Where they are all equal there is nothing to tell tokens apart by: exact zeros.
    """
    divide = algorithm.advantage_scale == "batch_std"
    centre = algorithm.baseline == "batch_mean" or (algorithm.baseline == "value" and divide)
    mask = mask.bool()
    if not (centre or divide):
        return torch.where(mask, advantages, 0.0)
    over_step = moments(advantages, mask, add_up)
    if over_step.equal:
        return torch.zeros_like(advantages)
    scaled = advantages - over_step.mean if centre else advantages
    if divide:
        scaled = scaled / (math.sqrt(over_step.squares / (over_step.count - 1)) + STD_EPSILON)
    return torch.where(mask, scaled, 0.0)


@dataclass(frozen=True)
class Moments:
    """Mean of some values over all ranks, and the sum of their squared distances from it."""

    count: float
    mean: float
    squares: float
    equal: bool
    """Whether all are equal; also where there are none."""


def moments(values: Tensor, mask: Tensor, add_up: AddUp = dict) -> Moments:
    """`Moments` of the values `[B, T]` under `mask [B, T]`, in float64 and two passes over the ranks.

    E[x^2] - E[x]^2 in one pass would cancel.
    """
    chosen = values[mask.bool()].double()
    sums = add_up({"count": float(chosen.numel()), "sum": float(chosen.sum())})
    count = sums["count"]
    mean = sums["sum"] / max(count, 1.0)
    deviation = chosen - mean
    # Not `>`: values that are not a number are not equal.
    apart = ~(deviation.abs() <= _SAME * abs(mean))
    sums = add_up({"squares": float(deviation.square().sum()), "apart": float(apart.sum())})
    return Moments(count, mean, sums["squares"], equal=sums["apart"] == 0)
