"""Advantages of whole completions, Shao et al. 2024 (arXiv:2402.03300) and relatives: rewards in, advantages out.

A table of rewards has a row for each group, `[num_groups, width]`; NaN marks a completion without a score, and the
empty places of groups smaller than the widest.
"""

import torch
from torch import Tensor

from grpo_core.config import AlgorithmConfig

#: Added to a standard deviation before dividing by it, as TRL does.
STD_EPSILON = 1e-4


def compute_advantages(rewards: Tensor, algorithm: AlgorithmConfig) -> Tensor:
    """Advantages of the completions of each group: `[num_groups, width] -> [num_groups, width]`.

    A = (s r - baseline(s r)) / scale with s = reward_scale. A place without a score is outside baseline and scale and
    gets 0. Standard deviations are those of a sample (n - 1), in two passes, since E[x^2] - E[x]^2 cancels.

    Exact zeros come where rewards have no spread to tell completions apart by: to a group whose scored rewards are
    all equal, where the algorithm compares within groups; to all where every scored reward of the table is equal and
    the baseline or the scale is taken from the table.
    """
    assert algorithm.baseline != "value", "advantages with a value head are those of token_credit"
    scored = ~rewards.isnan()
    centred = torch.where(scored, rewards, 0.0) - BASELINES[algorithm.baseline](rewards, scored)
    alive = scored
    if algorithm.compares_groups:
        alive = alive & ~dead_groups(rewards).unsqueeze(-1)
    if algorithm.baseline == "batch_mean" or algorithm.advantage_scale == "batch_std":
        alive = alive & ~dead_groups(rewards.reshape(1, -1))
    scale = _scale(rewards * algorithm.reward_scale, scored, algorithm.advantage_scale)
    # Last of all, so that no overflow on the way to it reaches a zero.
    return torch.where(alive, centred * algorithm.reward_scale / scale, 0.0)


def dead_groups(rewards: Tensor) -> Tensor:
    """True for groups whose scored rewards are all equal, no signal: `[num_groups, width] -> [num_groups]`."""
    highest = rewards.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(dim=-1)
    lowest = torch.where(rewards.isnan(), torch.inf, rewards).amin(dim=-1)
    return highest <= lowest


def _mean(rewards: Tensor, scored: Tensor) -> Tensor:
    count = scored.sum(dim=-1, keepdim=True).clamp(min=1)
    return torch.where(scored, rewards, 0.0).sum(dim=-1, keepdim=True) / count


def _median(rewards: Tensor, scored: Tensor) -> Tensor:
    return torch.where(scored.any(dim=-1, keepdim=True), rewards.nanquantile(0.5, dim=-1, keepdim=True), 0.0)


def _leave_one_out(rewards: Tensor, scored: Tensor) -> Tensor:
    known = torch.where(scored, rewards, 0.0)
    others = (scored.sum(dim=-1, keepdim=True) - 1).clamp(min=1)
    # Summing the others anew, not total - own: subtraction would leave rounding error of the size of the total.
    apart = ~torch.eye(rewards.shape[-1], dtype=torch.bool, device=rewards.device)
    return torch.where(apart, known.unsqueeze(-2), 0.0).sum(dim=-1) / others


def _batch_mean(rewards: Tensor, scored: Tensor) -> Tensor:
    return _mean(rewards.reshape(1, -1), scored.reshape(1, -1))


def _none(rewards: Tensor, scored: Tensor) -> Tensor:
    return torch.zeros_like(rewards[..., :1])


#: What is subtracted from a completion's reward, `[num_groups or 1, 1]` or `[num_groups, width]`.
BASELINES = {
    "mean": _mean,
    "median": _median,
    "leave_one_out": _leave_one_out,
    "batch_mean": _batch_mean,
    "none": _none,
}


def _scale(rewards: Tensor, scored: Tensor, kind: str) -> Tensor:
    if kind == "none":
        return torch.ones_like(rewards[..., :1])
    if kind == "batch_std":
        rewards, scored = rewards.reshape(1, -1), scored.reshape(1, -1)
    deviation = torch.where(scored, rewards - _mean(rewards, scored), 0.0)
    variance = deviation.square().sum(dim=-1, keepdim=True) / (scored.sum(dim=-1, keepdim=True) - 1).clamp(min=1)
    return variance.sqrt() + STD_EPSILON
