import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from pydantic import ValidationError

from grpo_core.config import TrainConfig
from sweeps.search_space import (
    SHORT_NAMES,
    apply_params,
    context_of,
    covered_params,
    default_params,
    distributions,
    in_order,
    is_active,
    path_of,
    points,
    suggest,
)
from sweeps.sections import Dimension, SweepConfig
from sweeps.train_fields import field_of, get_value, train_fields


def space(**entries) -> dict[str, Dimension]:
    return {key: Dimension.model_validate(entry) for key, entry in entries.items()}


FOUR = space(
    group_size={"values": [4, 8, 16]},
    clip_range={"min": 0.1, "max": 0.3},
    reward_scale={"min": 0.5, "max": 2.0},
    lr={"min": 3e-5, "max": 3e-3, "log": True},
)
CONDITIONAL = space(
    **{
        "algorithm.clip_range_high": {"min": 0.2, "max": 0.3, "when": {"algorithm.name": ["dapo", "cispo"]}},
        "algorithm.name": {"values": ["grpo", "dapo", "cispo"]},
        "algorithm.ratio_cap": {
            "values": [2.0, 5.0],
            "when": {"algorithm.name": "cispo", "algorithm.clip_range_high": [0.2, 0.3]},
        },
    }
)


def draw(entries, params: dict) -> dict:
    study = optuna.create_study()
    study.enqueue_trial(params)
    return suggest(study.ask(), entries)


def test_short_names_are_the_four_of_the_default_study():
    assert SHORT_NAMES == {
        "group_size": "algorithm.group_size",
        "clip_range": "algorithm.clip_range",
        "reward_scale": "algorithm.reward_scale",
        "lr": "optim.lr",
    }
    assert path_of("lr") == "optim.lr" and path_of("optim.beta1") == "optim.beta1"


def test_every_leaf_of_the_train_config_has_a_kind():
    kinds = {path: found.kind for path, found in train_fields().items()}
    assert kinds["algorithm.group_size"] == "integer"
    assert kinds["optim.lr"] == "number"
    assert kinds["algorithm.clip_range_high"] == "number"
    assert kinds["task.num_train"] == "integer"
    assert kinds["eval.greedy"] == "boolean"
    assert kinds["algorithm.baseline"] == "text"
    assert kinds["task.reward_weights"] == "mapping"
    assert kinds["num_steps"] == "integer"
    assert "algorithm" not in kinds
    assert field_of("task.reward_weights.correct").kind == "number"
    assert field_of("task.reward_weights") is None
    assert field_of("nothing.like.this") is None


def test_params_land_in_their_fields_and_the_base_stays_as_it_is():
    base = TrainConfig()
    params = {"group_size": 16, "lr": 1e-3, "task.reward_weights.correct": 2.0, "num_steps": 5}
    train = apply_params(base, params)
    assert (train.algorithm.group_size, train.optim.lr, train.num_steps) == (16, 1e-3, 5)
    assert train.task.reward_weights == {"correct": 2.0}
    assert get_value(train, "task.reward_weights.correct") == 2.0
    assert get_value(base, "task.reward_weights.correct") is None
    assert base == TrainConfig()


def test_a_label_names_the_same_field():
    assert path_of("clip_range/gspo") == "algorithm.clip_range" and path_of("optim.beta1/x") == "optim.beta1"
    assert apply_params(TrainConfig(), {"clip_range/gspo": 3e-4}).algorithm.clip_range == 3e-4


def test_a_param_of_a_section_that_is_not_there_makes_the_section():
    train = TrainConfig()
    assert get_value(train, "policy.lora.rank") is None
    lora = apply_params(train, {"policy.lora.rank": 8}).policy.lora
    assert lora is not None and (lora.rank, lora.alpha) == (8, 32.0)
    assert train.policy.lora is None


def test_params_are_validated_again():
    with pytest.raises(ValidationError, match="legal group sizes: 2, 4, 8, 16, 32, 64"):
        apply_params(TrainConfig(), {"group_size": 6})
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        apply_params(TrainConfig(), {"optim.speed": 6})


def test_another_algorithm_brings_its_preset_and_keeps_what_the_file_turned():
    base = TrainConfig.model_validate({"algorithm": {"name": "grpo", "entropy_coef": 0.02, "group_size": 16}})
    dapo = apply_params(base, {"algorithm.name": "dapo"}).algorithm
    alone = TrainConfig.model_validate({"algorithm": {"name": "dapo"}}).algorithm
    assert dapo == alone.model_copy(update={"entropy_coef": 0.02, "group_size": 16})
    assert (dapo.clip_range_high, dapo.aggregation, dapo.mask_truncated) == (0.28, "token_mean", True)
    gspo = apply_params(base, {"algorithm.name": "gspo", "clip_range": 0.01}).algorithm
    assert (gspo.clip_range, gspo.clip_range_high, gspo.ratio_level) == (0.01, 4e-4, "sequence")
    assert apply_params(base, {"algorithm.name": "grpo"}) == base


def test_defaults_are_the_files_own_values():
    config = SweepConfig.model_validate({"study": {"name": "s", "n_trials": 1}, "search_space": FOUR})
    assert default_params(config) == {"group_size": 8, "clip_range": 0.2, "reward_scale": 1.0, "lr": 1e-4}
    config = config.model_copy(update={"search_space": CONDITIONAL})
    assert default_params(config) == {"algorithm.name": "grpo"}


def test_distributions():
    assert distributions(FOUR) == {
        "group_size": CategoricalDistribution((4, 8, 16)),
        "clip_range": FloatDistribution(0.1, 0.3),
        "reward_scale": FloatDistribution(0.5, 2.0),
        "lr": FloatDistribution(3e-5, 3e-3, log=True),
    }
    others = space(
        **{"num_steps": {"min": 10, "max": 30, "step": 10}, "optim.beta1": {"min": 0, "max": 1, "step": 0.25}}
    )
    assert distributions(others) == {
        "num_steps": IntDistribution(10, 30, step=10),
        "optim.beta1": FloatDistribution(0.0, 1.0, step=0.25),
    }
    assert distributions(space(seed={"min": 1, "max": 64, "log": True})) == {"seed": IntDistribution(1, 64, log=True)}


def test_a_suggestion_has_the_distributions_of_the_space_and_keeps_types():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    entries = {**FOUR, **space(num_steps={"min": 2, "max": 4})}
    trial = study.ask()
    params = suggest(trial, entries)
    assert trial.distributions == distributions(entries)
    assert params == trial.params
    assert type(params["num_steps"]) is int and type(params["group_size"]) is int
    assert list(params) == list(entries)


def test_conditional_keys_are_drawn_only_where_their_condition_holds():
    assert in_order(CONDITIONAL) == ["algorithm.name", "algorithm.clip_range_high", "algorithm.ratio_cap"]
    fixed = {"algorithm.clip_range_high": 0.3, "algorithm.ratio_cap": 2.0}
    assert draw(CONDITIONAL, {"algorithm.name": "grpo", **fixed}) == {"algorithm.name": "grpo"}
    assert draw(CONDITIONAL, {"algorithm.name": "dapo", **fixed}) == {
        "algorithm.name": "dapo",
        "algorithm.clip_range_high": 0.3,
    }
    assert draw(CONDITIONAL, {"algorithm.name": "cispo", **fixed}) == {"algorithm.name": "cispo", **fixed}


def test_a_condition_on_a_key_that_is_itself_not_active_does_not_hold():
    chain = space(
        **{
            "algorithm.name": {"values": ["grpo", "dapo"]},
            "algorithm.kl_coef": {"values": [0.0, 0.1], "when": {"algorithm.name": "dapo"}},
            "algorithm.kl_estimator": {"values": ["k2", "k3"], "when": {"algorithm.kl_coef": 0.1}},
        }
    )
    params = {"algorithm.name": "grpo", "algorithm.kl_coef": 0.1}
    assert not is_active("algorithm.kl_estimator", chain, params)
    assert is_active("algorithm.kl_estimator", chain, {**params, "algorithm.name": "dapo"})


def test_the_context_of_a_key_meets_all_its_conditions_at_once():
    nested = space(
        **{
            "algorithm.name": {"values": ["grpo", "dapo", "gspo"]},
            "lr": {"values": [1e-4, 1e-3], "when": {"algorithm.name": ["dapo", "gspo"]}},
            "seed": {"values": [0, 1], "when": {"algorithm.name": ["grpo", "gspo"], "lr": 1e-3}},
        }
    )
    # grpo comes first in the condition of seed, but lr does not exist under it.
    assert context_of("seed", nested) == {"algorithm.name": "gspo", "lr": 1e-3}
    assert is_active("seed", nested, context_of("seed", nested))
    assert context_of("algorithm.name", nested) == {}


def test_covered_params_are_every_combination_with_the_files_values_for_the_rest():
    config = SweepConfig.model_validate(
        {
            "study": {"name": "s", "n_trials": 9, "cover": ["algorithm.name", "group_size"]},
            "search_space": CONDITIONAL | FOUR,
        }
    )
    found = covered_params(config)
    assert [(params["algorithm.name"], params["group_size"]) for params in found] == [
        (name, size) for name in ("grpo", "dapo", "cispo") for size in (4, 8, 16)
    ]
    rest = {"clip_range": 0.2, "reward_scale": 1.0, "lr": 1e-4}
    assert found[1] == default_params(config) == {"algorithm.name": "grpo", "group_size": 8, **rest}
    assert found[4] == {"algorithm.name": "dapo", "group_size": 8, "algorithm.clip_range_high": 0.28, **rest}


def test_points_of_finite_and_endless_keys():
    entries = space(
        group_size={"values": [4, 8]},
        num_steps={"min": 2, "max": 5},
        seed={"min": 1, "max": 7, "step": 3},
        lr={"min": 0.1, "max": 0.4, "step": 0.1},
        clip_range={"min": 0.1, "max": 0.3},
    )
    assert {key: points(key, entry) for key, entry in entries.items()} == {
        "group_size": [4, 8],
        "num_steps": [2, 3, 4, 5],
        "seed": [1, 4, 7],
        "lr": [0.1, 0.2, 0.3, 0.4],
        "clip_range": None,
    }
    assert points("seed", Dimension.model_validate({"min": 0, "max": 1000}), limit=1000) is None
