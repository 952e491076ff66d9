import time
from pathlib import Path
from typing import Any

import pytest

from sweeps.continuation import write_sweep
from sweeps.retention import removals, remove
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, write_json
from sweeps.verbs import main

DAY_S = 86400.0


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    """Trial 0 complete with 0.5, 1 complete with 0.7, 2 pruned a year ago, 3 open; each has 1,000 bytes of both."""
    folder = StudyFolder(tmp_path / "runs" / "s")
    data = {"study": {"name": "s", "n_trials": 4}, "search_space": {"lr": {"values": [1e-4, 2e-4]}}}
    write_sweep(folder, SweepConfig.model_validate(data))
    add_trial(folder, 0, state="complete", objective=0.5)
    add_trial(folder, 1, state="complete", objective=0.7)
    add_trial(folder, 2, state="pruned", objective=None, ended_at=time.time() - 365 * DAY_S)
    add_trial(folder, 3)
    return folder


def add_trial(folder: StudyFolder, number: int, **outcome: Any) -> None:
    trial = folder.trial(number)
    write_json(trial.params_file, {"number": number, "params": {"lr": 1e-4}})
    (trial.path / "checkpoints" / "step_000009").mkdir(parents=True)
    (trial.path / "checkpoints" / "step_000009" / "weights").write_bytes(bytes(1000))
    (trial.path / "rollouts.jsonl.zst").write_bytes(bytes(1000))
    if outcome:
        write_json(trial.outcome_file, {"number": number, "ended_at": time.time(), **outcome})


@pytest.mark.parametrize("what", ["checkpoints", "rollouts"])
@pytest.mark.parametrize(
    ("keep", "younger_than_s", "expected"),
    [(1, None, [0, 2]), (0, None, [0, 1, 2]), (2, None, [2]), (0, 30 * DAY_S, [2]), (0, 400 * DAY_S, [])],
)
def test_the_best_the_young_and_the_open_keep_theirs(
    folder: StudyFolder, what: Any, keep: int, younger_than_s: float | None, expected: list[int]
) -> None:
    found = removals(folder, "maximize", what, keep, younger_than_s)
    assert [int(each.path.parent.name) for each in found] == expected
    assert [each.num_bytes for each in found] == [1000] * len(expected)
    remove(found)
    name = "checkpoints" if what == "checkpoints" else "rollouts.jsonl.zst"
    assert [trial.number for trial in folder.trials() if not (trial.path / name).exists()] == expected
    assert removals(folder, "maximize", what, keep, younger_than_s) == []


def test_less_is_better_where_the_objective_says_so(folder: StudyFolder) -> None:
    assert [int(each.path.parent.name) for each in removals(folder, "minimize", "checkpoints", 1)] == [1, 2]


def test_nothing_is_deleted_before_a_yes(folder: StudyFolder, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["delete", "s", "--runs-dir", str(folder.path.parent)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "trials/0000/checkpoints" in out and "trials/0001" not in out
    assert out.splitlines()[-1] == "0.0 MB in 2 places; nothing was deleted, --yes deletes it"
    assert (folder.trial(0).path / "checkpoints").exists()
    assert main([*arguments, "--yes"]) == 0
    assert not (folder.trial(0).path / "checkpoints").exists() and (folder.trial(1).path / "checkpoints").exists()


def test_a_whole_study_goes_only_when_nobody_runs_it(folder: StudyFolder, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["delete", "s", "--what", "all", "--yes", "--runs-dir", str(folder.path.parent)]
    with folder.lock():
        assert main(arguments) == 2
    assert "is being run by another process" in capsys.readouterr().err
    assert main(arguments) == 0
    assert "the runs in MLflow stay" in capsys.readouterr().out
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--keep", "-1"], "--keep=-1: a number of trials from 0 on"),
        (["--keep-younger-than", "soon"], "--keep-younger-than=soon: not a length of time"),
    ],
)
def test_a_wrong_rule_deletes_nothing(
    folder: StudyFolder, capsys: pytest.CaptureFixture[str], option: list[str], said: str
) -> None:
    assert main(["delete", "s", "--yes", *option, "--runs-dir", str(folder.path.parent)]) == 2
    assert said in capsys.readouterr().err
    assert (folder.trial(0).path / "checkpoints").exists()
