"""Decoding of groups: keys and values of each prompt once, those of the completions in buffers sized once."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo_core.cpu_products import ROWS_MULTIPLE
from grpo_core.group_attention import PackedGroups, Plan, bias_of, hidden_states
from grpo_core.logprobs import at_least_float32


@dataclass
class _Layer:
    """What one layer remembers; K heads of keys and values."""

    prompt_keys: Tensor
    """[P, K, D, Tp]"""
    prompt_values: Tensor
    """[P, K, Tp, D]"""
    keys: Tensor | None = None
    """[B, K, capacity, D], filled up to the tokens decoded so far."""
    values: Tensor | None = None


class Decoder:
    """Completions that grow by one token at a time, behind prompts that were read once. Without gradients."""

    def __init__(self, model: PreTrainedModel, prompt_ids: Tensor, prompt_mask: Tensor, capacity: int) -> None:
        self._model = model
        self._capacity = capacity
        none = prompt_mask.new_zeros(0, 0)
        prefill = _Prefill(prompt_mask, none, none.long().flatten())
        token_ids = prompt_ids[prompt_mask]
        positions = torch.arange(prompt_mask.shape[1], device=prompt_ids.device).expand(prompt_mask.shape)[prompt_mask]
        missing = -len(token_ids) % ROWS_MULTIPLE
        pad = torch.nn.functional.pad
        hidden = hidden_states(model, pad(token_ids, (0, missing)), pad(positions, (0, missing)), prefill)
        self._layers = prefill.layers
        self._lengths = prompt_mask.sum(dim=1)
        self._prompt_bias = bias_of(prompt_mask)
        self._last = hidden[prefill.prompt_places.gather(1, self._lengths.unsqueeze(1) - 1).squeeze(1)]
        self._owners = _Owners(torch.empty(0, dtype=torch.long), 0)
        self.length = 0

    def open(self, prompt_index: Tensor) -> Tensor:
        """Starts one completion for each of `prompt_index [B]`, neighbours of one prompt side by side.

        Gives the hidden states `[B, C]` that their first tokens are drawn from.
        """
        self._owners = _Owners(prompt_index, len(self._lengths))
        for layer in self._layers:
            _, num_shared, size, _ = layer.prompt_keys.shape
            shape = (len(prompt_index), num_shared, self._capacity, size)
            layer.keys, layer.values = layer.prompt_keys.new_empty(shape), layer.prompt_keys.new_empty(shape)
        return self._last[prompt_index]

    def step(self, token_ids: Tensor) -> Tensor:
        """Adds a token to each completion, `[B]`, and gives the hidden states `[B, C]` that the next is drawn from."""
        positions = self._lengths[self._owners.prompts] + self.length
        hidden = hidden_states(self._model, token_ids, positions, _Step(self))
        self.length += 1
        return hidden

    def keep(self, rows: Tensor) -> None:
        """Drops all completions but `rows`, in their order."""
        prompts, owners = self._owners.prompts[rows].unique(return_inverse=True)
        fewer = len(prompts) < len(self._lengths)
        self._owners = _Owners(owners, len(prompts))
        for layer in self._layers:
            assert layer.keys is not None and layer.values is not None
            layer.keys, layer.values = self._kept(layer.keys, rows), self._kept(layer.values, rows)
            if fewer:
                layer.prompt_keys, layer.prompt_values = layer.prompt_keys[prompts], layer.prompt_values[prompts]
        if fewer:
            self._lengths, self._prompt_bias = self._lengths[prompts], self._prompt_bias[prompts]

    def _kept(self, buffer: Tensor, rows: Tensor) -> Tensor:
        smaller = buffer.new_empty(len(rows), *buffer.shape[1:])
        smaller[:, :, : self.length] = buffer[rows, :, : self.length]
        return smaller


class _Prefill(PackedGroups):
    """Reads the prompts and keeps their keys and values."""

    def __init__(self, prompt_mask: Tensor, completion_mask: Tensor, prompt_index: Tensor) -> None:
        super().__init__(prompt_mask, completion_mask, prompt_index)
        self.layers: list[_Layer] = []

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        assert layer == len(self.layers)
        of_prompts = self.prompts.rows(keys.transpose(0, 1)), self.prompts.rows(values.transpose(0, 1))
        self.layers.append(_Layer(of_prompts[0].transpose(2, 3).contiguous(), of_prompts[1].contiguous()))
        return super().attend(layer, queries, keys, values, scale)


class _Owners:
    """Which prompt each completion has, and completions as slots of their prompts, G for each."""

    def __init__(self, prompts: Tensor, num_prompts: int) -> None:
        self.prompts = prompts
        """[B]"""
        counts = torch.bincount(prompts, minlength=num_prompts)
        self.size = int(counts.max()) if len(prompts) else 0
        self.is_full = len(prompts) == self.size * num_prompts
        first = counts.cumsum(0) - counts
        self._slots = prompts * self.size + torch.arange(len(prompts), device=prompts.device) - first[prompts]
        self._num_prompts = num_prompts

    def by_prompt(self, rows: Tensor) -> Tensor:
        """`[B, K, R, X]` -> `[P, K, G R, X]`; empty slots hold anything."""
        if not self.is_full:
            rows = rows.new_zeros(self._num_prompts * self.size, *rows.shape[1:]).index_copy_(0, self._slots, rows)
        return rows.view(self._num_prompts, self.size, *rows.shape[1:]).transpose(1, 2).flatten(2, 3)

    def by_row(self, slots: Tensor) -> Tensor:
        """`[P, K, G R, X]` -> `[B, K, R, X]`."""
        num_prompts, num_shared, width, size = slots.shape
        rows = slots.view(num_prompts, num_shared, self.size, width // self.size, size).transpose(1, 2).flatten(0, 1)
        return rows if self.is_full else rows.index_select(0, self._slots)


class _Step(Plan):
    """One more token for each completion: it looks at its prompt, at its own tokens so far, and at itself."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        decoder = self._decoder
        known, owners, end = decoder._layers[layer], decoder._owners, decoder.length + 1
        assert known.keys is not None and known.values is not None
        known.keys[:, :, end - 1] = keys.transpose(0, 1)
        known.values[:, :, end - 1] = values.transpose(0, 1)
        num_heads, num_rows, size = queries.shape
        num_shared = len(keys)
        rows = queries.transpose(0, 1).reshape(num_rows, num_shared, num_heads // num_shared, size) * scale
        to_prompt = at_least_float32(owners.by_prompt(rows) @ known.prompt_keys) + decoder._prompt_bias[:, None, None]
        to_own = rows @ known.keys[:, :, :end].transpose(2, 3)
        weights = torch.cat([owners.by_row(to_prompt), at_least_float32(to_own)], dim=3).softmax(dim=3).to(values.dtype)
        of_prompt, of_own = weights.split([to_prompt.shape[3], end], dim=3)
        result = owners.by_row(owners.by_prompt(of_prompt) @ known.prompt_values) + of_own @ known.values[:, :, :end]
        return result.reshape(num_rows, num_heads, size)
