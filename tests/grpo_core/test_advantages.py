import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.advantages import compute_advantages, dead_groups
from grpo_core.config import AlgorithmConfig

NAN = float("nan")


def advantages(rewards, **knobs):
    return compute_advantages(torch.tensor(rewards, dtype=torch.float64), AlgorithmConfig(**knobs))


def test_group_std():
    assert advantages([[1.0, 0, 0, 0]])[0].tolist() == pytest.approx(
        [0.75 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001, -0.25 / 0.5001], abs=1e-9
    )
    assert advantages([[1.0, 0, 0, 0]])[0].tolist() == pytest.approx([1.4997, -0.4999, -0.4999, -0.4999], abs=1e-4)


def test_unscaled():
    assert advantages([[1.0, 0, 0, 0]], advantage_scale="none")[0].tolist() == [0.75, -0.25, -0.25, -0.25]


def test_leave_one_out():
    assert advantages([[1.0, 0, 0, 0]], name="rloo")[0].tolist() == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3], abs=1e-9)


def test_leave_one_out_keeps_its_digits():
    rewards = [[0.0] + [0.95] * 7]
    expected = [-0.95] + [0.95 - 6 * 0.95 / 7] * 7
    assert advantages(rewards, name="rloo")[0].tolist() == pytest.approx(expected, abs=1e-9)
    assert expected[1] == pytest.approx(0.135714, abs=1e-6)


def test_median():
    assert advantages([[1.0, 0.5, 0.1, 0.3]], baseline="median", advantage_scale="none")[0].tolist() == pytest.approx(
        [0.6, 0.1, -0.3, -0.1], abs=1e-9
    )


def test_batch_std_divides_every_group_by_one_number():
    rewards = [[1.0, 0.0], [1.0, 1.0]]
    std = torch.tensor([1.0, 0, 1, 1], dtype=torch.float64).std().item() + 1e-4
    result = advantages(rewards, advantage_scale="batch_std")
    assert result.flatten().tolist() == pytest.approx([0.5 / std, -0.5 / std, 0, 0], abs=1e-9)


def test_reward_scale_multiplies_unscaled_advantages():
    result = advantages([[1.0, 0, 0, 0]], advantage_scale="none", reward_scale=2.0)
    assert result[0].tolist() == [1.5, -0.5, -0.5, -0.5]


def test_completion_without_a_score_is_outside_its_group():
    result = advantages([[1.0, NAN, 0.0, 0.0]], advantage_scale="none")
    assert result[0].tolist() == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3], abs=1e-9)
    with_std = advantages([[1.0, NAN, 0.0, 0.0]])
    std = torch.tensor([1.0, 0, 0], dtype=torch.float64).std().item() + 1e-4
    assert with_std[0].tolist() == pytest.approx([2 / 3 / std, 0, -1 / 3 / std, -1 / 3 / std], abs=1e-9)


def test_group_without_any_or_with_one_score_gets_zeros():
    assert advantages([[NAN, NAN], [1.0, NAN]]).tolist() == [[0, 0], [0, 0]]


def test_dead_groups():
    rewards = torch.tensor([[0.3, 0.3, NAN], [0.0, 1.0, 0.0], [NAN, NAN, NAN]])
    assert dead_groups(rewards).tolist() == [True, False, True]


@given(
    value=st.floats(-1e6, 1e6, allow_nan=False),
    size=st.integers(2, 16),
    scale=st.sampled_from(["group_std", "batch_std", "none"]),
    baseline=st.sampled_from(["mean", "median", "leave_one_out", "none"]),
    reward_scale=st.floats(0.1, 10),
)
def test_uniform_groups_get_exact_zeros(value, size, scale, baseline, reward_scale):
    result = advantages([[value] * size], advantage_scale=scale, baseline=baseline, reward_scale=reward_scale)
    assert result[0].tolist() == [0.0] * size


@given(rewards=st.lists(st.floats(-100, 100), min_size=2, max_size=16))
def test_advantages_of_a_group_add_up_to_zero(rewards):
    for knobs in ({}, {"advantage_scale": "none"}, {"name": "rloo"}):
        assert abs(advantages([rewards], **knobs).sum().item()) < 1e-9 * max(1.0, max(map(abs, rewards))) * 100
