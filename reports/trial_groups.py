"""Which group of the legend a trial belongs to, and what is said when the pointer rests on it."""

from reports import formats
from reports.study_data import Study, Trial
from reports.theme import STYLES, LineStyle


def group(study: Study, trial: Trial) -> str:
    """best, defaults, complete, pruned, failed or running: the first that fits."""
    if study.best is not None and trial.number == study.best.number:
        return "best"
    if trial.state in ("pruned", "failed"):
        return trial.state
    if trial.state in ("running", "interrupted"):
        return "running"
    return "defaults" if trial.source == "defaults" else "complete"


def style(study: Study, trial: Trial) -> LineStyle:
    return STYLES[group(study, trial)]


def in_drawing_order(study: Study) -> list[Trial]:
    """Trials from the background to the front: what a reader looks for first is drawn last."""
    order = list(STYLES)
    return sorted(study.trials, key=lambda trial: (order.index(group(study, trial)), trial.number))


def describe(study: Study, trial: Trial) -> str:
    """Hover text of a trial, escaped for Plotly: number, state with its reason, settings."""
    words = "best" if group(study, trial) == "best" else trial.state
    stopped = f" at step {trial.stop_step}" if trial.state in ("pruned", "failed") else ""
    lines = [f"<b>Trial {trial.number}</b> · {words}{stopped}{' · defaults' if trial.source == 'defaults' else ''}"]
    if trial.reason:
        lines.append(formats.chart_text(trial.reason_text[:300], width=56))
    settings = ", ".join(f"{name} {formats.value(value)}" for name, value in trial.params.items())
    if settings:
        lines.append(formats.chart_text(settings, width=56))
    return "<br>".join(lines)
