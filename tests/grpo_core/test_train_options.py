"""Whole runs under every preset and every option: finite, repeatable, and resumed as if nothing had happened."""

import math

import pytest

from grpo_core.checkpoints import load_state, newest_checkpoint
from grpo_core.metric_names import depends_on_machine
from grpo_core.preflight import measure_base_policy
from grpo_core.presets import PRESETS
from grpo_core.run_record import read_metrics, read_rollouts
from grpo_core.train import Verdict, train

from .conftest import small_config

OPTIONS = {
    "kl in the loss, steered": {"algorithm": {"kl_coef": 0.1, "kl_target": 0.001, "updates_per_batch": 2}},
    "kl in the reward": {"algorithm": {"name": "rloo", "kl_coef": 0.1}},
    "kl of tokens": {"algorithm": {"name": "reinforce_pp", "kl_coef": 0.1}},
    "entropy steered": {"algorithm": {"entropy_coef": 0.01, "entropy_target": 1.0}},
    "dynamic sampling": {"algorithm": {"dynamic_sampling": True, "max_refills": 1}},
    "minibatches": {"algorithm": {"updates_per_batch": 4, "num_minibatches": 2}},
    "value head": {"algorithm": {"name": "ppo", "updates_per_batch": 2}},
    "similarity": {"algorithm": {"grouping": "similarity", "min_similar_group": 4, "max_similar_group": 8}},
    "importance": {"algorithm": {"importance_cap": 2.0}},
    "temperature": {"rollout": {"temperature_decay": 0.9}},
    "priority": {"rollout": {"priority_exponent": 0.6}},
    "smoothing": {"algorithm": {"smoothing_window": 3}},
    "activation checkpointing": {"compute": {"activation_checkpointing": True}},
    "bfloat16": {"compute": {"precision": "bfloat16"}},
}


def recorded(run_dir):
    return [
        {key: value for key, value in line["metrics"].items() if not depends_on_machine(key)}
        for line in read_metrics(run_dir / "metrics.jsonl")
    ]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_runs(tmp_path, preset):
    result = train(small_config(algorithm={"name": preset}), run_dir=tmp_path)
    assert result.status == "complete"
    steps = recorded(tmp_path)
    assert len(steps) == 3
    assert all(math.isfinite(value) for step in steps for value in step.values())
    assert any(step["optim/grad_norm"] > 0 for step in steps)
    assert all(("loss/value" in step) == (preset == "ppo") for step in steps)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_run_under_an_option_resumes_exactly(tmp_path, option):
    config = small_config(num_steps=4, **OPTIONS[option])
    train(config, run_dir=tmp_path / "whole")
    train(config, run_dir=tmp_path / "cut", on_step=lambda step, _: Verdict("stop") if step == 2 else None)
    train(config, run_dir=tmp_path / "cut")
    assert recorded(tmp_path / "cut") == recorded(tmp_path / "whole")
    whole = recorded(tmp_path / "whole")
    assert all(math.isfinite(value) for step in whole for value in step.values())


def test_a_step_whose_groups_are_all_uniform_is_counted_and_changes_nothing(tmp_path):
    # No completion of 1 token is closed, so none is right and all groups are uniform.
    config = small_config(
        task={"name": "grade_school"},
        rollout={"max_new_tokens": 1},
        algorithm={"dynamic_sampling": True, "max_refills": 2},
    )
    train(config, run_dir=tmp_path)
    steps = recorded(tmp_path)
    assert [step["optim/idle_steps"] for step in steps] == [1, 2, 3]
    assert [step["rollout/refills"] for step in steps] == [2] * 3
    assert [step["rollout/extra_completions"] for step in steps] == [32] * 3
    assert [step["rollout/used_frac"] for step in steps] == [0] * 3
    assert [step["groups/dead_frac"] for step in steps] == [1] * 3
    assert [step["optim/grad_norm"] for step in steps] == [0] * 3
    assert len(list(read_rollouts(tmp_path / "rollouts.jsonl.zst"))) == 3 * 48


def test_what_changes_from_step_to_step_is_recorded(tmp_path):
    config = small_config(
        rollout={"temperature_decay": 0.5},
        algorithm={"kl_coef": 0.1, "kl_target": 1e6, "entropy_target": 1e6, "smoothing_window": 2},
    )
    train(config, run_dir=tmp_path)
    steps = recorded(tmp_path)
    assert [step["rollout/temperature"] for step in steps] == [1.0, 0.5, 0.25]
    assert [step["policy/kl_coef"] for step in steps] == pytest.approx([0.1, 0.098, 0.09604])
    assert [step["policy/entropy_coef"] for step in steps] == pytest.approx([0.0, 0.005, 0.010])
    rewards = [step["reward/mean"] for step in steps]
    assert steps[2]["reward/smoothed"] == pytest.approx((rewards[1] + rewards[2]) / 2)


def test_priorities_are_kept_in_the_checkpoint(tmp_path):
    config = small_config(rollout={"priority_exponent": 0.6})
    train(config, run_dir=tmp_path)
    priorities = load_state(newest_checkpoint(tmp_path))["priorities"]
    asked = {line["problem_id"] for line in read_rollouts(tmp_path / "rollouts.jsonl.zst")}
    assert priorities.keys() == asked
    assert min(priorities.values()) == pytest.approx(0.05) or min(priorities.values()) > 0.05


@pytest.mark.parametrize("knobs", [{"name": "ppo"}, {"name": "rloo", "kl_coef": 0.1}, {"dynamic_sampling": True}])
def test_preflight_measures_every_kind_of_algorithm(tmp_path, knobs):
    measured = measure_base_policy(small_config(algorithm=knobs), tmp_path)
    assert 0 <= measured["groups/dead_frac"] <= 1 and measured["policy/entropy"] > 0
