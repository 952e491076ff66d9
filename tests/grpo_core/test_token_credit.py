"""Rewards on tokens, generalised advantages and their scaling: values by hand, and the laws they obey."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.config import AlgorithmConfig
from grpo_core.token_credit import generalised_advantages, moments, scale_token_advantages, token_rewards

NAN = float("nan")
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def test_score_is_earned_at_the_last_token():
    assert token_rewards(tensor([2.0, -1.0]), MASK, None, 0.1).tolist() == [[0, 0, 2], [0, -1, 0]]


def test_kl_is_taken_off_at_every_token():
    kl = tensor([[0.5, 0.0, 1.0], [2.0, 1.0, NAN]])
    rewards = token_rewards(tensor([2.0, -1.0]), MASK, kl, 0.1)
    assert rewards.flatten().tolist() == pytest.approx([-0.05, 0, 1.9, -0.2, -1.1, 0], abs=1e-12)


def test_completion_without_a_score_or_a_token_earns_nothing():
    mask = torch.tensor([[1, 1], [0, 0]], dtype=torch.bool)
    assert token_rewards(tensor([NAN, 3.0]), mask, torch.ones(2, 2), 0.1).tolist() == [[0, 0], [0, 0]]


def test_generalised_advantages():
    # delta = [0.9 0.6 - 0.5, 0.9 0.7 - 0.6, 1 - 0.7] = [0.04, 0.03, 0.3], each A = delta + 0.72 A of the next
    advantages, returns = generalised_advantages(
        tensor([[0.0, 0.0, 1.0]]), tensor([[0.5, 0.6, 0.7]]), MASK[:1], gamma=0.9, gae_lambda=0.8
    )
    assert advantages[0].tolist() == pytest.approx([0.21712, 0.246, 0.3], abs=1e-12)
    assert returns[0].tolist() == pytest.approx([0.71712, 0.846, 1.0], abs=1e-12)


def test_without_values_they_are_the_rewards_to_come():
    rewards = tensor([[-0.1, -0.2, 1.0], [-0.3, 0.5, 9.0]])
    advantages, returns = generalised_advantages(rewards, None, MASK, gamma=1.0, gae_lambda=1.0)
    assert advantages.flatten().tolist() == pytest.approx([0.7, 0.8, 1.0, 0.2, 0.5, 0.0], abs=1e-12)
    assert torch.equal(advantages, returns)
    discounted, _ = generalised_advantages(rewards, None, MASK, gamma=0.5, gae_lambda=1.0)
    assert discounted[0].tolist() == pytest.approx([-0.1 - 0.1 + 0.25, -0.2 + 0.5, 1.0], abs=1e-12)


def test_a_gap_in_the_mask_costs_no_discount():
    rewards, values = tensor([[0.0, 7.0, 0.0, 1.0]]), tensor([[0.5, 7.0, 0.6, 0.7]])
    mask = torch.tensor([[1, 0, 1, 1]], dtype=torch.bool)
    advantages, _ = generalised_advantages(rewards, values, mask, gamma=0.9, gae_lambda=0.8)
    assert advantages[0].tolist() == pytest.approx([0.21712, 0.0, 0.246, 0.3], abs=1e-12)


def test_no_tokens_at_all():
    empty = torch.zeros(2, 0)
    advantages, returns = generalised_advantages(empty, empty, empty.bool(), 1.0, 1.0)
    assert advantages.shape == returns.shape == (2, 0)


@st.composite
def episodes(draw):
    """Random rewards and values `[B, T]` with a mask of completions of 0 to T tokens."""
    num, width = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    draws = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    lengths = torch.tensor(draw(st.lists(st.integers(0, width), min_size=num, max_size=num)))
    rewards, values = (torch.randn(num, width, generator=draws, dtype=torch.float64) for _ in range(2))
    return rewards, values, torch.arange(width) < lengths.unsqueeze(1)


@settings(deadline=None, max_examples=50)
@given(episode=episodes(), gamma=st.floats(0.1, 1), gae_lambda=st.floats(0, 1))
def test_they_are_the_weighted_sum_of_later_value_errors(episode, gamma, gae_lambda):
    rewards, values, mask = episode
    advantages, returns = generalised_advantages(rewards, values, mask, gamma, gae_lambda)
    for row, length in enumerate(mask.sum(dim=1).tolist()):
        known = [*values[row, :length].tolist(), 0.0]
        errors = [rewards[row, t].item() + gamma * known[t + 1] - known[t] for t in range(length)]
        for t in range(length):
            expected = sum((gamma * gae_lambda) ** (s - t) * errors[s] for s in range(t, length))
            assert advantages[row, t].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
            assert returns[row, t].item() == pytest.approx(expected + known[t], rel=1e-9, abs=1e-9)
    assert (advantages[~mask] == 0).all() and (returns[~mask] == 0).all()


@settings(deadline=None, max_examples=50)
@given(episode=episodes(), gamma=st.floats(0.1, 1))
def test_lambda_one_returns_do_not_depend_on_the_values(episode, gamma):
    rewards, values, mask = episode
    _, returns = generalised_advantages(rewards, values, mask, gamma, 1.0)
    _, without = generalised_advantages(rewards, None, mask, gamma, 1.0)
    torch.testing.assert_close(returns, without, rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=50)
@given(episode=episodes(), gamma=st.floats(0.1, 1), gae_lambda=st.floats(0, 1))
def test_padding_changes_nothing_whatever_lies_in_it(episode, gamma, gae_lambda):
    rewards, values, mask = episode
    plain = generalised_advantages(rewards, values, mask, gamma, gae_lambda)
    rewards, values = (torch.where(mask, each, torch.nan) for each in (rewards, values))
    rewards, values = (torch.nn.functional.pad(each, (0, 3), value=torch.inf) for each in (rewards, values))
    mask = torch.nn.functional.pad(mask, (0, 3))
    for each, padded in zip(plain, generalised_advantages(rewards, values, mask, gamma, gae_lambda), strict=True):
        assert torch.equal(padded, torch.nn.functional.pad(each, (0, 3)))


ADVANTAGES = [[1.0, 2.0, 3.0], [0.0, 4.0, NAN]]


def scaled(values=ADVANTAGES, **knobs):
    return scale_token_advantages(tensor(values), MASK, AlgorithmConfig(credit="token", **knobs))


def test_scaling_over_the_tokens_of_the_step():
    # mean 2, squared distances 1 + 0 + 1 + 4 + 4
    std = math.sqrt(10 / 4) + 1e-4
    centred = [-1.0, 0.0, 1.0, -2.0, 2.0, 0.0]
    for name in ("ppo", "reinforce_pp"):
        result = scaled(name=name)
        assert result.flatten().tolist() == pytest.approx([each / std for each in centred], abs=1e-9)
    assert scaled(baseline="batch_mean", advantage_scale="none").flatten().tolist() == centred
    plain = [1.0, 2.0, 3.0, 0.0, 4.0, 0.0]
    assert scaled(baseline="value", advantage_scale="none").flatten().tolist() == plain
    for baseline in ("mean", "none"):
        assert scaled(baseline=baseline, advantage_scale="none").flatten().tolist() == plain
        divided = scaled(baseline=baseline, advantage_scale="batch_std")
        assert divided.flatten().tolist() == pytest.approx([each / std for each in plain], abs=1e-9)


@pytest.mark.parametrize("value", [0.1, 0.7, 1e6, -3.3, 0.0])
@pytest.mark.parametrize("knobs", [{"name": "ppo"}, {"name": "reinforce_pp"}, {"baseline": "none"}])
def test_equal_advantages_become_exact_zeros(knobs, value):
    same = [[value] * 3, [value, value, NAN]]
    assert scaled(same, **{"advantage_scale": "batch_std", **knobs}).tolist() == [[0.0] * 3] * 2
    assert scaled(same, baseline="batch_mean", advantage_scale="none").tolist() == [[0.0] * 3] * 2


def test_neighbouring_float32_values_are_not_equal():
    base = torch.full((1, 1000), 0.7)
    base[0, 3] = torch.nextafter(base[0, 3], torch.tensor(1.0))
    assert not moments(base, torch.ones(1, 1000, dtype=torch.bool)).equal


def test_nan_on_a_token_that_counts_is_not_hidden():
    assert scaled([[1.0, NAN, 1.0], [1.0, 1.0, 1.0]], name="ppo").isnan().any()


def test_no_token_that_counts():
    result = scale_token_advantages(tensor(ADVANTAGES), torch.zeros_like(MASK), AlgorithmConfig(name="ppo"))
    assert result.tolist() == [[0.0] * 3] * 2


class TwoRanks:
    """`add_up` as two ranks see it: each call adds what the other rank gave at the same call."""

    def __init__(self, others):
        self.others = iter(others)

    def __call__(self, values):
        return {name: value + other for (name, value), other in zip(values.items(), next(self.others), strict=True)}


def test_scaling_is_over_all_ranks():
    whole = scaled(name="reinforce_pp")
    # What the second rank adds: two tokens with the sum 4, and their distances from the mean 2.
    others = TwoRanks([(2.0, 4.0), (8.0, 2.0)])
    first = scale_token_advantages(tensor(ADVANTAGES[:1]), MASK[:1], AlgorithmConfig(name="reinforce_pp"), others)
    torch.testing.assert_close(first, whole[:1], rtol=1e-12, atol=0)
    # A rank whose own tokens are all equal still learns from the difference to those of the others.
    others = TwoRanks([(2.0, 4.0), (2.0, 2.0)])
    alone = scale_token_advantages(tensor([[1.0, 1.0]]), MASK[:1, :2], AlgorithmConfig(name="reinforce_pp"), others)
    std = math.sqrt((2 * 0.25 + 2.0) / 3) + 1e-4
    assert alone[0].tolist() == pytest.approx([-0.5 / std] * 2, abs=1e-12)
