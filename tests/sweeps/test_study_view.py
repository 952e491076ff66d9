"""A study seen from outside: what the records show, and a watching that ends with the controller."""

import subprocess
import sys
from pathlib import Path

import pytest

from sweeps.study_view import WatchedStudy, watch
from sweeps.verbs import main

from .study_runs import SLOW, Alone, Lines

# MLflow's own models use what SQLAlchemy is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_a_running_study_is_followed_to_its_end(tmp_path: Path, runs_dir: Path) -> None:
    from sweeps.config import load_resolved

    alone, lines = Alone(tmp_path, runs_dir, SLOW), Lines()
    alone.wait_for_steps(3)
    config = load_resolved(alone.folder.sweep_file)
    view = WatchedStudy(alone.folder, config).look()
    assert [row.number for row in view.running] == [0, 1] and view.ended == []
    assert all(row.step >= 3 and row.reward is not None for row in view.running)
    assert view.n_trials == 5 and view.elapsed_s > 0
    watch(alone.folder, config, lines, interval_s=0.2)
    code, output = alone.finish()
    assert code == 0, output
    steps = [row.step for view in lines.views for row in view.rows if row.number == 0]
    assert steps == sorted(steps) and len(set(steps)) > 3
    assert lines.said[-1].startswith("5 of 5 trials ended after")
    last = WatchedStudy(alone.folder, config).look()
    assert [row.state for row in last.rows] == ["complete"] * 5


def test_watch_shows_a_study_that_nobody_runs_once(tmp_path: Path, runs_dir: Path) -> None:
    alone = Alone(tmp_path, runs_dir, {**SLOW, "study": {**SLOW["study"], "n_trials": 1}})
    code, output = alone.finish()
    assert code == 0, output
    command = [sys.executable, "-m", "sweeps", "status", "s", "--watch", "--runs-dir", str(runs_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "1 of 1 trials ended" in done.stdout and "s: done" in done.stdout


def test_watch_wants_a_name(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--watch", "--runs-dir", str(runs_dir)]) == 2
    assert "--watch follows one study; name it" in capsys.readouterr().err
