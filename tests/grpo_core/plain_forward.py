"""The plain way: every completion on a copy of its prompt, row by row, through the model's own output layer."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.group_forward import TokenPredictions
from grpo_core.logprobs import entropy
from grpo_core.rollouts import Rollouts


def plain_predictions(model: PreTrainedModel, rollouts: Rollouts, value_head: torch.nn.Linear | None = None):
    """`TokenPredictions` of `rollouts`, `[B, T]`, by one pass of the unpatched model for each completion."""
    shape = rollouts.completion_ids.shape
    logprobs, entropies, values = (torch.zeros(shape, dtype=model.dtype) for _ in range(3))
    for row, owner in enumerate(rollouts.prompt_index.tolist()):
        prompt = rollouts.prompt_ids[owner][rollouts.prompt_mask[owner]]
        completion = rollouts.completion_ids[row][rollouts.completion_mask[row]]
        output = model(
            input_ids=torch.cat([prompt, completion]).unsqueeze(0), use_cache=False, output_hidden_states=True
        )
        before = slice(len(prompt) - 1, len(prompt) + len(completion) - 1)
        logits: Tensor = output.logits[0, before] / rollouts.temperature
        chosen = logits.log_softmax(-1).gather(1, completion.unsqueeze(1)).squeeze(1)
        logprobs = logprobs.index_put((torch.tensor(row), torch.arange(len(completion))), chosen)
        entropies = entropies.index_put((torch.tensor(row), torch.arange(len(completion))), entropy(logits))
        if value_head is not None:
            found = value_head(output.hidden_states[-1][0, before]).squeeze(-1)
            values = values.index_put((torch.tensor(row), torch.arange(len(completion))), found)
    return TokenPredictions(logprobs, entropies, None if value_head is None else values)
