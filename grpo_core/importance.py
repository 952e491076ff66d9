"""Weights of tokens where sampler and trainer differ (another engine, another precision)."""

import torch
from torch import Tensor

from grpo_core.losses import MAX_LOG_RATIO


def truncated_importance(
    trainer_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, cap: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Weights min(p_trainer / p_sampler, cap) of tokens, `[B, T]`, 0 under a False `mask`, and sums for metrics.

    Truncated importance sampling (Ionides 2008, "Truncated importance sampling") as Yao et al. 2025 use it, "Your
    efficient RL framework secretly brings you off-policy RL training". Both log-probabilities are those of the weights
    that sampled, so the weights correct for the engine and not for the updates since.

    The sums over the counted tokens, for pooling: `importance` (ratios before the cap), `truncated` (ratios above it)
    and `tokens`; `importance_max` is a maximum.
    """
    mask = mask.bool()
    difference = torch.where(mask, trainer_logprobs - sampler_logprobs, 0.0).detach()
    ratio = torch.where(mask, difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp(), 0.0)
    sums = {
        "importance": ratio.sum(),
        "truncated": (ratio > cap).sum(),
        "tokens": mask.sum(),
        "importance_max": ratio.max() if ratio.numel() else ratio.new_zeros(()),
    }
    return ratio.clamp(max=cap), sums
