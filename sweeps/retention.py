"""What of a study may go to make room: checkpoints and rollouts of ended trials by rank and age, or all of it."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from grpo_core.run_record import ROLLOUTS_FILE
from sweeps.study_folder import StudyFolder, TrialFolder

What = Literal["checkpoints", "rollouts", "all"]
#: What of a trial's folder each kind is.
_PATHS = {"checkpoints": "checkpoints", "rollouts": ROLLOUTS_FILE}


@dataclass(frozen=True)
class Removal:
    """One file or folder that a rule lets go."""

    path: Path
    num_bytes: int


def removals(
    folder: StudyFolder, direction: str, what: What, keep: int, younger_than_s: float | None = None
) -> list[Removal]:
    """What the rule removes: `what` of every trial that ended, but of the best `keep` and of those younger than given.

    Trials that wait to be resumed keep everything. `all` is the study's folder itself.
    """
    if what == "all":
        return [Removal(folder.path, _size(folder.path))]
    ended = [(trial, outcome) for trial in folder.trials() if (outcome := trial.outcome()) is not None]
    kept = {trial.number for trial, _ in _ranked(ended, direction)[:keep]}
    now = time.time()
    found = []
    for trial, outcome in ended:
        is_young = younger_than_s is not None and now - outcome["ended_at"] < younger_than_s
        path = trial.path / _PATHS[what]
        if trial.number not in kept and not is_young and path.exists():
            found.append(Removal(path, _size(path)))
    return found


def remove(found: list[Removal]) -> None:
    """Deletes what `removals` gave. Raises OSError where the disk refuses; what was deleted before stays so."""
    for removal in found:
        if removal.path.is_dir():
            shutil.rmtree(removal.path)
        else:
            removal.path.unlink(missing_ok=True)


def _ranked(
    ended: list[tuple[TrialFolder, dict[str, Any]]], direction: str
) -> list[tuple[TrialFolder, dict[str, Any]]]:
    """Complete trials, the best first, as `best_trial` ranks them."""
    sign = -1 if direction == "maximize" else 1
    complete = [(trial, outcome) for trial, outcome in ended if outcome["state"] == "complete"]
    return sorted(complete, key=lambda each: (sign * each[1]["objective"], each[0].number))


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())
    return path.lstat().st_size
