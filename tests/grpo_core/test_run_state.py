"""What a run carries from step to step."""

import pytest

from grpo_core.config import AlgorithmConfig
from grpo_core.run_state import RunState

STEERED = AlgorithmConfig(kl_coef=0.1, kl_target=0.01, entropy_coef=0.02, entropy_target=0.7, entropy_coef_step=0.01)


def test_coefficients_are_steered_towards_their_targets():
    state = RunState.at_start(STEERED)
    state.steer(STEERED, kl=1.0, entropy=0.5)
    assert (state.kl_coef, state.entropy_coef) == (pytest.approx(0.102), pytest.approx(0.03))
    state.steer(STEERED, kl=0.0, entropy=0.9)
    assert (state.kl_coef, state.entropy_coef) == (pytest.approx(0.102 * 0.98), pytest.approx(0.02))
    algorithm = state.algorithm_of_step(STEERED)
    assert (algorithm.kl_coef, algorithm.entropy_coef) == (state.kl_coef, state.entropy_coef)


def test_without_targets_they_stay():
    fixed = AlgorithmConfig(kl_coef=0.1, entropy_coef=0.02)
    state = RunState.at_start(fixed)
    state.steer(fixed, kl=1.0, entropy=0.5)
    assert state.algorithm_of_step(fixed) == fixed


def test_a_record_gives_the_state_back_and_one_that_lacks_a_field_the_start():
    state = RunState.at_start(STEERED)
    state.step, state.kl_coef, state.priorities = 7, 0.3, {"train/1": 0.5}
    assert RunState.from_record(state.record(), STEERED) == state
    older = RunState.from_record({"step": 7, "num_skipped": 1.0}, STEERED)
    assert (older.step, older.num_skipped, older.kl_coef, older.entropy_coef) == (7, 1.0, 0.1, 0.02)


def test_the_smoothed_reward_looks_back_over_its_window():
    state = RunState.at_start(STEERED)
    assert [state.smoothed_reward(reward, 2) for reward in (1.0, 0.0, 0.5)] == [1.0, 0.5, 0.25]
    assert state.recent_rewards == [0.0, 0.5]
