"""Curves of all trials over the steps: reward, entropy, gradient norm, objective."""

import math
from dataclasses import dataclass
from typing import Any

from grpo_core.metric_names import OPTIM_GRAD_NORM, POLICY_ENTROPY, REWARD_MEAN
from reports import formats, theme
from reports.estimates import Z95
from reports.mark_labels import place_labels
from reports.study_data import Curve, Study, Trial
from reports.trial_groups import describe, in_drawing_order, style

#: A line of a longer run is thinned to about this many points; more cannot be told apart on a screen.
MAX_POINTS = 500
#: The reward of one step is mostly noise: its curves can be shown as the mean of this many steps, the last one included.
SMOOTHING_STEPS = 5


@dataclass(frozen=True)
class Span:
    """Height of a chart, in values or in their decimal logarithm."""

    low: float
    high: float
    is_log: bool

    def place(self, value: float) -> float | None:
        """The value as it can be drawn: None for one that has no place, the edge for one above the chart."""
        if not math.isfinite(value) or (self.is_log and value <= 0):
            return None
        return min(value, 10**self.high if self.is_log else self.high)

    def height(self, value: float) -> float:
        """Share of the chart's height at which the value lies."""
        return ((math.log10(value) if self.is_log else value) - self.low) / (self.high - self.low)


def curve_figures(study: Study) -> list[theme.Figure]:
    """The charts of the section; one without a single point is left out."""
    reward = f"Mean reward of a step's completions, before reward_scale; smoothed over {SMOOTHING_STEPS} steps."
    objective = f"{formats.metric(study.objective).capitalize()} on the validation problems"
    figures = [
        _figure(study, REWARD_MEAN, "Reward", REWARD_MEAN, reward),
        _figure(
            study, POLICY_ENTROPY, "Entropy", f"{POLICY_ENTROPY} [nats per token]", _limits_caption(study, "entropy")
        ),
        _figure(
            study, OPTIM_GRAD_NORM, "Gradient norm", f"{OPTIM_GRAD_NORM} [log]", _limits_caption(study, "grad_norm")
        ),
        _figure(study, study.objective, "Objective", study.objective, f"{objective}; bars are 95% intervals."),
    ]
    return [figure for figure in figures if figure.data]


def _figure(study: Study, metric: str, title: str, label: str, caption: str) -> theme.Figure:
    span = _span(study, metric)
    drawn = [(trial, trial.curves[metric]) for trial in in_drawing_order(study) if metric in trial.curves]
    lines = [_line(study, trial, curve, span, metric == study.objective) for trial, curve in drawn]
    marks = [mark for trial, curve in drawn if (mark := _mark(study, trial, curve, span))]
    points = [(mark["x"][0] / study.num_steps, span.height(mark["y"][0])) for mark in marks]
    for mark, position in zip(marks, place_labels(points), strict=True):
        mark["textposition"] = position
    yaxis = theme.axis(formats.chart_text(label), range=[span.low, span.high])
    if span.is_log:
        yaxis |= {"type": "log", "dtick": 1, "minor": {"ticks": "outside", "ticklen": 2, "tickcolor": theme.GRID}}
    shapes, notes = _guides(study, metric, span)
    xaxis = theme.axis("step", range=[0, study.num_steps * 1.03])
    layout = theme.frame(xaxis, yaxis, shapes=shapes, annotations=notes)
    return theme.Figure(f"curve-{metric.replace('/', '-')}", title, caption, lines + marks, layout)


def _span(study: Study, metric: str) -> Span:
    """Room for every value and limit; runaway values end at three times the upper limit, or they would flatten all."""
    is_log = metric == OPTIM_GRAD_NORM
    values = [value for trial in study.trials if metric in trial.curves for value in trial.curves[metric].finite()]
    limits = study.limits(metric)
    if metric == study.objective and study.preflight and isinstance(study.preflight.get(metric), int | float):
        values.append(study.preflight[metric])
    if is_log:
        values = [math.log10(value) for value in [*values, *limits] if value > 0] or [0.0, 1.0]
        return Span(min(values) - 0.15, max(values) + 0.15, True)
    if limits:
        values = [min(value, 3 * max(limits)) for value in values] + limits
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.06 * (high - low) or 0.1
    return Span(low - room, high + room, False)


def _line(study: Study, trial: Trial, curve: Curve, span: Span, is_objective: bool) -> dict[str, Any]:
    look = style(study, trial)
    stride = math.ceil(len(curve.steps) / MAX_POINTS)
    kept = sorted({*range(0, len(curve.steps), stride), len(curve.steps) - 1})
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if is_objective or len(kept) == 1 else "lines",
        "x": [curve.steps[index] for index in kept],
        "y": [curve.values[index] if span.place(curve.values[index]) is not None else None for index in kept],
        "line": {"color": look.color, "width": look.width, "dash": look.dash},
        "marker": {"size": 5, "color": look.color},
        "opacity": look.opacity,
        "hovertemplate": f"{describe(study, trial)}<br>step %{{x}}: <b>%{{y:.4g}}</b><extra></extra>",
        "meta": {"group": look.group, "trial": trial.number, "smooth": not is_objective},
    }
    errors = trial.curves.get(f"{study.objective}_se")
    if is_objective and errors is not None and look.group in ("best", "defaults"):
        by_step = dict(zip(errors.steps, errors.values, strict=True))
        halves = [Z95 * by_step.get(step, 0.0) for step in trace["x"]]
        halves = [half if math.isfinite(half) else 0.0 for half in halves]
        trace["error_y"] = {"type": "data", "array": halves, "thickness": 1.2, "width": 3, "color": look.color}
    return trace


def _mark(study: Study, trial: Trial, curve: Curve, span: Span) -> dict[str, Any] | None:
    """The cross at the step where a trial was stopped, at the height of the last value that can be drawn."""
    found = curve.last_finite(until=trial.stop_step) if trial.state in ("pruned", "failed") else None
    height = span.place(found[1]) if found else None
    if found is None or height is None:
        return None
    look = style(study, trial)
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [trial.stop_step],
        "y": [height],
        "text": [str(trial.number)],
        "textfont": {"size": 11, "color": look.color},
        "cliponaxis": False,
        "marker": {"symbol": look.symbol, "size": 9, "color": look.color, "line": {"width": 1, "color": theme.PANEL}},
        "hovertemplate": f"{describe(study, trial)}<br>last value: <b>{found[1]:.4g}</b><extra></extra>",
        "meta": {"group": look.group, "trial": trial.number},
    }


def _guides(study: Study, metric: str, span: Span) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Shapes and notes behind the curves: the stability limits, the warm-up, the base policy."""
    shapes: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    rule = {POLICY_ENTROPY: study.entropy_band, OPTIM_GRAD_NORM: study.grad_norm_limit}.get(metric) or {}
    limits = study.limits(metric)
    if len(limits) == 2:
        shapes.append(_box(0, 1, limits[0], limits[1], theme.BAND, xref="paper"))
    for limit in limits:
        shapes.append(_rule(limit, theme.BAND_EDGE, "solid"))
        notes.append(_note(limit, f"limit {formats.value(limit)}", theme.BAND_EDGE, span))
    if limits and (warmup := rule.get("warmup_steps")):
        shapes.append(_box(0, warmup, 0, 1, theme.WARMUP, yref="paper"))
        notes.append(
            {
                "x": warmup / 2,
                "y": 1,
                "yref": "paper",
                "yanchor": "top",
                "text": "warm-up",
                "textangle": -90,
                "showarrow": False,
                "font": {"size": 10, "color": theme.MUTED},
            }
        )
    if metric == study.objective and study.preflight and isinstance(study.preflight.get(metric), int | float):
        shapes.append(_rule(study.preflight[metric], theme.MUTED, "dot"))
        notes.append(_note(study.preflight[metric], "base policy", theme.MUTED, span))
    return shapes, notes


def _box(x0: float, x1: float, y0: float, y1: float, color: str, **refs: str) -> dict[str, Any]:
    fill = {"fillcolor": color, "line": {"width": 0}, "layer": "below"}
    return {"type": "rect", "x0": x0, "x1": x1, "y0": y0, "y1": y1, **fill, **refs}


def _rule(y: float, color: str, dash: str) -> dict[str, Any]:
    line = {"color": color, "width": 1.2, "dash": dash}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line, "layer": "below"}


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


def _limits_caption(study: Study, rule: str) -> str:
    settings = study.section("stability").get(rule)
    if not isinstance(settings, dict):
        return f"The stability guard does not watch it (stability.{rule} is off)."
    low, high = settings.get("min"), settings.get("max")
    where = f"outside {low} to {high}" if low is not None else f"above {high}"
    steps = formats.counted(settings.get("patience", 1), "step")
    after = f", after {warmup} warm-up steps" if (warmup := settings.get("warmup_steps")) else ""
    return f"A trial is stopped {where} for {steps} in a row{after}."
