"""The output layer: from hidden states to the log-probabilities of tokens, without all logits in memory at once."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.cpu_products import ROWS_MULTIPLE, product
from grpo_core.logprobs import at_least_float32, entropy_of

#: Logits held at a time, in numbers. Beyond it they are computed in chunks of tokens, and once more in the backward
#: pass, so that memory depends neither on the vocabulary nor on the number of tokens.
CHUNK_LOGITS = 2**23


class OutputLayer(NamedTuple):
    """logits = factor * (hidden weight^T + bias), as the model itself computes them."""

    weight: Tensor
    """[V, C]"""
    bias: Tensor | None
    """[V]"""
    factor: float

    def log_probs(self, hidden: Tensor, temperature: float) -> Tensor:
        """Log-probabilities of the next token under `temperature`, `[N, C] -> [N, V]`, without a gradient."""
        scale = self.factor / temperature
        return _log_softmax(hidden, self.weight, self.bias, scale, _type_of_products(hidden))


def output_layer(model: PreTrainedModel) -> OutputLayer:
    """The output layer of `model`. Raises ValueError where its logits are more than a linear map of hidden states."""
    config, layer = model.config.get_text_config(), model.get_output_embeddings()
    if not isinstance(layer, torch.nn.Linear) or getattr(config, "final_logit_softcapping", None):
        raise ValueError(
            f"policy: the logits of {type(model).__name__} are no linear map of its hidden states; use another model"
        )
    factor = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    return OutputLayer(layer.weight, layer.bias, factor)


def token_logprobs_of(
    hidden: Tensor, layer: OutputLayer, token_ids: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probability of each token and entropy of its distribution, nats, differentiable in hidden states and layer.

    `hidden [N, C]`, `token_ids [N]` -> two tensors `[N]`, float32 or wider. Sampler and trainer
    both divide by `temperature`, so that the ratio of an untouched policy is 1 whatever it is.
    """
    num_tokens = len(token_ids)
    missing = -num_tokens % ROWS_MULTIPLE
    if missing:
        hidden = torch.nn.functional.pad(hidden, (0, 0, 0, missing))
        token_ids = torch.nn.functional.pad(token_ids, (0, missing))
    logprobs, entropy = _TokenLogprobs.apply(hidden, layer.weight, layer.bias, token_ids, layer.factor / temperature)
    return logprobs[:num_tokens], entropy[:num_tokens]


class _TokenLogprobs(torch.autograd.Function):
    """With x = scale * (h W^T + b), p = softmax(x), l = log p and H = -sum p l:

    d l_t / d x = onehot(t) - p, and d H / d x = -p (l + H).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, token_ids: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        ctx.dtype = _type_of_products(hidden)
        ctx.scale = scale
        ctx.size = max(ROWS_MULTIPLE, CHUNK_LOGITS // weight.shape[0] // ROWS_MULTIPLE * ROWS_MULTIPLE)
        logprobs, entropies = [], []
        whole = None
        for part, ids in zip(hidden.split(ctx.size), token_ids.split(ctx.size), strict=True):
            log_probs = _log_softmax(part, weight, bias, scale, ctx.dtype)
            logprobs.append(log_probs.gather(1, ids.unsqueeze(1)).squeeze(1))
            entropies.append(entropy_of(log_probs, log_probs.exp()))
            if len(hidden) <= ctx.size:
                whole = log_probs
        entropy = torch.cat(entropies)
        ctx.save_for_backward(hidden, weight, bias, token_ids, entropy, whole)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_logprobs, of_entropy = gradients
        hidden, weight, bias, token_ids, entropy, whole = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        for start in range(0, len(hidden), ctx.size):
            rows = slice(start, start + ctx.size)
            part = hidden[rows]
            log_probs = whole if whole is not None else _log_softmax(part, weight, bias, ctx.scale, ctx.dtype)
            to_logprob, to_entropy = of_logprobs[rows].unsqueeze(1), of_entropy[rows].unsqueeze(1)
            # -p (g_l + g_H (l + H)), then g_l at the token itself.
            inner = log_probs + entropy[rows].unsqueeze(1)
            inner = inner.mul_(-to_entropy).sub_(to_logprob)
            of_logits = inner.mul_(log_probs.exp())
            of_logits.scatter_add_(1, token_ids[rows].unsqueeze(1), to_logprob.to(of_logits.dtype))
            of_logits = of_logits.mul_(ctx.scale).to(ctx.dtype)
            of_hidden[rows] = product(of_logits, weight.to(ctx.dtype)).to(hidden.dtype)
            if of_weight is not None:
                of_weight += product(of_logits.t(), part.to(ctx.dtype))
            if of_bias is not None:
                of_bias += of_logits.sum(dim=0)
        return of_hidden, of_weight, of_bias, None, None


def _log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: float, dtype: torch.dtype) -> Tensor:
    logits = product(hidden.to(dtype), weight.to(dtype).t(), None if bias is None else bias.to(dtype))
    logits = at_least_float32(logits)
    return (logits if scale == 1 else logits * scale).log_softmax(dim=-1)


def _type_of_products(hidden: Tensor) -> torch.dtype:
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
