"""Folders of adapters: read by peft itself, exported on any kind of base, and refused on a base that is another."""

import json
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo_core.checkpoints import export_policy, newest_checkpoint
from grpo_core.config import PolicyConfig
from grpo_core.policy import BASE_FILE, load_policy
from grpo_core.train import train

from .conftest import small_config

SHAPE = {"num_layers": 2, "hidden_size": 32}
LORA = {"rank": 4, "alpha": 16.0}


def learnt(policy):
    """`policy` with adapters that say something."""
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.05, generator=torch.Generator().manual_seed(len(name)))
    return policy


def logprobs(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(3, 33).reshape(2, 15)).logits.log_softmax(dim=-1)


def saved_as_checkpoint(policy, folder):
    policy.save(folder / "policy")
    return folder


# peft asks transformers for it by its older name.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")
def test_peft_reads_the_folder(task, tiny_policy, tmp_path):
    from peft import PeftModel

    policy = learnt(load_policy(PolicyConfig(**SHAPE, lora=LORA), task))
    policy.save(tmp_path)
    assert (logprobs(tiny_policy.model) - logprobs(policy.model)).abs().max() > 0.1
    read = PeftModel.from_pretrained(tiny_policy.model, tmp_path)
    assert (logprobs(read) - logprobs(policy.model)).abs().max() < 1e-6


@pytest.mark.parametrize("where", ["name", "start"])
def test_adapters_on_a_saved_base_are_exported(task, tiny_policy, tmp_path, where):
    with torch.no_grad():
        tiny_policy.model.model.embed_tokens.weight.mul_(2)
    tiny_policy.save(tmp_path / "base")
    named, start = ({"name": str(tmp_path / "base")}, None) if where == "name" else (SHAPE, tmp_path / "base")
    policy = learnt(load_policy(PolicyConfig(**named, lora=LORA), task, start))
    export_policy(saved_as_checkpoint(policy, tmp_path / "step"), tmp_path / "exported")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert (logprobs(exported) - logprobs(policy.model)).abs().max() < 1e-5
    assert not (tmp_path / "exported" / BASE_FILE).exists()


@pytest.mark.parametrize("change", ["weight", "layers"])
def test_a_base_that_changed_under_its_adapters_is_refused(task, tiny_policy, tmp_path, change):
    """`base.json` keeps one number of each weight."""
    tiny_policy.save(tmp_path / "base")
    config = PolicyConfig(name=str(tmp_path / "base"), lora=LORA)
    checkpoint = saved_as_checkpoint(load_policy(config, task), tmp_path / "step")
    if change == "weight":
        with torch.no_grad():
            tiny_policy.model.model.layers[1].mlp.up_proj.weight.add_(1e-3)
        tiny_policy.save(tmp_path / "base")
        with pytest.raises(ValueError, match=r"policy\.name='.*base': its weights are not those"):
            load_policy(config, task, None, checkpoint / "policy")
    else:
        load_policy(PolicyConfig(num_layers=1, hidden_size=32), task).save(tmp_path / "base")
        with pytest.raises(ValueError, match=r"policy\.lora: .*another rank or other target_modules"):
            export_policy(checkpoint, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_a_list_without_a_layer_is_refused(task):
    with pytest.raises(ValueError, match=r"policy\.lora\.target_modules=\[\]: .*down_proj.*q_proj"):
        load_policy(PolicyConfig(lora={"target_modules": []}), task)


def test_a_run_without_adapters_needs_no_peft(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "peft", None)
    train(small_config(num_steps=1, algorithm={"kl_coef": 0.1}), run_dir=tmp_path)
    export_policy(newest_checkpoint(tmp_path), tmp_path / "exported")
    assert json.loads((tmp_path / "exported" / "config.json").read_text())["model_type"] == "llama"
