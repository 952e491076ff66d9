"""How a study goes on: what may change about it between two launches, and which trials of another study it can use."""

import math
import shutil
from collections.abc import Mapping
from typing import Any

import yaml

from sweeps.config import load_resolved
from sweeps.mistakes import ConfigError, show
from sweeps.search_space import apply_params, default_params, distributions, is_active, points
from sweeps.sections import Dimension, SweepConfig
from sweeps.study_folder import StudyFolder, TrialFolder, read_yaml, write_json, write_text

#: Parts of a sweep that make its trials comparable. The rest (budget, sampler, pruner, tracking, …) may change.
_FIXED = ("objective", "search_space", "stability", "train")
#: Settings below them that change neither what a trial learns nor what it is measured by.
_FREE = (
    *("train.compute.num_threads", "train.compute.collective_timeout_s", "train.checkpoint"),
    *("train.optim.micro_batch_size", "train.rollout.chunk_size"),
)


class Refused(ValueError):
    """The study cannot be launched as it was asked for; nothing was started or written."""


class StudyChanged(Refused):
    """The file asks for other trials than the study on disk holds; the text names every difference and the way out."""


def write_sweep(folder: StudyFolder, config: SweepConfig) -> None:
    """Writes the resolved sweep of a study."""
    header = "# The sweep as it runs, every default filled in. Written by the controller.\n"
    write_text(folder.sweep_file, header + yaml.safe_dump(config.dump(), sort_keys=False, allow_unicode=True))


def check_unchanged(folder: StudyFolder, config: SweepConfig) -> None:
    """Raises StudyChanged when the trials of the study on disk would not compare with those that `config` asks for.

    Before its first trial a study may change in any way: what was measured and noted for the old settings is dropped.
    """
    try:
        stored = load_resolved(folder.sweep_file)
    except ConfigError as error:
        raise Refused(
            f"{folder.sweep_file}, by which the study goes on, is not readable:\n{error}\n"
            "Bring it back from a copy (MLflow keeps one with the parent run), or start over (the old folder is kept "
            "under another name): --fresh"
        ) from error
    found = differences(stored, config)
    if not found:
        return
    if not folder.trials():
        for file in (folder.preflight_file, folder.tracking_file, *folder.path.glob("study.db*")):
            file.unlink(missing_ok=True)
        return
    name, other = folder.name, next_name(folder)
    raise StudyChanged(
        f"study {name} exists and its trials were made with other settings:\n"
        + "".join(f"  {line}\n" for line in found)
        + f"Take a new name, with the trials that still fit: --study {other} --import {name}\n"
        + "or start over (the old folder is kept under another name): --fresh"
    )


def next_name(folder: StudyFolder) -> str:
    """A name like the study's that no study has yet."""
    base, number = folder.name, 2
    while (folder.path.parent / f"{base}-{number}").exists():
        number += 1
    return f"{base}-{number}"


def differences(stored: SweepConfig, asked: SweepConfig) -> list[str]:
    """What keeps trials of two sweeps from being compared, one `key: old -> new` each."""
    before, after = _fixed_parts(stored), _fixed_parts(asked)
    keys = [*before, *(key for key in after if key not in before)]
    return [
        f"{key}: {before.get(key, 'not there')} -> {after.get(key, 'not there')}"
        for key in keys
        if before.get(key) != after.get(key)
    ]


def _fixed_parts(config: SweepConfig) -> dict[str, str]:
    data = config.dump()
    data["objective"] = data["study"]["objective"]
    parts: dict[str, str] = {}
    for part in _FIXED:
        if part == "search_space":
            parts |= {f"search_space.{key}": _words(dimension) for key, dimension in config.search_space.items()}
        else:
            parts |= {key: show(value) for key, value in _leaves(data[part], part).items()}
    return {key: value for key, value in parts.items() if not key.startswith(_FREE)}


def _words(dimension: Dimension) -> str:
    words = dimension.show() + (" (log)" if dimension.log else "")
    conditions = " and ".join(f"{key} is {show(value)}" for key, value in dimension.when.items())
    return f"{words} when {conditions}" if conditions else words


def _leaves(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        return {path: value}
    return {key: leaf for name, inner in value.items() for key, leaf in _leaves(inner, f"{path}.{name}").items()}


def import_trials(source: StudyFolder, folder: StudyFolder, config: SweepConfig) -> tuple[int, int]:
    """Copies the finished trials of another study that the new one could have run itself.

    They count as attempts. Trial 0 stays free for the defaults where none of them has those. Returns how many were
    taken and how many finished trials there were.
    """
    stored = load_resolved(source.sweep_file)
    finished = [trial for trial in source.trials() if trial.outcome() is not None]
    alike = stored.study.objective == config.study.objective and stored.stability == config.stability
    fitting = [trial for trial in finished if alike and _fits(trial, config)]
    # The defaults come first, whatever their number was.
    fitting.sort(key=lambda trial: not _has_defaults(trial, config))
    first = 0 if fitting and _has_defaults(fitting[0], config) else 1
    for number, trial in enumerate(fitting, start=first):
        _copy(trial, folder.trial(number), f"{source.name}/{trial.path.name}", config)
    return len(fitting), len(finished)


def _has_defaults(trial: TrialFolder, config: SweepConfig) -> bool:
    record = trial.params()
    return record is not None and record["params"] == default_params(config)


def _fits(trial: TrialFolder, config: SweepConfig) -> bool:
    record = trial.params()
    assert record is not None
    params, space = record["params"], config.search_space
    if any(key not in space or not _contains(key, space[key], value) for key, value in params.items()):
        return False
    if set(params) != {key for key in space if is_active(key, space, params)}:
        return False
    try:
        ours = apply_params(config.train, params).model_dump(mode="json")
    except ValueError:
        return False
    theirs = read_yaml(trial.config_file)
    return _comparable(ours) == _comparable(theirs)


def _comparable(train: Mapping[str, Any]) -> dict[str, Any]:
    leaves = _leaves({key: value for key, value in train.items() if key != "seed"}, "train")
    return {key: value for key, value in leaves.items() if not key.startswith(_FREE)}


def _contains(key: str, dimension: Dimension, value: Any) -> bool:
    allowed = points(key, dimension)
    if allowed is not None:
        return any(option == value or (_is_number(value) and _is_close(option, value)) for option in allowed)
    if not _is_number(value) or dimension.min is None or dimension.max is None:
        return False
    return dimension.min <= value <= dimension.max


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_close(option: Any, value: float) -> bool:
    return _is_number(option) and math.isclose(option, value, rel_tol=1e-9)


def _copy(trial: TrialFolder, copy: TrialFolder, origin: str, config: SweepConfig) -> None:
    from optuna.distributions import distribution_to_json

    record, outcome = trial.params(), trial.outcome()
    assert record is not None and outcome is not None
    shutil.copytree(trial.path, copy.path, ignore=shutil.ignore_patterns("processes.json"))
    known = distributions(config.search_space)
    now = {key: distribution_to_json(known[key]) for key in record["params"]}
    changed = {"number": copy.number, "distributions": now, "imported_from": origin}
    write_json(copy.params_file, {**record, **changed})
    write_json(copy.outcome_file, {**outcome, "number": copy.number})
