"""The plain way, as a peer for the GPU check: padded rows, prompts once for each completion, all logits at once."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.rollouts import Rollouts


def plain_logprobs(model: PreTrainedModel, rollouts: Rollouts) -> Tensor:
    """Log-probabilities of the tokens of `rollouts`, `[B, T]`, 0 behind their ends; all prompts of one length."""
    prompts = rollouts.prompt_ids[rollouts.prompt_index]
    rows = torch.cat([prompts, rollouts.completion_ids], dim=1)
    mask = torch.cat([rollouts.prompt_mask[rollouts.prompt_index], rollouts.completion_mask], dim=1)
    width = prompts.shape[1]
    logits = model(input_ids=rows, attention_mask=mask.long(), use_cache=False).logits[:, width - 1 : -1].float()
    log_probs = (logits / rollouts.temperature).log_softmax(dim=-1)
    chosen = log_probs.gather(2, rollouts.completion_ids.unsqueeze(2)).squeeze(2)
    return torch.where(rollouts.completion_mask, chosen, 0.0)


def plain_update(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, rollouts: Rollouts, advantages: Tensor
) -> None:
    """One policy-gradient update of the token-mean loss."""
    device, uses_half = rollouts.prompt_ids.device.type, rollouts.prompt_ids.is_cuda
    with torch.autocast(device, torch.bfloat16, enabled=uses_half):
        logprobs = plain_logprobs(model, rollouts)
    loss = -(logprobs * advantages.unsqueeze(1)).sum() / rollouts.completion_mask.sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def plain_sampling(model: PreTrainedModel, prompts: Tensor, group_size: int, num_tokens: int) -> None:
    """`group_size` completions of `num_tokens` for each of `prompts [P, Tp]` by `generate`."""
    rows = prompts.repeat_interleave(group_size, dim=0)
    with torch.no_grad(), torch.autocast(prompts.device.type, torch.bfloat16, enabled=prompts.is_cuda):
        model.generate(
            rows,
            attention_mask=torch.ones_like(rows),
            do_sample=True,
            top_k=0,
            min_new_tokens=num_tokens,
            max_new_tokens=num_tokens,
            pad_token_id=0,
        )
