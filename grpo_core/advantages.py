"""Group-relative advantages, Shao et al. 2024 (arXiv:2402.03300) and relatives: rewards in, advantages out."""

import torch
from torch import Tensor

from grpo_core.config import AlgorithmConfig

#: Added to a standard deviation before dividing by it, as TRL does.
STD_EPSILON = 1e-4


def compute_advantages(rewards: Tensor, algorithm: AlgorithmConfig) -> Tensor:
    """Advantages of the completions of each group: `[num_groups, group_size] -> [num_groups, group_size]`.

    A = (s r - baseline(s r)) / scale with s = reward_scale. NaN marks a completion without a score: it is outside
    baseline and scale and gets 0. A group whose scored rewards are all equal gets exact zeros. Standard deviations
    are those of a sample (n - 1), in two passes, since E[x^2] - E[x]^2 cancels.
    """
    scored = ~rewards.isnan()
    centred = torch.where(scored & ~dead_groups(rewards).unsqueeze(-1), _centre(rewards, scored, algorithm), 0.0)
    return (
        centred * algorithm.reward_scale / _scale(rewards * algorithm.reward_scale, scored, algorithm.advantage_scale)
    )


def dead_groups(rewards: Tensor) -> Tensor:
    """True for groups whose scored rewards are all equal, no signal: `[num_groups, group_size] -> [num_groups]`."""
    highest = rewards.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(dim=-1)
    lowest = torch.where(rewards.isnan(), torch.inf, rewards).amin(dim=-1)
    return highest <= lowest


def _centre(rewards: Tensor, scored: Tensor, algorithm: AlgorithmConfig) -> Tensor:
    return torch.where(scored, rewards, 0.0) - BASELINES[algorithm.baseline](rewards, scored)


def _mean(rewards: Tensor, scored: Tensor) -> Tensor:
    count = scored.sum(dim=-1, keepdim=True).clamp(min=1)
    return torch.where(scored, rewards, 0.0).sum(dim=-1, keepdim=True) / count


def _median(rewards: Tensor, scored: Tensor) -> Tensor:
    return rewards.nanquantile(0.5, dim=-1, keepdim=True)


def _leave_one_out(rewards: Tensor, scored: Tensor) -> Tensor:
    known = torch.where(scored, rewards, 0.0)
    others = (scored.sum(dim=-1, keepdim=True) - 1).clamp(min=1)
    # Summing the others anew, not total - own: subtraction would leave rounding error of the size of the total.
    apart = ~torch.eye(rewards.shape[-1], dtype=torch.bool, device=rewards.device)
    return torch.where(apart, known.unsqueeze(-2), 0.0).sum(dim=-1) / others


def _none(rewards: Tensor, scored: Tensor) -> Tensor:
    return torch.zeros_like(rewards[..., :1])


#: What is subtracted from a completion's reward, `[num_groups, 1]` or `[num_groups, group_size]`.
BASELINES = {"mean": _mean, "median": _median, "leave_one_out": _leave_one_out, "none": _none}


def _scale(rewards: Tensor, scored: Tensor, kind: str) -> Tensor:
    if kind == "none":
        return torch.ones_like(rewards[..., :1])
    if kind == "batch_std":
        rewards, scored = rewards.reshape(1, -1), scored.reshape(1, -1)
    deviation = torch.where(scored, rewards - _mean(rewards, scored), 0.0)
    variance = deviation.square().sum(dim=-1, keepdim=True) / (scored.sum(dim=-1, keepdim=True) - 1).clamp(min=1)
    return variance.sqrt() + STD_EPSILON
