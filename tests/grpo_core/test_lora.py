"""Low-rank adapters: what they leave alone, what a checkpoint keeps of them, and what an export makes of them."""

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_core.checkpoints import checkpoint_policy_folder, export_policy, newest_checkpoint
from grpo_core.config import ComputeConfig, LoraSection, PolicyConfig, RolloutConfig
from grpo_core.evaluation import compare_on_test
from grpo_core.lora import ADAPTER_FILE, adapters_off, add_adapters, has_adapters, load_adapters
from grpo_core.metric_names import depends_on_machine
from grpo_core.policy import load_policy
from grpo_core.ranks import open_ranks
from grpo_core.rollouts import sample_groups
from grpo_core.run_record import read_metrics
from grpo_core.run_setup import open_run
from grpo_core.tasks import TASKS, load_task
from grpo_core.train import Verdict, train, train_step
from grpo_core.warm_start import ensure_warm_start

from .conftest import load_odd_words, small_config

ADAPTED = {"lora": {"rank": 4, "alpha": 8}}


def lora_config(**sections):
    return small_config(policy=ADAPTED, optim={"lr": 1e-2}, **sections)


def logprobs(model):
    ids = torch.arange(3, 33).reshape(2, 15)
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits.log_softmax(dim=-1)


def base_weights(model):
    return {
        name.replace(".base_layer", ""): weight.detach().clone()
        for name, weight in model.named_parameters()
        if ".lora_" not in name
    }


def adapter_weights(model):
    return {name: weight.detach() for name, weight in model.named_parameters() if ".lora_" in name}


def recorded(run_dir):
    return [
        {key: value for key, value in line["metrics"].items() if not depends_on_machine(key)}
        for line in read_metrics(run_dir / "metrics.jsonl")
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run with adapters: its config and folder."""
    config, run_dir = lora_config(), tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "odd_words", load_odd_words)
        train(config, run_dir=run_dir)
    return config, run_dir


def start_and_end(trained):
    """The policy that the run began with, without adapters, and the one it left."""
    config, run_dir = trained
    task, start = load_task(config.task), ensure_warm_start(config)
    plain = config.policy.model_copy(update={"lora": None})
    folder = checkpoint_policy_folder(newest_checkpoint(run_dir))
    return load_policy(plain, task, start), load_policy(config.policy, task, start, folder)


def test_fresh_adapters_change_nothing_and_are_the_same_every_time(task):
    plain, *adapted = (load_policy(PolicyConfig(**given), task) for given in ({}, ADAPTED, ADAPTED))
    assert torch.equal(logprobs(adapted[0].model), logprobs(plain.model))
    first, second = (adapter_weights(policy.model) for policy in adapted)
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    # Seven linear layers in each of 3 layers, each with an A and a B; the output layer has none.
    assert len(first) == 3 * 7 * 2
    assert not any("lm_head" in name for name in first)
    assert [name for name, weight in adapted[0].model.named_parameters() if weight.requires_grad] == list(first)


def test_drawing_adapters_leaves_the_global_generator_alone(task):
    policy = load_policy(PolicyConfig(), task)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    add_adapters(policy.model, LoraSection())
    assert torch.equal(torch.rand(3), expected)


def test_the_output_is_that_of_the_formula(task):
    policy = load_policy(PolicyConfig(num_layers=1, lora=LoraSection(rank=4, alpha=6.0)), task)
    layer = policy.model.model.layers[0].mlp.up_proj
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    torch.nn.init.normal_(b)
    x = torch.randn(5, a.shape[1])
    expected = x @ (layer.base_layer.weight + 6.0 / 4 * b @ a).T
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def test_training_moves_the_adapters_alone_and_leaves_the_base_bit_equal(tmp_path):
    with open_run(lora_config(algorithm={"updates_per_batch": 2}), tmp_path) as run:
        model = run.policy.model
        base, fresh = base_weights(model), {name: each.clone() for name, each in adapter_weights(model).items()}
        for step in (1, 2, 3):
            train_step(run, step)
        after = base_weights(model)
        assert after.keys() == base.keys() and all(torch.equal(after[name], base[name]) for name in base)
        assert all(not torch.equal(weight, fresh[name]) for name, weight in adapter_weights(model).items())
        optimized = {id(each) for group in run.learner.optimizer.param_groups for each in group["params"]}
        assert optimized == {id(each) for name, each in model.named_parameters() if ".lora_" in name}


def test_without_its_adapters_a_trained_policy_is_the_untouched_one(trained):
    before, after = start_and_end(trained)
    learned = logprobs(after.model)
    assert (learned - logprobs(before.model)).abs().max() > 1e-3
    with adapters_off(after.model):
        torch.testing.assert_close(logprobs(after.model), logprobs(before.model), rtol=0, atol=1e-6)
    assert torch.equal(logprobs(after.model), learned)
    assert all(weight.requires_grad == (".lora_" in name) for name, weight in after.model.named_parameters())


def test_adapters_are_back_after_an_error(trained):
    _, after = start_and_end(trained)
    learned = logprobs(after.model)
    with pytest.raises(RuntimeError), adapters_off(after.model):
        raise RuntimeError
    assert torch.equal(logprobs(after.model), learned)


def test_the_reference_of_the_kl_is_the_untouched_policy(tmp_path):
    config = lora_config(algorithm={"kl_coef": 0.1, "updates_per_batch": 1})
    train(config, run_dir=tmp_path)
    steps = recorded(tmp_path)
    assert steps[0]["policy/kl"] == pytest.approx(0, abs=1e-6)
    # The next steps begin where the first ended, away from the reference.
    assert all(step["policy/kl"] > 1e-5 for step in steps[1:])


def test_a_checkpoint_holds_adapters_only_and_gives_them_back_bit_for_bit(tmp_path):
    config = lora_config()
    train(config, run_dir=tmp_path)
    folder = checkpoint_policy_folder(newest_checkpoint(tmp_path))
    assert not (folder / "model.safetensors").exists()
    with open_run(config, tmp_path) as run:
        saved, held = load_file(folder / ADAPTER_FILE), adapter_weights(run.policy.model)
        assert len(saved) == len(held) == 14
        for name, weight in held.items():
            assert torch.equal(saved["base_model.model." + name.replace(".default.", ".")], weight)
        again = load_policy(config.policy, run.task, ensure_warm_start(config), folder)
        assert torch.equal(logprobs(again.model), logprobs(run.policy.model))
        again.save(tmp_path / "saved_again")
    assert (tmp_path / "saved_again" / ADAPTER_FILE).read_bytes() == (folder / ADAPTER_FILE).read_bytes()


@pytest.mark.parametrize(
    "knobs", [{"kl_coef": 0.1}, {"kl_coef": 0.1, "name": "ppo"}, {"kl_coef": 0.1, "name": "reinforce_pp"}]
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, knobs):
    config = lora_config(num_steps=4, algorithm=knobs)
    train(config, run_dir=tmp_path / "whole")
    train(config, run_dir=tmp_path / "cut", on_step=lambda step, _: Verdict("stop") if step == 2 else None)
    train(config, run_dir=tmp_path / "cut")
    assert recorded(tmp_path / "cut") == recorded(tmp_path / "whole")
    files = [checkpoint_policy_folder(newest_checkpoint(tmp_path / run)) / ADAPTER_FILE for run in ("cut", "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_activation_checkpointing_gives_the_same_run(tmp_path):
    for name, on in (("plain", False), ("checkpointed", True)):
        train(lora_config(compute={"activation_checkpointing": on}), run_dir=tmp_path / name)
    plain, checkpointed = (recorded(tmp_path / name) for name in ("plain", "checkpointed"))
    assert plain[0]["optim/grad_norm"] > 0
    assert checkpointed[0]["optim/grad_norm"] == pytest.approx(plain[0]["optim/grad_norm"], rel=1e-4)


@pytest.mark.parametrize("warm_steps", [0, 5])
def test_an_export_is_an_ordinary_model_that_answers_the_same(tmp_path, warm_steps):
    config = lora_config(warm_start={"num_steps": warm_steps})
    train(config, run_dir=tmp_path / "run")
    checkpoint = newest_checkpoint(tmp_path / "run")
    export_policy(checkpoint, tmp_path / "exported")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    task, start = load_task(config.task), ensure_warm_start(config)
    policy = load_policy(config.policy, task, start, checkpoint_policy_folder(checkpoint))
    assert not has_adapters(exported)
    assert exported.state_dict().keys() == load_policy(PolicyConfig(num_layers=1), task).model.state_dict().keys()
    torch.testing.assert_close(logprobs(exported), logprobs(policy.model), rtol=0, atol=1e-5)
    text = task.prompt(task.train[0])
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_an_export_says_when_the_base_is_gone(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_SWEEPS_CACHE", str(tmp_path / "cache"))
    train(lora_config(), run_dir=tmp_path / "run")
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(ValueError, match=r"warm-started base .* no longer there"):
        export_policy(newest_checkpoint(tmp_path / "run"), tmp_path / "exported")


def test_adapters_on_another_base_are_refused(trained, tmp_path):
    config, run_dir = trained
    folder = checkpoint_policy_folder(newest_checkpoint(run_dir))
    with pytest.raises(ValueError, match="its weights are not those"):
        load_policy(config.policy, load_task(config.task), None, folder)


def test_adapters_of_another_rank_are_refused(trained):
    config, run_dir = trained
    folder = checkpoint_policy_folder(newest_checkpoint(run_dir))
    wider = config.policy.model_copy(update={"lora": LoraSection(rank=8)})
    with pytest.raises(ValueError, match="another rank or other target_modules"):
        load_policy(wider, load_task(config.task), ensure_warm_start(config), folder)


def test_a_folder_without_adapters_is_refused(tmp_path, tiny_policy):
    add_adapters(tiny_policy.model, LoraSection())
    with pytest.raises(ValueError, match="holds no adapters"):
        load_adapters(tiny_policy.model, tmp_path)


def test_the_warm_start_is_shared_with_runs_without_adapters(tmp_path):
    folder = ensure_warm_start(lora_config())
    assert folder == ensure_warm_start(small_config())
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    assert not (folder / ADAPTER_FILE).exists()


def test_the_winner_with_its_adapters_is_compared_with_the_base(trained, tmp_path):
    config, run_dir = trained
    record = compare_on_test(config, newest_checkpoint(run_dir), tmp_path / "final.json")
    export_policy(newest_checkpoint(run_dir), checkpoint_policy_folder(tmp_path / "merged"))
    full = config.model_copy(update={"policy": config.policy.model_copy(update={"lora": None})})
    merged = compare_on_test(full, tmp_path / "merged", tmp_path / "merged.json")
    assert record["base"] == merged["base"]
    assert record["winner"] != record["base"]
    pairs = zip(record["samples"], merged["samples"], strict=True)
    # Merging rounds, so that a draw close to its bound may fall the other way.
    assert sum(adapted["winner"] != plain["winner"] for adapted, plain in pairs) <= 1


def test_a_checkpoint_of_all_weights_is_refused_by_a_run_with_adapters(tmp_path):
    train(small_config(), run_dir=tmp_path)
    with pytest.raises(ValueError, match="holds no adapters"):
        train(lora_config(num_steps=4), run_dir=tmp_path)


def test_sampling_sees_what_the_adapters_learnt(trained):
    before, after = start_and_end(trained)
    prompts = [after.encode_prompt("what is 3 + 4")]
    drawn = sample_groups(after, prompts, 4, RolloutConfig(), generator=torch.Generator().manual_seed(0))
    assert torch.isfinite(drawn.logprobs[drawn.completion_mask]).all()
    row, length = 0, int(drawn.lengths[0])
    ids = torch.cat([drawn.prompt_ids[0], drawn.completion_ids[row, :length]])[None]
    for model, equal in ((after.model, True), (before.model, False)):
        with torch.no_grad():
            scores = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)[0, -length - 1 : -1]
        seen = scores.gather(-1, ids[0, -length:, None])[:, 0]
        assert torch.allclose(seen, drawn.logprobs[row, :length], atol=1e-4) is equal


def test_only_the_layers_named_get_adapters(task):
    lora = LoraSection(target_modules=("q_proj", "self_attn.v_proj"))
    policy = load_policy(PolicyConfig(num_layers=2, lora=lora), task)
    adapted = {name.split(".")[-4] for name in adapter_weights(policy.model)}
    assert adapted == {"q_proj", "v_proj"}
    assert len(adapter_weights(policy.model)) == 2 * 2 * 2


@pytest.mark.parametrize("target", ["qproj", "lm_head", "embed_tokens"])
def test_an_unknown_target_is_refused_with_the_names_of_the_layers(task, target):
    lora = LoraSection(target_modules=("q_proj", target))
    with pytest.raises(ValueError) as error:
        load_policy(PolicyConfig(lora=lora), task)
    assert f"policy.lora.target_modules=['{target}']" in str(error.value)
    assert "choose among down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj" in str(error.value)


def test_missing_peft_is_said(task, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"policy\.lora: needs the package peft; pip install peft"):
        load_policy(PolicyConfig(**ADAPTED), task)


@pytest.mark.skipif(torch.cuda.is_available(), reason="refused only where CUDA is missing")
def test_float16_without_cuda_is_refused():
    with pytest.raises(ValueError, match=r"compute\.precision='float16': its loss scaling needs CUDA"):
        open_ranks(ComputeConfig(precision="float16"))
