import ast
import json
import math
import os
from pathlib import Path

import psutil
import pytest

import reports
from grpo_core import metric_names
from reports.estimates import Estimate
from reports.records import READ, read_study

from .study_fixture import final_record, write, write_study


def test_reads_what_the_folder_holds(finished_study: Path):
    study = read_study(finished_study)
    assert study.name == "gsm8k"
    assert len(study.trials) == study.num_planned == 16
    assert [len(study.in_state(state)) for state in ("complete", "pruned", "failed")] == [10, 5, 1]
    assert study.objective == "eval/accuracy" and study.maximize
    assert [dimension.name for dimension in study.dimensions] == ["group_size", "clip_range", "reward_scale", "lr"]
    assert study.defaults is study.trials[0]
    assert study.limits("policy/entropy") == [0.5, 1.0]
    assert study.limits("optim/grad_norm") == [10.0]
    assert not study.is_running and not study.notes


def test_curves_hold_one_point_a_step_and_evaluations_where_they_were(finished_study: Path):
    best = read_study(finished_study).best
    assert best is not None
    assert best.curves["reward/mean"].steps == list(range(1, 61))
    assert best.curves["eval/accuracy"].steps == [10, 20, 30, 40, 50, 60]
    assert best.objective == best.curves["eval/accuracy"].values[-1]
    assert best.estimate("eval/accuracy") == Estimate(best.objective, best.curves["eval/accuracy_se"].values[-1])


def test_a_torn_last_line_is_left_out_and_a_broken_one_named(tmp_path: Path):
    folder = write_study(tmp_path, num_trials=1, num_steps=5)
    metrics = folder / "trials/0000/metrics.jsonl"
    lines = metrics.read_text().splitlines()
    metrics.write_text("\n".join([lines[0], "{broken", lines[2]]) + '\n{"step": 4, "met')
    study = read_study(folder)
    assert study.trials[0].curves["reward/mean"].steps == [1, 3]
    assert study.notes == ["0000/metrics.jsonl: 1 lines are not readable and left out"]


def test_values_that_are_not_finite_are_kept_but_never_last(tmp_path: Path):
    folder = write_study(tmp_path, num_trials=1, num_steps=2)
    lines = [{"step": 1, "metrics": {"optim/grad_norm": 0.5}}, {"step": 2, "metrics": {"optim/grad_norm": math.nan}}]
    (folder / "trials/0000/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    trial = read_study(folder).trials[0]
    assert math.isnan(trial.curves["optim/grad_norm"].values[1])
    assert trial.last("optim/grad_norm") == 0.5
    assert trial.last("policy/entropy") is None


def test_an_unreadable_record_does_not_stop_the_report(tmp_path: Path):
    folder = write_study(tmp_path, num_trials=1, num_steps=2)
    (folder / "preflight.json").write_text("{")
    study = read_study(folder)
    assert study.preflight is None
    assert study.notes[0].startswith("preflight.json is not readable")


@pytest.mark.parametrize(("alive", "state"), [(True, "running"), (False, "interrupted")])
def test_an_open_trial_runs_only_while_its_controller_lives(tmp_path: Path, alive: bool, state: str):
    folder = write_study(tmp_path, num_trials=2, num_steps=4)
    (folder / "trials/0001/outcome.json").unlink()
    started = psutil.Process().create_time() if alive else 0.0
    write(folder / "controller.json", {"pid": os.getpid(), "pid_start_time": started, "state": "running"})
    study = read_study(folder)
    assert study.is_running is alive
    assert [trial.state for trial in study.trials] == ["complete", state]


def test_test_figures_of_a_trial_that_was_overtaken_are_left_out(tmp_path: Path):
    folder = write_study(tmp_path, num_trials=3, num_steps=20)
    best = read_study(folder).best
    assert best is not None
    for number, is_kept in ((best.number, True), (best.number + 1, False)):
        write(folder / "final.json", {**final_record(0.4), "trial": number})
        assert (read_study(folder).final is not None) is is_kept


def test_a_folder_without_a_study_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="not a study"):
        read_study(tmp_path)


def test_every_metric_that_a_part_of_the_report_names_is_read():
    """Of a thousand trials only what is shown is kept, so a new figure must ask for its metric."""
    named = set()
    for file in Path(reports.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "grpo_core.metric_names":
                named |= {getattr(metric_names, alias.name) for alias in node.names}
    assert len(named) > 8
    assert named <= READ


def test_a_step_recorded_twice_counts_once_and_whole_numbers_are_floats(tmp_path: Path):
    folder = write_study(tmp_path, num_trials=1, num_steps=2)
    lines = [{"step": step, "metrics": {"reward/mean": value}} for step, value in ((1, 0), (2, 0.5), (2, 9.0), (3, 1))]
    (folder / "trials/0000/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = read_study(folder).trials[0].curves["reward/mean"]
    assert (curve.steps, curve.values) == ([1, 2, 3], [0.0, 0.5, 1.0])
    assert set(map(type, curve.values)) == {float}


def test_an_objective_of_any_name_is_read_with_its_error(tmp_path: Path):
    folder = write_study(tmp_path, num_trials=1, num_steps=2)
    sweep = (folder / "sweep.yaml").read_text().replace("metric: eval/accuracy", "metric: eval/reward")
    (folder / "sweep.yaml").write_text(sweep)
    line = {"step": 1, "metrics": {"eval/reward": 0.25, "eval/reward_se": 0.125}}
    (folder / "trials/0000/metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert read_study(folder).trials[0].estimate("eval/reward") == Estimate(0.25, 0.125)
