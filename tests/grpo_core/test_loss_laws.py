"""Laws of the policy loss on random batches (float64): what must not change it, and what must not have a gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import pad

from grpo_core.config import AlgorithmConfig
from grpo_core.losses import loss_denominator, policy_loss
from grpo_core.presets import PRESETS

laws = settings(deadline=None, max_examples=40)
BESIDE = ("ref_logprobs", "entropy", "importance")
#: Every term of the loss in use: KL in the loss, entropy, importance, dual clipping.
ALL_TERMS = {"constant_length": 4, "kl_coef": 0.04, "kl_in": "loss", "entropy_coef": 0.1, "dual_clip": 2.0}


def algorithm(name, **knobs):
    return AlgorithmConfig.model_validate({"name": name, **ALL_TERMS, **knobs})


@st.composite
def batches(draw, shortest=0, longest=7, spread=0.4):
    """Arguments of `policy_loss` by name: up to 6 completions of `shortest` to `longest` tokens."""
    num = draw(st.integers(1, 6))
    lengths = torch.tensor(draw(st.lists(st.integers(shortest, longest), min_size=num, max_size=num)))
    draws = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))

    def noise():
        return torch.randn(num, longest, generator=draws, dtype=torch.float64)

    logprobs = -noise().abs() - 0.01
    by_token = draw(st.booleans())
    return {
        "logprobs": logprobs,
        "old_logprobs": logprobs + spread * noise(),
        "advantages": noise() if by_token else noise()[:, 0],
        "mask": torch.arange(longest) < lengths.unsqueeze(1),
        "ref_logprobs": logprobs + spread * noise(),
        "entropy": noise().abs(),
        "importance": noise().exp().clamp(max=2.0),
    }


def loss_and_gradient(batch, given_algorithm, **more):
    logprobs = batch["logprobs"].clone().requires_grad_()
    loss, metrics = policy_loss(**{**batch, "logprobs": logprobs}, algorithm=given_algorithm, **more)
    loss.backward()
    return loss.item(), logprobs.grad, metrics


def changed(batch, change):
    return {name: change(values) for name, values in batch.items()}


def hide(values, mask):
    """`values` with NaN under the mask, where they have a number for each token."""
    return torch.where(mask, values, torch.nan) if values.dim() == 2 and values.is_floating_point() else values


def rows(batch, start, size):
    """Some rows of a batch, trimmed to their own longest, as micro-batches are."""
    part = changed(batch, lambda values: values[start : start + size])
    width = int(part["mask"].sum(dim=1).max())
    return changed(part, lambda values: values[:, :width] if values.dim() == 2 else values)


@pytest.mark.parametrize("name", PRESETS)
@laws
@given(batch=batches())
def test_padding_changes_nothing_whatever_lies_in_it(name, batch):
    loss, gradient, metrics = loss_and_gradient(batch, algorithm(name))
    dirty = changed(batch, lambda values: hide(values, batch["mask"]))
    padded = changed(dirty, lambda values: pad(values, (0, 3)) if values.dim() == 2 else values)
    wide_loss, wide_gradient, wide_metrics = loss_and_gradient(padded, algorithm(name))
    assert wide_loss == pytest.approx(loss, rel=1e-12, abs=1e-15)
    torch.testing.assert_close(wide_gradient, pad(gradient, (0, 3)), rtol=1e-12, atol=0)
    for key, value in metrics.items():
        assert wide_metrics[key].item() == pytest.approx(value.item(), rel=1e-12)


@pytest.mark.parametrize("name", PRESETS)
@laws
@given(batch=batches(), seed=st.integers(0, 1000))
def test_order_of_rows_changes_nothing(name, batch, seed):
    loss, gradient, _ = loss_and_gradient(batch, algorithm(name))
    order = torch.randperm(len(batch["mask"]), generator=torch.Generator().manual_seed(seed))
    other_loss, other_gradient, _ = loss_and_gradient(changed(batch, lambda values: values[order]), algorithm(name))
    assert other_loss == pytest.approx(loss, rel=1e-12, abs=1e-14)
    torch.testing.assert_close(other_gradient, gradient[order], rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", PRESETS)
@laws
@given(batch=batches(), size=st.integers(1, 5))
def test_cutting_the_batch_changes_nothing(name, batch, size):
    loss, gradient, metrics = loss_and_gradient(batch, algorithm(name))
    total = loss_denominator(batch["mask"], algorithm(name)).clamp(min=1)
    starts = range(0, len(batch["mask"]), size)
    parts = [loss_and_gradient(rows(batch, start, size), algorithm(name), denominator=total) for start in starts]
    assert sum(part[0] for part in parts) == pytest.approx(loss, rel=1e-12, abs=1e-14)
    width = gradient.shape[1]
    joined = torch.cat([pad(part[1], (0, width - part[1].shape[1])) for part in parts])
    torch.testing.assert_close(joined, gradient, rtol=1e-12, atol=0)
    for key in ("tokens", "clipped", "kl"):
        assert sum(part[2][key].item() for part in parts) == pytest.approx(metrics[key].item(), rel=1e-12)


@pytest.mark.parametrize("name", PRESETS)
@laws
@given(batch=batches())
def test_gradient_on_policy_is_that_of_reinforce(name, batch):
    given_algorithm = AlgorithmConfig(name=name, constant_length=4, entropy_coef=0.0)
    mask, advantages = batch["mask"], batch["advantages"]
    _, gradient, metrics = loss_and_gradient(
        {
            "logprobs": batch["logprobs"],
            "old_logprobs": batch["logprobs"],
            "advantages": advantages,
            "mask": mask,
        },
        given_algorithm,
    )
    weights = mask.double()
    if given_algorithm.aggregation == "sequence_mean":
        weights = weights / mask.sum(dim=1, keepdim=True).clamp(min=1)
    advantages = advantages if advantages.dim() == 2 else advantages.unsqueeze(1)
    expected = -advantages * weights / loss_denominator(mask, given_algorithm).clamp(min=1)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0)
    assert metrics["clipped"] == 0


@pytest.mark.parametrize("name", [name for name in PRESETS if AlgorithmConfig(name=name).clipping == "surrogate"])
@laws
@given(batch=batches(), dual_clip=st.sampled_from([None, 1.5]))
def test_clipped_tokens_have_no_gradient_and_the_others_have(name, batch, dual_clip):
    given_algorithm = AlgorithmConfig(name=name, constant_length=4, dual_clip=dual_clip, entropy_coef=0.0)
    mask = batch["mask"]
    log_ratio = torch.where(mask, batch["logprobs"] - batch["old_logprobs"], 0.0)
    if given_algorithm.ratio_level == "sequence":
        log_ratio = (log_ratio.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).unsqueeze(1).expand_as(log_ratio)
    ratio, advantages = log_ratio.exp(), batch["advantages"]
    advantages = (advantages if advantages.dim() == 2 else advantages.unsqueeze(1)).expand_as(ratio)
    clipped = (ratio > 1 + given_algorithm.high_clip) & (advantages > 0)
    clipped |= (ratio < 1 - given_algorithm.clip_range) & (advantages < 0)
    if dual_clip is not None:
        clipped |= (ratio > dual_clip) & (advantages < 0)
    only_policy = {key: batch[key] for key in ("logprobs", "old_logprobs", "advantages", "mask")}
    _, gradient, metrics = loss_and_gradient(only_policy, given_algorithm)
    assert (gradient[clipped] == 0).all()
    assert (gradient[mask & ~clipped] != 0).all()
    assert metrics["clipped"] == (clipped & mask).sum()


@pytest.mark.parametrize("dual_clip", [None, 2.0])
@laws
@given(batch=batches(shortest=1, longest=1, spread=2.0))
def test_a_sequence_of_one_token_has_the_ratio_of_its_token(dual_clip, batch):
    by_token = algorithm("grpo", clip_range=0.2, clip_range_high=0.28, dual_clip=dual_clip)
    by_sequence = algorithm("gspo", clip_range=0.2, clip_range_high=0.28, dual_clip=dual_clip)
    loss, gradient, metrics = loss_and_gradient(batch, by_token)
    other_loss, other_gradient, other_metrics = loss_and_gradient(batch, by_sequence)
    assert other_loss == pytest.approx(loss, rel=1e-12)
    torch.testing.assert_close(other_gradient, gradient, rtol=1e-12, atol=0)
    assert other_metrics["clipped"] == metrics["clipped"]


@pytest.mark.parametrize("name", PRESETS)
@laws
@given(batch=batches(), difference=st.floats(-1e4, 1e4), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_any_difference_of_log_probabilities_stays_finite(name, batch, difference, dtype):
    batch = changed(batch, lambda values: values.to(dtype) if values.is_floating_point() else values)
    batch["old_logprobs"] = batch["logprobs"] - difference
    batch["ref_logprobs"] = batch["logprobs"] + difference
    loss, gradient, metrics = loss_and_gradient(batch, algorithm(name, dual_clip=None))
    assert torch.isfinite(torch.tensor(loss)) and torch.isfinite(gradient.norm())
    assert all(torch.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("name", PRESETS)
@laws
@given(batch=batches(), weight=st.floats(0, 2))
def test_equal_importance_weights_the_policy_term_as_a_factor(name, batch, weight):
    given_algorithm = AlgorithmConfig(name=name, constant_length=4, entropy_coef=0.0)
    policy_term = {key: values for key, values in batch.items() if key not in BESIDE}
    plain = loss_and_gradient(policy_term, given_algorithm)
    policy_term["importance"] = torch.full_like(batch["logprobs"], weight)
    weighted = loss_and_gradient(policy_term, given_algorithm)
    assert weighted[0] == pytest.approx(weight * plain[0], rel=1e-12, abs=1e-14)
    torch.testing.assert_close(weighted[1], weight * plain[1], rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("name", PRESETS)
@laws
@given(batch=batches())
def test_kl_in_the_reward_leaves_the_loss_alone(name, batch):
    with_reference = loss_and_gradient(batch, algorithm(name, kl_in="reward"))
    without = loss_and_gradient({**batch, "ref_logprobs": None}, algorithm(name, kl_in="reward"))
    assert with_reference[0] == without[0]
    assert torch.equal(with_reference[1], without[1])
