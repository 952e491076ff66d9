"""Returns to the best checkpoint and shrunken micro-batches: where they show in the charts, and what they tell."""

from typing import Any

from grpo_core.metric_names import OPTIM_ROLLBACKS
from reports import formats, theme
from reports.finding import Finding
from reports.span import Span
from reports.study_data import Curve, Study, Trial
from reports.trial_groups import describe, style


def rollback_mark(study: Study, trial: Trial, curve: Curve, span: Span) -> dict[str, Any] | None:
    """A mark on the curve at each step where the trial returned to its best checkpoint; None without any."""
    steps = trial.curves[OPTIM_ROLLBACKS].steps if OPTIM_ROLLBACKS in trial.curves else []
    values = dict(zip(curve.steps, curve.values, strict=True))
    points = [(step, height) for step in steps if (height := span.place(values.get(step, float("nan")))) is not None]
    if not points:
        return None
    look = style(study, trial)
    factor = study.train("rollback", "lr_factor")
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [step for step, _ in points],
        "y": [height for _, height in points],
        "cliponaxis": False,
        "marker": {
            "symbol": "triangle-left",
            "size": 11,
            "color": look.color,
            "line": {"width": 1, "color": theme.PANEL},
        },
        "hovertemplate": f"{describe(study, trial)}<br>step %{{x}}: <b>back to the best checkpoint</b>, learning rate "
        f"times {formats.value(factor)}<extra></extra>",
        "meta": {"group": look.group, "trial": trial.number},
    }


def rolled_back(study: Study) -> Finding | None:
    """Trials whose evaluations fell so often in a row that they returned to their best checkpoint."""
    found = [trial for trial in study.trials if OPTIM_ROLLBACKS in trial.curves]
    if not found:
        return None
    times = sum(int(trial.maximum(OPTIM_ROLLBACKS)) for trial in found)
    numbers = formats.listed([trial.number for trial in found])
    return Finding(
        f"Trial {numbers} went back to the best checkpoint, {formats.counted(times, 'time')} in all (◁ in the charts).",
        f"{study.train('rollback', 'metric')} fell {study.train('rollback', 'after_drops')} evaluations in a row: "
        "the learning rate was too high for this far into training.",
        "Lower lr, or let it fall with optim.lr_schedule: cosine.",
    )


def shrunk(study: Study) -> Finding | None:
    """Trials that ran out of memory and went on with fewer completions at once."""
    found = [trial for trial in study.trials if trial.changes]
    if not found:
        return None
    numbers = formats.listed([trial.number for trial in found])
    sizes = sorted({int(trial.changes.get("optim.micro_batch_size", 0)) for trial in found})
    return Finding(
        f"Trial {numbers} ran out of memory and went on with optim.micro_batch_size {formats.listed(sizes)}.",
        "A step's completions did not fit into memory at once. Results are the same; each retry cost time.",
        f"Set optim.micro_batch_size: {sizes[0]} and a smaller rollout.chunk_size from the start.",
    )
