"""Puts the parts of a report into one self-contained HTML file."""

import base64
import hashlib
import importlib.metadata
import importlib.resources
import json
import math
import shlex
import time
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from grpo_core.metric_names import POLICY_ENTROPY
from reports import formats
from reports.algorithm_figures import algorithm_figures
from reports.algorithms import KEY, algorithm_rows, comparison, is_compared
from reports.curves import curve_figures
from reports.diagnosis import diagnose
from reports.estimates import measured
from reports.importance import importance_figure, setting_shares
from reports.legend import legend_entries
from reports.outcome import base_name, counts, figure_rows, setting_rows, verdict
from reports.packing import packed
from reports.parallel import parallel_figure
from reports.records import read_study
from reports.slices import slice_figures, stability_figures
from reports.study_data import Study, Trial
from reports.theme import Figure
from reports.trial_groups import describe
from sweeps.credentials import mask_credentials
from sweeps.study_folder import StudyFolder, write_text
from sweeps.summary import reproduce_command

#: Packages whose versions decide the numbers of a study.
_PACKAGES = ("grpo-sweeps", "torch", "transformers", "accelerate", "optuna", "mlflow", "numpy", "plotly")

_PREFLIGHT_NAMES = {
    "policy/entropy": "entropy, nats per token",
    "groups/dead_frac": "share of dead groups",
    "rollout/length_mean": "tokens per completion",
    "rollout/truncated_frac": "share of truncated completions",
    "time/step_s": "seconds per step",
    "time/eval_s": "seconds per evaluation",
    "num_problems": "problems",
    "samples_per_problem": "samples per problem",
}


def build_report(study_dir: Path | str) -> Path:
    """Writes report.html into a study folder and gives its path.

    Reads the records on disk only, so it works on a study that is running, empty or done. The file appears whole.

    Raises:
        ValueError: the folder holds no study.
    """
    study = read_study(Path(study_dir))
    path = StudyFolder(study.folder).report_file
    write_text(path, render(study))
    return path


def render(study: Study) -> str:
    """The report of a study as HTML."""
    compared = is_compared(study)
    figures = {
        "algorithms": algorithm_figures(study) if compared else [],
        "curves": curve_figures(study),
        "importance": _present(importance_figure(study, setting_shares(study))),
        # The section of the algorithms shows every trial by algorithm already.
        "slices": [each for each in slice_figures(study) if not (compared and each.name == f"slice-{KEY}")],
        "parallel": _present(parallel_figure(study)),
        "stability": stability_figures(study),
    }
    plotly = importlib.resources.files("plotly").joinpath("package_data/plotly.min.js").read_text("utf-8")
    charts = importlib.resources.files("reports").joinpath("report.js").read_text("utf-8")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("reports", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"value": formats.value, "duration": formats.duration, "metric": formats.metric}
    return environment.get_template("report.html.jinja").render(
        study=study,
        written_at=formats.moment(time.time()),
        verdict=verdict(study),
        base_name=base_name(study),
        settings=setting_rows(study),
        measured=figure_rows(study),
        algorithms=algorithm_rows(study) if compared else [],
        comparison=comparison(study) if compared else [],
        commands=commands(study),
        counts=counts(study),
        preflight=preflight_rows(study),
        legend=legend_entries(study),
        stopped=study.in_state("pruned", "failed"),
        figures=figures,
        findings=diagnose(study),
        rows=trial_rows(study),
        samples=(study.final or {}).get("samples") or [],
        sweep=mask_credentials(study.config_text),
        versions=versions(),
        figure_json=Markup(safe_json(_figures(study, [each for group in figures.values() for each in group]))),
        style=Markup(importlib.resources.files("reports").joinpath("report.css").read_text("utf-8")),
        scripts=[Markup(plotly), Markup(charts)],
        script_hashes=" ".join(_hash(script) for script in (plotly, charts)),
    )


def safe_json(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can end the element or open a comment.

    NaN and infinities, which JSON does not have, become null.
    """
    text = json.dumps(_finite(value), allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def commands(study: Study) -> list[tuple[str, str]]:
    """Shell commands with what each is for: reproduce the best trial, export it, run the study again."""
    found = []
    where = _shown(study.folder)
    runs_dir = _shown(study.folder.parent)
    option = "" if runs_dir == Path("runs") else f" --runs-dir {shlex.quote(str(runs_dir))}"
    name = shlex.quote(study.name)
    if study.best is not None:
        trial = where / "trials" / study.best.folder.name
        num_ranks = study.config.get("resources", {}).get("processes_per_trial", 1)
        found.append((f"Train trial {study.best.number} again", reproduce_command(trial, num_ranks)))
        found.append(
            ("Export its policy as a plain folder", f"python -m sweeps best {name}{option} --export {name}-best")
        )
    if source := study.config.get("source"):
        profile = f" --profile {shlex.quote(str(study.config['profile']))}" if study.config.get("profile") else ""
        launch = f"python -m sweeps.launch {shlex.quote(str(source))}{profile}{option}"
        found.append(("Run the study again from the start", f"{launch} --fresh"))
    return found


def preflight_rows(study: Study) -> list[tuple[str, str]]:
    """What was measured on the untouched policy before the first trial, as pairs of a name and a text."""
    record = study.preflight or {}
    rows = []
    for name, number in record.items():
        if not isinstance(number, int | float) or name.endswith("_se"):
            continue
        error = record.get(f"{name}_se")
        estimate = measured(number, error) if error is not None else None
        rows.append((_PREFLIGHT_NAMES.get(name) or formats.metric(name), str(estimate or formats.value(number))))
    return rows


def trial_rows(study: Study) -> list[dict[str, Any]]:
    """Rows of the table of all trials."""
    return [_trial_row(study, trial) for trial in study.trials]


def _trial_row(study: Study, trial: Trial) -> dict[str, Any]:
    estimate = study.score_estimate(trial)
    return {
        "trial": trial,
        "is_best": trial is study.best,
        "reason": trial.reason_text,
        "score": study.score(trial),
        "score_text": formats.NONE
        if estimate is None
        else str(estimate)
        if trial.objective is not None
        else f"({estimate})",
        "settings": [trial.params.get(dimension.name) for dimension in study.dimensions],
        "entropy": trial.last(POLICY_ENTROPY),
    }


def versions() -> list[tuple[str, str]]:
    """Versions of the packages that matter, as they are installed where the report is written."""
    found = []
    for package in _PACKAGES:
        try:
            found.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            found.append((package, "not installed"))
    return found


def _shown(path: Path) -> Path:
    """The path as a person would type it: relative to the current folder where it lies below."""
    path, here = path.resolve(), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _present(figure: Figure | None) -> list[Figure]:
    return [figure] if figure is not None else []


def _figures(study: Study, figures: list[Figure]) -> dict[str, Any]:
    """What report.js draws: the charts by name, and what is said of each trial on hover."""
    hovers = {trial.number: describe(study, trial) for trial in study.trials}
    charts = {each.name: {"data": packed(each.data, hovers), "layout": each.layout} for each in figures}
    return {"charts": charts, "hovers": hovers}


def _hash(script: str) -> str:
    """The source expression that lets a content security policy run exactly this inline script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
