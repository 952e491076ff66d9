import subprocess
import sys

import pytest
from pydantic import ValidationError

from grpo_core.config import AlgorithmConfig, TrainConfig, legal_group_sizes


def refused(given, *parts):
    with pytest.raises(ValidationError) as caught:
        TrainConfig.model_validate(given)
    for part in parts:
        assert part in str(caught.value)


def test_a_group_of_one_is_refused():
    refused({"algorithm": {"group_size": 1}}, "group_size=1: a group needs at least 2 completions for a baseline")


def test_group_size_that_does_not_divide_names_the_legal_ones():
    given = {"rollout": {"completions_per_step": 7}, "algorithm": {"group_size": 8}}
    refused(given, "group_size=8", "completions_per_step=7", "legal group sizes: 7")
    assert legal_group_sizes(128, 2) == [2, 4, 8, 16, 32, 64]
    refused({"algorithm": {"group_size": 64}, "compute": {"num_ranks": 4}}, "on 4 ranks", "2, 4, 8, 16, 32")


def test_micro_batch_larger_than_a_rank_is_refused():
    given = {"optim": {"micro_batch_size": 65}, "compute": {"num_ranks": 2}}
    refused(given, "micro_batch_size=65", "use 1 to 64")


def test_truncated_distributions_are_refused():
    refused({"rollout": {"top_p": 0.9}}, "top_p=0.9")
    refused({"rollout": {"top_k": 40}}, "top_k=40")


def test_unknown_keys_and_algorithms_are_refused():
    refused({"optim": {"learning_rate": 1e-4}}, "optim.learning_rate", "not permitted")
    refused({"algorithm": {"name": "grop"}}, "grpo, dr_grpo, dapo, gspo, ppo, rloo, reinforce_pp, cispo")


def test_a_preset_with_one_knob_turned():
    dapo = AlgorithmConfig(name="dapo", clip_range_high=0.3)
    assert (dapo.clip_range, dapo.clip_range_high, dapo.aggregation, dapo.mask_truncated) == (
        0.2,
        0.3,
        "token_mean",
        True,
    )


def test_constant_length_is_resolved():
    config = TrainConfig.model_validate({"algorithm": {"name": "dr_grpo"}, "rollout": {"max_new_tokens": 77}})
    assert config.loss_algorithm.constant_length == 77


def test_round_trip():
    config = TrainConfig.model_validate({"algorithm": {"name": "gspo", "group_size": 4}})
    assert TrainConfig.model_validate(config.model_dump(mode="json")) == config


def test_config_needs_no_torch():
    code = "import sys, grpo_core.config, grpo_core.metric_names; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
