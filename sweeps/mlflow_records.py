"""What MLflow is told of a study and its trials, as plain data made from the records on disk."""

import getpass
import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from sweeps.credentials import mask_credentials
from sweeps.search_space import SHORT_NAMES
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, TrialFolder, read_yaml

#: Longest parameter that every MLflow store takes; the whole value is in the artifact config.yaml.
MAX_PARAM_LENGTH = 500
#: Longest tag; a note may be longer.
MAX_TAG_LENGTH = 1000
_FORBIDDEN_IN_NAMES = re.compile(r"[^\w\-. :/]")

#: MLflow's run status for each state of an outcome record; a trial that waits to be resumed is KILLED as well.
STATUS_OF_STATE = {"complete": "FINISHED", "pruned": "KILLED", "failed": "FAILED"}
STATUS_WHEN_INTERRUPTED = "KILLED"


def metric_name(name: str) -> str:
    """A metric's name with `_` for characters that MLflow refuses."""
    return _FORBIDDEN_IN_NAMES.sub("_", name)


def shorten(value: Any, limit: int) -> str:
    """`value` as text of at most `limit` characters, the cut marked."""
    text = value if isinstance(value, str) else json.dumps(value) if isinstance(value, dict | list) else str(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves of a TrainConfig's data by dotted path; settings that are not set are left out."""
    leaves: dict[str, Any] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and not path.endswith("reward_weights"):
            leaves |= flatten(value, f"{path}.")
        elif value is not None and value != {}:
            leaves[path] = value
    return leaves


def trial_params(config: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, str]:
    """Params of a trial's run: what was searched under the names of the file, then the rest of its config."""
    leaves = flatten(config)
    named = {name: leaves.pop(path) for name, path in SHORT_NAMES.items() if path in leaves}
    for key, value in params.items():
        leaves.pop(key, None)
        named[key] = value
    return {key: shorten(value, MAX_PARAM_LENGTH) for key, value in {**named, **leaves}.items()}


def study_params(config: SweepConfig) -> dict[str, str]:
    """Params of the parent run: what stays the same for the whole study."""
    space = {f"search_space.{key}": dimension.show() for key, dimension in config.search_space.items()}
    objective = {
        "objective.metric": config.study.objective.metric,
        "objective.direction": config.study.objective.direction,
    }
    base = trial_params(config.train.model_dump(mode="json"), {})
    return {key: shorten(value, MAX_PARAM_LENGTH) for key, value in {**objective, **space, **base}.items()}


def study_tags(config: SweepConfig, folder: StudyFolder) -> dict[str, str]:
    """Tags of the parent run; these may change when the study is extended."""
    tags = {
        **common_tags(config),
        "kind": "study",
        "folder": str(folder.path.resolve()),
        "n_trials": str(config.study.n_trials),
        "sampler": config.study.sampler.name,
        "pruner": config.study.pruner.name,
        **machine_tags(),
    }
    return {key: shorten(value, MAX_TAG_LENGTH) for key, value in tags.items()}


def common_tags(config: SweepConfig) -> dict[str, str]:
    """Tags of the parent run and of every child."""
    tags = {"study": config.study.name, "profile": config.profile or "none", "mlflow.source.type": "LOCAL"}
    tags["mlflow.source.name"] = f"python -m sweeps.launch {config.source}"
    try:
        tags["mlflow.user"] = getpass.getuser()
    except (KeyError, OSError):
        # A container may run as a user that has no name.
        tags["mlflow.user"] = str(os.getuid())
    return tags


def machine_tags() -> dict[str, str]:
    """What the study ran on."""
    memory_gib = psutil.virtual_memory().total / 2**30
    tags = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {memory_gib:.0f} GiB",
        "python": platform.python_version(),
    }
    for package in ("torch", "transformers", "optuna", "grpo-sweeps"):
        try:
            tags[f"version.{package}"] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return tags


def trial_tags(config: SweepConfig, record: Mapping[str, Any]) -> dict[str, str]:
    """Tags of a trial's run from its params record."""
    tags = {**common_tags(config), "kind": "trial", "number": str(record["number"]), "source": record["source"]}
    if record.get("repeat_of") is not None:
        tags["repeat_of"] = str(record["repeat_of"])
    return tags


def outcome_tags(outcome: Mapping[str, Any]) -> dict[str, str]:
    """Tags that say how a trial ended and why."""
    reason = outcome["reason"] or {}
    tags = {"outcome": outcome["state"], "reason": reason.get("message", ""), "rule": reason.get("rule", "")}
    return {key: shorten(value, MAX_TAG_LENGTH) for key, value in tags.items() if value}


def outcome_note(outcome: Mapping[str, Any], trial: TrialFolder) -> str | None:
    """The note of a trial that did not complete: its reason, and for a failure the last lines of its log."""
    if outcome["state"] == "complete":
        return None
    text = f"**{outcome['state']}**: {(outcome['reason'] or {}).get('message', 'no reason on record')}"
    tail = trial.log_tail() if outcome["state"] == "failed" else ""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", tail)), default=0))
    return mask_credentials(f"{text}\n\nLast lines of its log:\n\n{fence}\n{tail}\n{fence}" if tail else text)


def config_of(trial: TrialFolder) -> dict[str, Any]:
    """The trial's TrainConfig as data; empty before it was written."""
    try:
        return read_yaml(trial.config_file) or {}
    except FileNotFoundError:
        return {}


def dataset_identity(config: SweepConfig) -> dict[str, str]:
    """Name, digest and source of the problems: equal digests mean equal problems in the same split."""
    task = config.train.task
    digest = hashlib.sha256(
        json.dumps(task.model_dump(mode="json", exclude={"reward_weights"}), sort_keys=True).encode()
    )
    if task.path is not None:
        path = Path(task.path)
        for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
            if file.is_file():
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    source = task.path or ("generated" if task.name == "grade_school" else f"hub:{task.name}")
    return {"name": task.name, "digest": digest.hexdigest()[:16], "source": source}


def summary_metrics(
    best: Mapping[str, Any] | None, preflight: Mapping[str, Any], final: Mapping[str, Any], metric: str
):
    """Metrics of the parent run: the best objective, the untouched policy, and both on the test problems."""
    found: dict[str, float] = {}
    if best is not None:
        found |= {f"best/{metric}": best["objective"], "best/trial": best["number"]}
    found |= {f"base/{name}": value for name, value in preflight.items() if name.startswith("eval/")}
    for side in ("base", "winner"):
        found |= {f"test/{side}/{name}": value for name, value in final.get(side, {}).items()}
    return {
        metric_name(name): float(value)
        for name, value in found.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
