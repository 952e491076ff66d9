"""What an update applies, what it refuses to apply, and that a cut batch gives the gradient of the whole."""

import math

import pytest
import torch
from accelerate import Accelerator

from grpo_core.batches import build_batch, micro_batches, minibatch
from grpo_core.presets import PRESETS
from grpo_core.ranks import Ranks
from grpo_core.rollouts import sample_groups
from grpo_core.run_setup import build_learner
from grpo_core.update import accumulate_gradients, learning_rate, update_policy

from .conftest import small_config

PROMPTS = [[5, 9, 12], [7, 30, 41, 8], [11], [20, 21]]


def learner_of(policy, config):
    return build_learner(policy, config, Accelerator(cpu=True), Ranks(0, 1))


def batch_of(policy, config, mask_truncated=False):
    rollouts = sample_groups(policy, PROMPTS, 4, config.rollout, generator=torch.Generator().manual_seed(0))
    advantages = torch.tensor([[1.0, -1.0, 0.5, -0.5]]).repeat(4, 1)
    return build_batch(rollouts, advantages, mask_truncated)


def weights(policy):
    return [weight.detach().clone() for weight in policy.model.parameters()]


def changed(policy, before):
    return any(not torch.equal(a, b) for a, b in zip(weights(policy), before, strict=True))


def test_a_finite_update_is_applied(tiny_policy):
    config = small_config()
    before = weights(tiny_policy)
    stats = update_policy(learner_of(tiny_policy, config), batch_of(tiny_policy, config), config)
    assert changed(tiny_policy, before)
    assert stats.num_skipped == 0 and 0 < stats.grad_norm < math.inf
    assert stats.ratio_max == pytest.approx(1, abs=1e-4)
    assert stats.clip_frac == 0


@pytest.mark.parametrize("fault", ["advantage", "old_logprobs", "gradient", "weights"])
def test_a_step_that_is_not_finite_is_never_applied(tiny_policy, fault):
    config = small_config(algorithm={"updates_per_batch": 3})
    learner, batch = learner_of(tiny_policy, config), batch_of(tiny_policy, config)
    if fault == "advantage":
        batch.advantages[0] = torch.nan
    elif fault == "old_logprobs":
        batch.rollouts.logprobs[0, 0] = torch.nan
    elif fault == "gradient":
        weight = next(iter(tiny_policy.model.parameters()))
        weight.register_hook(
            lambda gradient: torch.where(torch.arange(gradient.numel()).view_as(gradient) == 0, torch.nan, gradient)
        )
    else:
        with torch.no_grad():
            tiny_policy.model.model.norm.weight[0] = torch.inf
    before = weights(tiny_policy)
    stats = update_policy(learner, batch, config)
    assert not changed(tiny_policy, before)
    assert stats.num_skipped == 1, "the remaining updates of the step are dropped"
    assert math.isnan(stats.grad_norm)
    assert all(weight.grad is None for weight in tiny_policy.model.parameters())


def test_weights_stay_those_of_the_last_finite_update(tiny_policy):
    config = small_config(algorithm={"updates_per_batch": 2})
    learner, batch = learner_of(tiny_policy, config), batch_of(tiny_policy, config)
    applied = []
    optimizer_step = learner.optimizer.step

    def step_then_break(*args, **kwargs):
        optimizer_step(*args, **kwargs)
        applied.append(weights(tiny_policy))
        batch.advantages[0] = torch.inf

    learner.optimizer.step = step_then_break
    stats = update_policy(learner, batch, config)
    assert stats.num_skipped == 1 and len(applied) == 1
    assert not changed(tiny_policy, applied[0])


def test_all_completions_truncated_and_masked_give_no_gradient(tiny_policy):
    config = small_config(rollout={"max_new_tokens": 2}, algorithm={"mask_truncated": True})
    batch = batch_of(tiny_policy, config, mask_truncated=True)
    batch.loss_mask[:] = False
    before = weights(tiny_policy)
    stats = update_policy(learner_of(tiny_policy, config), batch, config)
    assert (stats.loss, stats.grad_norm, stats.num_skipped) == (0.0, 0.0, 0)
    assert not changed(tiny_policy, before)


@pytest.mark.parametrize("preset", PRESETS)
def test_gradient_does_not_depend_on_the_micro_batch(tiny_policy, preset):
    tiny_policy.model.double()
    gradients, losses = [], []
    for size in (16, 8, 3, 1):  # float64, but RMSNorm computes in float32 whatever the weights are
        config = small_config(algorithm={"name": preset}, optim={"micro_batch_size": size})
        sums, finite = accumulate_gradients(learner_of(tiny_policy, config), batch_of(tiny_policy, config), config)
        assert finite
        losses.append(sums["loss"])
        gradients.append(torch.cat([weight.grad.flatten() for weight in tiny_policy.model.parameters()]))
        tiny_policy.model.zero_grad(set_to_none=True)
    for gradient, loss in zip(gradients[1:], losses[1:], strict=True):
        assert (gradient - gradients[0]).norm() <= 1e-6 * gradients[0].norm()
        assert loss == pytest.approx(losses[0], abs=1e-7)


def test_activation_checkpointing_gives_the_same_gradient(tiny_policy):
    tiny_policy.model.double()
    gradients = []
    for on in (False, True):
        config = small_config(compute={"activation_checkpointing": on})
        accumulate_gradients(learner_of(tiny_policy, config), batch_of(tiny_policy, config), config)
        gradients.append(torch.cat([weight.grad.flatten() for weight in tiny_policy.model.parameters()]))
        tiny_policy.model.zero_grad(set_to_none=True)
    assert (gradients[1] - gradients[0]).norm() <= 1e-6 * gradients[0].norm()


def test_micro_batches_keep_groups_together_and_hold_every_row_once(tiny_policy):
    config = small_config()
    batch = batch_of(tiny_policy, config)
    parts = list(micro_batches(batch, 5))
    assert [len(part.advantages) for part in parts] == [5, 5, 5, 1]
    longest = [int(part.rollouts.lengths.max()) for part in parts]
    assert all(len(part.rollouts.prompt_ids) <= 3 for part in parts), "groups of four, five rows at a time"
    assert all(part.rollouts.completion_ids.shape[1] == most for part, most in zip(parts, longest, strict=True))
    assert sum(int(part.loss_mask.sum()) for part in parts) == int(batch.loss_mask.sum())
    for part in parts:
        prompts = part.rollouts.prompt_ids[part.rollouts.prompt_index]
        kept = part.rollouts.prompt_mask[part.rollouts.prompt_index]
        assert all(row[mask].tolist() in PROMPTS for row, mask in zip(prompts, kept, strict=True))


def test_learning_rate():
    constant = small_config(optim={"lr": 1.0, "lr_warmup_steps": 4}, num_steps=10)
    assert [learning_rate(constant, step) for step in (1, 4, 5, 10)] == pytest.approx([0.2, 0.8, 1, 1])
    linear = small_config(optim={"lr": 1.0, "lr_schedule": "linear"}, num_steps=10)
    assert [learning_rate(linear, step) for step in (1, 6, 10)] == pytest.approx([1, 0.5, 0.1])
    cosine = small_config(optim={"lr": 1.0, "lr_schedule": "cosine"}, num_steps=10)
    assert [learning_rate(cosine, step) for step in (1, 6)] == pytest.approx([1, 0.5])


def test_minibatches_are_whole_groups_each_once_a_pass(tiny_policy):
    config = small_config(algorithm={"num_minibatches": 2, "updates_per_batch": 4})
    batch = batch_of(tiny_policy, config)
    seen = []
    for number in range(4):
        part = minibatch(batch, number, 2, config.seed, 1)
        assert len(part.rollouts.prompt_ids) == 2 and len(part.advantages) == 8
        prompts = zip(part.rollouts.prompt_ids, part.rollouts.prompt_mask, strict=True)
        seen.append(sorted(PROMPTS.index(ids[mask].tolist()) for ids, mask in prompts))
    assert sorted(seen[0] + seen[1]) == sorted(seen[2] + seen[3]) == [0, 1, 2, 3]
    orders = [minibatch(batch, 0, 2, seed, 1).rollouts.prompt_ids.tolist() for seed in range(6)]
    assert any(order != orders[0] for order in orders)
    assert minibatch(batch, 3, 1, 0, 1) is batch


def test_minibatches_of_a_short_batch_are_single_groups(tiny_policy):
    batch = batch_of(tiny_policy, small_config())
    parts = [minibatch(batch, number, 8, 0, 1) for number in range(4)]
    assert [len(part.rollouts.prompt_ids) for part in parts] == [1] * 4


def test_later_minibatches_are_off_policy(tiny_policy):
    config = small_config(algorithm={"num_minibatches": 4, "updates_per_batch": 4}, optim={"lr": 0.01})
    stats = update_policy(learner_of(tiny_policy, config), batch_of(tiny_policy, config), config)
    assert stats.ratio_max > 1.001


def test_gradients_that_overflow_under_a_loss_scale_lower_it_and_are_tried_again(tiny_policy):
    config = small_config()
    learner = learner_of(tiny_policy, config)

    class Scaler:
        """Stands in for CUDA's: gradients are infinite until the factor has been lowered twice."""

        factor = 4.0

        def scale(self, loss):
            return loss * self.factor

    scaler = Scaler()
    accelerator, inner_step = learner.accelerator, learner.optimizer.step

    def unscale(optimizer):
        for weight in tiny_policy.model.parameters():
            weight.grad /= scaler.factor
        if scaler.factor > 1:
            next(tiny_policy.model.parameters()).grad[0] = torch.inf

    def step():
        if scaler.factor > 1:
            scaler.factor /= 2
        else:
            inner_step()

    accelerator.scaler, accelerator.unscale_gradients, learner.optimizer.step = scaler, unscale, step
    before = weights(tiny_policy)
    stats = update_policy(learner, batch_of(tiny_policy, config), config)
    assert (stats.num_skipped, scaler.factor) == (0, 1.0)
    assert changed(tiny_policy, before) and math.isfinite(stats.grad_norm)
