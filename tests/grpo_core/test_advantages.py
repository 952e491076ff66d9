import math

import pytest
import torch
from hypothesis import given, settings
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


def test_batch_mean_compares_all_completions_of_the_step():
    result = advantages([[1.0, NAN, 1.0], [0.0, 0.0, 0.5]], baseline="batch_mean", advantage_scale="none")
    assert result.flatten().tolist() == pytest.approx([0.5, 0, 0.5, -0.5, -0.5, 0], abs=1e-12)
    scaled = advantages([[1.0, NAN, 1.0], [0.0, 0.0, 0.5]], baseline="batch_mean", advantage_scale="batch_std")
    std = math.sqrt(4 * 0.25 / 4) + 1e-4
    assert scaled.flatten().tolist() == pytest.approx([0.5 / std, 0, 0.5 / std, -0.5 / std, -0.5 / std, 0], abs=1e-9)


@pytest.mark.parametrize("baseline", ["batch_mean", "none"])
@pytest.mark.parametrize("scale", ["batch_std", "none"])
def test_single_completions_of_a_prompt_have_a_signal_without_a_group_baseline(baseline, scale):
    result = advantages([[1.0], [0.0], [0.0], [NAN]], baseline=baseline, advantage_scale=scale, group_size=1)
    taken_off = 1 / 3 if baseline == "batch_mean" else 0.0
    divided_by = math.sqrt(2 / 9 + 4 / 9) / math.sqrt(2) + 1e-4 if scale == "batch_std" else 1.0
    expected = [(reward - taken_off) / divided_by for reward in (1, 0, 0)]
    assert result.flatten().tolist() == pytest.approx([*expected, 0], abs=1e-9)


def test_places_left_empty_change_nothing():
    rewards = [[1.0, 0.0, 0.25], [0.5, 0.5, 0.0]]
    padded = [[1.0, NAN, 0.0, 0.25, NAN], [NAN, 0.5, 0.5, NAN, 0.0]]
    for knobs in ({}, {"name": "rloo"}, {"baseline": "median"}, {"baseline": "batch_mean"}, {"name": "reinforce_pp"}):
        plain, wide = advantages(rewards, **knobs), advantages(padded, **knobs)
        assert wide[~torch.tensor(padded).isnan()].tolist() == pytest.approx(plain.flatten().tolist(), abs=1e-12)
        assert wide[torch.tensor(padded).isnan()].tolist() == [0.0] * 4


def test_no_baseline_keeps_the_signal_of_uniform_groups():
    assert advantages([[1.0, 1.0], [0.0, 0.0]], baseline="none", advantage_scale="none").tolist() == [[1, 1], [0, 0]]
    assert advantages([[1.0, 1.0]], baseline="none", advantage_scale="none").tolist() == [[1, 1]]
    # A step without spread has nothing to divide by.
    assert advantages([[1.0, 1.0], [1.0, 1.0]], baseline="none", advantage_scale="batch_std").tolist() == [[0, 0]] * 2


@settings(deadline=None)
@given(
    value=st.floats(allow_nan=False, allow_infinity=False),
    size=st.integers(2, 16),
    scale=st.sampled_from(["group_std", "batch_std", "none"]),
    baseline=st.sampled_from(["mean", "median", "leave_one_out", "batch_mean"]),
    reward_scale=st.floats(0.1, 10),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_uniform_groups_get_exact_zeros(value, size, scale, baseline, reward_scale, dtype):
    given_knobs = AlgorithmConfig(advantage_scale=scale, baseline=baseline, reward_scale=reward_scale)
    largest = torch.finfo(dtype).max
    value = min(max(value, -largest), largest)
    rewards = torch.tensor([[value] * size, [value] * size, [NAN, *[value] * (size - 1)]], dtype=dtype)
    assert compute_advantages(rewards, given_knobs).tolist() == [[0.0] * size] * 3
    if given_knobs.compares_groups and abs(value) < 1e6:
        beside_another = torch.cat([rewards, torch.arange(size, dtype=dtype).unsqueeze(0)])
        assert compute_advantages(beside_another, given_knobs)[:3].tolist() == [[0.0] * size] * 3


TABLES = st.integers(2, 8).flatmap(
    lambda width: st.lists(
        st.lists(st.one_of(st.floats(-100, 100), st.just(NAN)), min_size=width, max_size=width), min_size=1, max_size=6
    )
)


@settings(deadline=None)
@given(rewards=TABLES, reward_scale=st.floats(0.1, 10))
def test_advantages_of_a_group_add_up_to_zero(rewards, reward_scale):
    table = torch.tensor(rewards, dtype=torch.float64)
    largest = table.nan_to_num(nan=0.0).abs().max().item() * reward_scale
    for name in ("grpo", "dr_grpo", "dapo", "gspo", "rloo", "cispo"):
        result = advantages(rewards, name=name, reward_scale=reward_scale)
        # Before the division: rounding is of the size of the rewards, whatever they are divided by.
        scale = 1.0
        if AlgorithmConfig(name=name).advantage_scale == "group_std":
            scale = _sample_std(table * reward_scale) + 1e-4
        assert ((result * scale).sum(dim=-1).abs() <= 1e-13 * largest).all()


@settings(deadline=None)
@given(rewards=TABLES, reward_scale=st.floats(0.1, 10))
def test_advantages_of_a_step_add_up_to_zero_under_its_own_mean(rewards, reward_scale):
    for scale in ("none", "batch_std"):
        knobs = {"baseline": "batch_mean", "advantage_scale": scale, "reward_scale": reward_scale}
        result = advantages(rewards, **knobs)
        assert abs(result.sum().item()) <= 1e-12 * max(1.0, result.abs().sum().item())


@settings(deadline=None)
@given(rewards=TABLES, knobs=st.sampled_from([{}, {"advantage_scale": "none"}, {"name": "rloo"}]))
def test_advantages_move_with_their_places(rewards, knobs):
    width = len(rewards[0])
    order = torch.randperm(width, generator=torch.Generator().manual_seed(width))
    shuffled = torch.tensor(rewards, dtype=torch.float64)[:, order].tolist()
    torch.testing.assert_close(advantages(shuffled, **knobs), advantages(rewards, **knobs)[:, order], rtol=1e-9, atol=0)


def _sample_std(table):
    """Standard deviation of each row's numbers, `[num_groups, 1]`, 0 for a row with fewer than two."""
    known = [row[~row.isnan()] for row in table]
    return torch.stack([row.std() if len(row) > 1 else row.new_zeros(()) for row in known]).unsqueeze(-1)
