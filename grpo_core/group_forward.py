"""The training forward pass: each prompt once, and behind it all completions of its group, without padding."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_core.cpu_products import ROWS_MULTIPLE
from grpo_core.group_attention import PackedGroups, hidden_states
from grpo_core.output_layer import output_layer, token_logprobs_of


class TokenPredictions(NamedTuple):
    """What the policy says of each token of B completions, all `[B, T]`, 0 behind their ends."""

    logprobs: Tensor
    """Log-probability of the token, nats."""
    entropy: Tensor
    """Entropy of the distribution it was drawn from, nats."""
    values: Tensor | None
    """The rewards to come that the value head expects before the token; None without a value head."""


class GroupForward(nn.Module):
    """Log-probabilities of completions, B of them on P prompts, in one forward that DDP and FSDP can wrap."""

    def __init__(self, model: PreTrainedModel, with_values: bool = False) -> None:
        super().__init__()
        self.model = model
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

        `prompt_ids, prompt_mask [P, Tp]` and `completion_ids, completion_mask [B, T]`, all padded on the right;
        `prompt_index [B]` names each completion's prompt.
        """
        # A completion's last token predicts nothing.
        read = completion_mask[:, 1:]
        plan = PackedGroups(prompt_mask, read, prompt_index)
        token_ids = torch.cat([prompt_ids[prompt_mask], completion_ids[:, :-1][read]])
        own_positions = torch.arange(prompt_mask.shape[1], device=token_ids.device).expand(prompt_mask.shape)
        prompt_lengths = prompt_mask.sum(dim=1)
        behind = prompt_lengths[prompt_index].unsqueeze(1) + torch.arange(read.shape[1], device=token_ids.device)
        positions = torch.cat([own_positions[prompt_mask], behind[read]])
        missing = -len(token_ids) % ROWS_MULTIPLE
        hidden = hidden_states(
            self.model,
            torch.nn.functional.pad(token_ids, (0, missing)),
            torch.nn.functional.pad(positions, (0, missing)),
            plan,
        )
        # What predicts each token: the prompt's last one, then the completion's own.
        last = plan.prompt_places.gather(1, prompt_lengths.unsqueeze(1) - 1)[prompt_index]
        before = torch.cat([last, plan.completion_places], dim=1)[completion_mask]
        # An embedding, since its backward pass adds up rows that are taken more than once the fastest.
        predicting = torch.nn.functional.embedding(before, hidden)
        logprobs, entropy = token_logprobs_of(
            predicting, output_layer(self.model), completion_ids[completion_mask], temperature
        )
        values = None
        if self.value_head is not None:
            weight, bias = self.value_head.weight, self.value_head.bias
            # A product and a sum, not the layer: autocast would round the values to half precision.
            values = _unpacked((predicting.to(weight.dtype) * weight[0]).sum(dim=-1) + bias, completion_mask)
        return TokenPredictions(_unpacked(logprobs, completion_mask), _unpacked(entropy, completion_mask), values)


def _unpacked(packed: Tensor, mask: Tensor) -> Tensor:
    return packed.new_zeros(mask.shape).masked_scatter(mask, packed)


def value_head(model: PreTrainedModel) -> nn.Linear:
    """A linear map from the last hidden state to one value, 0 at first."""
    head = nn.Linear(model.config.get_text_config().hidden_size, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head
