"""Puts a study's records in order before it goes on: what cannot be read is set aside, and made again from the rest."""

import time
from pathlib import Path

from sweeps.process_tree import PROCESSES_FILE
from sweeps.retries import RETRIES_FILE
from sweeps.study_folder import DamagedRecord, StudyFolder, TrialFolder, read_json, read_lines

#: What happens where a record of the study is damaged, by its file.
_OF_STUDY = {
    "controller.json": "the time that the study has run for is counted from now",
    "tracking.json": "MLflow's runs are looked up and brought up to date",
    "preflight.json": "the untouched policy is measured again",
    "final.json": "the winner is measured again",
}
#: The same for a trial.
_OF_TRIAL = {
    "outcome.json": "the trial goes on from its last checkpoint and ends as it did",
    "params.json": "Optuna gives the trial its params again",
    RETRIES_FILE: "its retries are counted from now",
    PROCESSES_FILE: "processes of an earlier launch are not looked for",
}


def repair_records(folder: StudyFolder) -> list[str]:
    """Sets aside every record of a study that is not readable; what was found and what follows, a line each."""
    found = [_repaired(folder.path / name, then) for name, then in _OF_STUDY.items()]
    for trial in all_trial_folders(folder):
        found += [_repaired(trial.path / name, then) for name, then in _OF_TRIAL.items()]
        if num_damaged := num_damaged_lines(trial):
            found.append(f"{trial.metrics_file}: {num_damaged} damaged lines are left out")
    return [line for line in found if line is not None]


def all_trial_folders(folder: StudyFolder) -> list[TrialFolder]:
    """Folders of all trials, those without readable params included."""
    paths = (folder.path / "trials").glob("[0-9]*")
    return [TrialFolder(path) for path in sorted(paths) if path.name.isdigit() and path.is_dir()]


def num_damaged_lines(trial: TrialFolder) -> int:
    """Lines of a trial's metrics file that hold no step, an unfinished last one not counted."""
    if not trial.metrics_file.exists():
        return 0
    steps, end = read_lines(trial.metrics_file)
    with trial.metrics_file.open("rb") as file:
        return file.read(end).count(b"\n") - len(steps)


def set_aside(file: Path) -> Path:
    """Renames a file so that nobody takes it for a record and a person can still look at it; its new path."""
    aside = file.with_name(f"{file.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    return file.rename(aside)


def _repaired(file: Path, then: str) -> str | None:
    try:
        read_json(file)
    except DamagedRecord as error:
        aside = set_aside(file)
        return f"{error}; it is kept as {aside.name}, and {then}"
    return None
