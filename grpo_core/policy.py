"""A policy: the causal language model with its tokenizer, loaded from a name, a hub id or a folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from grpo_core.config import PolicyConfig
from grpo_core.cpu_products import use_fast_products
from grpo_core.group_attention import use_group_attention
from grpo_core.lora import add_adapters, has_adapters, load_adapters, merge_adapters, save_adapters
from grpo_core.tasks import Task
from grpo_core.tiny import tiny_model, word_tokenizer

#: Beside saved adapters: which base policy they belong to.
BASE_FILE = "base.json"


@dataclass
class Policy:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    """Every token that ends a completion."""
    pad_id: int
    base: dict[str, Any] | None = None
    """What names the base policy of adapters: `policy`, `start`, `sample`; None where all weights are trained."""

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a prompt, as a user's turn where the tokenizer has a chat template."""
        if self.tokenizer.chat_template:
            turn = [{"role": "user", "content": text}]
            rendered = self.tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
            return list(self.tokenizer(rendered, add_special_tokens=False)["input_ids"])
        return list(self.tokenizer(text)["input_ids"])

    def decode(self, token_ids: list[int]) -> str:
        """Text of a completion, special tokens left out."""
        return str(self.tokenizer.decode(token_ids, skip_special_tokens=True))

    def save(self, folder: Path) -> None:
        """Writes model and tokenizer so that `AutoModelForCausalLM` and `AutoTokenizer` load them.

        Of a policy with adapters it writes these alone, with the tokenizer and what names their base.
        """
        disable_progress_bar()
        if has_adapters(self.model):
            save_adapters(self.model, folder)
            (folder / BASE_FILE).write_text(json.dumps(self.base))
        else:
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load_policy(config: PolicyConfig, task: Task, start: Path | None = None, checkpoint: Path | None = None) -> Policy:
    """The policy that `config` names, in float32 on the CPU, dropout off.

    Its weights are those saved in the folder `checkpoint`, else in `start`, else what `config.name` says. With
    `config.lora` it is the base policy from `start` or `config.name` with adapters on it, those of `checkpoint` where
    it is given, else fresh ones that change nothing.

    Raises ValueError when `tiny` meets a task without a closed vocabulary, a model or peft can't be had, adapters don't
    fit, or the base is not the one that the adapters of `checkpoint` were trained on.
    """
    folder = start if config.lora is not None else checkpoint or start
    if folder is not None or config.name != "tiny":
        policy = _loaded(config, folder)
    elif task.words is not None:
        policy = _tiny(config, word_tokenizer(task.words))
    else:
        raise ValueError(
            f"policy.name='tiny': its word-level tokenizer needs a task with a closed vocabulary, and {task.name} "
            "has none; use task.name: grade_school, or a hub id or local folder as policy.name"
        )
    if config.lora is not None:
        _adapt(policy, config, start, checkpoint)
    use_fast_products(policy.model)
    return policy


def merged_policy(folder: Path) -> Policy:
    """The policy whose adapters are saved in `folder`, merged into its base: plain weights.

    Raises ValueError when the base is no longer where it was, or is another.
    """
    base = json.loads((folder / BASE_FILE).read_text())
    config, start = PolicyConfig.model_validate(base["policy"]), base["start"] and Path(base["start"])
    if start is not None and not start.is_dir():
        raise ValueError(
            f"{start}: the warm-started base of the adapters in {folder} is no longer there; run the trial's command "
            "again, which makes it anew"
        )
    if start is not None or config.name != "tiny":
        policy = _loaded(config, start)
    else:
        policy = _tiny(config, AutoTokenizer.from_pretrained(folder))
    _adapt(policy, config, start, folder)
    merge_adapters(policy.model)
    policy.base = None
    return policy


def restore_weights(policy: Policy, folder: Path) -> None:
    """Sets the weights of `policy`, or its adapters, to those that `Policy.save` wrote to `folder`."""
    if has_adapters(policy.model):
        load_adapters(policy.model, folder)
    else:
        saved = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
        policy.model.load_state_dict(saved.state_dict())


def _adapt(policy: Policy, config: PolicyConfig, start: Path | None, checkpoint: Path | None) -> None:
    assert config.lora is not None
    sample = _weights_sample(policy.model)
    policy.base = {
        "policy": config.model_dump(mode="json"),
        "start": None if start is None else str(start.resolve()),
        "sample": sample,
    }
    add_adapters(policy.model, config.lora)
    if checkpoint is None:
        return
    load_adapters(policy.model, checkpoint)
    then = json.loads((checkpoint / BASE_FILE).read_text())["sample"]
    # Another kind of processor may round an initial weight otherwise.
    if len(then) != len(sample) or not torch.allclose(torch.tensor(then), torch.tensor(sample), rtol=1e-4, atol=1e-6):
        raise ValueError(
            f"policy.name={config.name!r}: its weights are not those that the adapters in {checkpoint} were trained "
            "on; bring back the base policy of that run, or start a new one"
        )


def _weights_sample(model: PreTrainedModel) -> list[float]:
    """The middle number of each weight: enough to tell one base policy from another."""
    return [float(weight.detach().flatten()[weight.numel() // 2]) for weight in model.parameters()]


def _tiny(config: PolicyConfig, tokenizer: Any) -> Policy:
    return _policy(tiny_model(config, tokenizer), tokenizer)


def _loaded(config: PolicyConfig, folder: Path | None) -> Policy:
    """The policy saved in `folder`, or the one that `config.name` has on the hub or on disk."""
    # A saved or loaded policy is one file; a bar for it only tears the log and the live table.
    disable_progress_bar()
    source = str(folder) if folder is not None else config.name
    files = {"gguf_file": config.gguf_file} if config.gguf_file and folder is None else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **files)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **files)
    except OSError as error:
        # transformers raises OSError for an unknown id, a missing file and an unreachable hub alike.
        raise ValueError(
            f"policy.name={source!r}: neither a folder written by save_pretrained nor to be had from the hub "
            f"({_first_line(error)}); check the id and the connection, or give the path of a local folder"
        ) from error
    if files:
        _forget_quantization(model)
    return _policy(model, tokenizer)


def _forget_quantization(model: PreTrainedModel) -> None:
    """A GGUF file's weights are plain float32 once loaded; transformers still refuses to save a model that has been
    quantised."""
    model.hf_quantizer = None  # type: ignore[assignment]
    model.is_quantized = False  # type: ignore[assignment]
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Policy:
    switch_dropout_off(model)
    use_group_attention(model)
    eos_ids = end_of_sequence_ids(model, tokenizer)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else eos_ids[0]
    return Policy(model, tokenizer, eos_ids, int(pad_id))


def end_of_sequence_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every token id that ends a completion: the tokenizer's, and all of the model's generation config."""
    ids: set[int] = set()
    for given in (tokenizer.eos_token_id, getattr(model.generation_config, "eos_token_id", None)):
        ids.update(given if isinstance(given, list | tuple) else [given] if given is not None else [])
    if not ids:
        raise ValueError("policy: neither tokenizer nor generation config names an end-of-sequence token; set one")
    return tuple(sorted(ids))


def switch_dropout_off(model: torch.nn.Module) -> None:
    """Sets every dropout of `model` to 0: the sampler and the trainer must see one distribution, ratio 1 on-policy."""
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
