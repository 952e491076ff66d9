"""Records that the disk or somebody else spoiled: named, set aside, made again."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sweeps.continuation import Refused
from sweeps.record_repair import num_damaged_lines, repair_records
from sweeps.study_folder import DamagedRecord, StudyFolder, read_json, read_lines
from sweeps.verbs import main

from .study_runs import make_config, mlflow_runs, starts_of, steps_of, trials_of

# MLflow's own models use what SQLAlchemy is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TWO = {"lr": {"values": [1e-4, 2e-4]}}


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "[" * 100_000, "\0\0\0\0"])
def test_what_is_no_record_is_told_from_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "outcome.json"
    assert read_json(file) is None
    file.write_text(text)
    with pytest.raises(DamagedRecord, match=r"outcome\.json is not readable"):
        read_json(file)


def test_damaged_lines_of_a_metrics_file_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    file = folder.trial(0).metrics_file
    file.parent.mkdir(parents=True)
    good = [json.dumps({"step": step, "time": 1.0, "metrics": {"reward/mean": 0.5}}) + "\n" for step in (1, 2, 3)]
    bad = [
        "\0\0\0\n",
        '{"step": 2\n',
        '{"step": "2", "time": 1, "metrics": {}}\n',
        "[1]\n",
        '{"step": 9, "metrics": 5}\n',
    ]
    torn = '{"step": 4, "ti'
    file.write_text(good[0] + "".join(bad) + good[1] + good[2] + torn)
    lines, offset = read_lines(file)
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert offset == file.stat().st_size - len(torn)
    assert num_damaged_lines(folder.trial(0)) == len(bad)
    [said] = repair_records(folder)
    assert said == f"{file}: 5 damaged lines are left out"


def spoil(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    "name", ["controller.json", "tracking.json", "preflight.json", "final.json", "trials/0000/outcome.json"]
)
def test_a_spoiled_record_is_set_aside_and_made_again(launch: Callable, runs_dir: Path, name: str) -> None:
    launch(make_config(TWO, n_trials=1))
    folder = StudyFolder(runs_dir / "s")
    before = folder.trial(0).outcome()
    assert before is not None
    spoil(folder.path / name)
    result, lines = launch(make_config(TWO, n_trials=2))
    assert result.exit_code == 0, lines.said
    assert f"{folder.path / name} is not readable" in lines and "it is kept as" in lines
    assert len(list((folder.path / name).parent.glob(f"{Path(name).name}.damaged-*"))) == 1
    after = folder.trial(0).outcome()
    assert after is not None
    assert [(each["state"], each["objective"]) for each in (before, after)] == [("complete", 0.01)] * 2
    assert steps_of(folder, 0) == list(range(1, 13))
    assert len(folder.trials()) == len(trials_of(runs_dir)) == len(mlflow_runs(runs_dir)) == 2
    assert [run.info.status for run in mlflow_runs(runs_dir)] == ["FINISHED"] * 2
    assert len(mlflow_runs(runs_dir, "tags.kind = 'study'")) == 1


def test_a_database_that_is_damaged_is_made_again_from_the_trials(launch: Callable, runs_dir: Path) -> None:
    launch(make_config(TWO, n_trials=1))
    folder = StudyFolder(runs_dir / "s")
    for log in folder.path.glob("study.db-*"):
        log.unlink()
    folder.study_db.write_bytes(b"this is no database" * 400)
    result, lines = launch(make_config(TWO, n_trials=2))
    assert result.exit_code == 0, lines.said
    assert "study.db is damaged; it is kept as study.db.damaged-" in lines
    assert [trial.value for trial in trials_of(runs_dir)] == [pytest.approx(0.01), pytest.approx(0.02)]
    assert starts_of(folder, 0) == [0]


def test_params_and_folder_that_are_lost_come_back_from_the_database(launch: Callable, runs_dir: Path) -> None:
    launch(make_config(TWO, n_trials=2))
    folder = StudyFolder(runs_dir / "s")
    shutil.rmtree(folder.trial(0).path)
    result, _ = launch(make_config({"lr": {"values": [1e-4, 2e-4]}}, n_trials=3))
    assert result.exit_code == 0
    # What Optuna knows of it stays; the folder is not invented.
    assert [trial.number for trial in folder.trials()] == [1, 2]
    assert len(trials_of(runs_dir)) == 3


def test_a_sweep_that_is_not_readable_is_refused_with_the_ways_out(launch: Callable, runs_dir: Path) -> None:
    launch(make_config(TWO, n_trials=1))
    (runs_dir / "s" / "sweep.yaml").write_text("study: [")
    with pytest.raises(Refused, match="is not readable") as refusal:
        launch(make_config(TWO, n_trials=1))
    assert "--fresh" in str(refusal.value)


def test_a_verb_says_what_is_damaged_and_what_mends_it(
    launch: Callable, runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch(make_config(TWO, n_trials=1))
    spoil(runs_dir / "s" / "trials" / "0000" / "outcome.json")
    assert main(["status", "s", "--runs-dir", str(runs_dir)]) == 1
    assert "python -m sweeps resume s sets it aside and makes it again" in capsys.readouterr().err
