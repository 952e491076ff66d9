"""Curves of all trials over the steps: reward, entropy, gradient norm, objective."""

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from grpo_core.metric_names import (
    EVAL_ACCURACY,
    LOSS_VALUE,
    OPTIM_GRAD_NORM,
    POLICY_ENTROPY,
    POLICY_KL,
    REWARD_MEAN,
    VALUE_EXPLAINED_VARIANCE,
)
from reports import formats, theme
from reports.curve_guides import guides, limits_caption
from reports.estimates import Z95
from reports.mark_labels import place_labels
from reports.rollback_marks import rollback_mark
from reports.span import Span, span_of
from reports.study_data import Curve, Study, Trial
from reports.thinning import MAX_POINTS, points_per_line, thinned
from reports.trial_groups import describe, in_drawing_order, style
from sweeps.train_fields import path_of

#: The reward of one step is mostly noise: its curves can be shown as the mean of this many steps up to each.
SMOOTHING_STEPS = 5
#: Numbers of stopped trials stand beside their marks where no more than this many do; more would cover each other.
MAX_LABELS = 60


@dataclass(frozen=True)
class _Chart:
    metric: str
    title: str
    label: str
    caption: str
    is_log: bool = False
    is_smooth: bool = False
    """Whether the chart can be shown smoothed, and is at first."""
    is_sparse: bool = False
    """Recorded at some steps only, with a standard error."""


def curve_figures(study: Study) -> list[theme.Figure]:
    """The charts of the section; one without a single point is left out."""
    reward = f"Mean reward of a step's completions, before reward_scale. Smoothed over {SMOOTHING_STEPS} steps."
    entropy, norm = limits_caption(study, "entropy"), limits_caption(study, "grad_norm")
    charts = [
        _Chart(REWARD_MEAN, "Reward", REWARD_MEAN, reward, is_smooth=True),
        _Chart(POLICY_ENTROPY, "Entropy", f"{POLICY_ENTROPY} [nats per token]", entropy),
        _Chart(OPTIM_GRAD_NORM, "Gradient norm", f"{OPTIM_GRAD_NORM} [log scale]", norm, is_log=True),
    ]
    kl = "Trials with a kl_coef above 0: from the reference policy, per token, by the estimator of the trial."
    charts.append(_Chart(POLICY_KL, "KL to the reference", f"{POLICY_KL} [nats per token]", kl))
    head = "Trials with a value head: 1 is perfect, 0 no better than a constant."
    charts.append(_Chart(VALUE_EXPLAINED_VARIANCE, "Explained variance", VALUE_EXPLAINED_VARIANCE, head))
    charts.append(_Chart(LOSS_VALUE, "Value loss", LOSS_VALUE, "Of the value head, in a step's last update."))
    for metric in dict.fromkeys((study.objective, EVAL_ACCURACY)):
        name = formats.metric(metric).capitalize()
        caption = "On the validation problems; bars are 95% intervals, the dotted line is the base policy."
        charts.append(_Chart(metric, name, metric, caption, is_sparse=True))
    return [figure for chart in charts if (figure := _figure(study, chart)).data]


def smoothed(values: list[float]) -> list[float]:
    """Mean of each value and those up to `SMOOTHING_STEPS` - 1 before it, over the finite ones; NaN without any."""
    return [_smoothed_at(values, index) for index in range(len(values))]


def _smoothed_at(values: list[float], index: int) -> float:
    window = [value for value in values[max(0, index + 1 - SMOOTHING_STEPS) : index + 1] if math.isfinite(value)]
    return fmean(window) if window else math.nan


def _figure(study: Study, chart: _Chart) -> theme.Figure:
    metric = chart.metric
    trials = [trial for trial in in_drawing_order(study) if metric != POLICY_KL or _has_reference(study, trial)]
    drawn = [(trial, trial.curves[metric]) for trial in trials if metric in trial.curves]
    values = [value for _, curve in drawn for value in curve.values]
    if (base := study.base_value(metric)) is not None and chart.is_sparse:
        values.append(base)
    for trial, curve in drawn:
        if half_widths := _half_widths(study, trial, chart):
            values += [
                value + half_widths.get(step, 0.0) for step, value in zip(curve.steps, curve.values, strict=True)
            ]
    span = span_of(values, study.limits(metric), chart.is_log)
    limit = points_per_line(len(drawn))
    lines = [_line(study, trial, curve, span, chart, limit) for trial, curve in drawn]
    marks = [mark for trial, curve in drawn if (mark := _mark(study, trial, curve, span, chart))]
    returns = []
    if chart.is_sparse:
        returns = [mark for trial, curve in drawn if (mark := rollback_mark(study, trial, curve, span))]
    heights = [mark["meta"].get("smoothed", mark["y"])[0] for mark in marks]
    points = [(mark["x"][0] / study.num_steps, span.height(y)) for mark, y in zip(marks, heights, strict=True)]
    if len(marks) <= MAX_LABELS:
        for mark, position in zip(marks, place_labels(points), strict=True):
            mark |= {"mode": "markers+text", "text": [str(mark["meta"]["trial"])], "textposition": position}
    label = formats.chart_text(chart.label)
    yaxis = theme.axis(label, range=[span.low, span.high])
    if chart.is_log:
        yaxis = theme.log_axis(label, span.low, span.high)
    shapes, notes = guides(study, metric, span)
    xaxis = theme.axis("step", range=[0, study.num_steps * 1.03], **({"dtick": 1} if study.num_steps <= 10 else {}))
    layout = theme.frame(xaxis, yaxis, shapes=shapes, annotations=notes)
    return theme.Figure(
        f"curve-{metric.replace('/', '-')}", chart.title, chart.caption, lines + marks + returns, layout
    )


def _has_reference(study: Study, trial: Trial) -> bool:
    """Whether a trial held a reference policy; in one without, `policy/kl` is measured to the sampling policy."""
    own = [value for key, value in trial.params.items() if path_of(key) == "algorithm.kl_coef"]
    return bool(own[0] if own else study.train("algorithm", "kl_coef"))


def _line(study: Study, trial: Trial, curve: Curve, span: Span, chart: _Chart, limit: int) -> dict[str, Any]:
    look = style(study, trial)
    kept = thinned(curve.values, MAX_POINTS if look.group in ("best", "defaults") else limit)
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers" if chart.is_sparse or len(kept) == 1 else "lines",
        "x": [curve.steps[index] for index in kept],
        "y": [_drawable(curve.values[index], span) for index in kept],
        "line": {"color": look.color, "width": look.width, "dash": look.dash},
        "marker": {"size": 5, "color": look.color},
        "opacity": look.opacity,
        "hovertemplate": f"{describe(study, trial)}<br>step %{{x}}: <b>%{{y:.4g}}</b><extra></extra>",
        "meta": {"group": look.group, "trial": trial.number},
    }
    if chart.is_sparse and look.group in ("pruned", "failed") and trial.stop_step > curve.steps[-1]:
        # On to the mark: the trial went on after its last evaluation.
        trace["x"].append(trial.stop_step)
        trace["y"].append(trace["y"][-1])
    if chart.is_smooth:
        trace["meta"]["smoothed"] = [_drawable(_smoothed_at(curve.values, index), span) for index in kept]
    if half_widths := _half_widths(study, trial, chart):
        halves = [half_widths.get(step, math.nan) for step in trace["x"]]
        trace["error_y"] = {"type": "data", "array": halves, "thickness": 1.2, "width": 3, "color": look.color}
    return trace


def _half_widths(study: Study, trial: Trial, chart: _Chart) -> dict[int, float]:
    """Half width of the 95% interval by step, for the trials that show one."""
    errors = trial.curves.get(f"{chart.metric}_se")
    if not chart.is_sparse or errors is None or style(study, trial).group not in ("best", "defaults"):
        return {}
    return {step: Z95 * error for step, error in zip(errors.steps, errors.values, strict=True)}


def _mark(study: Study, trial: Trial, curve: Curve, span: Span, chart: _Chart) -> dict[str, Any] | None:
    """The cross at the step where a trial was stopped, at the height of the last value that can be drawn."""
    found = curve.last_finite(until=trial.stop_step) if trial.state in ("pruned", "failed") else None
    height = span.place(found[1]) if found else None
    if found is None or height is None:
        return None
    look = style(study, trial)
    mark: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": [trial.stop_step],
        "y": [height],
        "textfont": {"size": 11, "color": look.color},
        "cliponaxis": False,
        "marker": {"symbol": look.symbol, "size": 9, "color": look.color, "line": {"width": 1, "color": theme.PANEL}},
        "hovertemplate": f"{describe(study, trial)}<br>last value: <b>{found[1]:.4g}</b><extra></extra>",
        "meta": {"group": look.group, "trial": trial.number},
    }
    if chart.is_smooth:
        mark["meta"]["smoothed"] = [span.place(_smoothed_at(curve.values, curve.steps.index(found[0])))]
    return mark


def _drawable(value: float, span: Span) -> float | None:
    """The value, or None (a gap in the line) where it has no place in the chart."""
    return value if span.place(value) is not None else None
