import dataclasses

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from grpo_core import group_attention
from grpo_core.batches import forward_inputs
from grpo_core.config import RolloutConfig
from grpo_core.group_attention import use_group_attention
from grpo_core.group_forward import GroupForward
from grpo_core.rollouts import sample_groups

from .plain_forward import plain_predictions

PROMPTS = [[5, 9, 12], [7, 30, 41, 8, 22, 17], [11]]
SHAPE = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
#: Shared key heads, biases, norms of queries and keys, learned positions, scaled logits, a bias on the logits.
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, **HEADS)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, **HEADS)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, **HEADS, head_dim=8)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**SHAPE, **HEADS, logit_scale=0.3)),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, **HEADS, logits_scaling=4.0)),
    "phi": lambda: PhiForCausalLM(PhiConfig(**SHAPE, num_attention_heads=4)),
}


@pytest.fixture(params=MODELS)
def policy(request, tiny_policy):
    torch.manual_seed(0)
    model = MODELS[request.param]().double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    use_group_attention(model)
    return dataclasses.replace(tiny_policy, model=model, eos_ids=(1, *range(4, 60, 7)))


def taken_gradient(model):
    gradient = torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])
    model.zero_grad()
    return gradient


def test_packed_groups_give_the_plain_predictions_and_gradients(policy):
    rollouts = sample_groups(
        policy, PROMPTS, 5, RolloutConfig(max_new_tokens=9, temperature=0.7), generator=torch.Generator().manual_seed(0)
    )
    assert len(set(rollouts.lengths.tolist())) > 3
    mask = rollouts.completion_mask
    weights = torch.randn(
        rollouts.completion_ids.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    results = []
    for predict in (GroupForward(policy.model), None):
        if predict is None:
            predicted = plain_predictions(policy.model, rollouts)
        else:
            predicted = predict(**forward_inputs(rollouts))
        ((predicted.logprobs + 0.3 * predicted.entropy) * weights)[mask].sum().backward()
        results.append((predicted, taken_gradient(policy.model)))
    (packed, packed_gradient), (plain, plain_gradient) = results
    assert (packed.logprobs - plain.logprobs)[mask].abs().max() < 1e-10
    assert (packed.entropy - plain.entropy)[mask].abs().max() < 1e-10
    # Norms of most models compute in float32 whatever the weights are.
    assert (packed_gradient - plain_gradient).norm() <= 1e-6 * plain_gradient.norm()
    # The sampler, token by token, saw the same.
    assert (rollouts.logprobs - plain.logprobs)[mask].abs().max() < 1e-10
    assert (rollouts.entropy - plain.entropy)[mask].abs().max() < 1e-10


def test_parts_change_nothing(policy, monkeypatch):
    rollouts = sample_groups(
        policy, PROMPTS, 5, RolloutConfig(max_new_tokens=9), generator=torch.Generator().manual_seed(0)
    )
    gradients = []
    for most in (2**24, 1):
        monkeypatch.setattr(group_attention, "MAX_SCORES", most)
        GroupForward(policy.model)(**forward_inputs(rollouts)).logprobs.sum().backward()
        gradients.append(
            torch.cat([each.grad.flatten() for each in policy.model.parameters() if each.grad is not None])
        )
        policy.model.zero_grad()
    assert (gradients[1] - gradients[0]).norm() <= 1e-10 * gradients[0].norm()


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: MistralForCausalLM(MistralConfig(**SHAPE, **HEADS, sliding_window=16)), "DynamicSlidingWindowLayer"),
        (lambda: BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=2)), "of its own"),
    ],
)
def test_models_whose_prompt_cannot_be_shared_are_refused(model, why):
    with pytest.raises(ValueError, match=f"{why}.*use a model with full attention"):
        use_group_attention(model())
