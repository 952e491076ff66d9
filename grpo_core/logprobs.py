"""Log-probabilities and entropy of next-token distributions, in float32 or wider."""

import torch
from torch import Tensor


def _at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of softmax(logits) over the whole vocabulary, in nats: `[..., V] -> [...]`.

    H = logsumexp(x) - sum_v softmax(x)_v x_v, which stays finite where a probability underflows to 0.
    """
    logits = _at_least_float32(logits)
    log_probs = logits.log_softmax(dim=-1)
    return _entropy_of(log_probs)


def _entropy_of(log_probs: Tensor) -> Tensor:
    # p log p -> 0 as p -> 0; where a logit is -inf the product would be 0 * -inf = NaN.
    return -(log_probs.exp() * log_probs.masked_fill(log_probs == -torch.inf, 0.0)).sum(dim=-1)


def token_logprobs(logits: Tensor, token_ids: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probability of each token and entropy of its distribution, nats, both under `temperature`.

    `logits [..., V]`, `token_ids [...]` -> two tensors `[...]`. Sampler and trainer both use it, so that the ratio
    of an untouched policy is 1 whatever the temperature.
    """
    log_probs = (_at_least_float32(logits) / temperature).log_softmax(dim=-1)
    chosen = log_probs.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    return chosen, _entropy_of(log_probs)
