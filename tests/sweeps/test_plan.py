from pathlib import Path
from typing import Any

import pytest

from grpo_core.config import TrainConfig
from sweeps.continuation import write_sweep
from sweeps.mistakes import ConfigError
from sweeps.plan import Cost, print_plan, trial_cost
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, write_json

TRAIN = {
    "num_steps": 50,
    "rollout": {"completions_per_step": 128, "max_new_tokens": 64},
    "algorithm": {"updates_per_batch": 2},
    "eval": {"every": 20, "num_problems": 100, "samples_per_problem": 4},
}


def make_config(n_trials: int = 16, **given: Any) -> SweepConfig:
    study = {"name": "s", "n_trials": n_trials, **given.pop("study", {})}
    space = {"group_size": {"values": [4, 8]}, "lr": {"min": 1e-5, "max": 1e-3, "log": True}}
    resources = {"max_concurrent_trials": 2}
    data = {"study": study, "search_space": space, "train": TRAIN, "resources": resources}
    return SweepConfig.model_validate({**data, **given})


def plan(config: SweepConfig, runs_dir: Path) -> list[str]:
    lines: list[str] = []
    print_plan(config, runs_dir, lines.append)
    return lines


def test_the_cost_of_a_trial() -> None:
    # Evaluations at steps 20, 40 and 50, of 100 problems with 4 samples and a greedy one.
    cost = trial_cost(TrainConfig.model_validate(TRAIN), step_s=0.5, eval_s=4.0)
    assert cost == Cost(6400, 6400, 1500, 100, (6400 + 1500) * 64, 50 * 0.5 + 3 * 4.0)
    assert trial_cost(TrainConfig.model_validate(TRAIN), None, None).time_s is None
    refilled = {**TRAIN, "algorithm": {"name": "dapo", "max_refills": 2}}
    assert trial_cost(TrainConfig.model_validate(refilled), None, None).max_tokens == (3 * 6400 + 1500) * 64


def test_a_plan_takes_its_times_from_the_studys_own_preflight(tmp_path: Path) -> None:
    config, folder = make_config(n_trials=15), StudyFolder(tmp_path / "runs" / "s")
    write_sweep(folder, config)
    write_json(folder.preflight_file, {"time/step_s": 0.5, "time/eval_s": 4.0})
    lines = plan(config, tmp_path / "runs")
    assert lines[0] == "study s: 15 trials, 2 at a time on local"
    assert "trial 0: group_size 8, lr 0.0001 (the file's own values)" in lines
    assert "a trial: 50 steps, 100 updates, 6,400 training completions" in lines
    assert f"  time: 37 s (as the preflight of {folder.path} measured)" in lines
    # 8 rounds of 37 s; 15 trials of 37 s in one process each.
    assert "all trials: at most 4 min 56 s, 0.15 process-hours, 7,584,000 tokens; pruned trials cost less" in lines
    cut = plan(make_config(n_trials=15, study={"timeout": "2m"}), tmp_path / "runs")
    assert any("cut at study.timeout 2 min 00 s" in line for line in cut)


def test_a_policy_that_is_not_here_is_not_fetched_for_a_plan(tmp_path: Path) -> None:
    config = make_config(train={**TRAIN, "policy": {"name": "some/model"}})
    assert "  time: known once the preflight has loaded some/model" in plan(config, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_plan_counts_the_points_of_a_small_space(tmp_path: Path) -> None:
    space = {"group_size": {"values": [4, 8]}, "clip_range": {"values": [0.1, 0.2, 0.3]}}
    config = make_config(search_space=space, train={**TRAIN, "policy": {"name": "some/model"}})
    assert any(line.startswith("  6 different settings") for line in plan(config, tmp_path))


def test_a_plan_tells_of_covered_settings(tmp_path: Path) -> None:
    space = {"group_size": {"values": [4, 8, 16]}, "lr": {"min": 1e-5, "max": 1e-3}}
    given = {"search_space": space, "train": {**TRAIN, "policy": {"name": "some/model"}}}
    config = make_config(study={"cover": ["group_size"]}, **given)
    # Trial 0 runs groups of 8 already.
    assert "  then 2 covered settings of group_size, before the sampler draws" in plan(config, tmp_path)
    assert not any("covered" in line for line in plan(make_config(**given), tmp_path))


def test_a_plan_refuses_what_the_study_would_refuse(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not accepted by tpe"):
        plan(make_config(study={"sampler": {"name": "tpe", "options": {"no_such": 1}}}), tmp_path)
