"""Entropy of next-token distributions, in float32 or wider."""

import torch
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of softmax(logits) over the whole vocabulary, in nats: `[..., V] -> [...]`."""
    log_probs = at_least_float32(logits).log_softmax(dim=-1)
    return entropy_of(log_probs, log_probs.exp())


def entropy_of(log_probs: Tensor, probs: Tensor) -> Tensor:
    """Shannon entropy of `probs`, of which `log_probs` are the logarithms, in nats: `[..., V] -> [...]`."""
    # p log p -> 0 as p -> 0; where a logit is -inf the product would be 0 * -inf = NaN.
    return -(probs * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(dim=-1)


def at_least_float32(values: Tensor) -> Tensor:
    """`values` in float32; float64 keeps its digits."""
    return values if values.dtype == torch.float64 else values.float()
