"""Every mistake of a sweep file: named with key, line, value, rule and fix, all in one error."""

from pathlib import Path

import pytest

from sweeps import yaml_source
from sweeps.config import ConfigError, Problem, load_sweep

HEAD = "study: {name: s, n_trials: 4}\n"
SPACE = "search_space:\n  lr: {min: 3e-5, max: 3e-3, log: true}\n"


def problems(folder: Path, text: str) -> list[Problem]:
    path = folder / "f.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_sweep(path)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return caught.value.problems


def told(folder: Path, text: str) -> list[str]:
    return [str(problem).removeprefix(f"{folder}/f.yaml:").lstrip() for problem in problems(folder, text)]


def test_a_problem_has_its_parts(tmp_path):
    (problem,) = problems(tmp_path, HEAD + SPACE + "train:\n  algorithm:\n    group_size: 1\n")
    assert (problem.key, problem.line, problem.value) == ("train.algorithm.group_size", 6, 1)
    assert problem.message == "a group needs at least 2 completions for a baseline; use 2 to 64"
    assert problem.source == str(tmp_path / "f.yaml")
    assert isinstance(ConfigError([problem]), ValueError)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            f"direction: maximize\n{HEAD}{SPACE}",
            "1: direction=maximize: unknown key; did you mean study.objective.direction?",
        ),
        (
            f"study:\n  name: s\n  n_trials: 4\n  direction: maximize\n{SPACE}",
            "4: study.direction=maximize: unknown key; did you mean study.objective.direction?",
        ),
        (f"{HEAD}{SPACE}trian: {{}}\n", "4: trian: unknown key; did you mean train?"),
        (
            f"{HEAD}{SPACE}train: {{learning_rate: 1}}\n",
            "4: train.learning_rate=1: unknown key; did you mean train.optim.lr",
        ),
        (
            f"{HEAD}{SPACE}train: {{optim: {{lrr: 1}}}}\n",
            "4: train.optim.lrr=1: unknown key; did you mean train.optim.lr?",
        ),
        (f"{HEAD}{SPACE}early_terminate: 1\n", "4: early_terminate=1: unknown key; did you mean study.pruner?"),
        (f"{HEAD}{SPACE}profile: cpu\n", "4: profile=cpu: unknown key; choose a profile with --profile NAME"),
        (
            f"{HEAD}search_space:\n  lr: {{low: 1e-5, max: 1e-3}}\n",
            "3: search_space.lr.low=1e-05: unknown key; did you mean search_space.lr.min?",
        ),
        (
            f"{HEAD}{SPACE}train: {{optim: {{zzz: 1}}}}\n",
            "4: train.optim.zzz=1: unknown key; keys of train.optim: lr, lr_schedule,",
        ),
    ],
)
def test_unknown_keys_are_named_with_their_likely_place(tmp_path, text, expected):
    (found,) = told(tmp_path, text)
    assert found.startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"study: {{n_trials: 4}}\n{SPACE}", "1: study.name: missing; add `name: …` to study"),
        (f"study: {{name: s}}\n{SPACE}", "1: study.n_trials: missing; add `n_trials: …` to study"),
        (f"study: {{name: s, n_trials: 0}}\n{SPACE}", "1: study.n_trials=0: must be at least 1; use at least 1"),
        (f"study: {{name: s, n_trials: true}}\n{SPACE}", "1: study.n_trials=true: wants a whole number"),
        (f"study: {{name: 7, n_trials: 4}}\n{SPACE}", '1: study.name=7: wants text; put it in quotes: "7"'),
        (f"study: 5\n{SPACE}", "1: study=5: wants a mapping; use the keys name, objective,"),
        (
            f"study: {{name: s, n_trials: 4, storage: study.db}}\n{SPACE}",
            "1: study.storage=study.db: not a database URL; write sqlite:///path.db or",
        ),
        (
            f"study: {{name: s, n_trials: 4, sampler: {{name: bayes}}}}\n{SPACE}",
            "1: study.sampler.name=bayes: not one of the choices; use tpe, gp, cmaes, random, grid, qmc, nsga2",
        ),
        (
            f"study: {{name: s, n_trials: 4, pruner: {{name: hyperbnd}}}}\n{SPACE}",
            "1: study.pruner.name=hyperbnd: not one of the choices; did you mean hyperband? "
            "use none, hyperband, asha, median, percentile, patient, threshold",
        ),
        (f"{HEAD}search_space: {{}}\n", "2: search_space: nothing to search; add a key such as"),
        (HEAD, "search_space: nothing to search; add a key such as"),
        (f"{HEAD}search_space: [1]\n", "2: search_space=[1]: wants a mapping; write key: value below it"),
        (
            f"{HEAD}search_space: {{lr: 1e-4}}\n",
            "2: search_space.lr=0.0001: wants a mapping; use the keys values, min,",
        ),
        (
            f"{HEAD}search_space: {{lr: {{values: 1e-4}}}}\n",
            "2: search_space.lr.values=0.0001: wants a list; write [0.0001]",
        ),
        (
            f"{HEAD}search_space: {{lr: {{values: [[1e-4]]}}}}\n",
            "2: search_space.lr.values[0]=[0.0001]: wants a finite number, text, true, false or null",
        ),
        (
            f"{HEAD}search_space: {{lr: {{min: '1e-4', max: 1}}}}\n",
            "2: search_space.lr.min=1e-4: wants a number; write for example 0.5 or 1e-4",
        ),
        (
            f"{HEAD}{SPACE}stability: {{nonfinite: stopp}}\n",
            "4: stability.nonfinite=stopp: not one of the choices; did you",
        ),
        (
            f"{HEAD}{SPACE}stability: {{entropy: {{min: 2.0, max: 1.0}}}}\n",
            "4: stability.entropy.min=2: not below max=1.0; lower min or raise max",
        ),
        (f"{HEAD}{SPACE}stability: {{entropy: {{min: 0.5}}}}\n", "4: stability.entropy.max: missing; add `max: …`"),
        (
            f"{HEAD}{SPACE}stability: {{grad_norm: {{max: .inf}}}}\n",
            "4: stability.grad_norm.max=inf: must be finite; use",
        ),
        (
            f"{HEAD}{SPACE}stability: {{entropy: {{min: 0.5, max: 1, patience: 2.5}}}}\n",
            "4: stability.entropy.patience=2.5: wants a whole number; use 2 or 3",
        ),
        (
            f"{HEAD}{SPACE}train: {{optim: {{lr: fast}}}}\n",
            "4: train.optim.lr=fast: wants a number; the default is 0.0001",
        ),
        (
            f"{HEAD}{SPACE}train: {{num_steps: true}}\n",
            "4: train.num_steps=true: wants a whole number; the default is 60",
        ),
        (
            f"{HEAD}{SPACE}train: {{algorithm: {{name: ppoo}}}}\n",
            "4: train.algorithm.name=ppoo: not an algorithm; use one of grpo",
        ),
        (
            f"{HEAD}{SPACE}train:\n  rollout: {{top_p: 0.9}}\n",
            "5: train.rollout.top_p=0.9: training rollouts sample the full distribution; use 1.0",
        ),
        (
            f"{HEAD}{SPACE}train:\n  task: {{num_validation: 100}}\n",
            "5: train.eval.num_problems=256: more than task.num_validation=100; lower the first or raise the second",
        ),
        (
            f"{HEAD}{SPACE}resources: {{max_concurrent_trials: all}}\n",
            "4: resources.max_concurrent_trials=all: not one of",
        ),
        (
            f"{HEAD}{SPACE}resources: {{executor: slurm}}\n",
            "4: resources.executor=slurm: not one of the choices; use local",
        ),
        (f"{HEAD}{SPACE}profiles: [cpu]\n", "4: profiles=[cpu]: wants a mapping; write cpu: and gpu: below it"),
        (f"{HEAD}{SPACE}profiles: {{cpu: 5}}\n", "4: profiles.cpu=5: wants a mapping; write the keys that"),
        (
            f"{HEAD}{SPACE}profiles: {{cpu: {{profiles: {{}}}}}}\n",
            "4: profiles.cpu.profiles: a profile overlays study,",
        ),
    ],
)
def test_wrong_values_are_named_with_rule_and_fix(tmp_path, text, expected):
    (found,) = told(tmp_path, text)
    assert found.startswith(expected)


@pytest.mark.parametrize(
    "name", ["../evil", "a/b", "a\\b", ".hidden", "a..b", "", "a b", "ü", "x" * 101, "a\n", "..", "-\x00"]
)
def test_names_that_are_no_folder_are_refused(tmp_path, name):
    text = yaml_source.dump({"study": {"name": name, "n_trials": 4}}) + SPACE
    (found,) = problems(tmp_path, text)
    assert (found.key, found.line, found.value) == ("study.name", 2, name)
    assert found.message.startswith("not usable as a folder name; use 1 to 100 letters, digits,")


@pytest.mark.parametrize("name", ["gsm8k", "a.b-c_d", "0", "x" * 100, "-a"])
def test_names_of_folders_are_accepted(tmp_path, name):
    path = tmp_path / "f.yaml"
    path.write_text(f"study: {{name: '{name}', n_trials: 4}}\n{SPACE}")
    assert load_sweep(path).study.name == name


def test_all_mistakes_of_a_file_come_in_one_error(tmp_path):
    text = """\
study:
  name: a/b
  n_trials: 0
  direction: maximize
search_space:
  lr: {min: 1e-3, max: 1e-5, log: true}
  optim.beta1: {min: 0.0, max: 1.0, step: 0.3}
  speed: {values: [1]}
stability:
  entropy: {min: 1.5, max: 1.0}
  nonfinite: of
train:
  num_steps: 60
  num_steps: 70
  algorithm: {group_size: 1, clip_range: 2}
  optim: {lr: abc}
  task: {num_validation: 100}
profiles:
  cpu: {train: {seed: x}}
"""
    found = problems(tmp_path, text)
    assert [(problem.line, problem.key) for problem in found] == [
        (2, "study.name"),
        (3, "study.n_trials"),
        (4, "study.direction"),
        (6, "search_space.lr.min"),
        (7, "search_space.optim.beta1.max"),
        (8, "search_space.speed"),
        (10, "stability.entropy.min"),
        (11, "stability.nonfinite"),
        (14, "train.num_steps"),
        (15, "train.algorithm.group_size"),
        (15, "train.algorithm.clip_range"),
        (16, "train.optim.lr"),
        (17, "train.eval.num_problems"),
        (19, "profiles.cpu.train.seed"),
    ]


def test_a_mistake_brings_no_others_that_follow_from_it(tmp_path):
    # 6 would divide a batch of 12; the default of 128 that stands in for the wrong word is not held against it.
    text = f"{HEAD}{SPACE}train: {{rollout: {{completions_per_step: twelve}}, algorithm: {{group_size: 6}}}}\n"
    assert told(tmp_path, text) == [
        "4: train.rollout.completions_per_step=twelve: wants a whole number; the default is 128"
    ]
