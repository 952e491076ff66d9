import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sweeps.jobs import Event
from sweeps.sections import SweepConfig
from sweeps.study import Draw, SweepStudy
from sweeps.study_folder import StudyFolder, read_json, write_json, write_text
from sweeps.trial_run import TrialRun


def make_config(**train: Any) -> SweepConfig:
    pruner = {"name": "median", "min_steps": 5, "options": {"n_startup_trials": 1}}
    return SweepConfig.model_validate(
        {
            "study": {"name": "s", "n_trials": 4, "sampler": {"name": "random", "seed": 1}, "pruner": pruner},
            "search_space": {"lr": {"min": 1e-5, "max": 1e-3}},
            "train": {"num_steps": 20, **train},
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path / "s")


@pytest.fixture
def study(folder: StudyFolder) -> SweepStudy:
    """A study whose first trial is complete with accuracy 0.5 throughout."""
    study = SweepStudy(make_config(), folder)
    run = next_run(study, folder)
    run.prepare()
    for step in (5, 10, 20):
        study.report(0, step, 0.5)
    outcome = {"number": 0, "state": "complete", "objective": 0.5, "reason": None, "constraint": 0.0}
    write_json(folder.trial(0).outcome_file, outcome)
    study.tell(outcome)
    return study


def next_run(study: SweepStudy, folder: StudyFolder) -> TrialRun:
    draw = study.draw()
    assert draw is not None
    return TrialRun(study.config, draw, folder.trial(draw.number), study)


def record_steps(run: TrialRun, accuracies: list[float | None]) -> None:
    lines = [
        {
            "step": step,
            "time": 1.0,
            "metrics": {"reward/mean": 0.1} | ({} if value is None else {"eval/accuracy": value}),
        }
        for step, value in enumerate(accuracies, start=1)
    ]
    write_text(run.folder.metrics_file, "".join(json.dumps(line) + "\n" for line in lines))


def test_what_a_trial_is_stands_on_disk_before_it_starts(study: SweepStudy, folder: StudyFolder) -> None:
    run = next_run(study, folder)
    assert run.prepare() is None
    params = read_json(run.folder.params_file)
    assert params is not None
    assert params["number"] == 1 and params["params"] == run.draw.params and params["source"] == "sampler"
    config = yaml.safe_load(run.folder.config_file.read_text())
    assert config["optim"]["lr"] == run.draw.params["lr"]
    assert config["num_steps"] == 20


def test_a_repeat_runs_with_its_own_seed_unless_the_seed_is_searched(study: SweepStudy, folder: StudyFolder) -> None:
    draw = Draw(9, {"lr": 1e-4}, {}, "sampler", seed=3, repeat_of=0)
    assert TrialRun(study.config, draw, folder.trial(9), study).train_config().seed == 3
    searched = Draw(9, {"lr": 1e-4, "seed": 11}, {}, "sampler", seed=3)
    assert TrialRun(study.config, searched, folder.trial(9), study).train_config().seed == 11


def test_an_evaluation_that_was_recorded_but_never_judged_is_judged(study: SweepStudy, folder: StudyFolder) -> None:
    run = next_run(study, folder)
    record_steps(run, [None, None, None, None, 0.1])
    run.prepare()
    reason = run.overdue_verdict()
    assert reason is not None
    assert (reason["rule"], reason["step"], reason["value"]) == ("pruner", 5, 0.1)
    assert run.last_step == 5


def test_an_evaluation_that_was_passed_counts_as_judged(study: SweepStudy, folder: StudyFolder) -> None:
    run = next_run(study, folder)
    record_steps(run, [None, None, None, None, 0.1, None])
    run.prepare()
    assert run.overdue_verdict() is None


def test_params_that_do_not_fit_together_end_the_trial_with_the_reason(study: SweepStudy, folder: StudyFolder) -> None:
    draw = Draw(1, {"algorithm.group_size": 7}, {}, "sampler", seed=0)
    run = TrialRun(study.config, draw, folder.trial(1), study)
    problem = run.prepare()
    assert problem is not None and "group_size=7" in problem
    run.ended_before_start(Event("error", {"type": "ConfigError", "message": problem, "cause": "config"}, 0.0))
    outcome = run.outcome()
    assert outcome.state == "failed"
    record = run.record(outcome)
    assert record == read_json(run.folder.outcome_file)
    assert "group_size=7" in record["reason"]["message"] and record["last_step"] == 0
