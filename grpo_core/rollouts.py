"""Sampling: groups of completions on shared prompts, with the log-probabilities and entropies seen while sampling."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_core.config import RolloutConfig
from grpo_core.decoding import Decoder
from grpo_core.logprobs import entropy_of
from grpo_core.output_layer import output_layer
from grpo_core.policy import Policy

#: Finished rows are dropped from the batch once this share of its rows has finished.
DROP_SHARE = 0.2


@dataclass(frozen=True)
class Rollouts:
    """Completions of P prompts, B in all, at most T tokens long; rows of one group are neighbours."""

    prompt_ids: Tensor
    """[P, Tp], padded on the right."""
    prompt_mask: Tensor
    """[P, Tp], True for tokens of the prompt."""
    prompt_index: Tensor
    """[B], the prompt of each completion."""
    completion_ids: Tensor
    """[B, T], padded on the right; the closing EOS included."""
    completion_mask: Tensor
    """[B, T], True for tokens of the completion."""
    logprobs: Tensor
    """[B, T] float32, log-probability of each token under the distribution it was sampled from."""
    entropy: Tensor
    """[B, T] float32, entropy of that distribution, nats."""
    ended: Tensor
    """[B], True where an EOS closed the completion."""
    temperature: float
    """What the logits were divided by."""

    @property
    def lengths(self) -> Tensor:
        """[B], tokens of each completion."""
        return self.completion_mask.sum(dim=1)


def sample_groups(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    group_size: int,
    config: RolloutConfig,
    *,
    generator: torch.Generator | None = None,
    greedy: bool = False,
) -> Rollouts:
    """Samples `group_size` completions for each of the token lists `prompts`.

    Each prompt is computed once for its whole group. At most `config.chunk_size` completions, and always whole
    groups, are decoded at a time. `greedy` takes the likeliest token instead of a drawn one.
    """
    prompts_at_once = max(1, config.chunk_size // group_size)
    chunks = [
        _sample_chunk(policy, prompts[start : start + prompts_at_once], group_size, config, generator, greedy)
        for start in range(0, len(prompts), prompts_at_once)
    ]
    return concatenate(chunks, policy.pad_id)


@torch.no_grad()
def _sample_chunk(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    group_size: int,
    config: RolloutConfig,
    generator: torch.Generator | None,
    greedy: bool,
) -> Rollouts:
    model = policy.model
    was_training = model.training
    # Activation checkpointing has nothing to save without gradients.
    model.eval()
    prompt_ids, prompt_mask = pad_right(prompts, policy.pad_id, model.device)
    prompt_index = torch.arange(len(prompts), device=model.device).repeat_interleave(group_size)
    choose = _choose_greedily if greedy else _draw(generator)
    num_rows, limit = len(prompt_index), config.max_new_tokens
    tokens = torch.full((num_rows, limit), policy.pad_id, device=model.device)
    mask = torch.zeros(num_rows, limit, dtype=torch.bool, device=model.device)
    # float32 for half-precision weights too; a float64 model keeps its digits.
    dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    logprobs = torch.zeros(num_rows, limit, device=model.device, dtype=dtype)
    entropy = torch.zeros(num_rows, limit, device=model.device, dtype=dtype)
    ended = torch.zeros(num_rows, dtype=torch.bool, device=model.device)
    eos_ids = torch.tensor(policy.eos_ids, device=model.device)

    decoder = Decoder(model, prompt_ids, prompt_mask, limit)
    hidden = decoder.open(prompt_index)
    layer = output_layer(model)
    # Rows still in the batch, by their place in the result; finished ones stay until dropping them pays.
    rows = torch.arange(num_rows, device=model.device)
    alive = torch.ones(num_rows, dtype=torch.bool, device=model.device)

    for place in range(limit):
        log_probs = layer.log_probs(hidden, config.temperature)
        probs = log_probs.exp()
        chosen = choose(log_probs, probs)
        tokens[rows, place] = torch.where(alive, chosen, policy.pad_id)
        mask[rows, place] = alive
        logprobs[rows, place] = torch.where(alive, log_probs.gather(1, chosen.unsqueeze(1)).squeeze(1), 0.0)
        entropy[rows, place] = torch.where(alive, entropy_of(log_probs, probs), 0.0)
        closed = torch.isin(chosen, eos_ids) & alive
        ended[rows] |= closed
        alive = alive & ~closed
        num_alive = int(alive.sum())
        if num_alive == 0 or place == limit - 1:
            break
        if num_alive <= (1 - DROP_SHARE) * len(rows):
            kept = alive.nonzero().squeeze(1)
            rows, chosen, alive = rows[kept], chosen[kept], alive[kept]
            decoder.keep(kept)
        hidden = decoder.step(chosen)
    model.train(was_training)
    return _trim(
        Rollouts(prompt_ids, prompt_mask, prompt_index, tokens, mask, logprobs, entropy, ended, config.temperature)
    )


def _choose_greedily(log_probs: Tensor, probs: Tensor) -> Tensor:
    return log_probs.argmax(dim=-1)


def _draw(generator: torch.Generator | None) -> Callable[[Tensor, Tensor], Tensor]:
    def draw(log_probs: Tensor, probs: Tensor) -> Tensor:
        # With E ~ Exp(1), argmax p / E is a draw from p; no sorting or cumulative sum over the vocabulary.
        return (probs / exponential_draws(probs, generator)).argmax(dim=-1)

    return draw


def exponential_draws(like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draws of Exp(1) in the shape, type and place of `like`: those that `exponential_` gives."""
    if like.device.type != "cpu":
        return torch.empty_like(like).exponential_(generator=generator)
    # On a CPU `exponential_` takes its logarithms one at a time, which costs more than all else of a token drawn.
    return torch.rand(like.shape, dtype=torch.float64, generator=generator).neg_().log1p_().neg_().to(like.dtype)


def pad_right(prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token lists as `(ids, mask)`, each `[P, Tp]`, padded on the right."""
    longest = max(len(prompt) for prompt in prompts)
    ids = [list(prompt) + [pad_id] * (longest - len(prompt)) for prompt in prompts]
    mask = [[True] * len(prompt) + [False] * (longest - len(prompt)) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def concatenate(parts: Sequence[Rollouts], pad_id: int) -> Rollouts:
    """One `Rollouts` of several, padded to the longest prompt and completion among them."""
    if len(parts) == 1:
        return parts[0]
    prompt_width = max(part.prompt_ids.shape[1] for part in parts)
    width = max(part.completion_ids.shape[1] for part in parts)
    offsets = torch.tensor([0, *(part.prompt_ids.shape[0] for part in parts)]).cumsum(0).tolist()

    def joined(name: str, fill: float | bool, columns: int = width) -> Tensor:
        tables = [getattr(part, name) for part in parts]
        return torch.cat([torch.nn.functional.pad(each, (0, columns - each.shape[1]), value=fill) for each in tables])

    return Rollouts(
        prompt_ids=joined("prompt_ids", pad_id, prompt_width),
        prompt_mask=joined("prompt_mask", False, prompt_width),
        prompt_index=torch.cat([part.prompt_index + offset for part, offset in zip(parts, offsets, strict=False)]),
        completion_ids=joined("completion_ids", pad_id),
        completion_mask=joined("completion_mask", False),
        logprobs=joined("logprobs", 0.0),
        entropy=joined("entropy", 0.0),
        ended=torch.cat([part.ended for part in parts]),
        temperature=parts[0].temperature,
    )


def select_rows(rollouts: Rollouts, rows: Tensor) -> Rollouts:
    """The completions `rows` (indices) of `rollouts`, without prompts and columns that none of them uses."""
    prompts, prompt_index = rollouts.prompt_index[rows].unique(return_inverse=True)
    prompt_mask = rollouts.prompt_mask[prompts]
    prompt_width = int(prompt_mask.sum(dim=1).max())
    longest = int(rollouts.lengths[rows].max())
    return Rollouts(
        prompt_ids=rollouts.prompt_ids[prompts, :prompt_width],
        prompt_mask=prompt_mask[:, :prompt_width],
        prompt_index=prompt_index,
        completion_ids=rollouts.completion_ids[rows, :longest],
        completion_mask=rollouts.completion_mask[rows, :longest],
        logprobs=rollouts.logprobs[rows, :longest],
        entropy=rollouts.entropy[rows, :longest],
        ended=rollouts.ended[rows],
        temperature=rollouts.temperature,
    )


def _trim(rollouts: Rollouts) -> Rollouts:
    longest = int(rollouts.lengths.max())
    names = ("completion_ids", "completion_mask", "logprobs", "entropy")
    return replace(rollouts, **{name: getattr(rollouts, name)[:, :longest].contiguous() for name in names})
