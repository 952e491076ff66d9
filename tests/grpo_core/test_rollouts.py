import dataclasses

import pytest
import torch

from grpo_core.batches import forward_inputs
from grpo_core.config import RolloutConfig
from grpo_core.group_forward import GroupForward
from grpo_core.logprobs import entropy
from grpo_core.policy import Policy, load_policy
from grpo_core.rollouts import concatenate, exponential_draws, sample_groups

PROMPTS = [[5, 9, 12], [7, 30, 41, 8, 22, 17], [11]]
CONFIG = RolloutConfig(max_new_tokens=20)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def sharpen(policy: Policy) -> Policy:
    """Random weights with distributions far from uniform, and many end tokens, so that rows end at many places."""
    with torch.no_grad():
        policy.model.model.embed_tokens.weight.mul_(6)
    return dataclasses.replace(policy, eos_ids=(1, *range(4, 160, 11)))


def test_shapes_and_order(tiny_policy):
    rollouts = sample_groups(tiny_policy, PROMPTS, 4, CONFIG, generator=seeded())
    assert rollouts.prompt_index.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert rollouts.prompt_ids[0].tolist()[:3] == PROMPTS[0]
    assert rollouts.prompt_mask.sum(dim=1).tolist() == [3, 6, 1]
    assert rollouts.completion_ids.shape == rollouts.logprobs.shape == rollouts.entropy.shape
    assert rollouts.completion_ids.shape[1] == int(rollouts.lengths.max())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampler_and_trainer_agree_and_the_first_ratio_is_1(tiny_policy, temperature):
    tiny_policy = sharpen(tiny_policy)
    config = CONFIG.model_copy(update={"temperature": temperature})
    rollouts = sample_groups(tiny_policy, PROMPTS, 8, config, generator=seeded())
    assert len(set(rollouts.lengths.tolist())) > 2, "rows must end at different places for finished ones to be dropped"
    logprobs, trained_entropy, _ = GroupForward(tiny_policy.model)(**forward_inputs(rollouts))
    mask = rollouts.completion_mask
    assert (logprobs - rollouts.logprobs)[mask].abs().max() < 1e-4
    assert (trained_entropy - rollouts.entropy)[mask].abs().max() < 1e-4
    assert ((logprobs - rollouts.logprobs)[mask].exp() - 1).abs().max() < 1e-4


def test_dropping_finished_rows_changes_nothing(tiny_policy, monkeypatch):
    policy = sharpen(tiny_policy)
    prompts = [[start] for start in range(3, 35)]
    # The likeliest token of random weights is the last one again; the fifth wanders, and a row's choice is its own.
    monkeypatch.setattr("grpo_core.rollouts._choose_greedily", lambda log_probs, _: log_probs.topk(5).indices[:, 4])
    results = []
    for share in (0.01, 2.0):  # drop at once, never
        monkeypatch.setattr("grpo_core.rollouts.DROP_SHARE", share)
        results.append(sample_groups(policy, prompts, 2, CONFIG, greedy=True))
    dropped, kept = results
    assert len(set(kept.lengths.tolist())) > 2
    assert torch.equal(dropped.completion_ids, kept.completion_ids)
    assert (dropped.logprobs - kept.logprobs).abs().max() < 1e-5


def test_chunks_hold_whole_groups_and_give_the_same_greedy_completions(tiny_policy):
    whole = sample_groups(tiny_policy, PROMPTS, 4, CONFIG, greedy=True)
    chunked = sample_groups(tiny_policy, PROMPTS, 4, CONFIG.model_copy(update={"chunk_size": 5}), greedy=True)
    assert torch.equal(whole.completion_ids, chunked.completion_ids)
    assert torch.equal(whole.prompt_ids, chunked.prompt_ids)
    assert chunked.prompt_index.tolist() == whole.prompt_index.tolist()


def test_draws_follow_the_distribution(tiny_policy):
    sharpen(tiny_policy)
    config = RolloutConfig(max_new_tokens=1, chunk_size=100_000)
    rollouts = sample_groups(tiny_policy, [PROMPTS[0]], 40_000, config, generator=seeded())
    logits = tiny_policy.model(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1]
    expected = logits.softmax(dim=-1)
    counted = rollouts.completion_ids[:, 0].bincount(minlength=len(expected)) / 40_000
    error = (expected * (1 - expected) / 40_000).sqrt()
    assert ((counted - expected).abs() < 5 * error + 1e-4).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_exponential_draws_are_those_of_torch(dtype):
    like = torch.empty(64, 5000, dtype=dtype)
    ours, plain = exponential_draws(like, seeded(3)), torch.empty_like(like).exponential_(generator=seeded(3))
    # float64 shows the last digit of the logarithm.
    torch.testing.assert_close(ours, plain, rtol=1e-15 if dtype == torch.float64 else 0, atol=0)


def test_every_end_token_closes_a_completion(tiny_policy):
    second = int(sample_groups(tiny_policy, [PROMPTS[0]], 1, CONFIG, greedy=True).completion_ids[0, 0])
    policy = dataclasses.replace(tiny_policy, eos_ids=(tiny_policy.eos_ids[0], second))
    rollouts = sample_groups(policy, [PROMPTS[0]], 2, CONFIG, greedy=True)
    assert rollouts.ended.tolist() == [True, True]
    assert rollouts.lengths.tolist() == [1, 1]
    assert rollouts.completion_ids[0].tolist() == [second]


def test_end_tokens_of_the_generation_config_are_known(task, tmp_path, tiny_policy):
    tiny_policy.model.generation_config.eos_token_id = [1, 42]
    tiny_policy.save(tmp_path)
    from grpo_core.config import PolicyConfig

    assert load_policy(PolicyConfig(name=str(tmp_path)), task).eos_ids == (1, 42)


def test_empty_completion_goes_through_sampler_and_trainer(tiny_policy):
    first = int(sample_groups(tiny_policy, [PROMPTS[0]], 1, CONFIG, greedy=True).completion_ids[0, 0])
    policy = dataclasses.replace(tiny_policy, eos_ids=(first,))
    rollouts = sample_groups(policy, [PROMPTS[0]], 4, CONFIG, greedy=True)
    assert rollouts.lengths.tolist() == [1] * 4
    logprobs = GroupForward(policy.model)(**forward_inputs(rollouts)).logprobs
    assert (logprobs - rollouts.logprobs).abs().max() < 1e-5


def test_truncated_rows_are_not_ended(tiny_policy):
    policy = dataclasses.replace(tiny_policy, eos_ids=(10_000,))
    rollouts = sample_groups(policy, PROMPTS, 2, RolloutConfig(max_new_tokens=5), generator=seeded())
    assert not rollouts.ended.any()
    assert rollouts.lengths.tolist() == [5] * 6


def test_each_token_is_computed_once_also_under_activation_checkpointing(tiny_policy, monkeypatch):
    tiny_policy.model.activation_checkpointing_enable({"use_reentrant": False})
    tiny_policy.model.train()
    counts = []
    forward = type(tiny_policy.model.model).forward

    def spy(self, input_ids=None, **kwargs):
        counts.append(input_ids.numel())
        return forward(self, input_ids=input_ids, **kwargs)

    monkeypatch.setattr(type(tiny_policy.model.model), "forward", spy)
    rollouts = sample_groups(tiny_policy, PROMPTS, 2, RolloutConfig(max_new_tokens=6), generator=seeded())
    # The prompts' ten tokens, rounded up to a whole number of rows, then one token for each completion.
    assert counts == [64] + [6] * (rollouts.completion_ids.shape[1] - 1)
    assert tiny_policy.model.training


def test_dropout_is_off(task, tmp_path, tiny_policy):
    tiny_policy.model.config.attention_dropout = 0.5
    tiny_policy.save(tmp_path)
    from grpo_core.config import PolicyConfig

    policy = load_policy(PolicyConfig(name=str(tmp_path)), task)
    rollouts = sample_groups(policy, PROMPTS, 4, CONFIG, generator=seeded())
    forward = GroupForward(policy.model).train()
    logprobs = forward(**forward_inputs(rollouts)).logprobs
    assert ((logprobs - rollouts.logprobs)[rollouts.completion_mask].exp() - 1).abs().max() < 1e-4


def test_concatenate_pads_prompts_and_completions_on_the_right(tiny_policy):
    parts = [sample_groups(tiny_policy, [prompt], 2, CONFIG, generator=seeded(i)) for i, prompt in enumerate(PROMPTS)]
    joined = concatenate(parts, tiny_policy.pad_id)
    for place, part in enumerate(parts):
        rows = slice(2 * place, 2 * place + 2)
        width = part.completion_ids.shape[1]
        assert torch.equal(joined.completion_ids[rows, :width], part.completion_ids)
        assert joined.prompt_ids[place][joined.prompt_mask[place]].tolist() == PROMPTS[place]
        assert not joined.completion_mask[rows, width:].any()


def test_entropy_by_hand():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [100.0, 0.0, 0.0, 0.0], [0.0, -torch.inf, 0.0, -torch.inf]])
    assert entropy(logits).tolist() == pytest.approx([1.3862944, 0.0, 0.6931472], abs=1e-6)
