"""Policy losses of the GRPO family: pure functions of tensors, one knob handled once.

B completions, T tokens. `mask [B, T]` is True where a token counts; what lies under False (padding, completions left
out) may hold anything, NaN included, and reaches neither loss nor gradient.
"""

import torch
from torch import Tensor

from grpo_core.config import AlgorithmConfig

#: |log ratio| beyond which a ratio moves no more: far outside every clip range, and e^20 leaves float32 room for the
#: sum over any batch and for the square in a gradient norm.
MAX_LOG_RATIO = 20.0


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    algorithm: AlgorithmConfig,
    *,
    ref_logprobs: Tensor | None = None,
    entropy: Tensor | None = None,
    importance: Tensor | None = None,
    denominator: Tensor | float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss of one batch, or of a part of it, and sums for its metrics.

    loss = aggregate(-importance surrogate + kl_coef KL - entropy_coef H), with the ratio of Schulman et al. 2017
    (arXiv:1707.06347) for tokens or, for sequences, of Zheng et al. 2025 (arXiv:2507.18071). Under `kl_in: reward`
    the KL term is already in the advantages, and `ref_logprobs` serves the metric alone.

    `logprobs, old_logprobs, mask [B, T]`; `advantages [B]` or `[B, T]`; `ref_logprobs`, `entropy`, `importance`
    (constant weights, `importance.truncated_importance`) `[B, T]` or None.
    Without `denominator` the loss is normalised over the tensors given; with it (`loss_denominator` of the whole
    update, over all micro-batches and ranks) the losses of the parts add up to that of the whole.

    The metrics are sums over the counted tokens of these tensors, for pooling: `tokens`, `clipped`, `kl`;
    `ratio_max` is a maximum.
    """
    mask = mask.bool()
    logprobs, old_logprobs = _select(logprobs, mask), _select(old_logprobs, mask)
    advantages = _select(advantages.unsqueeze(-1) if advantages.dim() == 1 else advantages, mask)

    log_ratio = (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = RATIO_LEVELS[algorithm.ratio_level](log_ratio, mask).exp()
    token_loss, clipped = CLIPPINGS[algorithm.clipping](ratio, logprobs, advantages, algorithm)
    if importance is not None:
        token_loss = token_loss * _select(importance.detach(), mask)

    kl = None
    if ref_logprobs is not None:
        kl = kl_divergence(logprobs, _select(ref_logprobs, mask), algorithm.kl_estimator)
        if algorithm.kl_in == "loss":
            token_loss = token_loss + algorithm.kl_coef * kl
    if entropy is not None and algorithm.entropy_coef:
        token_loss = token_loss - algorithm.entropy_coef * _select(entropy, mask)

    if denominator is None:
        denominator = loss_denominator(mask, algorithm).clamp(min=1)
    loss = _weighted_sum(token_loss, mask, algorithm) / denominator
    with torch.no_grad():
        metrics = {
            "tokens": mask.sum(),
            "clipped": (clipped & mask).sum(),
            "kl": loss.new_zeros(()) if kl is None else _select(kl, mask).sum(),
            "ratio_max": torch.where(mask, ratio, 0.0).max() if mask.numel() else ratio.new_zeros(()),
        }
    return loss, metrics


def loss_denominator(mask: Tensor, algorithm: AlgorithmConfig) -> Tensor:
    """What the summed token losses under `mask [B, T]` are divided by, a scalar that adds up over parts of a batch.

    Tokens for `token_mean`; completions with a counted token for `sequence_mean`; those times `constant_length` for
    `constant` (Liu et al. 2025, arXiv:2503.20783). Numerator and denominator see the same mask.
    """
    if algorithm.aggregation == "token_mean":
        return mask.bool().sum()
    completions = mask.bool().any(dim=-1).sum()
    if algorithm.aggregation == "sequence_mean":
        return completions
    assert algorithm.constant_length is not None, "constant_length is resolved by TrainConfig.loss_algorithm"
    return completions * algorithm.constant_length


def kl_divergence(logprobs: Tensor, ref_logprobs: Tensor, estimator: str) -> Tensor:
    """Per-token estimate of KL(policy || reference) from tokens of the policy, same shape as the inputs, nats.

    With d = log reference - log policy: k1 = -d, k2 = d^2 / 2, k3 = exp(d) - 1 - d (joschu.net/blog/kl-approx.html).
    """
    difference = (ref_logprobs - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return KL_ESTIMATORS[estimator](difference)


KL_ESTIMATORS = {
    "k1": lambda difference: -difference,
    "k2": lambda difference: difference.square() / 2,
    "k3": lambda difference: difference.expm1() - difference,
}


def _select(values: Tensor, mask: Tensor) -> Tensor:
    # where, not a product: NaN times 0 is NaN, and its gradient too.
    return torch.where(mask, values, 0.0)


def _token_log_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    return log_ratio


def _sequence_log_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Length-normalised log ratio of the sequence, its gradient carried by each token (GSPO-token, eq. 14)."""
    mean = _select(log_ratio, mask).sum(dim=-1, keepdim=True) / mask.sum(dim=-1, keepdim=True).clamp(min=1)
    # The bracket is exactly 0: ratios of this level differ from 1 by less than a log-probability is rounded by.
    return mean.detach() + (log_ratio - log_ratio.detach())


RATIO_LEVELS = {"token": _token_log_ratio, "sequence": _sequence_log_ratio}


def _clipped_surrogate(
    ratio: Tensor, logprobs: Tensor, advantages: Tensor, algorithm: AlgorithmConfig
) -> tuple[Tensor, Tensor]:
    """-min(min(r, dual) A, clip(r, 1 - low, 1 + high) A); clipped where that leaves no gradient.

    `dual` bounds the loss of tokens with A < 0 whose ratio ran away (Ye et al. 2019, arXiv:1912.09729); without it
    their r is unbounded.
    """
    low, high, dual = 1 - algorithm.clip_range, 1 + algorithm.high_clip, algorithm.dual_clip
    negative = advantages < 0
    clipped = ((ratio < low) & negative) | ((ratio > high) & (advantages > 0))
    bounded = ratio.clamp(low, high)
    if dual is not None:
        clipped = clipped | ((ratio > dual) & negative)
        ratio = ratio.clamp(max=dual)
    return -torch.minimum(ratio * advantages, bounded * advantages), clipped


def _clipped_weight(
    ratio: Tensor, logprobs: Tensor, advantages: Tensor, algorithm: AlgorithmConfig
) -> tuple[Tensor, Tensor]:
    """-stop_gradient(min(r, cap)) A log p (CISPO, MiniMax 2025, arXiv:2506.13585); every token keeps a gradient."""
    weight = ratio.detach().clamp(max=algorithm.ratio_cap)
    return -weight * advantages * logprobs, (ratio > algorithm.ratio_cap) & (advantages > 0)


CLIPPINGS = {"surrogate": _clipped_surrogate, "weight": _clipped_weight}


def _weighted_sum(token_loss: Tensor, mask: Tensor, algorithm: AlgorithmConfig) -> Tensor:
    token_loss = _select(token_loss, mask)
    if algorithm.aggregation == "sequence_mean":
        token_loss = token_loss / mask.sum(dim=-1, keepdim=True).clamp(min=1)
    return token_loss.sum()
