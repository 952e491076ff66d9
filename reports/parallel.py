"""Parallel coordinates: a line for each trial across all settings to its objective.

Drawn from plain scatter lines. Plotly's own trace type for it needs WebGL and run-time code generation, which the
page's content security policy rules out, and it can neither break a line at a setting that does not apply nor name a
trial.
"""

import itertools
import re
from typing import Any

from reports import formats, theme
from reports.study_data import Dimension, Study, Trial
from reports.trial_groups import describe, group, style


def parallel_figure(study: Study) -> theme.Figure | None:
    """Complete trials coloured by objective, the best one bold, stopped ones grey; None without any trial."""
    scores = [score for trial in study.in_state("complete") if (score := study.score(trial)) is not None]
    shown = [score for trial in study.trials if (score := study.score(trial)) is not None]
    if not study.dimensions or not study.trials:
        return None
    low, high = min(shown, default=0.0), max(shown, default=1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    objective = Dimension(study.objective, None, low, high, False)
    dimensions = [*study.dimensions, objective]
    ramp_low, ramp_high = min(scores, default=low), max(scores, default=high)
    order = sorted(study.trials, key=lambda trial: (trial.state == "complete", study.score(trial) or 0.0))
    lines = [_line(study, trial, dimensions, ramp_low, ramp_high) for trial in order]
    if ramp_low < ramp_high:
        lines.append(_scale(study, ramp_low, ramp_high))
    bridges = [bridge for line in lines if (bridge := _bridge(line)) is not None]
    first = dimensions[0].values or []
    room = 6.5 * max((len(formats.value(value)) for value in first), default=0)
    layout = theme.frame(
        theme.axis(
            "",
            tickvals=list(range(len(dimensions))),
            ticktext=[
                f"<b>{_in_lines(dimension.name)}</b>{' (log)' if dimension.log else ''}" for dimension in dimensions
            ],
            tickangle=0,
            range=[-0.25, len(dimensions) - 0.6],
            showgrid=False,
            ticks="",
            side="top",
            showline=False,
        ),
        theme.axis("", visible=False, range=[-0.06, 1.06]),
        shapes=[_upright(index) for index in range(len(dimensions))],
        margin={"l": 12 + room, "r": 14, "t": 16, "b": 12},
        annotations=[note for index, dimension in enumerate(dimensions) for note in _ticks(index, dimension)],
    )
    caption = "Each line is a trial. Darker blue (brighter on a dark page) is better; dashed grey lines were stopped."
    if bridges:
        caption += " Dotted: on over settings that the trial does not have."
    width = max(660, 100 * len(dimensions))
    return theme.Figure("parallel", "All settings of all trials", caption, [*lines, *bridges], layout, 420, width)


def _line(study: Study, trial: Trial, dimensions: list[Dimension], low: float, high: float) -> dict[str, Any]:
    score = study.score(trial)
    units = [dimension.unit(trial.params.get(dimension.name)) for dimension in dimensions[:-1]]
    units.append(dimensions[-1].unit(score))
    is_best = group(study, trial) == "best"
    color, dash, width = theme.MUTED, "dash", 1.2
    if trial.state == "complete" and score is not None:
        color, dash, width = theme.ramp_color(score, low, high, study.maximize), "solid", 4 if is_best else 2
    shown = f"<br>{formats.chart_text(study.objective)}: <b>{formats.value(score)}</b>"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": list(range(len(dimensions))),
        "y": units,
        "line": {"color": color, "width": width, "dash": dash},
        "marker": {
            "size": 9 if is_best else 5,
            "color": color,
            "symbol": "star" if is_best else style(study, trial).symbol,
        },
        "opacity": 1 if trial.state == "complete" else 0.6,
        "hovertemplate": f"{describe(study, trial)}{shown}<extra></extra>",
        "meta": {"group": style(study, trial).group, "trial": trial.number},
    }


def _bridge(line: dict[str, Any]) -> dict[str, Any] | None:
    """A dotted line over the settings that do not apply to a trial, on to the next that does; None without a gap."""
    drawn = [(x, y) for x, y in zip(line["x"], line["y"], strict=True) if y is not None]
    gaps = [(left, right) for left, right in itertools.pairwise(drawn) if right[0] - left[0] > 1]
    if not gaps:
        return None
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [x for left, right in gaps for x in (left[0], right[0], None)],
        "y": [y for left, right in gaps for y in (left[1], right[1], None)],
        "line": {"color": line["line"]["color"], "width": 1, "dash": "dot"},
        "opacity": 0.7,
        "hoverinfo": "skip",
        "meta": line["meta"],
    }


def _in_lines(name: str) -> str:
    """The name of a setting, cut where a narrow column may cut it."""
    return formats.chart_text(re.sub(r"([./]|_(?=\w{5}))", r"\1 ", name), width=12).replace(" ", "")


def _scale(study: Study, low: float, high: float) -> dict[str, Any]:
    """An invisible trace that carries the colour scale."""
    colors = theme.RAMP if study.maximize else theme.RAMP[::-1]
    marker = {
        "color": [low, high],
        "cmin": low,
        "cmax": high,
        "colorscale": [[index / (len(colors) - 1), color] for index, color in enumerate(colors)],
        "showscale": True,
        "colorbar": {
            "title": {"text": formats.chart_text(study.objective), "side": "right"},
            "thickness": 12,
            "outlinewidth": 0,
            "tickformat": ".3~g",
            "nticks": 6,
        },
    }
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [None, None],
        "y": [None, None],
        "marker": marker,
        "hoverinfo": "skip",
    }


def _upright(index: int) -> dict[str, Any]:
    line = {"color": theme.MUTED, "width": 1}
    return {"type": "line", "x0": index, "x1": index, "y0": 0, "y1": 1, "line": line, "layer": "below"}


def _ticks(index: int, dimension: Dimension) -> list[dict[str, Any]]:
    """Labels beside an upright: every value of a list, else both ends and the middle of the range."""
    if dimension.values is not None:
        marks = [(dimension.unit(value), value) for value in dimension.values]
    elif dimension.low is None or dimension.high is None:
        marks = []
    else:
        middle = (dimension.low * dimension.high) ** 0.5 if dimension.log else (dimension.low + dimension.high) / 2
        marks = [(dimension.unit(value), value) for value in (dimension.low, middle, dimension.high)]
    return [
        {
            "x": index,
            "y": place,
            "xanchor": "right",
            "xshift": -7,
            "text": formats.chart_text(formats.value(float(f"{value:.3g}") if isinstance(value, float) else value)),
            "showarrow": False,
            "font": {"size": 11, "color": theme.INK},
            "bgcolor": theme.PANEL,
            "opacity": 0.9,
        }
        for place, value in marks
    ]
