"""Every mistake of a search space: named with key, line, value, rule and fix, the nearest legal value among them."""

from pathlib import Path

import pytest

from sweeps.config import ConfigError, load_sweep
from sweeps.search_space import default_params

HEAD = "study: {name: s, n_trials: 4}\n"
SPACE = "search_space:\n  lr: {min: 3e-5, max: 3e-3, log: true}\n"


def told(folder: Path, text: str) -> list[str]:
    path = folder / "f.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_sweep(path)
    return [str(problem).removeprefix(f"{path}:") for problem in caught.value.problems]


def in_space(folder: Path, entry: str, train: str = "") -> list[str]:
    """What is said about one more entry of the space, which stands in line 4."""
    return told(folder, f"{HEAD}{SPACE}  {entry}\n{train}")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            "reward_scale: {min: 0, max: 2.0, log: true}",
            "4: search_space.reward_scale.min=0: a log scale has no place for 0 or less; "
            "use a min above 0, for example 0.002, or drop log",
        ),
        (
            "num_steps: {min: 0, max: 64, log: true}",
            "4: search_space.num_steps.min=0: a log scale has no place for 0 or less; "
            "use a min above 0, for example 1, or drop log",
        ),
        (
            "reward_scale: {min: 0.5, max: 2.0, log: true, step: 0.5}",
            "4: search_space.reward_scale.step=0.5: a log scale has no step; drop step or log",
        ),
        (
            "reward_scale: {min: 0.5, max: 2.0, step: 0.4}",
            "4: search_space.reward_scale.max=2: step=0.4 from min=0.5 does not reach it; "
            "use 2.1, the nearest max that it reaches, or another step",
        ),
        (
            "num_steps: {min: 10, max: 64, step: 25}",
            "4: search_space.num_steps.max=64: step=25 from min=10 does not reach it; "
            "use 60, the nearest max that it reaches, or another step",
        ),
        (
            "num_steps: {min: 50, max: 64, step: 100}",
            "4: search_space.num_steps.max=64: step=100 from min=50 does not reach it; "
            "use 150, the nearest max that it reaches, or another step",
        ),
        (
            "reward_scale: {min: 0.5, max: 2.0, step: 0}",
            "4: search_space.reward_scale.step=0: must be above 0; use a positive step or drop it",
        ),
        (
            "reward_scale: {min: 2.0, max: 0.5}",
            "4: search_space.reward_scale.min=2: not below max=0.5; swap them: min: 0.5, max: 2.0",
        ),
        (
            "reward_scale: {min: 1.0, max: 1.0}",
            "4: search_space.reward_scale.min=1: not below max=1; raise max, or set the value in train",
        ),
        ("reward_scale: {min: 0.5}", "4: search_space.reward_scale: max is missing; add max, or list values"),
        ("reward_scale: {max: 0.5}", "4: search_space.reward_scale: min is missing; add min, or list values"),
        ("reward_scale: {}", "4: search_space.reward_scale: no range; give values: [...], or min and max"),
        ("reward_scale: {values: []}", "4: search_space.reward_scale.values=[]: no values; list at least one,"),
        (
            "reward_scale: {values: [1.0], max: 2.0, log: true}",
            "4: search_space.reward_scale.max: stands beside values; keep values or max, log",
        ),
        (
            "reward_scale: {values: [1.0, 2.0, 1]}",
            "4: search_space.reward_scale.values=1: listed more than once; list each value once",
        ),
        (
            "group_size: {values: [8, 16, '8']}",
            "4: search_space.group_size.values=8: listed more than once; list each value once",
        ),
        (
            "group_size: {values: [8, many]}",
            "4: search_space.group_size.values=many: wants a whole number; the default is 8",
        ),
        (
            "group_size: {min: 2.5, max: 8}",
            "4: search_space.group_size.min=2.5: algorithm.group_size is a whole number; use 2 or 3",
        ),
        (
            "group_size: {min: 2, max: 8.0}",
            "4: search_space.group_size.max=8: algorithm.group_size is a whole number; use 8",
        ),
        (
            "eval.greedy: {min: 0, max: 1}",
            "4: search_space.eval.greedy: eval.greedy has no range; use values: [true, false]",
        ),
        (
            "algorithm.baseline: {min: 0, max: 1}",
            "4: search_space.algorithm.baseline: algorithm.baseline has no range; "
            "use values: [mean, median, leave_one_out, batch_mean, value, none]",
        ),
        (
            "algorithm.baseline: {values: [mean, leave_one]}",
            "4: search_space.algorithm.baseline.values=leave_one: not one of the choices; "
            "did you mean leave_one_out? use mean, median, leave_one_out, batch_mean, value, none",
        ),
        (
            "clip_range: {min: -0.1, max: 0.3}",
            "4: search_space.clip_range.min=-0.1: must be above 0; the default is 0.2",
        ),
        (
            "clip_range: {min: 0.1, max: 1.5}",
            "4: search_space.clip_range.max=1.5: 1 or more clips no ratio from below; use 0 < clip_range < 1",
        ),
        (
            "eval.num_problems: {values: [256, 1024]}",
            "4: search_space.eval.num_problems.values=1024: more than task.num_validation=512;",
        ),
        (
            "task.num_validation: {values: [100, 512]}",
            "4: search_space.task.num_validation.values=100: makes train.eval.num_problems=256 wrong: more than",
        ),
        (
            "num_steps: {values: [true, 60]}",
            "4: search_space.num_steps.values=true: num_steps is not true or false; list values of its own kind",
        ),
        ("learning_rate: {values: [1]}", "4: search_space.learning_rate: not a field of train; did you mean lr or"),
        ("kl_coef: {values: [0.0]}", "4: search_space.kl_coef: not a field of train; did you mean algorithm.kl_coef?"),
        ("algorithm: {values: [1]}", "4: search_space.algorithm: not a field of train;"),
        (
            "optim.lr: {values: [1e-4]}",
            "4: search_space.optim.lr: the same field as search_space.lr; keep one of the two, or give them conditions",
        ),
        (
            "reward_scale/: {min: 0.5, max: 2.0}",
            "4: search_space.reward_scale/: a label is one word of letters, digits, _ and -; "
            "write for example reward_scale/gspo",
        ),
        ("reward_scale/a/b: {min: 0.5, max: 2.0}", "4: search_space.reward_scale/a/b: a label is one word"),
        ("reward_scale/../x: {min: 0.5, max: 2.0}", "4: search_space.reward_scale/../x: a label is one word"),
        ("'reward_scale/ä {x}': {values: [1.0]}", "4: search_space.reward_scale/ä {x}: a label is one word"),
        (
            "lr/late: {min: 1e-5, max: 1e-4}",
            "4: search_space.lr/late: the same field as search_space.lr; keep one of the two, or give them conditions",
        ),
        (
            "policy.lora.rank: {values: [8, 16]}",
            "4: train.policy.lora.rank=null: trial 0 runs the file's own values, and this one is outside",
        ),
        ("compute.num_ranks: {values: [1, 2]}", "4: search_space.compute.num_ranks: belongs to the machine,"),
        ("task.reward_weights: {values: [1]}", "4: search_space.task.reward_weights: not a field of train;"),
    ],
)
def test_mistakes_of_an_entry_of_the_space(tmp_path, entry, expected):
    (found,) = in_space(tmp_path, entry)
    assert found.startswith(expected)


@pytest.mark.parametrize(
    "entry", ["reward_scale: {min: 0.1, max: 1.0, step: 0.1}", "num_steps: {min: 20, max: 60, step: 20}"]
)
def test_steps_that_reach_the_end_as_a_person_counts(tmp_path, entry):
    path = tmp_path / "f.yaml"
    path.write_text(f"{HEAD}{SPACE}  {entry}\n")
    load_sweep(path)


def test_every_group_size_of_the_space_divides_the_batch(tmp_path):
    train = "train: {rollout: {completions_per_step: 56}}\n"
    assert in_space(tmp_path, "group_size: {values: [8, 16, 3, 7]}", train) == [
        "4: search_space.group_size.values=[16, 3]: rollout.completions_per_step=56 is not a whole number of groups; "
        "legal group sizes: 2, 4, 7, 8, 14, 28, 56"
    ]
    (found,) = in_space(tmp_path, "group_size: {min: 4, max: 8}", train)
    assert found.startswith("4: search_space.group_size=[5, 6]: rollout.completions_per_step=56 is not a whole")


def test_seven_completions_for_groups_of_eight(tmp_path):
    # The base is wrong already, and says so once, with the sizes that would do.
    text = f"{HEAD}{SPACE}train: {{rollout: {{completions_per_step: 7}}, algorithm: {{group_size: 8}}}}\n"
    assert told(tmp_path, text) == [
        "4: train.algorithm.group_size=8: rollout.completions_per_step=7 is not a whole number of groups; "
        "legal group sizes: 7"
    ]


def test_group_sizes_are_checked_with_the_ranks(tmp_path):
    text = "train: {rollout: {completions_per_step: 16}}\nresources: {processes_per_trial: 2}\n"
    assert in_space(tmp_path, "group_size: {values: [4, 8, 16]}", text) == [
        "4: search_space.group_size.values=16: rollout.completions_per_step=16 on 2 ranks is not a whole number of "
        "groups; legal group sizes: 2, 4, 8"
    ]


def test_values_that_do_not_fit_together_are_found(tmp_path):
    entries = "group_size: {values: [8, 16]}\n  rollout.completions_per_step: {values: [120, 128]}"
    (found,) = in_space(tmp_path, entries)
    assert found.startswith(
        "4: search_space.group_size=16: with rollout.completions_per_step=120: rollout.completions_per_step=120 is not "
        "a whole number of groups; legal group sizes: 2, 3, 4, 5, 6, 8,"
    )


@pytest.mark.parametrize(
    ("entry", "train", "expected"),
    [
        (
            "reward_scale: {min: 2.0, max: 4.0}",
            "train: {algorithm: {reward_scale: 1.5}}\n",
            "5: train.algorithm.reward_scale=1.5: trial 0 runs the file's own values, and this one is outside "
            "search_space.reward_scale, 2.0 to 4.0; set one inside, or widen the space",
        ),
        ("reward_scale: {min: 2.0, max: 4.0}", "", "4: train.algorithm.reward_scale=1: trial 0 runs"),
        (
            "group_size: {values: [4, 16]}",
            "",
            "4: train.algorithm.group_size=8: trial 0 runs the file's own values, and",
        ),
        (
            "num_steps: {min: 50, max: 100, step: 25}",
            "",
            "4: train.num_steps=60: trial 0 runs the file's own values, and",
        ),
        (
            "algorithm.clip_range_high: {min: 0.2, max: 0.3}",
            "",
            "4: train.algorithm.clip_range_high=null: trial 0 runs",
        ),
        (
            "task.reward_weights.correct: {min: 1, max: 2}",
            "",
            "4: train.task.reward_weights.correct=null: trial 0 runs",
        ),
    ],
)
def test_trial_0_lies_inside_the_space(tmp_path, entry, train, expected):
    (found,) = in_space(tmp_path, entry, train)
    assert found.startswith(expected)


NAMES = "algorithm.name: {values: [grpo, dapo]}\n  "


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            "clip_range: {min: 0.1, max: 0.3, when: {algorithm.name: dapo}}",
            "4: search_space.clip_range.when.algorithm.name: a condition reads a searched key of this file; "
            "add algorithm.name to search_space, or drop the condition",
        ),
        (
            "clip_range: {min: 0.1, max: 0.3, when: {optim.lr: 1e-4}}",
            "4: search_space.clip_range.when.optim.lr: a condition reads a searched key of this file; write it lr",
        ),
        (
            f"{NAMES}clip_range: {{min: 0.1, max: 0.3, when: {{algorithm.name: gspo}}}}",
            "5: search_space.clip_range.when.algorithm.name=gspo: search_space.algorithm.name never has that value; "
            "use one of [grpo, dapo]",
        ),
        (
            f"{NAMES}clip_range: {{min: 0.1, max: 0.3, when: dapo}}",
            "5: search_space.clip_range.when=dapo: wants a mapping; write key: value below it",
        ),
        (
            f"{NAMES}algorithm.mask_truncated: {{values: [false, true], when: {{algorithm.name: grpo}}}}\n"
            "  reward_scale: {min: 0.5, max: 2.0, when: {algorithm.mask_truncated: true, algorithm.name: dapo}}",
            "6: search_space.reward_scale.when: never holds: with the conditions of its parents it wants two values of "
            "algorithm.name at once; drop one",
        ),
        (
            "clip_range: {values: [0.2], when: {clip_range: 0.2}}",
            "4: search_space.clip_range.when.clip_range: the conditions run in a circle; drop one of them",
        ),
    ],
)
def test_mistakes_of_conditions(tmp_path, entry, expected):
    assert in_space(tmp_path, entry) == [expected]


def test_a_conditional_key_is_checked_under_its_condition(tmp_path):
    path = tmp_path / "f.yaml"
    entry = "algorithm.clip_range_high: {min: 0.25, max: 0.3, when: {algorithm.name: dapo}}"
    path.write_text(f"{HEAD}{SPACE}  {NAMES}{entry}\n")
    config = load_sweep(path)
    # Trial 0 runs grpo, under which the key does not exist.
    assert default_params(config) == {"lr": 1e-4, "algorithm.name": "grpo"}


def test_twins_may_exclude_each_other_through_their_parents(tmp_path):
    path = tmp_path / "f.yaml"
    mask = "algorithm.mask_truncated: {values: [false, true], when: {algorithm.name: grpo}}"
    one = "reward_scale: {min: 0.5, max: 2.0, when: {algorithm.mask_truncated: true}}"
    other = "reward_scale/dapo: {min: 4.0, max: 8.0, when: {algorithm.name: dapo}}"
    path.write_text(f"{HEAD}{SPACE}  {NAMES}{mask}\n  {one}\n  {other}\n")
    assert list(load_sweep(path).search_space)[-2:] == ["reward_scale", "reward_scale/dapo"]


def test_a_grid_needs_finite_keys(tmp_path):
    text = "study: {name: s, n_trials: 4, sampler: {name: grid}}\n" + SPACE
    assert told(tmp_path, text) == [
        "3: search_space.lr: sampler grid tries every value, and this range has no end of them; "
        "list values, or give a step"
    ]
