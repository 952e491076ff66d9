"""What a person is told of a study in the terminal, made from its records on disk."""

import math
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.metric_names import EVAL_ACCURACY
from sweeps.credentials import mask_credentials
from sweeps.mistakes import show
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, TrialFolder, best_trial, read_json

#: Half width of a 95% interval in standard errors.
_Z = 1.96


@dataclass(frozen=True)
class Measured:
    """A metric with its standard error, None where it has none."""

    value: float
    se: float | None = None

    def __str__(self) -> str:
        if self.se is None or not math.isfinite(self.se):
            return f"{self.value:.4g}"
        return f"{self.value:.3f} ± {_Z * self.se:.3f}"


def measured(metrics: Mapping[str, Any] | None, name: str) -> Measured | None:
    """The metric `name` with `<name>_se`, or None where it was not measured."""
    value = (metrics or {}).get(name)
    return None if value is None else Measured(value, (metrics or {}).get(f"{name}_se"))


def last_metrics(trial: TrialFolder) -> dict[str, float]:
    """Last known value of every metric of a trial."""
    found: dict[str, float] = {}
    for line in trial.steps():
        found |= line["metrics"]
    return found


def settings(params: Mapping[str, Any]) -> str:
    """Params in one line."""
    return ", ".join(
        f"{key} {f'{value:.3g}' if isinstance(value, float) else show(value)}" for key, value in params.items()
    )


def count_states(folder: StudyFolder) -> str:
    """How the trials of a study ended, in words."""
    states = Counter((trial.outcome() or {"state": "open"})["state"] for trial in folder.trials())
    order = ("complete", "pruned", "failed", "open")
    return ", ".join(f"{states[state]} {state}" for state in order if states[state]) or "no trials yet"


def describe_outcome(outcome: Mapping[str, Any], config: SweepConfig, params: Mapping[str, Any]) -> str:
    """One line about a trial that ended."""
    text = f"trial {outcome['number']}: {outcome['state']}"
    if outcome["state"] == "complete":
        text += f", {config.study.objective.metric} {outcome['objective']:.4g}"
    else:
        text += f" at step {outcome['last_step']}: {(outcome['reason'] or {}).get('message', 'no reason on record')}"
    return f"{text}  ({settings(params)})"


def best_lines(folder: StudyFolder, config: SweepConfig) -> list[str]:
    """The best trial, its settings, and how it compares with the untouched policy."""
    metric, direction = config.study.objective.metric, config.study.objective.direction
    best = best_trial(folder, direction)
    if best is None:
        return ["no trial completed; the report says why each one stopped"]
    trial = folder.trial(best["number"])
    params = (trial.params() or {}).get("params", {})
    score = measured({**last_metrics(trial), metric: best["objective"]}, metric)
    lines = [f"best: trial {best['number']}, {metric} {score}", f"  settings: {settings(params)}"]
    base = measured(read_json(folder.preflight_file), metric)
    if base is not None:
        lines.append(f"  before training: {base}")
    final = read_json(folder.final_file) or {}
    winner, untouched = measured(final.get("winner"), EVAL_ACCURACY), measured(final.get("base"), EVAL_ACCURACY)
    if winner is not None and untouched is not None and final.get("trial", best["number"]) == best["number"]:
        lines.append(f"  on {final['num_problems']} test problems: {winner}, before training {untouched}")
    return lines


def where_option(runs_dir: Path) -> str:
    """The option that names the folder of the studies, empty for the default one."""
    return "" if str(runs_dir) == "runs" else f" --runs-dir {shlex.quote(str(runs_dir))}"


def resume_command(folder: StudyFolder) -> str:
    """The command that goes on with a study."""
    return f"python -m sweeps resume {folder.name}{where_option(folder.path.parent)}"


def reproduce_command(trial: Path, num_ranks: int) -> str:
    """The command that runs the trial in the folder `trial` again by itself, on as many ranks as it had."""
    launcher = "python -m" if num_ranks == 1 else f"torchrun --standalone --nproc-per-node {num_ranks} -m"
    config, again = shlex.quote(str(trial / "config.yaml")), shlex.quote(f"{trial}-again")
    return f"{launcher} grpo_core.train {config} --run-dir {again}"


def next_commands(folder: StudyFolder, config: SweepConfig, runs_dir: Path, uri: str) -> list[str]:
    """Where to look next, and how to go on."""
    where = where_option(runs_dir)
    uri = mask_credentials(uri)
    embedded = uri.startswith("sqlite:")
    return [
        f"report:  {folder.report_file}",
        f"curves:  python -m mlflow_server{where}" if embedded else f"curves:  {uri}",
        f"export:  python -m sweeps best {folder.name}{where} --export DIR",
        f"extend:  python -m sweeps resume {folder.name}{where} --n-trials {config.study.n_trials * 2}",
        "afresh:  the same launch with --fresh",
    ]
