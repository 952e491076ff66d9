"""From rewards to the batch of an update: what each algorithm family makes of the same collection."""

import dataclasses

import pytest
import torch
from accelerate import Accelerator

from grpo_core.advantages import compute_advantages
from grpo_core.batches import forward_inputs
from grpo_core.collection import collect
from grpo_core.credit import learning_batch
from grpo_core.group_forward import GroupForward
from grpo_core.losses import kl_divergence
from grpo_core.policy import load_policy
from grpo_core.ranks import Ranks
from grpo_core.run_setup import build_learner
from grpo_core.run_state import rollout_of_step
from grpo_core.tasks import load_task
from grpo_core.update import accumulate_gradients

from .conftest import small_config
from .plain_forward import plain_predictions


def prepared(policy, config, rewards=None):
    """A learner of `policy`, and 4 groups of 4 with `rewards` (a table; None keeps those of the task)."""
    task = load_task(config.task)
    learner = build_learner(policy, config, Accelerator(cpu=True), Ranks(0, 1))
    problems = list(task.train[: config.prompts_per_rank])
    collection = collect(policy, task, config, rollout_of_step(config, 1), Ranks(0, 1), problems, 1)
    if rewards is not None:
        collection = dataclasses.replace(collection, rewards=torch.tensor(rewards, dtype=torch.float64))
    return learner, collection, task


def other_policy(config, scale=1.02):
    """The forward pass of a policy that differs a little from the seeded one."""
    model = load_policy(config.policy, load_task(config.task)).model
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale)
    return GroupForward(model)


REWARDS = [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.5, 0.5], [float("nan"), 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]]


def test_sequence_credit_is_that_of_the_groups(tiny_policy):
    config = small_config(policy={"num_layers": 2})
    learner, collection, task = prepared(tiny_policy, config, REWARDS)
    batch, metrics = learning_batch(collection, learner, task, config)
    expected = compute_advantages(collection.rewards, config.algorithm).flatten()
    assert batch.advantages.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert metrics["groups/dead_frac"] == 0.25
    assert batch.old_logprobs is batch.rollouts.logprobs
    assert (batch.ref_logprobs, batch.importance, batch.old_values, batch.returns) == (None,) * 4


def test_kl_in_the_reward_is_the_same_cost_whatever_the_reward_scale(tiny_policy):
    for scale in (1.0, 4.0):
        config = small_config(algorithm={"name": "rloo", "kl_coef": 0.1, "reward_scale": scale})
        learner, collection, task = prepared(tiny_policy, config, REWARDS)
        learner.reference = other_policy(small_config(policy={"num_layers": 2}))
        batch, _ = learning_batch(collection, learner, task, config)
        kl = kl_divergence(batch.rollouts.logprobs, batch.ref_logprobs, "k1")
        cost = 0.1 * torch.where(batch.loss_mask, kl, 0.0).sum(dim=1).view(4, 4).double()
        assert cost.abs().max() > 1e-4
        scored = scale * collection.rewards - cost
        expected = compute_advantages(scored, config.algorithm.model_copy(update={"reward_scale": 1.0}))
        assert batch.advantages.tolist() == pytest.approx(expected.flatten().tolist(), abs=1e-5)


def test_rewards_to_come_are_normalised_over_the_tokens_of_the_step(tiny_policy):
    config = small_config(algorithm={"name": "reinforce_pp"})
    learner, collection, task = prepared(tiny_policy, config, REWARDS)
    batch, _ = learning_batch(collection, learner, task, config)
    scored = batch.loss_mask & ~collection.rewards.flatten().isnan().unsqueeze(1)
    values = batch.advantages[scored].double()
    assert values.mean().item() == pytest.approx(0, abs=1e-5)
    assert values.std().item() == pytest.approx(1, abs=1e-3)
    assert not batch.advantages[8].any(), "a completion without a score has no advantage"
    first, second = batch.advantages[0][batch.loss_mask[0]], batch.advantages[1][batch.loss_mask[1]]
    assert first.unique().numel() == second.unique().numel() == 1 and first[0] > second[0]


def test_a_group_baseline_may_give_token_credit(tiny_policy):
    knobs = {"credit": "token", "baseline": "mean", "advantage_scale": "none", "gamma": 0.5}
    config = small_config(algorithm=knobs)
    learner, collection, task = prepared(tiny_policy, config, REWARDS)
    batch, _ = learning_batch(collection, learner, task, config)
    length = int(batch.rollouts.lengths[0])
    expected = [0.75 * 0.5 ** (length - 1 - place) for place in range(length)]
    assert batch.advantages[0, :length].tolist() == pytest.approx(expected, abs=1e-6)
    assert not batch.advantages[4:8].any(), "a uniform group has no signal"


def test_values_start_at_0_and_returns_are_what_they_should_have_been(tiny_policy):
    config = small_config(algorithm={"name": "ppo", "gae_lambda": 1.0})
    learner, collection, task = prepared(tiny_policy, config, REWARDS)
    batch, metrics = learning_batch(collection, learner, task, config)
    assert not batch.old_values.any()
    rewards = collection.rewards.flatten().nan_to_num(0.0)
    for row, reward in enumerate(rewards.tolist()):
        length = int(batch.rollouts.lengths[row])
        assert batch.returns[row, :length].tolist() == pytest.approx([reward] * length, abs=1e-6)
    assert metrics["value/explained_variance"] == pytest.approx(0, abs=1e-6)
    assert batch.value_mask.sum() == batch.loss_mask.sum() - batch.rollouts.lengths[8]


def test_the_value_head_learns_in_the_pass_of_the_policy(tiny_policy):
    config = small_config(algorithm={"name": "ppo", "updates_per_batch": 1})
    learner, collection, task = prepared(tiny_policy, config, REWARDS)
    batch, _ = learning_batch(collection, learner, task, config)
    sums, finite = accumulate_gradients(learner, batch, config)
    assert finite
    head = learner.forward.value_head
    squares = (batch.returns[batch.value_mask] ** 2).mean().item() / 2
    assert sums["value_loss"] == pytest.approx(squares, abs=1e-6)
    mean_return = batch.returns[batch.value_mask].mean().item()
    assert head.bias.grad.item() == pytest.approx(-0.5 * mean_return, abs=1e-5)
    assert all(weight.grad is not None for weight in tiny_policy.model.parameters())


def test_values_are_those_of_the_state_before_each_token(tiny_policy):
    config = small_config(algorithm={"name": "ppo"})
    learner, collection, _ = prepared(tiny_policy, config)
    with torch.no_grad():
        learner.forward.value_head.weight.normal_(generator=torch.Generator().manual_seed(1))
    rollouts = collection.rollouts
    shared = learner.forward(**forward_inputs(rollouts)).values
    plain = plain_predictions(tiny_policy.model, rollouts, learner.forward.value_head).values
    assert (shared - plain)[rollouts.completion_mask].abs().max() < 1e-5
    row, place = 5, 2
    prompt = rollouts.prompt_ids[1][rollouts.prompt_mask[1]]
    seen = torch.cat([prompt, rollouts.completion_ids[row, :place]]).unsqueeze(0)
    hidden = tiny_policy.model.model(input_ids=seen).last_hidden_state[0, -1]
    assert shared[row, place].item() == pytest.approx(learner.forward.value_head(hidden).item(), abs=1e-5)


def test_a_sampler_that_differs_is_weighed_and_ratios_start_at_the_trainer(tiny_policy):
    config = small_config(algorithm={"importance_cap": 1.01})
    learner, collection, task = prepared(tiny_policy, config, REWARDS)
    drift = torch.linspace(-0.05, 0.05, collection.rollouts.logprobs.numel()).view_as(collection.rollouts.logprobs)
    drifted = dataclasses.replace(collection.rollouts, logprobs=collection.rollouts.logprobs + drift)
    batch, metrics = learning_batch(dataclasses.replace(collection, rollouts=drifted), learner, task, config)
    mask = batch.loss_mask
    assert (batch.old_logprobs - collection.rollouts.logprobs)[mask].abs().max() < 1e-4
    expected = (-drift).exp()
    torch.testing.assert_close(batch.importance[mask], expected.clamp(max=1.01)[mask], atol=1e-4, rtol=0)
    assert metrics["policy/sampler_ratio"] == pytest.approx(expected[mask].mean().item(), abs=1e-4)
    assert metrics["policy/sampler_ratio_max"] == pytest.approx(expected[mask].max().item(), abs=1e-4)
    share = (expected[mask] > 1.01).double().mean().item()
    assert metrics["policy/sampler_truncated_frac"] == pytest.approx(share, abs=0.01)


def test_similar_prompts_share_a_baseline(tiny_policy):
    config = small_config(
        rollout={"completions_per_step": 32},
        algorithm={"grouping": "similarity", "min_similar_group": 8, "max_similar_group": 12},
    )
    rewards = torch.arange(32.0).view(8, 4).tolist()
    learner, collection, task = prepared(tiny_policy, config, rewards)
    batch, _ = learning_batch(collection, learner, task, config)
    advantages = batch.advantages.view(8, 4)
    assert batch.advantages.sum().item() == pytest.approx(0, abs=1e-4)
    assert advantages.sum(dim=1).abs().max() > 1, "groups are larger than a prompt's own"


@pytest.mark.parametrize("with_fillers", [False, True])
def test_groups_out_of_use_count_in_no_loss(tiny_policy, with_fillers):
    class TwoRanks(Ranks):
        """This rank's numbers, beside another that has 3 groups in use."""

        def largest(self, values):
            return {name: max(value, 3.0) for name, value in values.items()} if with_fillers else dict(values)

    config = small_config(algorithm={"dynamic_sampling": True})
    learner, collection, task = prepared(tiny_policy, config, REWARDS)
    learner.ranks = TwoRanks(0, 1)
    used = torch.tensor([True, False, False, True])
    collection = dataclasses.replace(collection, used=used)
    batch, metrics = learning_batch(collection, learner, task, config)
    assert len(batch.advantages) == (12 if with_fillers else 8)
    assert batch.loss_mask.any(dim=1).tolist() == [True] * 8 + [False] * (4 * with_fillers)
    assert metrics["groups/dead_frac"] == 0.25
    expected = compute_advantages(collection.rewards[used], config.algorithm).flatten()
    assert batch.advantages[:8].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    learner.ranks = Ranks(0, 1)
    sums, _ = accumulate_gradients(learner, batch, config)
    assert sums["tokens"] == batch.rollouts.lengths[:8].sum()


def test_no_group_in_use_makes_no_batch(tiny_policy):
    config = small_config(algorithm={"dynamic_sampling": True})
    learner, collection, task = prepared(tiny_policy, config, [[1.0] * 4] * 4)
    collection = dataclasses.replace(collection, used=torch.zeros(4, dtype=torch.bool))
    batch, metrics = learning_batch(collection, learner, task, config)
    assert batch is None
    assert metrics == {"groups/dead_frac": 1.0}
