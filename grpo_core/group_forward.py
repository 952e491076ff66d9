"""The training forward pass: each prompt once, then all completions of its group on the prompt's cache."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_core.cache import new_cache, run_model
from grpo_core.logprobs import token_logprobs


class GroupForward(nn.Module):
    """Log-probabilities of completions, B of them on P prompts, in one forward that DDP and FSDP can wrap."""

    def __init__(self, model: PreTrainedModel, temperature: float, share_prompts: bool = True) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.share_prompts = share_prompts

    def forward(
        self,
        prompt_ids: Tensor,
        prompt_mask: Tensor,
        prompt_index: Tensor,
        completion_ids: Tensor,
        completion_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """`(logprobs, entropy)`, both `[B, T]`, nats, under the sampling temperature.

        `prompt_ids, prompt_mask [P, Tp]` padded on the left; `prompt_index [B]` names each completion's prompt;
        `completion_ids, completion_mask [B, T]` padded on the right.
        """
        pass_through = self._shared if self.share_prompts else self._plain
        logits = pass_through(prompt_ids, prompt_mask, prompt_index, completion_ids, completion_mask)
        return token_logprobs(logits, completion_ids, self.temperature)

    def _shared(
        self, prompt_ids: Tensor, prompt_mask: Tensor, prompt_index: Tensor, completion_ids: Tensor, mask: Tensor
    ) -> Tensor:
        cache = new_cache(self.model)
        first = run_model(
            self.model,
            prompt_ids,
            cache,
            attention_mask=prompt_mask.long(),
            position_ids=positions(prompt_mask),
            logits_to_keep=1,
        )[prompt_index]
        if completion_ids.shape[1] == 1:
            return first
        cache.batch_select_indices(prompt_index)
        seen = torch.cat([prompt_mask[prompt_index], mask[:, :-1]], dim=1)
        steps = torch.arange(completion_ids.shape[1] - 1, device=completion_ids.device)
        rest = run_model(
            self.model,
            completion_ids[:, :-1],
            cache,
            attention_mask=seen.long(),
            position_ids=prompt_mask[prompt_index].sum(dim=1, keepdim=True) + steps,
        )
        return torch.cat([first, rest], dim=1)

    def _plain(
        self, prompt_ids: Tensor, prompt_mask: Tensor, prompt_index: Tensor, completion_ids: Tensor, mask: Tensor
    ) -> Tensor:
        """Prompt and completion as one row each: activation checkpointing has no cache to share a prompt through."""
        ids = torch.cat([prompt_ids[prompt_index], completion_ids], dim=1)
        seen = torch.cat([prompt_mask[prompt_index], mask], dim=1)
        logits = run_model(
            self.model,
            ids,
            None,
            attention_mask=seen.long(),
            position_ids=positions(seen),
            logits_to_keep=completion_ids.shape[1] + 1,
        )
        return logits[:, :-1]


def positions(mask: Tensor) -> Tensor:
    """Position of each token among the unpadded ones of its row, 0 under the padding: `[B, T] -> [B, T]`."""
    return (mask.long().cumsum(dim=1) - 1).clamp(min=0)
