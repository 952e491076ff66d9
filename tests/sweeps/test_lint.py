from typing import Any

import pytest

from sweeps.knobs import KNOBS, METRICS
from sweeps.lint import Finding, lint
from sweeps.lint_study import metrics_known
from sweeps.sections import SweepConfig

HEALTHY: dict[str, Any] = {
    "study": {"name": "s", "n_trials": 16},
    "search_space": {"lr": {"min": 3e-5, "max": 3e-3, "log": True}},
    "train": {
        "warm_start": {"num_steps": 500},
        "algorithm": {"advantage_scale": "none", "entropy_coef": 0.02, "updates_per_batch": 2},
    },
}
SCALE = {"reward_scale": {"min": 0.5, "max": 2.0}}
CLIP = {"clip_range": {"min": 0.1, "max": 0.3}}


def merged(base: dict, top: dict) -> dict:
    both = {key: merged(base[key], top[key]) for key in base.keys() & top.keys() if isinstance(base[key], dict)}
    return {**base, **top, **both}


def findings(changes: dict) -> list[Finding]:
    return lint(SweepConfig.model_validate(merged(HEALTHY, changes)))


def keys(changes: dict) -> list[tuple[str, str]]:
    return [(finding.level, finding.key) for finding in findings(changes)]


def algorithm(**knobs) -> dict:
    return {"train": {"algorithm": knobs}}


def search(**entries) -> dict:
    return {"search_space": entries}


def test_a_healthy_sweep_has_no_findings():
    assert keys(search(**SCALE, **CLIP, group_size={"values": [4, 8, 16]})) == []


@pytest.mark.parametrize("scale", ["group_std", "batch_std"])
def test_reward_scale_cancels_in_divided_advantages(scale):
    (finding,) = findings({**search(**SCALE), **algorithm(advantage_scale=scale)})
    assert (finding.level, finding.key, finding.idle) == ("warning", "search_space.reward_scale", True)
    assert finding.message == (
        f"cannot matter: advantages are divided by their standard deviation ({scale}), which takes the scale out "
        "again; set train.algorithm.advantage_scale: none, or drop the key"
    )


def test_reward_scale_cancels_under_adamw_where_nothing_else_is_in_the_loss():
    (finding,) = findings({**search(**SCALE), **algorithm(entropy_coef=0.0)})
    assert finding.key == "search_space.reward_scale" and finding.idle
    assert "AdamW" in finding.message and "max_grad_norm" in finding.message
    assert keys({**search(**SCALE), **algorithm(entropy_coef=0.0, kl_coef=0.1)}) == []
    assert keys(search(**SCALE, **{"algorithm.entropy_coef": {"values": [0.0, 0.02]}})) == []


def test_a_reward_scale_that_is_set_but_not_searched_is_named_in_train():
    assert keys(algorithm(reward_scale=2.0, advantage_scale="group_std")) == [
        ("warning", "train.algorithm.reward_scale")
    ]
    assert keys(algorithm(reward_scale=1.0, advantage_scale="group_std")) == []


def test_reward_scale_that_matters_in_some_trials_only_wants_a_condition():
    scales = {"algorithm.advantage_scale": {"values": ["none", "group_std"]}}
    (finding,) = findings(search(**SCALE, **scales))
    assert (finding.level, finding.key, finding.idle) == ("warning", "search_space.reward_scale", False)
    assert "when: {algorithm.advantage_scale: none}" in finding.message


def test_clip_range_cannot_matter_in_a_single_update():
    assert keys({**search(**CLIP), **algorithm(updates_per_batch=1)}) == [("warning", "search_space.clip_range")]
    assert keys(search(**CLIP, **{"algorithm.updates_per_batch": {"values": [1, 2]}})) == []
    assert keys(algorithm(updates_per_batch=1, clip_range=0.3)) == [("warning", "train.algorithm.clip_range")]


def test_each_way_of_clipping_reads_its_own_knob():
    cispo = algorithm(name="cispo", aggregation="token_mean", clipping="weight")
    assert keys({**search(**CLIP), **cispo}) == [("error", "search_space.clip_range")]
    cap = {"algorithm.ratio_cap": {"values": [2.0, 5.0]}}
    assert keys({**search(**cap), **cispo}) == []
    (finding,) = findings(search(**cap))
    assert (finding.level, finding.key) == ("error", "search_space.algorithm.ratio_cap")
    assert finding.message == (
        "grpo never reads it: read when clipping is weight; change that, take an algorithm that reads it (cispo), "
        "or drop the key"
    )


def test_a_combination_that_needs_several_searched_knobs_is_found():
    many = {f"algorithm.{name}": {"values": values} for name, values in MANY.items()}
    assert ("warning", "search_space.algorithm.aggregation") in keys(search(**CLIP, **many))


MANY = {
    "ratio_level": ["token", "sequence"],
    "aggregation": ["sequence_mean", "token_mean", "constant"],
    "baseline": ["mean", "median", "leave_one_out", "none"],
    "updates_per_batch": [1, 2, 4, 8],
    "kl_coef": [0.0, 0.01, 0.1],
    "mask_truncated": [False, True],
}


def test_when_no_searched_key_can_matter_the_study_is_refused():
    changes = {"search_space": SCALE, **algorithm(advantage_scale="group_std")}
    only = lint(SweepConfig.model_validate({**merged(HEALTHY, changes), "search_space": SCALE}))
    assert [(finding.level, finding.key) for finding in only] == [
        ("error", "search_space"),
        ("warning", "search_space.reward_scale"),
    ]


def test_group_sizes_that_do_not_divide_are_errors_with_the_legal_ones():
    (finding,) = findings(search(group_size={"values": [4, 6, 8]}))
    assert (finding.level, finding.key) == ("error", "search_space.group_size.values")
    assert finding.message.endswith("legal group sizes: 2, 4, 8, 16, 32, 64")


def test_group_size_1_has_no_baseline():
    (finding,) = findings(search(group_size={"values": [1, 8]}))
    assert finding.level == "error"
    assert finding.message == "a group needs at least 2 completions for a baseline; use 2 to 64"


def test_sequence_ratios_belong_to_sequence_means_and_tiny_clips():
    gspo = {"name": "gspo", "clip_range": 3e-4}
    assert keys(algorithm(**gspo)) == []
    assert keys(algorithm(**gspo, aggregation="token_mean")) == [("warning", "train.algorithm.aggregation")]
    found = findings({**search(**CLIP), **algorithm(name="gspo", clip_range=0.2)})
    assert [(finding.key, finding.idle) for finding in found] == [("search_space.clip_range", False)]


def test_a_wide_sequence_clip_is_named_where_it_is_searched():
    names = {"algorithm.name": {"values": ["grpo", "gspo"]}}
    (finding,) = findings(search(**names, **CLIP))
    assert finding.key == "search_space.clip_range" and finding.message.endswith("another when: clip_range/gspo")
    own = {"clip_range": {**CLIP["clip_range"], "when": {"algorithm.name": "grpo"}}}
    tiny = {"min": 1e-4, "max": 1e-3, "log": True, "when": {"algorithm.name": "gspo"}}
    assert keys(search(**names, **own, **{"clip_range/gspo": tiny})) == []
    (finding,) = findings(search(**names, **own, **{"clip_range/gspo": {**tiny, "max": 0.1}}))
    assert finding.key == "search_space.clip_range/gspo" and finding.message.endswith("use about 3e-4 (GSPO)")


def test_knobs_that_another_setting_switches_off():
    assert keys(algorithm(constant_length=8)) == [("error", "train.algorithm.constant_length")]
    assert keys(algorithm(constant_length=8, aggregation="constant")) == []
    assert keys(algorithm(kl_estimator="k2")) == [("error", "train.algorithm.kl_estimator")]
    assert keys(algorithm(kl_estimator="k2", kl_coef=0.1)) == []
    assert keys(algorithm(kl_estimator="k1", kl_coef=0.1)) == [("warning", "train.algorithm.kl_estimator")]


# A value that a knob doesn't have by default, and what makes an algorithm read it.
SWITCHES = {
    "algorithm.gamma": (0.9, {"credit": "token"}),
    "algorithm.gae_lambda": (0.9, {"credit": "token"}),
    "algorithm.value_coef": (0.3, {"credit": "token", "baseline": "value"}),
    "algorithm.value_clip_range": (0.3, {"credit": "token", "baseline": "value"}),
    "algorithm.clip_range": (0.3, {"clipping": "surrogate"}),
    "algorithm.clip_range_high": (0.3, {"clipping": "surrogate"}),
    "algorithm.dual_clip": (3.0, {"clipping": "surrogate"}),
    "algorithm.ratio_cap": (3.0, {"clipping": "weight"}),
    "algorithm.constant_length": (9, {"aggregation": "constant"}),
    "algorithm.min_similar_group": (16, {"grouping": "similarity"}),
    "algorithm.max_similar_group": (32, {"grouping": "similarity"}),
    "algorithm.max_refills": (2, {"dynamic_sampling": True}),
    "algorithm.overlong_buffer_tokens": (9, {"overlong_penalty": 1.0}),
    "algorithm.kl_estimator": ("k2", {"kl_coef": 0.1}),
    "algorithm.kl_in": ("reward", {"kl_coef": 0.1}),
    "algorithm.entropy_coef_step": (0.1, {"entropy_target": 0.7}),
    "optim.value_lr_factor": (3.0, {"credit": "token", "baseline": "value"}),
    "rollout.temperature_min": (0.5, {"temperature_decay": 0.9}),
}


@pytest.mark.parametrize("path", KNOBS)
def test_a_knob_that_nothing_reads_is_refused_and_one_that_is_read_is_not(path):
    value, switch = SWITCHES[path]
    section, name = path.split(".")
    off = {"clipping": "weight"} if "clipping" in switch and switch["clipping"] == "surrogate" else {}
    assert ("error", f"train.{path}") in keys({"train": {section: {name: value, **off}}})
    switched = {"rollout" if section == "rollout" else "algorithm": switch}
    assert keys({"train": merged({section: {name: value}}, switched)}) == []


def test_a_knob_that_some_algorithms_read_wants_a_condition():
    names = {"algorithm.name": {"values": ["grpo", "ppo", "cispo"]}}
    value = {"algorithm.value_coef": {"min": 0.1, "max": 1.0}}
    given = {"train": {"algorithm": {"advantage_scale": "group_std", "entropy_coef": 0.0}}}
    sweep = SweepConfig.model_validate(
        {**HEALTHY, "train": {"warm_start": {"num_steps": 500}, **given["train"]}, "search_space": {**names, **value}}
    )
    (finding,) = lint(sweep)
    assert (finding.level, finding.key) == ("warning", "search_space.algorithm.value_coef")
    assert finding.message == "matters only when baseline is value; add when: {algorithm.name: [ppo]}"
    value["algorithm.value_coef"]["when"] = {"algorithm.name": "ppo"}
    assert lint(SweepConfig.model_validate({**sweep.dump(), "search_space": {**names, **value}})) == []


GRPO_OR_PPO = {"algorithm.name": {"values": ["grpo", "ppo"]}}


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("grpo", "error: search_space.algorithm.value_coef: grpo never reads it: read when baseline is"),
        (
            ["grpo", "ppo"],
            "warning: search_space.algorithm.value_coef: matters only when baseline is value; narrow",
        ),
        ("ppo", None),
    ],
)
def test_a_knob_is_judged_under_its_own_condition(when, expected):
    value = {"algorithm.value_coef": {"min": 0.1, "max": 1.0, "when": {"algorithm.name": when}}}
    found = findings({**search(**GRPO_OR_PPO, **value), **algorithm(advantage_scale="group_std")})
    assert [str(finding)[: len(expected)] for finding in found] == [expected] if expected else found == []


def test_the_condition_to_add_is_told_by_whichever_key_decides():
    coefs, estimators = {"values": [0.0, 0.01, 0.1]}, {"values": ["k2", "k3"]}
    (finding,) = findings(search(**{"algorithm.kl_coef": coefs, "algorithm.kl_estimator": estimators}))
    assert finding.message == "matters only when kl_coef is above 0; add when: {algorithm.kl_coef: [0.01, 0.1]}"
    factor = {"optim.value_lr_factor": {"min": 1.0, "max": 20.0}}
    (finding,) = findings({**search(**GRPO_OR_PPO, **factor), **algorithm(advantage_scale="group_std")})
    assert finding.message == "matters only when baseline is value; add when: {algorithm.name: [ppo]}"


def test_a_condition_on_a_number_does_not_hide_who_reads_a_knob():
    spaces = {
        "group_size": {"values": [4, 8]},
        "algorithm.clipping": {"values": ["surrogate", "weight"], "when": {"group_size": 4}},
        "algorithm.ratio_cap": {"min": 2.0, "max": 8.0, "when": {"algorithm.clipping": "weight"}},
    }
    assert keys(search(**spaces)) == []


def test_a_range_of_kl_coef_from_0():
    ranged = {"algorithm.kl_coef": {"min": 0.0, "max": 0.1}}
    (finding,) = findings(search(**ranged))
    assert (finding.level, finding.key) == ("warning", "search_space.algorithm.kl_coef")
    assert finding.message.startswith("a trial at 0 loads no reference, one just above it loads and runs a reference")
    assert keys(search(**{"algorithm.kl_coef": {"values": [0.0, 0.1]}})) == []


def test_dynamic_sampling_with_hardly_a_bound():
    assert keys(algorithm(name="dapo", max_refills=8)) == []
    assert keys(algorithm(name="dapo", max_refills=9)) == [("warning", "train.algorithm.max_refills")]
    ranged = {"algorithm.max_refills": {"min": 1, "max": 12}}
    (finding,) = findings({**search(**ranged), **algorithm(name="dapo")})
    assert finding.key == "search_space.algorithm.max_refills"
    assert finding.message.startswith("a step may sample 13 times its completions")


def test_kl_in_the_reward_beside_divided_advantages():
    knobs = {"kl_in": "reward", "kl_coef": 0.1, "kl_estimator": "k1"}
    assert keys(algorithm(**knobs)) == []
    assert keys(algorithm(**knobs, advantage_scale="group_std")) == [("warning", "train.algorithm.kl_in")]


def test_reward_scale_weighs_against_what_is_there_before_the_advantages_are_divided():
    divided = {"advantage_scale": "batch_std"}
    assert keys({**search(**SCALE), **algorithm(**divided, kl_in="reward", kl_coef=0.1)}) == []
    assert keys({**search(**SCALE), **algorithm(**divided, credit="token", baseline="value")}) == []


def test_warm_start_is_for_the_tiny_policy():
    assert keys({"train": {"warm_start": {"num_steps": 0}}}) == [("warning", "train.warm_start.num_steps")]
    hub = {"name": "Qwen/Qwen2.5-0.5B-Instruct"}
    assert keys({"train": {"policy": hub}}) == [("warning", "train.warm_start.num_steps")]
    assert keys({"train": {"policy": hub, "warm_start": {"num_steps": 0}}}) == []


def test_a_rate_that_never_reaches_its_peak():
    assert keys({"train": {"optim": {"lr_warmup_steps": 60}}}) == [("warning", "train.optim.lr_warmup_steps")]
    assert keys({"train": {"optim": {"lr_warmup_steps": 59}}}) == []


def objective(metric: str, **others) -> dict:
    return {"study": {"objective": {"metric": metric, **others}}}


def test_the_objective_must_be_recorded():
    (finding,) = findings(objective("eval/acuracy"))
    assert (finding.level, finding.key) == ("error", "study.objective.metric")
    assert "eval/accuracy, eval/accuracy_greedy" in finding.message and "policy/entropy" in finding.message
    assert keys(objective("reward/correct")) == []
    assert keys(objective("reward/")) == [("error", "study.objective.metric")]
    assert keys(objective("eval/accuracy_greedy")) == []
    greedy = {**objective("eval/accuracy_greedy"), "train": {"eval": {"greedy": False}}}
    assert keys(greedy) == [("error", "study.objective.metric")]
    assert keys(objective("time/step_s", direction="minimize")) == [("warning", "study.objective.metric")]
    assert keys(objective("eval/accuracy", direction="minimize")) == [("warning", "study.objective.direction")]


# What makes each metric that not every run has; the rest of a healthy sweep has none of them.
RECORDED = {
    "reward/smoothed": {"smoothing_window": 5},
    "loss/value": {"credit": "token", "baseline": "value"},
    "value/explained_variance": {"credit": "token", "baseline": "value"},
    "policy/kl": {"kl_coef": 0.1},
    "policy/kl_coef": {"kl_coef": 0.1, "kl_target": 0.1},
    "policy/entropy_coef": {"entropy_target": 0.7},
    "policy/sampler_ratio": {"importance_cap": 2.0},
    "policy/sampler_ratio_max": {"importance_cap": 2.0},
    "policy/sampler_truncated_frac": {"importance_cap": 2.0},
    "rollout/refills": {"dynamic_sampling": True},
    "rollout/extra_completions": {"dynamic_sampling": True},
    "rollout/used_frac": {"dynamic_sampling": True},
    "optim/idle_steps": {"dynamic_sampling": True},
}


@pytest.mark.parametrize("metric", METRICS)
def test_an_objective_that_not_every_trial_has_is_refused(metric):
    assert metric in metrics_known()
    if metric in RECORDED:
        assert keys(objective(metric)) == [("error", "study.objective.metric")]
        assert keys({**objective(metric), **algorithm(**RECORDED[metric])}) == []


def test_an_objective_that_only_some_trials_have_is_refused():
    ppo = {**search(**GRPO_OR_PPO), **algorithm(advantage_scale="group_std")}
    (finding,) = findings({**objective("value/explained_variance"), **ppo})
    assert finding.level == "error"
    assert finding.message == (
        "not every trial has value/explained_variance: it says something only when baseline is value; "
        "set that in train, or rank by eval/accuracy"
    )


def test_budget():
    assert keys({"study": {"n_trials": 5}}) == [("warning", "study.sampler.n_startup_trials")]
    assert keys({"study": {"n_trials": 5, "sampler": {"name": "random"}}}) == []
    small = {"search_space": {"group_size": {"values": [4, 8]}, "num_steps": {"values": [60]}}}
    found = lint(SweepConfig.model_validate({**HEALTHY, **small}))
    assert ("study.n_trials", "the space has only 2 different settings; use 2 trials, or widen the space") in [
        (finding.key, finding.message) for finding in found
    ]
    grid = {
        "study": {"name": "s", "n_trials": 7, "sampler": {"name": "grid"}},
        "search_space": {"group_size": {"values": [4, 8]}, "lr": {"values": [1e-4, 2e-4, 3e-4, 1e-3]}},
    }
    (finding,) = lint(SweepConfig.model_validate({**HEALTHY, **grid}))
    assert (finding.key, finding.message) == (
        "study.n_trials",
        "the grid has 8 points, 7 trials leave some out; use 8 trials",
    )


def test_cmaes_models_ranges():
    cmaes = {"study": {"sampler": {"name": "cmaes"}}}
    assert keys(cmaes) == [("warning", "study.sampler.name")]
    assert keys({**cmaes, **search(**SCALE)}) == []


def pruned(name: str, **others) -> dict:
    return {"study": {"pruner": {"name": name, **others}}}


def test_a_pruner_needs_values_between_min_steps_and_the_last_step():
    assert keys(pruned("hyperband")) == []
    assert keys(pruned("hyperband", min_steps=60)) == [("warning", "study.pruner.min_steps")]
    assert keys({**pruned("hyperband", min_steps=30), "train": {"eval": {"every": 40}}}) == []
    assert keys({**pruned("asha"), "train": {"eval": {"every": 60}}}) == [("warning", "train.eval.every")]
    assert keys({**pruned("hyperband", min_steps=40), "train": {"eval": {"every": 20}}}) == []
    assert keys({**pruned("hyperband", min_steps=41), "train": {"eval": {"every": 20}}}) == [
        ("warning", "train.eval.every")
    ]
    assert keys({**pruned("hyperband"), "train": {"num_steps": 10**18}}) == []
    per_step = merged(pruned("asha"), objective("reward/mean"))
    assert keys({**per_step, "train": {"eval": {"every": 60}}}) == []
    assert keys(merged(pruned("median"), {"study": {"n_trials": 5, "sampler": {"n_startup_trials": 2}}})) == [
        ("warning", "study.pruner")
    ]
    assert keys(pruned("median", options={"n_startup_trials": 16})) == [("warning", "study.pruner")]


@pytest.mark.parametrize(
    ("limits", "fires"),
    [
        ({"entropy": {"min": 0.5, "max": 1.0, "warmup_steps": 57, "patience": 3}}, True),
        ({"entropy": {"min": 0.5, "max": 1.0, "warmup_steps": 57, "patience": 4}}, False),
        ({"grad_norm": {"max": 10.0, "patience": 61}}, False),
        ({"reward_collapse": {"window": 57, "patience": 3}}, True),
        ({"reward_collapse": {"window": 58, "patience": 3}}, False),
    ],
)
def test_a_limit_must_be_able_to_fire_within_the_run(limits, fires):
    (rule,) = limits
    assert keys({"stability": limits}) == ([] if fires else [("warning", f"stability.{rule}")])


def test_other_limits_to_think_about():
    assert keys({"stability": {"reward_collapse": {"drop": 1.0}}}) == [("warning", "stability.reward_collapse.drop")]
    band = {"stability": {"entropy": {"min": 0.5, "max": 1.0}}}
    hot = search(**{"rollout.temperature": {"values": [0.8, 1.0]}})
    assert keys({**band, **hot}) == [("warning", "stability.entropy")]
    decay = search(**{"rollout.temperature_decay": {"values": [0.99, 1.0]}})
    assert keys({**band, **decay}) == [("warning", "stability.entropy")]


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("policy.hidden_size", [64, 96]),
        ("warm_start.num_steps", [100, 500]),
        ("task.seed", [0, 1]),
        ("eval.samples_per_problem", [2, 4]),
        ("rollout.completions_per_step", [64, 128]),
        ("num_steps", [30, 60]),
        ("seed", [0, 1]),
    ],
)
def test_trials_that_would_not_compare(key, values):
    assert keys(search(**{key: {"values": values}})) == [("warning", f"search_space.{key}")]


def test_adapters_of_different_ranks_start_from_the_same_policy():
    ranks = search(**{"policy.lora.rank": {"values": [8, 16]}})
    assert keys(merged(ranks, {"train": {"policy": {"lora": {"rank": 16}}}})) == []


def test_a_key_with_one_value_is_no_search():
    assert keys(search(group_size={"values": [8]})) == [("warning", "search_space.group_size")]


def test_findings_read_as_a_line():
    (finding,) = findings(search(group_size={"values": [8]}))
    assert str(finding) == (
        "warning: search_space.group_size: cannot matter: it has a single value; add another, or set it in train"
    )
