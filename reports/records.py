"""Reads a study folder into plain data. Only the records on disk are read, so it works at any time of a study.

A record that cannot be read is left out and named in `Study.notes`.
"""

import json
import math
import operator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import yaml

from grpo_core import metric_names
from reports.study_data import Curve, Dimension, Study, Trial
from sweeps.study_folder import StudyFolder, TrialFolder

#: Metrics that the report shows or judges, beside the objective; a study of many trials records far more.
READ = frozenset(
    {
        metric_names.EVAL_ACCURACY,
        metric_names.EVAL_ACCURACY_GREEDY,
        metric_names.EVAL_ACCURACY_SE,
        metric_names.GROUPS_DEAD_FRAC,
        metric_names.LOSS_VALUE,
        metric_names.OPTIM_GRAD_NORM,
        metric_names.OPTIM_ROLLBACKS,
        metric_names.OPTIM_SKIPPED_STEPS,
        metric_names.POLICY_CLIP_FRAC,
        metric_names.POLICY_ENTROPY,
        metric_names.POLICY_KL,
        metric_names.REWARD_MEAN,
        metric_names.ROLLOUT_TRUNCATED_FRAC,
        metric_names.TIME_STEP_S,
        metric_names.VALUE_EXPLAINED_VARIANCE,
    }
)
# Several times faster than the pure Python loader, and not built on every machine.
_YamlLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_study(study_dir: Path) -> Study:
    """Reads all records of a study folder.

    Raises:
        ValueError: the folder holds no study.
    """
    folder = StudyFolder(Path(study_dir))
    if not folder.exists:
        raise ValueError(f"{study_dir}: not a study, it has no sweep.yaml")
    notes: list[str] = []
    config_text = folder.sweep_file.read_text()
    try:
        config = yaml.load(config_text, Loader=_YamlLoader)
    except yaml.YAMLError as error:
        notes.append(f"sweep.yaml is not readable: {error}")
        config = {}
    if not isinstance(config, dict):
        config = {}
    controller = _read_json(folder.controller_file, notes) or {}
    is_running = controller.get("state") == "running" and folder.live_controller() is not None
    objective = (((config.get("study") or {}).get("objective")) or {}).get("metric", metric_names.EVAL_ACCURACY)
    wanted = READ | {objective, f"{objective}_se"}
    study = Study(
        name=folder.name,
        folder=folder.path,
        config=config,
        config_text=config_text,
        dimensions=[Dimension.read(name, entry) for name, entry in (config.get("search_space") or {}).items()],
        trials=[_read_trial(trial, is_running, wanted, notes) for trial in folder.trials()],
        preflight=_read_json(folder.preflight_file, notes),
        final=_read_json(folder.final_file, notes),
        controller=controller,
        is_running=is_running,
        notes=notes,
    )
    # Figures of a trial that has been overtaken since, in a study that was extended, are not those of the best one.
    measured = (study.final or {}).get("trial")
    if measured is not None and (study.best is None or study.best.number != measured):
        return replace(study, final=None)
    return study


def _read_trial(folder: TrialFolder, is_running: bool, wanted: frozenset[str], notes: list[str]) -> Trial:
    params = _read_json(folder.params_file, notes) or {}
    outcome = _read_json(folder.outcome_file, notes) or {}
    curves, times = _read_curves(folder.metrics_file, wanted, notes)
    objective = outcome.get("objective")
    duration = outcome.get("duration_s")
    if duration is None and len(times) > 1:
        duration = times[-1] - times[0]
    return Trial(
        number=folder.number,
        state=outcome.get("state") or ("running" if is_running else "interrupted"),
        params=params.get("params") or {},
        source=params.get("source") or "sampler",
        seed=params.get("seed"),
        objective=objective if objective is not None and math.isfinite(objective) else None,
        reason=outcome.get("reason"),
        last_step=outcome.get("last_step") or max((curve.steps[-1] for curve in curves.values()), default=0),
        duration_s=duration,
        started_at=outcome.get("started_at") or (times[0] if times else None),
        ended_at=outcome.get("ended_at") or (times[-1] if times else None),
        checkpoint=outcome.get("checkpoint"),
        num_retries=outcome.get("num_retries") or 0,
        folder=folder.path,
        curves=curves,
        changes=outcome.get("changes") or {},
    )


def _read_curves(path: Path, wanted: frozenset[str], notes: list[str]) -> tuple[dict[str, Curve], list[float]]:
    """The `wanted` curves of metrics.jsonl and the times of its steps; a line that its writer has not finished is left
    out.

    Of a step that was recorded twice the first record counts.
    """
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    records = [record for line in lines[:-1] if (record := _read_step(line)) is not None]
    if num_unreadable := len(lines[:-1]) - len(records):
        notes.append(f"{path.parent.name}/{path.name}: {num_unreadable} lines are not readable and left out")
    times = [record["time"] for record in records if isinstance(record.get("time"), int | float)]
    steps, metrics = _in_rising_order(records)
    if not metrics:
        return {}, times
    # All names of a kind at once: a study of a million steps has no time for a look at each value by itself.
    often = [name for name in wanted if name in metrics[0] and name in metrics[-1]]
    curves = {name: Curve(steps, values) for name, values in _whole_columns(metrics, often).items()}
    for name in wanted - curves.keys():
        found = [
            (step, float(value))
            for step, each in zip(steps, metrics, strict=True)
            if name in each and isinstance(value := each[name], int | float)
        ]
        if found:
            curves[name] = Curve([step for step, _ in found], [value for _, value in found])
    return curves, times


def _whole_columns(metrics: list[dict[str, Any]], names: list[str]) -> dict[str, list[float]]:
    """Values of those of `names` that have a float at every step; none of them where one of them is missing."""
    if not names:
        return {}
    try:
        rows = map(operator.itemgetter(*names), metrics)
        columns = [list(rows)] if len(names) == 1 else list(map(list, zip(*rows, strict=True)))
    except KeyError:
        return {}
    return {name: column for name, column in zip(names, columns, strict=True) if set(map(type, column)) == {float}}


def _read_step(line: bytes) -> dict[str, Any] | None:
    """The record of a step, None where it is not readable."""
    try:
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            # NaN and infinities, which our own writer leaves and JSON does not have.
            record = json.loads(line)
    except ValueError:
        return None
    is_step = isinstance(record, dict) and isinstance(record.get("step"), int)
    return record if is_step and isinstance(record.get("metrics"), dict) else None


def _in_rising_order(records: list[dict[str, Any]]) -> tuple[list[int], list[dict[str, Any]]]:
    steps: list[int] = []
    metrics: list[dict[str, Any]] = []
    for record in records:
        if not steps or record["step"] > steps[-1]:
            steps.append(record["step"])
            metrics.append(record["metrics"])
    return steps, metrics


def _read_json(path: Path, notes: list[str]) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except json.JSONDecodeError as error:
        notes.append(f"{path.name} is not readable: {error}")
        return None
