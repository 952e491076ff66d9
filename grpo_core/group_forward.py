"""The training forward pass: each prompt once, then all completions of its group on the prompt's cache."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_core.cache import new_cache, run_model, run_model_with_hidden
from grpo_core.logprobs import token_logprobs


class TokenPredictions(NamedTuple):
    """What the policy says of each token of B completions, all `[B, T]`."""

    logprobs: Tensor
    """Log-probability of the token, nats."""
    entropy: Tensor
    """Entropy of the distribution it was drawn from, nats."""
    values: Tensor | None
    """The rewards to come that the value head expects before the token; None without a value head."""


class GroupForward(nn.Module):
    """Log-probabilities of completions, B of them on P prompts, in one forward that DDP and FSDP can wrap."""

    def __init__(self, model: PreTrainedModel, share_prompts: bool = True, with_values: bool = False) -> None:
        super().__init__()
        self.model = model
        self.share_prompts = share_prompts
        self.value_head = value_head(model) if with_values else None

    def forward(
        self,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        prompt_index: Tensor,
        completion_ids: Tensor,
        completion_mask: Tensor,
        temperature: float,
    ) -> TokenPredictions:
        """Predictions under the sampling `temperature`.

        `prompt_ids, prompt_mask [P, Tp]` padded on the left; `prompt_index [B]` names each completion's prompt;
        `completion_ids, completion_mask [B, T]` padded on the right.
        """
        pass_through = self._shared if self.share_prompts else self._plain
        logits, values = pass_through(prompt_ids, prompt_mask, prompt_index, completion_ids, completion_mask)
        logprobs, entropy = token_logprobs(logits, completion_ids, temperature)
        return TokenPredictions(logprobs, entropy, values)

    def _shared(
        self, prompt_ids: Tensor, prompt_mask: Tensor, prompt_index: Tensor, completion_ids: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        cache = new_cache(self.model)
        logits, values = self._run(
            prompt_ids,
            cache,
            attention_mask=prompt_mask.long(),
            position_ids=positions(prompt_mask),
            logits_to_keep=1,
        )
        logits, values = logits[prompt_index], None if values is None else values[prompt_index]
        if completion_ids.shape[1] == 1:
            return logits, values
        cache.batch_select_indices(prompt_index)
        seen = torch.cat([prompt_mask[prompt_index], mask[:, :-1]], dim=1)
        steps = torch.arange(completion_ids.shape[1] - 1, device=completion_ids.device)
        more_logits, more_values = self._run(
            completion_ids[:, :-1],
            cache,
            attention_mask=seen.long(),
            position_ids=prompt_mask[prompt_index].sum(dim=1, keepdim=True) + steps,
        )
        if values is not None and more_values is not None:
            values = torch.cat([values, more_values], dim=1)
        return torch.cat([logits, more_logits], dim=1), values

    def _plain(
        self, prompt_ids: Tensor, prompt_mask: Tensor, prompt_index: Tensor, completion_ids: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Prompt and completion as one row each: activation checkpointing has no cache to share a prompt through."""
        ids = torch.cat([prompt_ids[prompt_index], completion_ids], dim=1)
        seen = torch.cat([prompt_mask[prompt_index], mask], dim=1)
        logits, values = self._run(
            ids,
            None,
            attention_mask=seen.long(),
            position_ids=positions(seen),
            logits_to_keep=completion_ids.shape[1] + 1,
        )
        return logits[:, :-1], None if values is None else values[:, :-1]

    def _run(self, ids: Tensor, cache: Any, **inputs: Any) -> tuple[Tensor, Tensor | None]:
        if self.value_head is None:
            return run_model(self.model, ids, cache, **inputs), None
        logits, hidden = run_model_with_hidden(self.model, ids, cache, **inputs)
        weight, bias = self.value_head.weight, self.value_head.bias
        # A product and a sum, not the layer: autocast would round the values to half precision.
        return logits, (hidden.to(weight.dtype) * weight[0]).sum(dim=-1) + bias


def value_head(model: PreTrainedModel) -> nn.Linear:
    """A linear map from the last hidden state to one value, 0 at first."""
    head = nn.Linear(model.config.get_text_config().hidden_size, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def positions(mask: Tensor) -> Tensor:
    """Position of each token among the unpadded ones of its row, 0 under the padding: `[B, T] -> [B, T]`."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)
