"""Attention of packed groups: each prompt stands once among the tokens, and its completions look at it from there.

Tokens are packed without padding into one row, all prompts first and then the completions. Linear layers see only
those; attention alone is computed on padded grids, one layer at a time.
"""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

from grpo_core.logprobs import at_least_float32

#: Name under which transformers knows this attention, and the argument that carries the plan of a packed pass.
ATTENTION = "grpo_groups"
PLAN = "group_plan"
#: Completions whose scores are held at a time: as many of similar length waste little padding and stay in the cache.
ROWS_AT_A_TIME = 16
#: Fewer where their scores, reckoned with so many heads, would be more numbers than this.
MAX_SCORES, SCORE_HEADS = 2**24, 16


class Plan:
    """How the tokens of one packed pass attend to each other, layer by layer."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """`queries [H, N, D]`, `keys, values [K, N, D]` of the N packed tokens -> `[N, H, D]`."""
        raise NotImplementedError


def use_group_attention(model: PreTrainedModel) -> None:
    """Lets `model` take a plan. Raises ValueError for a model that can't: its layers must keep all keys and values,
    and leave attention to transformers' interface."""
    config = model.config.get_text_config()
    unusual = {type(layer).__name__ for layer in DynamicCache(config=config).layers if type(layer) is not DynamicLayer}
    if unusual or not model._supports_attention_backend:
        why = f"keeps {', '.join(sorted(unusual))} as cache" if unusual else "has an attention of its own"
        raise ValueError(
            f"policy: {type(model).__name__} {why}, which a group can't share; "
            "use a model with full attention in every layer, such as Llama or Qwen"
        )
    AttentionInterface.register(ATTENTION, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)
    model.set_attn_implementation(ATTENTION)


def hidden_states(model: PreTrainedModel, token_ids: Tensor, positions: Tensor, plan: Plan) -> Tensor:
    """Last hidden states `[N, C]` of N packed tokens; `token_ids, positions [N]`."""
    output = model.base_model(
        input_ids=token_ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        # Of four dimensions, so that transformers makes no mask; the plan has its own.
        attention_mask=token_ids.new_zeros(1, 1, 1, 1),
        use_cache=False,
        **{PLAN: plan},
    )
    return output.last_hidden_state[0]


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    plan = options.pop(PLAN, None)
    if plan is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    # Rotary embeddings may come back in float32 where the rest is in half precision.
    query, key = query[0].to(value.dtype), key[0].to(value.dtype)
    return plan.attend(module.layer_idx, query, key, value[0], scale).unsqueeze(0), None


class PackedGroups(Plan):
    """The plan of a training pass: P prompts, and behind them the tokens of B completions.

    `prompt_mask [P, Tp]` and `completion_mask [B, T]` are True for tokens, which stand at the left of their row and
    are packed in that order; T may be 0. `prompt_index [B]` names the prompt of each completion.
    """

    def __init__(self, prompt_mask: Tensor, completion_mask: Tensor, prompt_index: Tensor) -> None:
        self._completion_mask = completion_mask
        self._prompt_index = prompt_index
        self.prompt_mask = prompt_mask
        self.prompt_places = places_of(prompt_mask)
        self.completion_places = places_of(completion_mask) + prompt_mask.sum()
        self.num_tokens = int(prompt_mask.sum()) + int(completion_mask.sum())

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        result: Tensor = _GroupAttention.apply(queries, keys, values, self, scale)
        return result

    @cached_property
    def prompts(self) -> "Block":
        """The prompts among themselves."""
        bias = causal_bias(self.prompt_mask.shape[1], self.prompt_mask.device)
        return Block(self.prompt_places, self.prompt_mask, bias.unsqueeze(0), None)

    @cached_property
    def parts(self) -> "list[Block]":
        """The completions, some of similar length at a time, each on its prompt and on its own tokens."""
        lengths = self._completion_mask.sum(dim=1)
        longest_first = lengths.argsort(descending=True, stable=True)
        prompt_bias = bias_of(self.prompt_mask)
        parts: list[Block] = []
        rest = longest_first[: int((lengths > 0).sum())]
        while len(rest):
            width = int(lengths[rest[0]])
            size = min(ROWS_AT_A_TIME, max(1, MAX_SCORES // (SCORE_HEADS * width * (width + prompt_bias.shape[1]))))
            rows, rest = rest[:size], rest[size:]
            owners = self._prompt_index[rows]
            shape = (len(rows), width, -1)
            own = causal_bias(width, prompt_bias.device).expand(shape)
            bias = torch.cat([prompt_bias[owners].unsqueeze(1).expand(shape), own], dim=2)
            places, mask = self.completion_places[rows, :width], self._completion_mask[rows, :width]
            parts.append(Block(places, mask, bias, owners))
        return parts

    @cached_property
    def order(self) -> Tensor:
        """Where each packed token stands in the tokens of `prompts` and `parts`, one block after the other."""
        blocks = [self.prompts, *self.parts]
        return torch.cat([block.places.flatten()[block.slots] for block in blocks]).argsort()

    def pack(self, blocks: list[Tensor], num_tokens: int) -> Tensor:
        """Tokens of all blocks, each `[n, H, D]`, as `[num_tokens, H, D]`; what is behind the plan's tokens is 0."""
        packed = torch.cat(blocks).index_select(0, self.order)
        return torch.nn.functional.pad(packed, (0, 0, 0, 0, 0, num_tokens - self.num_tokens))


class Block:
    """Rows of tokens on a padded grid `[R, T]`, and the scores they may have."""

    def __init__(self, places: Tensor, mask: Tensor, bias: Tensor, owners: Tensor | None) -> None:
        self.places = places
        """[R, T], the packed place of each token; any under the padding."""
        self.bias = bias
        """[R or 1, T, Tk], 0 where a token may look, else -inf; keys of the prompt come before the row's own."""
        self.owners = owners
        """[R], the prompt of each row; None for the prompts themselves."""
        self.mask = mask
        """[R, T], True for tokens."""
        self.slots = mask.flatten().nonzero().squeeze(1)

    def rows(self, packed: Tensor) -> Tensor:
        """`[N, H, D]` -> `[R, H, T, D]`."""
        grid = packed.index_select(0, self.places.flatten())
        return grid.view(*self.places.shape, *packed.shape[1:]).transpose(1, 2)

    def masked_rows(self, packed: Tensor) -> Tensor:
        """`rows` with zeros under the padding, which repeats tokens: no gradient may flow back through it."""
        return self.rows(packed) * self.mask.unsqueeze(1).unsqueeze(-1)

    def tokens(self, rows: Tensor) -> Tensor:
        """`[R, H, T, D]` -> `[n, H, D]`, without the padding."""
        return rows.transpose(1, 2).flatten(0, 1).index_select(0, self.slots)


class _GroupAttention(torch.autograd.Function):
    """Scores are computed again in the backward pass: what is kept of a layer are its queries, keys and values."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, plan: PackedGroups, scale: float) -> Tensor:
        ctx.save_for_backward(queries, keys, values)
        ctx.plan, ctx.scale = plan, scale
        q, k, v = (states.transpose(0, 1) for states in (queries * scale, keys, values))
        of_prompts = plan.prompts.rows(k), plan.prompts.rows(v)
        results = []
        for block in (plan.prompts, *plan.parts):
            block_keys, block_values = (
                _seen(block, own, shared) for own, shared in zip((k, v), of_prompts, strict=True)
            )
            weights = weights_of(block.rows(q), block_keys, block.bias)
            results.append(block.tokens(_ungrouped(weights @ block_values, q.shape[1])))
        return plan.pack(results, len(q))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        plan: PackedGroups = ctx.plan
        queries, keys, values = ctx.saved_tensors
        q, k, v = (states.transpose(0, 1) for states in (queries * ctx.scale, keys, values))
        prompt_keys, prompt_values = plan.prompts.rows(k), plan.prompts.rows(v)
        width = prompt_keys.shape[2]
        of_q, of_k, of_v = [], [], []
        # Those of the prompts come last: all completions add to them.
        of_prompt_k, of_prompt_v = torch.zeros_like(prompt_keys), torch.zeros_like(prompt_values)
        for block in (*plan.parts, plan.prompts):
            block_keys, block_values = _seen(block, k, prompt_keys), _seen(block, v, prompt_values)
            block_q, block_k, block_v = _gradients(
                block.rows(q), block_keys, block_values, block.bias, block.masked_rows(gradient)
            )
            if block.owners is None:
                block_k, block_v = block_k + of_prompt_k, block_v + of_prompt_v
            else:
                # Each prompt's share from all of its completions, as one matrix product.
                chooses = torch.nn.functional.one_hot(block.owners, len(prompt_keys)).T.to(k.dtype)
                of_prompt_k += (chooses @ block_k[:, :, :width].flatten(1)).view_as(prompt_keys)
                of_prompt_v += (chooses @ block_v[:, :, :width].flatten(1)).view_as(prompt_values)
                block_k, block_v = block_k[:, :, width:], block_v[:, :, width:]
            of_q.append(block.tokens(block_q))
            of_k.append(block.tokens(block_k))
            of_v.append(block.tokens(block_v))
        found = [plan.pack([each[-1], *each[:-1]], len(q)).transpose(0, 1) for each in (of_q, of_k, of_v)]
        return found[0] * ctx.scale, found[1], found[2], None, None


def _seen(block: Block, packed: Tensor, of_prompts: Tensor) -> Tensor:
    """Keys or values that the rows of `block` may look at, `[R, K, Tk, D]`."""
    if block.owners is None:
        return of_prompts
    return torch.cat([of_prompts[block.owners], block.rows(packed)], dim=2)


def weights_of(queries: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
    """Attention weights of scaled `queries [R, H, Tq, D]` on `keys [R, K, Tk, D]`: `[R, K, H/K Tq, Tk]`.

    `bias [R or 1, Tq, Tk]`. Heads that share their keys lie one after the other, as more queries of one head.
    """
    num_rows, num_shared, num_keys, _ = keys.shape
    scores = at_least_float32(_grouped(queries, num_shared) @ keys.transpose(2, 3))
    scores.view(num_rows, -1, queries.shape[2], num_keys).add_(bias.unsqueeze(1))
    return scores.softmax(dim=-1).to(queries.dtype)


def _gradients(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of scaled queries, keys and values, from that of the result."""
    num_heads, num_shared = queries.shape[1], keys.shape[1]
    weights = weights_of(queries, keys, bias)
    grouped = _grouped(gradient, num_shared)
    of_weights = grouped @ values.transpose(2, 3)
    of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
    of_queries = _ungrouped(of_scores @ keys, num_heads)
    of_keys = of_scores.transpose(2, 3) @ _grouped(queries, num_shared)
    return of_queries, of_keys, weights.transpose(2, 3) @ grouped


def _grouped(states: Tensor, num_shared: int) -> Tensor:
    """`[R, H, T, D]` -> `[R, K, H/K T, D]`."""
    num_rows, num_heads, length, size = states.shape
    return states.reshape(num_rows, num_shared, num_heads // num_shared * length, size)


def _ungrouped(states: Tensor, num_heads: int) -> Tensor:
    """`[R, K, H/K T, D]` -> `[R, H, T, D]`."""
    num_rows, num_shared, length, size = states.shape
    return states.reshape(num_rows, num_heads, num_shared * length // num_heads, size)


def causal_bias(length: int, device: torch.device) -> Tensor:
    """[T, T], 0 where a token may look and -inf where it may not."""
    return torch.full((length, length), -torch.inf, device=device).triu(1)


def bias_of(mask: Tensor) -> Tensor:
    """0 where `mask` is True, else -inf; the same shape."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)


def places_of(mask: Tensor) -> Tensor:
    """The place of each token among those under `mask`, row after row; any where it is False."""
    return (mask.flatten().long().cumsum(0) - 1).clamp(min=0).view(mask.shape)
