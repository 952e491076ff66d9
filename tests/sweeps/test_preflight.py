import math
from typing import Any

import pytest

from sweeps.preflight import judge
from sweeps.sections import SweepConfig

HEALTHY = {
    "policy/entropy": 0.71,
    "reward/mean": 0.17,
    "groups/dead_frac": 0.3,
    "rollout/length_mean": 30.0,
    "rollout/truncated_frac": 0.02,
    "eval/accuracy": 0.17,
}


def make_config(stability: dict[str, Any] | None = None) -> SweepConfig:
    band = {"entropy": {"min": 0.5, "max": 1.0}} if stability is None else stability
    given = {"study": {"name": "s", "n_trials": 1}, "search_space": {}, "stability": band}
    return SweepConfig.model_validate({**given, "train": {"rollout": {"max_new_tokens": 256}}})


def found(changes: dict[str, float], stability: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    return [(finding.level, finding.key) for finding in judge({**HEALTHY, **changes}, make_config(stability))]


def test_a_healthy_policy_passes() -> None:
    assert found({}) == []


@pytest.mark.parametrize(("value", "key"), [(0.31, "min"), (1.8, "max")])
def test_entropy_outside_the_band_is_refused_with_value_and_fix(value: float, key: str) -> None:
    assert found({"policy/entropy": value}) == [("error", f"stability.entropy.{key}")]
    assert found({"policy/entropy": value}, {}) == []
    [finding] = judge({**HEALTHY, "policy/entropy": value}, make_config())
    assert f"{value:.3g} nats" in finding.message and f"set stability.entropy.{key} to" in finding.message


@pytest.mark.parametrize("value", [0.5, 1.0])
def test_the_bands_ends_are_inside(value: float) -> None:
    assert found({"policy/entropy": value}) == []


def test_logits_that_are_not_finite_are_refused_without_a_band() -> None:
    assert found({"policy/entropy": math.nan}, {}) == [("error", "train.policy.name")]


def test_no_reward_under_truncation_is_called_truncation() -> None:
    cut = {"rollout/truncated_frac": 1.0, "reward/mean": 0.0, "eval/accuracy": 0.0, "groups/dead_frac": 1.0}
    assert found(cut) == [("error", "train.rollout.max_new_tokens")]
    [finding] = judge({**HEALTHY, **cut}, make_config())
    assert "100% of completions are cut at 256 tokens" in finding.message
    assert "truncation, not a bad model" in finding.message


def test_truncation_and_missing_signal_are_warned_about() -> None:
    assert found({"rollout/truncated_frac": 0.6}) == [("warning", "train.rollout.max_new_tokens")]
    assert found({"reward/mean": 0.0, "eval/accuracy": 0.0}) == [("warning", "train.task.name")]
    assert found({"groups/dead_frac": 0.97}) == [("warning", "train.task.name")]


def test_equal_rewards_in_a_group_are_no_fault_where_groups_are_not_compared() -> None:
    given = {"study": {"name": "s", "n_trials": 1}, "search_space": {}, "train": {"algorithm": {"name": "ppo"}}}
    assert judge({**HEALTHY, "groups/dead_frac": 0.97}, SweepConfig.model_validate(given)) == []
