"""Colours, line styles and the frame that all charts share.

A colour is the name of a CSS variable: the page puts in the value that its light or dark theme has for it (report.css),
so that a chart follows the reader's theme. The hues are those of Okabe and Ito, told apart also by the colour-blind,
and no difference is told by colour alone.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from reports import formats

INK = "var(--ink)"
MUTED = "var(--muted)"
GRID = "var(--grid)"
PANEL = "var(--panel)"
BEST = "var(--best)"
DEFAULTS = "var(--defaults)"
COMPLETE = "var(--complete)"
PRUNED = "var(--pruned)"
FAILED = "var(--failed)"
RUNNING = "var(--running)"
BAND = "var(--band)"
BAND_EDGE = "var(--band-edge)"
WARMUP = "var(--warmup)"
RAMP = [f"var(--ramp-{level})" for level in range(7)]
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "pentagon", "triangle-down", "bowtie")
#: Hue and symbol of things that have no order, told apart by both.
CATEGORIES = [(f"var(--category-{place % 8})", _SYMBOLS[(place + place // 8) % 8]) for place in range(64)]
TRANSPARENT = "rgba(0,0,0,0)"


@dataclass(frozen=True)
class LineStyle:
    """How the trials of one group are drawn, the same in every chart."""

    group: str
    color: str
    width: float
    dash: str
    symbol: str
    opacity: float = 1.0


STYLES = {
    style.group: style
    for style in (
        LineStyle("complete", COMPLETE, 1.3, "solid", "circle", 0.75),
        LineStyle("pruned", PRUNED, 1.3, "5px,3px", "x", 0.85),
        LineStyle("failed", FAILED, 1.5, "dot", "square-x-open"),
        LineStyle("running", RUNNING, 1.6, "solid", "circle-open"),
        LineStyle("defaults", DEFAULTS, 2.4, "solid", "diamond"),
        LineStyle("best", BEST, 3.2, "solid", "star"),
    )
}


@dataclass(frozen=True)
class Figure:
    """One chart: Plotly's data and layout as plain JSON, and the words around it."""

    name: str
    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    height: int = 340
    """Pixels."""
    min_width: int = 0
    """Pixels; on a narrower page the chart scrolls sideways."""


def axis(title: str, **settings: Any) -> dict[str, Any]:
    """A Plotly axis in the report's style."""
    return {
        "title": {"text": title, "standoff": 8},
        "gridcolor": GRID,
        "linecolor": GRID,
        "zeroline": False,
        "automargin": True,
        "ticks": "outside",
        "tickcolor": GRID,
        "ticklen": 4,
        **settings,
    }


def log_axis(title: str, low: float, high: float, **settings: Any) -> dict[str, Any]:
    """A logarithmic axis from 10**low to 10**high, labelled at 1, 2, 5 or, over many decades, 1 of each."""
    exponents = range(math.floor(low), math.ceil(high) + 1)
    digits = (1, 2, 5) if high - low < 2.5 else (1,)
    ticks = [float(f"{digit}e{exponent}") for exponent in exponents for digit in digits]
    shown = [tick for tick in ticks if low <= math.log10(tick) <= high]
    labels = [formats.value(tick) for tick in shown]
    return axis(title, type="log", range=[low, high], tickvals=shown, ticktext=labels, **settings)


def frame(xaxis: dict[str, Any], yaxis: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """A Plotly layout in the report's style; sizes come from the page."""
    return {
        "xaxis": xaxis,
        "yaxis": yaxis,
        "paper_bgcolor": TRANSPARENT,
        "plot_bgcolor": TRANSPARENT,
        "font": {"color": INK, "size": 12, "family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"},
        "hoverlabel": {"bgcolor": PANEL, "bordercolor": MUTED, "font": {"color": INK}, "align": "left"},
        "hovermode": "closest",
        "showlegend": False,
        "margin": {"l": 12, "r": 14, "t": 16, "b": 12},
        **settings,
    }


def ramp_color(score: float, low: float, high: float, maximize: bool) -> str:
    """Colour of an objective between the worst and the best of the complete trials."""
    part = 1.0 if high == low else min(1.0, max(0.0, (score - low) / (high - low)))
    return RAMP[round((part if maximize else 1 - part) * (len(RAMP) - 1))]
