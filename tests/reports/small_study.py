"""Studies of a few trials, made in memory, of which every number is plain to see."""

import copy
from pathlib import Path
from typing import Any

from reports.study_data import Curve, Dimension, Study, Trial

from .study_fixture import sweep_config


def curve(values: list[float], first: int = 1, every: int = 1) -> Curve:
    return Curve([first + every * index for index in range(len(values))], values)


def trial(number: int, objective: float | None = None, se: float | None = None, **fields: Any) -> Trial:
    """A complete trial, or whatever `fields` make of it; `objective` and `se` are also its last evaluation."""
    curves = dict(fields.pop("curves", {}))
    if objective is not None and "eval/accuracy" not in curves:
        curves["eval/accuracy"] = Curve([60], [objective])
    if se is not None:
        curves["eval/accuracy_se"] = Curve([60], [se])
    settings: dict[str, Any] = {
        "number": number,
        "state": "complete",
        "params": {"group_size": 8, "clip_range": 0.2, "reward_scale": 1.0, "lr": 1e-4},
        "source": "sampler",
        "seed": 100 + number,
        "objective": objective,
        "reason": None,
        "last_step": 60,
        "duration_s": 40.0,
        "started_at": 0.0,
        "ended_at": 40.0,
        "checkpoint": None,
        "num_retries": 0,
        "folder": Path(f"runs/gsm8k/trials/{number:04d}"),
        "curves": curves,
    }
    settings |= fields
    if settings["state"] != "complete":
        settings["objective"] = None
    return Trial(**settings)


def pruned(number: int, rule: str = "entropy", step: int = 12, value: float = 1.05, **fields: Any) -> Trial:
    reason = {"rule": rule, "step": step, "value": value, "message": f"{rule} {value} at step {step}"}
    return trial(number, fields.pop("objective", None), state="pruned", reason=reason, last_step=step, **fields)


def study(*trials: Trial, config: dict[str, Any] | None = None, **fields: Any) -> Study:
    """A study of these trials that is done; `config` is merged into that of the made-up study."""
    merged = sweep_config(num_trials=len(trials))
    for section, values in (config or {}).items():
        _merge(merged, section, values)
    settings: dict[str, Any] = {
        "name": "gsm8k",
        "folder": Path("runs/gsm8k"),
        "config": merged,
        "config_text": "study: {}\n",
        "dimensions": [Dimension.read(name, entry) for name, entry in merged["search_space"].items()],
        "trials": list(trials),
        "preflight": None,
        "final": None,
        "controller": {"state": "done"},
        "is_running": False,
        "notes": [],
    }
    return Study(**settings | fields)


def _merge(target: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(value, dict) and isinstance(target.get(key), dict):
        target[key] = copy.copy(target[key])
        for inner, item in value.items():
            _merge(target[key], inner, item)
    else:
        target[key] = value
