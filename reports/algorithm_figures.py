"""The charts that compare algorithms: the objective of every trial, and reward and entropy of the best ones."""

import math
from typing import Any

from grpo_core.metric_names import POLICY_ENTROPY, REWARD_MEAN
from reports import formats, theme
from reports.algorithms import KEY, Contender, contenders
from reports.curve_guides import guides
from reports.curves import SMOOTHING_STEPS, smoothed
from reports.estimates import Z95
from reports.outcome import base_name
from reports.span import span_of
from reports.study_data import Curve, Study, Trial
from reports.thinning import MAX_POINTS, thinned
from reports.trial_groups import describe, group, style

_CURVE_HEIGHT = 420
#: Distance between neighbouring trials of one algorithm, in rows; less where they are many.
_STEP = 0.2


def algorithm_figures(study: Study) -> list[theme.Figure]:
    """The charts of the section; one without a single point is left out."""
    found = contenders(study)
    which = "The best complete trial of each; dashed, where none is complete, the one that came furthest."
    reward = f"{which} Smoothed over {SMOOTHING_STEPS} steps."
    charts = [
        _strip(study, found),
        _curves(study, found, REWARD_MEAN, "Reward of each algorithm", reward),
        _curves(study, found, POLICY_ENTROPY, "Entropy of each algorithm", which),
    ]
    return [chart for chart in charts if chart.data]


def _strip(study: Study, found: list[Contender]) -> theme.Figure:
    """A row for each algorithm in the order of the table, its trials as marks in the order of their numbers."""
    traces, ends = [], []
    for row, contender in enumerate(found):
        scored = [trial for trial in contender.trials if study.score(trial) is not None]
        step = min(_STEP, 0.7 / max(1, len(scored)))
        for place, trial in enumerate(scored):
            is_best = trial is contender.best
            height = row + step * (place - (len(scored) - 1) / 2)
            trace = _mark(study, trial, height, _look(study, contender)[0], is_best)
            traces.append(trace)
            ends += [trace["x"][0] - _half_width(trace), trace["x"][0] + _half_width(trace)]
    base = study.base_value(study.objective)
    span = span_of(ends if base is None else [*ends, base], [])
    line = {"color": theme.MUTED, "width": 1.2, "dash": "dot"}
    shapes = [{"type": "line", "yref": "paper", "x0": base, "x1": base, "y0": 0, "y1": 1, "line": line}]
    layout = theme.frame(
        theme.axis(formats.chart_text(study.objective), range=[span.low, span.high]),
        theme.axis(
            "",
            tickvals=list(range(len(found))),
            ticktext=[formats.chart_text(contender.name) for contender in found],
            range=[len(found) - 0.4, -0.6],
            ticks="",
        ),
        shapes=shapes if base is not None else [],
    )
    caption = "Star with its 95% interval: the best of each; filled: complete; hollow: stopped, at its last value."
    dotted = f" The dotted line is {base_name(study)}." if base is not None else ""
    height = 110 + 44 * len(found)
    return theme.Figure("algorithms-objective", "Every trial by algorithm", caption + dotted, traces, layout, height)


def _mark(study: Study, trial: Trial, height: float, color: str, is_best: bool) -> dict[str, Any]:
    estimate = study.score_estimate(trial)
    assert estimate is not None, f"trial {trial.number}: no score"
    symbol = "star" if is_best else "circle" if trial.state == "complete" else style(study, trial).symbol
    hollow = trial.state != "complete" and not symbol.endswith("-open")
    note = "" if trial.objective is not None else " (last value)"
    shown = f"{formats.chart_text(study.objective)}: <b>{estimate}</b>{note}"
    mark: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": [estimate.mean],
        "y": [height],
        "marker": {
            "symbol": f"{symbol}-open" if hollow else symbol,
            "size": 14 if is_best else 9,
            "color": color,
            "line": {"width": 1 if trial.state == "complete" else 1.5, "color": theme.PANEL if is_best else color},
        },
        "hovertemplate": f"{describe(study, trial)}<br>{shown}<extra></extra>",
        "meta": {"group": group(study, trial), "trial": trial.number},
    }
    if is_best and estimate.se is not None:
        half = Z95 * estimate.se
        mark["error_x"] = {"type": "data", "array": [half], "thickness": 1.2, "width": 4, "color": color}
    return mark


def _half_width(mark: dict[str, Any]) -> float:
    return mark["error_x"]["array"][0] if "error_x" in mark else 0.0


def _curves(study: Study, found: list[Contender], metric: str, title: str, caption: str) -> theme.Figure:
    """One line an algorithm: that of its trial in the table."""
    drawn = [(each, each.shown.curves[metric]) for each in found if metric in each.shown.curves]
    traces = [_line(study, contender, curve, metric == REWARD_MEAN) for contender, curve in drawn]
    span = span_of([value for _, curve in drawn for value in curve.values], study.limits(metric))
    shapes, notes = guides(study, metric, span)
    label = f"{metric} [nats per token]" if metric == POLICY_ENTROPY else metric
    layout = theme.frame(
        theme.axis("step", range=[0, study.num_steps * 1.03]),
        theme.axis(formats.chart_text(label), range=[span.low, span.high]),
        shapes=shapes,
        annotations=notes,
        showlegend=True,
        legend={"orientation": "h", "y": -0.2, "x": 0},
    )
    return theme.Figure(f"algorithms-{metric.replace('/', '-')}", title, caption, traces, layout, _CURVE_HEIGHT)


def _line(study: Study, contender: Contender, curve: Curve, is_smooth: bool) -> dict[str, Any]:
    trial = contender.shown
    kept = thinned(curve.values, MAX_POINTS)
    color, symbol = _look(study, contender)
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": formats.chart_text(contender.name),
        "x": [curve.steps[index] for index in kept],
        "y": _drawable([curve.values[index] for index in kept]),
        "line": {"color": color, "width": 2, "dash": "dash" if contender.best is None else "solid"},
        # A mark here and there: what colour tells, shape tells too.
        "marker": {"symbol": symbol, "color": color, "size": 8, "maxdisplayed": 5},
        "hovertemplate": f"<b>{formats.chart_text(contender.name)}</b><br>{describe(study, trial)}"
        "<br>step %{x}: <b>%{y:.4g}</b><extra></extra>",
        "meta": {"group": group(study, trial), "trial": trial.number},
    }
    if is_smooth:
        smooth = smoothed(curve.values)
        trace["meta"]["smoothed"] = _drawable([smooth[index] for index in kept])
    return trace


def _look(study: Study, contender: Contender) -> tuple[str, str]:
    """Colour and symbol of an algorithm: the same in every chart, and at any time of a study."""
    values = next((each.values for each in study.dimensions if each.name == KEY), None) or []
    names = [str(value) for value in values]
    place = names.index(contender.name) if contender.name in names else len(names)
    return theme.CATEGORIES[place % len(theme.CATEGORIES)]


def _drawable(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]
