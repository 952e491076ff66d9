"""A policy: the causal language model with its tokenizer, loaded from a name, a hub id or a folder."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from grpo_core.config import PolicyConfig
from grpo_core.tasks import Task
from grpo_core.tiny import tiny_model, word_tokenizer


@dataclass
class Policy:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    eos_ids: tuple[int, ...]
    """Every token that ends a completion."""
    pad_id: int

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
        """Writes model and tokenizer so that `AutoModelForCausalLM` and `AutoTokenizer` load them."""
        disable_progress_bar()
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def load_policy(config: PolicyConfig, task: Task, folder: Path | None = None) -> Policy:
    """The policy that `config` names, or the one saved in `folder`, in float32 on the CPU, dropout off.

    Raises ValueError when `tiny` meets a task without a closed vocabulary, or a model can't be had.
    """
    if folder is None and config.name == "tiny":
        if task.words is None:
            raise ValueError(
                f"policy.name='tiny': its word-level tokenizer needs a task with a closed vocabulary, and {task.name} "
                "has none; use task.name: grade_school, or a hub id or local folder as policy.name"
            )
        words = word_tokenizer(task.words)
        return _policy(tiny_model(config, words), words)
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
    return _policy(model, tokenizer)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _policy(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Policy:
    switch_dropout_off(model)
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
