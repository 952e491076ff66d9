import contextlib
import math
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from sweeps.grid import combinations
from sweeps.mistakes import ConfigError
from sweeps.sampling import PRUNERS, SAMPLERS, build_pruner, build_sampler
from sweeps.sections import PrunerConfig, SamplerConfig, SweepConfig
from sweeps.study import CONSTRAINT, Draw, SweepStudy
from sweeps.study_folder import StudyFolder, write_json, write_text

CONTINUOUS = {
    "group_size": {"values": [4, 8, 16]},
    "clip_range": {"min": 0.1, "max": 0.3},
    "reward_scale": {"min": 0.5, "max": 2.0},
    "lr": {"min": 3e-5, "max": 3e-3, "log": True},
}
SIX_POINTS = {"group_size": {"values": [4, 8, 16]}, "clip_range": {"min": 0.1, "max": 0.2, "step": 0.1}}


def make_config(space: dict[str, Any] = CONTINUOUS, n_trials: int = 8, **study: Any) -> SweepConfig:
    given = {"name": "s", "n_trials": n_trials, "sampler": {"name": "random", "seed": 7}, **study}
    train = {"algorithm": {"clip_range": 0.2}}
    return SweepConfig.model_validate({"study": given, "search_space": space, "train": train})


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path / "runs" / "s")


def end(study: SweepStudy, folder: StudyFolder, draw: Draw, state: str = "complete", **outcome: Any) -> None:
    record = {"number": draw.number, "state": state, "objective": None, "reason": None, "constraint": 0.0, **outcome}
    write_json(folder.trial(draw.number).params_file, draw.record())
    write_json(folder.trial(draw.number).outcome_file, record)
    study.tell(record)


def stored(folder: StudyFolder) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="s", storage=f"sqlite:///{folder.study_db}").trials


def draw_of(study: SweepStudy) -> Draw:
    draw = study.draw()
    assert draw is not None
    return draw


def test_trial_0_is_the_files_own_defaults(folder: StudyFolder) -> None:
    study = SweepStudy(make_config(), folder)
    first, second = draw_of(study), draw_of(study)
    assert first.params == {"group_size": 8, "clip_range": 0.2, "reward_scale": 1.0, "lr": 1e-4}
    assert (first.number, first.source, second.source) == (0, "defaults", "sampler")
    assert second.params != first.params
    assert isinstance(second.params["group_size"], int)


def test_attempts_count_across_restarts_whatever_became_of_them(folder: StudyFolder) -> None:
    study = SweepStudy(make_config(n_trials=10), folder)
    for number in range(7):
        state = ("complete", "pruned", "failed")[number % 3]
        end(study, folder, draw_of(study), state, objective=0.1 if state == "complete" else None)
    resumed = SweepStudy(make_config(n_trials=10), folder)
    assert resumed.num_attempts == 7
    assert resumed.num_left == 3
    numbers = []
    while (draw := resumed.draw()) is not None:
        numbers.append(draw.number)
        end(resumed, folder, draw, "failed")
    assert numbers == [7, 8, 9]
    assert resumed.num_attempts == 10


def test_a_trial_left_by_a_dead_controller_is_handed_out_again(folder: StudyFolder) -> None:
    study = SweepStudy(make_config(), folder)
    end(study, folder, draw_of(study), objective=0.2)
    with_record, without_record = draw_of(study), draw_of(study)
    write_json(folder.trial(with_record.number).params_file, with_record.record())
    resumed = SweepStudy(make_config(), folder)
    assert draw_of(resumed) == with_record
    assert draw_of(resumed) == without_record
    assert draw_of(resumed).number == 3


def test_an_outcome_that_was_not_told_is_told_at_the_next_start(folder: StudyFolder) -> None:
    study = SweepStudy(make_config(), folder)
    draw = draw_of(study)
    write_json(folder.trial(0).params_file, draw.record())
    outcome = {"number": 0, "state": "complete", "objective": 0.4, "reason": None, "constraint": 0.0}
    write_json(folder.trial(0).outcome_file, outcome)
    assert stored(folder)[0].state == TrialState.RUNNING
    resumed = SweepStudy(make_config(), folder)
    assert stored(folder)[0].value == 0.4
    assert draw_of(resumed).number == 1


def test_a_resumed_study_draws_new_settings(folder: StudyFolder) -> None:
    study = SweepStudy(make_config(), folder)
    before = [draw_of(study) for _ in range(3)]
    for draw in before:
        end(study, folder, draw, objective=0.1)
    after = [draw_of(SweepStudy(make_config(), folder)) for _ in range(1)]
    assert all(draw.params["lr"] != earlier.params["lr"] for draw in after for earlier in before)


def test_a_breach_reaches_the_sampler_as_a_constraint(folder: StudyFolder) -> None:
    study = SweepStudy(make_config(), folder)
    end(study, folder, draw_of(study), "pruned", constraint=0.3)
    end(study, folder, draw_of(study), "complete", objective=0.5)
    end(study, folder, draw_of(study), "pruned", constraint=0.0)
    breach, complete, behind = stored(folder)
    assert (breach.state, breach.constraints, breach.value) == (TrialState.PRUNED, {CONSTRAINT: 0.3}, None)
    assert (complete.state, complete.constraints, complete.value) == (TrialState.COMPLETE, {CONSTRAINT: 0.0}, 0.5)
    assert behind.constraints == {CONSTRAINT: 0.0}


@pytest.mark.parametrize("sampler", ["gp", "nsga2"])
def test_samplers_that_read_only_complete_trials_see_a_breach_as_the_worst(folder: StudyFolder, sampler: str) -> None:
    config = make_config(sampler={"name": sampler, "n_startup_trials": 2})
    study = SweepStudy(config, folder)
    end(study, folder, draw_of(study), "complete", objective=0.5)
    end(study, folder, draw_of(study), "complete", objective=0.3)
    end(study, folder, draw_of(study), "pruned", constraint=0.7)
    trial = stored(folder)[2]
    assert (trial.state, trial.value, trial.constraints) == (TrialState.COMPLETE, 0.3, {CONSTRAINT: 0.7})
    assert draw_of(study).number == 3


def test_tpe_draws_less_where_stability_was_breached(folder: StudyFolder) -> None:
    space = {"lr": {"min": 1e-5, "max": 1e-2, "log": True}}
    config = make_config(space, n_trials=60, sampler={"name": "tpe", "seed": 3, "n_startup_trials": 10})
    study = SweepStudy(config, folder)
    unstable = []
    while (draw := study.draw()) is not None:
        lr = draw.params["lr"]
        unstable.append(lr > 3e-4)
        # The breach pays off until it is caught, so only the constraint can teach the sampler.
        if lr > 3e-4:
            study.report(draw.number, 10, 0.9)
            end(study, folder, draw, "pruned", constraint=min(1.0, math.log10(lr / 3e-4)))
        else:
            end(study, folder, draw, objective=0.5)
    assert sum(unstable[1:11]) >= 3
    assert sum(unstable[-30:]) <= 3


def test_telling_twice_changes_nothing(folder: StudyFolder) -> None:
    study = SweepStudy(make_config(), folder)
    draw = draw_of(study)
    end(study, folder, draw, objective=0.5)
    end(study, folder, draw, objective=0.6)
    assert stored(folder)[0].value == 0.5


def test_the_pruner_sees_the_objective_at_evaluation_steps(folder: StudyFolder) -> None:
    config = make_config(pruner={"name": "median", "min_steps": 10, "options": {"n_startup_trials": 1}})
    study = SweepStudy(config, folder)
    good, bad = draw_of(study), draw_of(study)
    assert not any(study.report(good.number, step, 0.5) for step in (20, 40, 60))
    end(study, folder, good, objective=0.5)
    assert study.report(bad.number, 20, 0.1)
    assert study.report(bad.number, 20, 0.1)  # a replayed evaluation is not reported a second time
    assert stored(folder)[1].intermediate_values == {20: 0.1}
    assert not study.report(bad.number, config.train.num_steps, 0.1)


def test_hyperband_prunes_but_hides_no_trial_from_the_sampler(folder: StudyFolder) -> None:
    config = make_config(
        n_trials=12,
        sampler={"name": "tpe", "seed": 1, "n_startup_trials": 3},
        pruner={"name": "hyperband", "min_steps": 10},
    )
    study = SweepStudy(config, folder)
    pruned = 0
    while (draw := study.draw()) is not None:
        for step in (20, 40, 60):
            if study.report(draw.number, step, 1.0 / (1 + draw.number)):
                end(study, folder, draw, "pruned")
                pruned += 1
                break
        else:
            end(study, folder, draw, objective=1.0 / (1 + draw.number))
    assert 3 <= pruned <= 11


def test_a_small_space_runs_every_point_once_and_then_labels_repeats(folder: StudyFolder) -> None:
    study = SweepStudy(make_config(SIX_POINTS, n_trials=8), folder)
    draws = []
    while (draw := study.draw()) is not None:
        draws.append(draw)
        end(study, folder, draw, objective=0.5)
    assert len(draws) == 8
    points = {(draw.params["group_size"], draw.params["clip_range"]) for draw in draws[:6]}
    assert points == {(size, clip) for size in (4, 8, 16) for clip in (0.1, 0.2)}
    assert [draw.repeat_of is None for draw in draws] == [True] * 6 + [False] * 2
    for repeat in draws[6:]:
        [twin] = [draw for draw in draws[:6] if draw.number == repeat.repeat_of]
        assert repeat.params == twin.params
        assert repeat.seed > twin.seed
        assert repeat.record()["repeat_of"] == twin.number
    assert study.num_attempts == 8


def test_a_grid_runs_every_point_once_with_the_defaults_first(folder: StudyFolder) -> None:
    study = SweepStudy(make_config(SIX_POINTS, n_trials=6, sampler={"name": "grid"}), folder)
    draws = []
    while (draw := study.draw()) is not None:
        draws.append(draw)
        end(study, folder, draw, objective=0.5)
    assert [draw.number for draw in draws] == list(range(6))
    assert draws[0].params == {"group_size": 8, "clip_range": 0.2}
    assert len(stored(folder)) == 6
    assert len({str(draw.params) for draw in draws}) == 6


def test_points_of_a_conditional_space() -> None:
    space = {
        "algorithm.name": {"values": ["grpo", "dapo"]},
        "clip_range": {"values": [0.1, 0.2]},
        "algorithm.clip_range_high": {"values": [0.28, 0.3], "when": {"algorithm.name": "dapo"}},
    }
    config = make_config(space)
    found = combinations(config.search_space, seed=0)
    assert len(found) == 2 + 4
    assert all(("algorithm.clip_range_high" in point) == (point["algorithm.name"] == "dapo") for point in found)
    assert combinations(make_config(CONTINUOUS).search_space, seed=0) == []


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_runs_a_study(folder: StudyFolder, name: str) -> None:
    space = SIX_POINTS if name == "grid" else CONTINUOUS
    config = make_config(space, n_trials=6, sampler={"name": name, "n_startup_trials": 2})
    study = SweepStudy(config, folder)
    while (draw := study.draw()) is not None:
        state, objective = ("pruned", None) if draw.number == 3 else ("complete", 0.1 * draw.number)
        end(study, folder, draw, state, objective=objective, constraint=0.5 if draw.number == 3 else 0.0)
    assert study.num_attempts == 6
    assert {trial.state for trial in stored(folder)} <= {TrialState.COMPLETE, TrialState.PRUNED}


@pytest.mark.parametrize("name", PRUNERS)
def test_every_pruner_judges_an_evaluation(folder: StudyFolder, name: str) -> None:
    options = {"lower": 0.2} if name == "threshold" else {}
    study = SweepStudy(make_config(pruner={"name": name, "min_steps": 5, "options": options}), folder)
    draw = draw_of(study)
    assert study.report(draw.number, 20, 0.1) is (name == "threshold")


def test_the_registries_have_the_names_that_the_file_may_use() -> None:
    from typing import get_args

    assert set(SAMPLERS) == set(get_args(SamplerConfig.model_fields["name"].annotation))
    assert set(PRUNERS) == set(get_args(PrunerConfig.model_fields["name"].annotation))


def test_an_option_that_does_not_exist_is_the_persons_mistake() -> None:
    with pytest.raises(ConfigError, match=r"study\.sampler\.options: not accepted by tpe: .*n_ei"):
        build_sampler(make_config(sampler={"name": "tpe", "options": {"n_ei": 3}}))
    with pytest.raises(ConfigError, match=r"study\.pruner\.options: not accepted by threshold: Either lower or upper"):
        build_pruner(make_config(pruner={"name": "threshold"}))


def test_a_lost_storage_is_rebuilt_from_disk(folder: StudyFolder) -> None:
    config = make_config(n_trials=6)
    study = SweepStudy(config, folder)
    end(study, folder, draw_of(study), objective=0.5)
    end(study, folder, draw_of(study), "pruned", constraint=0.4)
    end(study, folder, draw_of(study), "failed")
    running = draw_of(study)
    write_json(folder.trial(running.number).params_file, running.record())
    line = '{"step": 20, "time": 1.0, "metrics": {"eval/accuracy": 0.25}}\n'
    for number in (1, running.number):
        write_text(folder.trial(number).metrics_file, line)
    before = stored(folder)
    folder.study_db.unlink()
    for leftover in folder.path.glob("study.db-*"):
        leftover.unlink()
    rebuilt = SweepStudy(config, folder)
    after = stored(folder)
    assert [trial.state for trial in after] == [trial.state for trial in before]
    assert [trial.params for trial in after] == [trial.params for trial in before]
    assert [trial.constraints for trial in after[:3]] == [{CONSTRAINT: 0.0}, {CONSTRAINT: 0.4}, {}]
    assert after[1].value == 0.25 and after[1].intermediate_values == {20: 0.25}
    assert rebuilt.num_attempts == 4
    assert draw_of(rebuilt) == running
    assert rebuilt.report(running.number, 20, 0.25) is False


def test_a_reader_that_holds_the_database_locks_nobody_out(folder: StudyFolder) -> None:
    study = SweepStudy(make_config(n_trials=5), folder)
    with contextlib.closing(sqlite3.connect(folder.study_db)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM trials").fetchall()
        started = time.monotonic()
        end(study, folder, draw_of(study), objective=0.5)
        assert time.monotonic() - started < 5


def test_a_writer_that_holds_the_database_is_waited_for(folder: StudyFolder) -> None:
    study = SweepStudy(make_config(n_trials=5), folder)
    draw = draw_of(study)
    writer = sqlite3.connect(folder.study_db, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.5, lambda: (writer.rollback(), writer.close()))
    release.start()
    end(study, folder, draw, objective=0.5)
    release.join()
    assert stored(folder)[0].value == 0.5
