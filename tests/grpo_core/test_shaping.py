"""Length penalty and floor of rewards, by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.shaping import overlong_penalties, shaped_rewards

from .conftest import small_config


def test_the_penalty_grows_over_the_buffer():
    lengths = [0, 15, 16, 17, 18, 19, 20]
    assert overlong_penalties(lengths, 20, 4, 0.8) == pytest.approx([0, 0, 0, 0.2, 0.4, 0.6, 0.8])


def test_a_buffer_of_one_token_punishes_only_the_limit():
    assert overlong_penalties([18, 19, 20], 20, 1, 1.0) == [0.0, 0.0, 1.0]


def test_a_completion_beyond_the_limit_loses_no_more_than_the_penalty():
    assert overlong_penalties([25], 20, 4, 1.0) == [1.0]


@given(
    lengths=st.lists(st.integers(0, 100), min_size=1),
    buffer_tokens=st.integers(1, 99),
    penalty=st.floats(0, 10),
)
def test_penalties_lie_between_none_and_all_and_never_fall_with_length(lengths, buffer_tokens, penalty):
    penalties = overlong_penalties(sorted(lengths), 100, buffer_tokens, penalty)
    assert all(0 <= each <= penalty for each in penalties)
    assert penalties == sorted(penalties)


def test_rewards_lose_the_penalty_then_meet_the_floor():
    config = small_config(
        rollout={"max_new_tokens": 20},
        algorithm={"overlong_penalty": 1.0, "overlong_buffer_tokens": 10, "reward_floor": -0.25},
    )
    shaped = shaped_rewards([1.0, 1.0, 0.0, 0.0, -3.0], [10, 15, 12, 20, 1], config)
    assert shaped == pytest.approx([1.0, 0.5, -0.2, -0.25, -0.25])


def test_the_buffer_is_a_fifth_of_the_limit_unless_given():
    config = small_config(rollout={"max_new_tokens": 20}, algorithm={"overlong_penalty": 1.0})
    assert shaped_rewards([0.0, 0.0, 0.0], [16, 18, 20], config) == [0.0, -0.5, -1.0]


def test_a_completion_without_a_score_keeps_none():
    config = small_config(algorithm={"overlong_penalty": 1.0, "reward_floor": 0.0})
    shaped = shaped_rewards([math.nan, -1.0], [24, 3], config)
    assert math.isnan(shaped[0]) and shaped[1] == 0.0


def test_nothing_is_shaped_unless_asked():
    assert shaped_rewards([1.5, -2.0], [24, 3], small_config()) == [1.5, -2.0]


def test_rewards_and_lengths_belong_together():
    with pytest.raises(ValueError):
        shaped_rewards([1.0, 2.0], [3], small_config())
