"""The objective against each setting, and where in the space trials were stable."""

import math
from typing import Any

from reports import formats, theme
from reports.curve_guides import level_line
from reports.estimates import Z95
from reports.span import span_of
from reports.study_data import Dimension, Study, Trial
from reports.trial_groups import describe, group, in_drawing_order, style
from sweeps.train_fields import path_of


def slice_figures(study: Study) -> list[theme.Figure]:
    """For each setting, the objective of every trial that reached one and has it."""
    scored = [trial for trial in in_drawing_order(study) if study.score(trial) is not None]
    drawn = {dimension.name: [t for t in scored if dimension.name in t.params] for dimension in study.dimensions}
    return [slice_figure(study, each, drawn[each.name]) for each in study.dimensions if drawn[each.name]]


def slice_figure(study: Study, dimension: Dimension, trials: list[Trial]) -> theme.Figure:
    """The objective of `trials`, or the last value of those that were stopped, against one setting."""
    found = {trial.number: study.score_estimate(trial) for trial in trials if dimension.name in trial.params}
    estimates = {number: estimate for number, estimate in found.items() if estimate is not None}
    traces = []
    for trial in trials:
        if (estimate := estimates.get(trial.number)) is None:
            continue
        note = "" if trial.objective is not None else " (last value before it was stopped)"
        trace = _point(study, trial, _coordinate(dimension, trial), estimate.mean)
        trace["hovertemplate"] = (
            f"{describe(study, trial)}<br>{formats.chart_text(study.objective)}: <b>{estimate}</b>{note}<extra></extra>"
        )
        if estimate.se is not None:
            color = trace["marker"]["color"]
            trace["error_y"] = {
                "type": "data",
                "array": [Z95 * estimate.se],
                "thickness": 1,
                "width": 2,
                "color": color,
            }
        traces.append(trace)
    base = study.base_value(study.objective)
    shapes = [level_line(base, theme.MUTED, "dot")] if base is not None else []
    ends = [end for estimate in estimates.values() for end in (estimate.low, estimate.high)]
    span = span_of(ends if base is None else [*ends, base], [])
    yaxis = theme.axis(formats.chart_text(study.objective), range=[span.low, span.high])
    layout = theme.frame(_axis(dimension), yaxis, shapes=shapes)
    return theme.Figure(f"slice-{dimension.name}", dimension.name, "", traces, layout, 280)


def stability_figures(study: Study) -> list[theme.Figure]:
    """The learning rate (or else the first range, rather one that every trial has) against each other setting.

    A map of two settings that no trial has together is left out.
    """
    ranges = sorted((each for each in study.dimensions if each.values is None), key=lambda each: bool(each.when))
    across = next((each for each in ranges if path_of(each.name) == "optim.lr"), ranges[0] if ranges else None)
    if across is None:
        return []
    maps = [_map(study, across, other) for other in study.dimensions if other.name != across.name]
    return [each for each in maps if each.data]


def _map(study: Study, across: Dimension, up: Dimension) -> theme.Figure:
    scores = [trial.objective for trial in study.ranked if trial.objective is not None]
    low, high = min(scores, default=0.0), max(scores, default=1.0)
    traces = []
    for trial in in_drawing_order(study):
        if across.name not in trial.params or up.name not in trial.params:
            continue
        trace = _point(study, trial, _coordinate(across, trial), _coordinate(up, trial))
        score = f"{formats.chart_text(study.objective)}: <b>{formats.value(study.score(trial))}</b>"
        trace["marker"]["size"] = 16 if group(study, trial) == "best" else 11
        if group(study, trial) == "complete" and trial.objective is not None:
            trace["marker"]["color"] = theme.ramp_color(trial.objective, low, high, study.maximize)
        trace["hovertemplate"] = f"{describe(study, trial)}<br>{score}<extra></extra>"
        traces.append(trace)
    layout = theme.frame(_axis(across), _axis(up))
    return theme.Figure(f"stability-{up.name}", f"{across.name} and {up.name}", "", traces, layout, 300)


def _point(study: Study, trial: Trial, x: Any, y: Any) -> dict[str, Any]:
    look = style(study, trial)
    size = 14 if look.group == "best" else 9
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [x],
        "y": [y],
        "marker": {
            "symbol": look.symbol,
            "size": size,
            "color": look.color,
            "line": {"width": 1, "color": theme.PANEL if not look.symbol.endswith("open") else look.color},
        },
        "meta": {"group": look.group, "trial": trial.number},
    }


def _coordinate(dimension: Dimension, trial: Trial) -> Any:
    value = trial.params[dimension.name]
    return formats.chart_text(value) if dimension.values is not None else value


def _axis(dimension: Dimension) -> dict[str, Any]:
    title = formats.chart_text(dimension.name)
    if dimension.values is not None:
        values = sorted(dimension.values) if dimension.is_numeric else dimension.values
        names = [formats.chart_text(value) for value in values]
        return theme.axis(
            title, type="category", categoryorder="array", categoryarray=names, range=[-0.5, len(names) - 0.5]
        )
    if dimension.low is None or dimension.high is None or dimension.low == dimension.high:
        return theme.axis(title)
    if dimension.log:
        low, high = math.log10(dimension.low), math.log10(dimension.high)
        room = 0.04 * (high - low)
        return theme.log_axis(f"{title} [log scale]", low - room, high + room)
    room = 0.04 * (dimension.high - dimension.low)
    return theme.axis(title, range=[dimension.low - room, dimension.high + room])
