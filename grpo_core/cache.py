"""The key-value cache of a group of completions on their shared prompt."""

import inspect
from typing import Any

from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer


class BufferedLayer(DynamicLayer):
    """A cache layer that writes new tokens into a buffer sized once; `DynamicLayer` copies everything at each token.

    Keys and values are `[rows, heads, tokens, head_dim]`. For sampling only: writing in place has no gradient.
    """

    def __init__(self, prompt: DynamicLayer, rows: Tensor, capacity: int) -> None:
        super().__init__()
        assert prompt.keys is not None and prompt.values is not None
        self.is_initialized = True
        self.dtype, self.device = prompt.keys.dtype, prompt.keys.device
        self.length: int = prompt.keys.shape[2]
        self.key_buffer = self._buffer(prompt.keys, rows, capacity)
        self.value_buffer = self._buffer(prompt.values, rows, capacity)
        self._show()

    def _buffer(self, old: Tensor, rows: Tensor, capacity: int) -> Tensor:
        """`rows` of `old` at the start of a tensor with room for `capacity` tokens."""
        buffer = old.new_empty(len(rows), old.shape[1], capacity, old.shape[3])
        buffer[:, :, : self.length] = old[rows, :, : self.length]
        return buffer

    def _show(self) -> tuple[Tensor, Tensor]:
        self.keys = keys = self.key_buffer[:, :, : self.length]
        self.values = values = self.value_buffer[:, :, : self.length]
        return keys, values

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        end = self.length + key_states.shape[-2]
        self.key_buffer[:, :, self.length : end] = key_states
        self.value_buffer[:, :, self.length : end] = value_states
        self.length = end
        return self._show()

    def keep_rows(self, rows: Tensor) -> None:
        """Drops all rows but `rows [kept]`."""
        capacity = self.key_buffer.shape[2]
        self.key_buffer = self._buffer(self.key_buffer, rows, capacity)
        self.value_buffer = self._buffer(self.value_buffer, rows, capacity)
        self._show()


def new_cache(model: PreTrainedModel) -> DynamicCache:
    """An empty cache for `model`.

    Raises ValueError for models whose layers keep something other than all keys and values (sliding windows,
    recurrent states): their prompt cache can't be shared by a group.
    """
    cache = DynamicCache(config=model.config)
    unusual = {type(layer).__name__ for layer in cache.layers if type(layer) is not DynamicLayer}
    if unusual:
        raise ValueError(
            f"policy: {type(model).__name__} keeps {', '.join(sorted(unusual))} as cache, which a group can't share; "
            "use a model with full attention in every layer"
        )
    return cache


def sampling_cache(prompts: DynamicCache, rows: Tensor, capacity: int) -> DynamicCache:
    """The prompts' cache for each completion, with room for `capacity` tokens; `rows[i]` is completion i's prompt."""
    cache = DynamicCache()
    cache.layers = [BufferedLayer(layer, rows, capacity) for layer in prompts.layers if isinstance(layer, DynamicLayer)]
    assert len(cache.layers) == len(prompts.layers), "new_cache refuses other layers"
    return cache


def cache_argument(model: PreTrainedModel) -> str:
    """Name of the argument that takes the cache in the installed transformers version."""
    return "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"


def run_model(model: PreTrainedModel, input_ids: Tensor, cache: DynamicCache | None, **inputs: Any) -> Tensor:
    """Logits of `model` on `input_ids [B, T]`, reading and extending `cache` where one is given."""
    logits: Tensor = _call(model, input_ids, cache, inputs).logits
    return logits


def run_model_with_hidden(
    model: PreTrainedModel, input_ids: Tensor, cache: DynamicCache | None, **inputs: Any
) -> tuple[Tensor, Tensor]:
    """Logits as of `run_model`, and the last hidden state `[B, T, hidden_size]` that each of them comes from."""
    output = _call(model, input_ids, cache, {**inputs, "output_hidden_states": True})
    return output.logits, output.hidden_states[-1][:, -output.logits.shape[1] :]


def _call(model: PreTrainedModel, input_ids: Tensor, cache: DynamicCache | None, inputs: dict[str, Any]) -> Any:
    if cache is None:
        return model(input_ids=input_ids, use_cache=False, **inputs)
    return model(input_ids=input_ids, use_cache=True, **{cache_argument(model): cache}, **inputs)
