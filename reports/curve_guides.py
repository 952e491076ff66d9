"""What is drawn behind the curves: the stability limits, the warm-up, the base policy."""

import math
from typing import Any

from grpo_core.metric_names import OPTIM_GRAD_NORM, POLICY_ENTROPY
from reports import formats, theme
from reports.span import Span
from reports.study_data import Study

Shapes = list[dict[str, Any]]


def guides(study: Study, metric: str, span: Span) -> tuple[Shapes, Shapes]:
    """Plotly shapes and annotations for the chart of a metric."""
    shapes: Shapes = []
    notes: Shapes = []
    limits = study.limits(metric)
    rule = {POLICY_ENTROPY: study.entropy_band, OPTIM_GRAD_NORM: study.grad_norm_limit}.get(metric) or {}
    if len(limits) == 2:
        shapes.append(_box(0, 1, limits[0], limits[1], theme.BAND, xref="paper"))
    for limit in limits:
        shapes.append(level_line(limit, theme.BAND_EDGE, "solid"))
        notes.append(_note(limit, f"limit {formats.value(limit)}", theme.BAND_EDGE, span))
    if limits and (warmup := rule.get("warmup_steps")):
        shapes.append(_box(0, warmup, 0, 1, theme.WARMUP, yref="paper"))
        font = {"size": 10, "color": theme.MUTED}
        place = {"x": warmup / 2, "y": 1, "yref": "paper", "yanchor": "top", "textangle": -90, "showarrow": False}
        notes.append({**place, "text": "warm-up", "font": font})
    if (base := study.base_value(metric)) is not None and metric.startswith("eval/"):
        shapes.append(level_line(base, theme.MUTED, "dot"))
        notes.append(_note(base, "base policy", theme.MUTED, span))
    return shapes, notes


def level_line(y: float, color: str, dash: str) -> dict[str, Any]:
    """A Plotly shape: a line across the whole chart at one height."""
    line = {"color": color, "width": 1.2, "dash": dash}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line, "layer": "below"}


def limits_caption(study: Study, rule: str) -> str:
    """When the stability guard stops a trial for a rule of the `stability` section, in words."""
    settings = study.section("stability").get(rule)
    if not isinstance(settings, dict):
        return f"The stability guard does not watch it (stability.{rule} is off)."
    low, high = settings.get("min"), settings.get("max")
    where = f"above {high}" if low is None else f"below {low}" if high is None else f"outside {low} to {high}"
    steps = formats.counted(settings.get("patience", 1), "step")
    warmup = settings.get("warmup_steps")
    after = f", after {formats.counted(warmup, 'warm-up step')}" if warmup else ""
    return f"A trial is stopped when it stays {where} for {steps} in a row{after}."


def _box(x0: float, x1: float, y0: float, y1: float, color: str, **refs: str) -> dict[str, Any]:
    fill = {"fillcolor": color, "line": {"width": 0}, "layer": "below"}
    return {"type": "rect", "x0": x0, "x1": x1, "y0": y0, "y1": y1, **fill, **refs}


def _note(y: float, text: str, color: str, span: Span) -> dict[str, Any]:
    return {
        "xref": "paper",
        "x": 1,
        "xanchor": "right",
        "y": math.log10(y) if span.is_log else y,
        "yanchor": "bottom",
        "text": text,
        "showarrow": False,
        "font": {"size": 11, "color": color},
    }
