"""Loading a sweep file: what it becomes, profiles, options, and the way back from sweep.yaml."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeps import profiles, yaml_source
from sweeps.config import ConfigError, load_resolved, load_sweep
from sweeps.lint import lint

ROOT = Path(__file__).resolve().parents[2]
GSM8K = ROOT / "search_spaces" / "gsm8k.yaml"
SMOKE = ROOT / "search_spaces" / "smoke.yaml"

MINIMAL = """\
study: {name: s, n_trials: 4}
search_space:
  lr: {min: 3e-5, max: 3e-3, log: true}
"""
WITH_PROFILES = (
    MINIMAL
    + """\
stability:
  entropy: {min: 0.5, max: 1.0}
train:
  num_steps: 60
  algorithm: {group_size: 4}
profiles:
  cpu:
    train: {num_steps: 20}
  gpu:
    search_space:
      lr: {values: [1e-6, 1e-5]}
      group_size: {values: [4, 8]}
    stability: {entropy: {max: 3.0}, grad_norm: {max: 5.0}}
    train: {optim: {lr: 1e-6}, policy: {name: some/model}}
"""
)


def write(folder: Path, text: str) -> Path:
    path = folder / "sweep.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def messages(path: Path, *args, **options) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_sweep(path, *args, **options)
    return [str(problem).removeprefix(str(path)) for problem in caught.value.problems]


def test_loading_needs_neither_torch_nor_optuna_nor_mlflow():
    code = (
        "import sys, sweeps.config, sweeps.lint, sweeps.search_space, sweeps.guard\n"
        f"sweeps.lint.lint(sweeps.config.load_sweep({str(GSM8K)!r}))\n"
        "print([name for name in ('torch', 'optuna', 'mlflow', 'transformers', 'datasets') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout == "[]\n"


def test_the_least_that_a_file_needs(tmp_path):
    config = load_sweep(write(tmp_path, MINIMAL))
    assert (config.study.name, config.study.n_trials, config.study.timeout_s) == ("s", 4, None)
    assert config.study.objective.metric == "eval/accuracy" and config.study.objective.direction == "maximize"
    assert (config.search_space["lr"].min, config.search_space["lr"].max) == (3e-5, 3e-3)
    assert config.stability.nonfinite == "stop" and config.stability.entropy is None
    assert (config.profile, config.profile_reason) == (None, "the file has no profiles")
    assert config.source == str(tmp_path / "sweep.yaml")


@pytest.mark.parametrize("profile", ["cpu", "gpu"])
def test_the_default_study_has_nothing_to_complain_about(profile):
    config = load_sweep(GSM8K, profile=profile)
    assert lint(config) == []
    assert list(config.search_space) == ["group_size", "clip_range", "reward_scale", "lr"]
    assert (config.study.name, config.study.n_trials) == ("gsm8k", 16)
    entries = [line for line in GSM8K.read_text().splitlines() if line.startswith("  lr: {min: ")]
    assert len(entries) == 1


def test_profiles_of_the_default_study():
    cpu, gpu = load_sweep(GSM8K, profile="cpu"), load_sweep(GSM8K, profile="gpu")
    assert (cpu.train.policy.name, cpu.train.task.name, cpu.train.warm_start.num_steps) == ("tiny", "grade_school", 500)
    assert (gpu.train.policy.name, gpu.train.task.name, gpu.train.warm_start.num_steps) == (
        "Qwen/Qwen2.5-0.5B-Instruct",
        "gsm8k",
        0,
    )
    assert cpu.stability.entropy.model_dump() == {"min": 0.5, "max": 1.0, "warmup_steps": 5, "patience": 3}


def test_the_smoke_study_is_tiny_and_has_nothing_to_complain_about():
    config = load_sweep(SMOKE)
    assert lint(config) == []
    assert (config.study.n_trials, config.train.num_steps) == (2, 3)


def test_a_profile_lies_over_the_whole_file(tmp_path):
    path = write(tmp_path, WITH_PROFILES)
    cpu, gpu = load_sweep(path, profile="cpu"), load_sweep(path, profile="gpu")
    assert (cpu.profile, cpu.profile_reason) == ("cpu", "named with --profile")
    assert (cpu.train.num_steps, cpu.train.algorithm.group_size) == (20, 4)
    assert list(cpu.search_space) == ["lr"] and cpu.stability.entropy.max == 1.0
    # Mappings merge, an entry of the search space is replaced as a whole.
    assert (gpu.train.num_steps, gpu.train.algorithm.group_size, gpu.train.optim.lr) == (60, 4, 1e-6)
    assert gpu.search_space["lr"].model_dump(exclude_defaults=True) == {"values": (1e-6, 1e-5)}
    assert gpu.search_space["group_size"].values == (4, 8)
    assert (gpu.stability.entropy.min, gpu.stability.entropy.max, gpu.stability.grad_norm.max) == (0.5, 3.0, 5.0)


def test_a_profile_can_take_a_key_out_of_the_space_or_a_rule_out_of_the_guard(tmp_path):
    text = (
        WITH_PROFILES
        + "  few:\n    search_space: {lr: null, group_size: {values: [4, 8]}}\n    stability: {entropy: off}\n"
    )
    config = load_sweep(write(tmp_path, text), profile="few")
    assert list(config.search_space) == ["group_size"]
    assert config.stability.entropy is None


def test_without_a_named_profile_the_machine_decides(tmp_path, monkeypatch):
    path = write(tmp_path, WITH_PROFILES)
    monkeypatch.setattr(profiles, "machine_profile", lambda: ("gpu", "this machine has 2 CUDA devices"))
    assert (load_sweep(path).profile, load_sweep(path).profile_reason) == ("gpu", "this machine has 2 CUDA devices")
    monkeypatch.setattr(profiles, "machine_profile", lambda: ("cpu", "this machine has no CUDA device"))
    assert load_sweep(path).profile == "cpu"
    only_gpu = write(tmp_path, WITH_PROFILES.replace("  cpu:\n    train: {num_steps: 20}\n", ""))
    config = load_sweep(only_gpu)
    assert (config.profile, config.train.policy.name) == (None, "tiny")
    assert config.profile_reason == "this machine has no CUDA device, and the file has no profile cpu"


def test_what_the_machine_has_is_found_without_torch(monkeypatch):
    for hidden in ("", "-1", "NoDevFiles", "-1,0"):
        assert profiles.machine_profile({"CUDA_VISIBLE_DEVICES": hidden})[0] == "cpu"
    monkeypatch.setattr(profiles.metadata, "version", lambda name: "2.9.0+cu128")
    monkeypatch.setattr(profiles, "count_gpus", lambda: 1)
    assert profiles.machine_profile({}) == ("gpu", "this machine has 1 CUDA device")
    assert profiles.machine_profile({"CUDA_VISIBLE_DEVICES": "GPU-8a1f"})[0] == "gpu"
    monkeypatch.setattr(profiles, "count_gpus", lambda: 0)
    assert profiles.machine_profile({}) == ("cpu", "this machine has no CUDA device")
    monkeypatch.setattr(profiles.metadata, "version", lambda name: "2.9.0+cpu")
    monkeypatch.setattr(profiles, "count_gpus", lambda: 1)
    assert profiles.machine_profile({}) == ("cpu", "the installed torch is built for CPU only")


def test_a_profile_that_the_file_does_not_have(tmp_path):
    assert messages(write(tmp_path, WITH_PROFILES), profile="tpu") == [
        "--profile tpu: not a profile of this file; use one of cpu, gpu"
    ]
    assert messages(write(tmp_path, MINIMAL), profile="cpu") == [
        "--profile cpu: not a profile of this file; the file has no profiles; drop --profile"
    ]


def test_profiles_that_are_not_chosen_are_checked_too(tmp_path):
    text = WITH_PROFILES + "  tpu:\n    train: {num_stepz: 3}\n"
    assert messages(write(tmp_path, text), profile="cpu") == [
        ":19: profiles.tpu.train.num_stepz=3: unknown key; did you mean train.num_steps?"
    ]


def test_a_mistake_of_the_base_is_told_once_for_all_profiles(tmp_path):
    text = WITH_PROFILES.replace("group_size: 4}", "group_size: 1}")
    assert messages(write(tmp_path, text), profile="cpu") == [
        ":8: train.algorithm.group_size=1: a group needs at least 2 completions for a baseline; use 2 to 64"
    ]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("4h", 14400),
        ("90m", 5400),
        ("1h30m", 5400),
        ("30s", 30),
        ("2d", 172800),
        ("1.5h", 5400),
        ("45", 45),
        ("off", None),
    ],
)
def test_lengths_of_time(tmp_path, written, seconds):
    text = MINIMAL.replace("n_trials: 4", f"n_trials: 4, timeout: {written}")
    assert load_sweep(write(tmp_path, text)).study.timeout_s == seconds


def test_a_time_of_day_is_no_length_of_time(tmp_path):
    text = MINIMAL.replace("n_trials: 4", "n_trials: 4, timeout: 12:30")
    assert messages(write(tmp_path, text)) == [
        ":1: study.timeout=12:30: not a length of time; write 4h, 90m, 1h30m, 30s or a number of seconds"
    ]


def test_words_that_yaml_1_1_reads_otherwise(tmp_path):
    text = MINIMAL + "stability: {nonfinite: off}\ntrain: {optim: {lr: 1e-4}, num_steps: 010, eval: {greedy: no}}\n"
    config = load_sweep(write(tmp_path, text))
    assert config.stability.nonfinite == "off"
    assert (config.train.optim.lr, config.train.num_steps, config.train.eval.greedy) == (1e-4, 10, False)


def test_listed_values_take_the_type_of_their_field(tmp_path):
    text = MINIMAL + "  group_size: {values: ['4', 8.0, 16]}\n  eval.greedy: {values: [on, off]}\n"
    space = load_sweep(write(tmp_path, text)).search_space
    assert space["group_size"].values == (4, 8, 16)
    assert [type(value) for value in space["group_size"].values] == [int, int, int]
    assert space["eval.greedy"].values == (True, False)


def test_an_empty_section_means_its_defaults(tmp_path):
    config = load_sweep(write(tmp_path, MINIMAL + "stability:\ntrain:\n  optim:\nresources:\nprofiles:\n"))
    assert config.train.optim.lr == 1e-4


def test_processes_of_a_trial_become_ranks(tmp_path):
    text = MINIMAL + "resources: {processes_per_trial: 2}\n"
    assert load_sweep(write(tmp_path, text)).train.compute.num_ranks == 2
    both = write(tmp_path, text + "train: {compute: {num_ranks: 4}}\n")
    assert messages(both) == [
        ":5: train.compute.num_ranks=4: processes of a trial are set in one place; "
        "drop it and set resources.processes_per_trial"
    ]


def test_options_replace_any_key(tmp_path):
    path = write(tmp_path, WITH_PROFILES)
    options = [
        "train.num_steps=30",
        "study.name=2024",
        "study.timeout=1h",
        "study.pruner={name: median, options: {n_startup_trials: 2}}",
        "study.sampler.options.multivariate=true",
        "search_space.lr.max=1e-3",
        "search_space.optim.beta1={values: [0.9, 0.95]}",
        "stability.entropy=off",
        "stability.grad_norm.max=1e1",
        "train.task.reward_weights.correct=2",
    ]
    config = load_sweep(path, options, profile="cpu")
    assert (config.train.num_steps, config.study.name, config.study.timeout_s) == (30, "2024", 3600)
    assert (config.study.pruner.name, config.study.pruner.options) == ("median", {"n_startup_trials": 2})
    assert config.study.sampler.options == {"multivariate": True}
    assert config.search_space["lr"].max == 1e-3 and config.search_space["lr"].log
    assert config.search_space["optim.beta1"].values == (0.9, 0.95)
    assert config.stability.entropy is None and config.stability.grad_norm.max == 10.0
    assert config.train.task.reward_weights == {"correct": 2.0}


def test_an_option_can_take_a_key_out_of_the_space(tmp_path):
    config = load_sweep(write(tmp_path, WITH_PROFILES), ["search_space.lr=null"], profile="gpu")
    assert list(config.search_space) == ["group_size"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("train.num_stepz=3", "--set train.num_stepz: unknown key; did you mean train.num_steps?"),
        ("direction=maximize", "--set direction: unknown key; did you mean study.objective.direction?"),
        ("lr=1e-4", "--set lr: unknown key; did you mean train.optim.lr or train.warm_start.lr?"),
        ("train.num_steps", "--set train.num_steps: not of the form KEY=VALUE; write for example train.num_steps=20"),
        ("=3", "--set =3: not of the form KEY=VALUE; write for example train.num_steps=20"),
        ("train.num_steps=0", "--set train.num_steps=0: must be at least 1; the default is 60"),
        ("train.num_steps=many", "--set train.num_steps=many: wants a whole number; the default is 60"),
        (
            "train.algorithm.group_size=6",
            "--set train.algorithm.group_size=6: rollout.completions_per_step=128 is not a whole number of groups; "
            "legal group sizes: 2, 4, 8, 16, 32, 64",
        ),
        (
            "profiles.cpu.train.num_steps=3",
            "--set profiles.cpu.train.num_steps: a profile is part of the file; "
            "set the key itself, without profiles.NAME",
        ),
        ("search_space.speed={values: [1]}", None),
        ("search_space.lr.max=[", None),
        ("train.optim.lr.x=1", None),
        ("study.nested.key=1", None),
    ],
)
def test_mistakes_in_options_name_the_option_instead_of_a_line(tmp_path, option, message):
    (found,) = messages(write(tmp_path, WITH_PROFILES), [option], profile="cpu")
    assert found.startswith(f"--set {option.partition('=')[0]}")
    assert message is None or found == message


def test_what_is_dumped_loads_to_an_equal_config(tmp_path):
    text = (
        WITH_PROFILES
        + "resources: {processes_per_trial: 2, max_concurrent_trials: 3}\ntracking: {uri: 'sqlite:///x.db'}\n"
    )
    text = text.replace("log: true}", "log: true}\n  algorithm.clip_range_high: {values: [null, 0.3]}", 1)
    for profile in ("cpu", "gpu"):
        config = load_sweep(write(tmp_path, text), ["study.timeout=90m"], profile=profile)
        data = config.dump()
        resolved = tmp_path / "resolved.yaml"
        resolved.write_text(yaml_source.dump(data))
        assert load_resolved(resolved) == config
        resolved.write_text(json.dumps(data))
        assert load_resolved(resolved) == config
        assert json.loads(json.dumps(data)) == data


def test_a_resolved_file_with_a_mistake_is_refused(tmp_path):
    data = load_sweep(write(tmp_path, MINIMAL)).dump()
    data["train"]["num_steps"] = 0
    path = tmp_path / "resolved.yaml"
    path.write_text(yaml_source.dump(data))
    with pytest.raises(ConfigError, match=r"train\.num_steps=0: must be at least 1"):
        load_resolved(path)


def test_loading_is_quick():
    start = time.perf_counter()
    lint(load_sweep(GSM8K, profile="cpu"))
    assert time.perf_counter() - start < 0.5
