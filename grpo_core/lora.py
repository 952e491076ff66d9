"""Low-rank adapters, trained in place of a policy's weights: W x + (alpha / rank) B A x with W frozen.

Hu et al. 2021, arXiv:2106.09685. peft puts its layers into the model, which stays the transformers model it was.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from grpo_core.config import LoraSection

#: Name and keys are peft's own, so that its `PeftModel.from_pretrained` reads the folder too.
ADAPTER_FILE = "adapter_model.safetensors"
_KEY_PREFIX = "base_model.model."


def add_adapters(model: PreTrainedModel, config: LoraSection, seed: int = 0) -> None:
    """Puts an adapter on each target layer and freezes all else; the policy stays as it was, since B starts at 0.

    `seed` draws A, so that every rank and every resumed run begins with the same. Raises ValueError for a target that
    names no linear layer, and where peft is not installed.
    """
    targets = target_layers(model, config)
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ValueError("policy.lora: needs the package peft; pip install peft, or leave policy.lora out") from None
    settings = LoraConfig(
        r=config.rank,
        # peft only divides by the rank; its annotation is narrower than what it takes.
        lora_alpha=config.alpha,  # type: ignore[arg-type]
        lora_dropout=0.0,
        target_modules=targets,
        fan_in_fan_out=isinstance(model.get_submodule(targets[0]), Conv1D),
        base_model_name_or_path=model.name_or_path or None,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(settings, model)


def target_layers(model: PreTrainedModel, config: LoraSection) -> list[str]:
    """Full names of the layers that get an adapter: every linear layer whose name ends in one of `target_modules`.

    Never the output layer, whose weight may be the embedding's. Raises ValueError for a name that fits no layer.
    """
    output = model.get_output_embeddings()
    layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not output
    ]
    if config.target_modules is None:
        return layers
    wanted = {
        target: [name for name in layers if f".{name}".endswith(f".{target}")] for target in config.target_modules
    }
    unknown = [target for target, found in wanted.items() if not found]
    if unknown or not wanted:
        legal = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
        raise ValueError(
            f"policy.lora.target_modules={unknown}: {type(model).__name__} has no linear layer of that name; "
            f"choose among {legal}, or leave it out for all of them"
        )
    return [name for name in layers if any(name in found for found in wanted.values())]


def has_adapters(model: PreTrainedModel) -> bool:
    """Whether `add_adapters` put adapters on `model`."""
    # peft leaves its settings on the model; asking so needs no import of peft where no adapter is.
    return hasattr(model, "peft_config")


@contextmanager
def adapters_off(model: PreTrainedModel) -> Iterator[None]:
    """Within it `model` is the base policy alone: the reference of a KL divergence without a second copy."""
    layers = _adapter_layers(model)
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def merge_adapters(model: PreTrainedModel) -> None:
    """Adds every adapter to the weight it adapts and takes it out: an ordinary model that answers the same."""
    for name, module in list(model.named_modules()):
        if _is_adapter_layer(module):
            module.merge()
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module.get_base_layer())
    del model.peft_config


def save_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Writes the adapters' weights and settings to `folder`, in peft's own format."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {key: weight.detach().contiguous() for key, weight in _adapter_weights(model).items()}
    save_file(weights, folder / ADAPTER_FILE, metadata={"format": "pt"})
    settings: Any = model.peft_config["default"]
    settings.save_pretrained(str(folder))


def load_adapters(model: PreTrainedModel, folder: Path) -> None:
    """Sets the adapters of `model` to those that `save_adapters` wrote to `folder`.

    Raises ValueError where there are none, or others than the model's.
    """
    file = folder / ADAPTER_FILE
    if not file.exists():
        raise ValueError(f"policy.lora: {folder} holds no adapters; leave policy.lora out, or begin a new run")
    saved, weights = load_file(file), _adapter_weights(model)
    if {key: weight.shape for key, weight in saved.items()} != {key: weight.shape for key, weight in weights.items()}:
        raise ValueError(
            f"policy.lora: the adapters in {folder} have another rank or other target_modules; give those they were "
            "trained with, or begin a new run"
        )
    with torch.no_grad():
        for key, weight in weights.items():
            weight.copy_(saved[key])


def _adapter_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """A and B of every adapter, by the key they have in the file."""
    return {
        _KEY_PREFIX + name.replace(".default.", "."): weight
        for name, weight in model.named_parameters()
        if ".lora_" in name
    }


def _adapter_layers(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if _is_adapter_layer(module)]


def _is_adapter_layer(module: nn.Module) -> bool:
    from peft.tuners.lora import LoraLayer

    return isinstance(module, LoraLayer)
