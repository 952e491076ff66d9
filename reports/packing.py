"""Traces of one look put together: a chart of a thousand trials has as few of them as it has looks.

A packed trace holds trials one after the other, lines with a gap between them; `meta.trials` has the number and the
count of points of each. What is said of a trial on hover stands once in the page, for all charts; the page's script
puts it to the points (report.js).
"""

import copy
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

_END = "<extra></extra>"


def packed(traces: Sequence[dict[str, Any]], hovers: Mapping[int, str]) -> list[dict[str, Any]]:
    """`traces` with neighbours of one look in one; `hovers` are the texts by trial. Traces of no trial stay as they
    are."""
    parts = [_Part(trace, hovers) for trace in traces]
    return [_joined(list(group)) for _, group in itertools.groupby(parts, key=lambda part: part.key)]


class _Part:
    """One trial's trace, its look apart from its data."""

    def __init__(self, trace: dict[str, Any], hovers: Mapping[int, str]) -> None:
        self.trace = trace
        self.trial = trace.get("meta", {}).get("trial")
        self.note = ""
        self.look: dict[str, Any] = trace
        # Of no other trace.
        self.key = str(id(trace))
        if self.trial is None:
            return
        self.look = copy.deepcopy({name: value for name, value in trace.items() if name not in _DATA})
        self.look["meta"] = {name: value for name, value in trace["meta"].items() if name not in ("trial", "smoothed")}
        if self.has_colors:
            del self.look["marker"]["color"]
        if "error_y" in self.look:
            del self.look["error_y"]["array"]
        if "hovertemplate" in trace:
            self.look["hovertemplate"] = self._template(hovers[self.trial])
        self.key = json.dumps(self.look, sort_keys=True)

    @property
    def has_colors(self) -> bool:
        """Whether the colours of its points are data."""
        return self.trace.get("mode") == "markers" and "color" in self.trace.get("marker", {})

    def _template(self, hover: str) -> str:
        before, _, after = self.trace["hovertemplate"].partition(hover)
        if "%{" not in after:
            self.note = after.removesuffix(_END)
            after = f"%{{customdata}}{_END}"
        return f"{before}%{{hovertext}}{after}"


#: What belongs to points and not to the look of a trace.
_DATA = ("x", "y", "text", "textposition")


def _joined(parts: list[_Part]) -> dict[str, Any]:
    first = parts[0]
    if first.trial is None:
        return first.trace
    trace, is_line = first.look, "lines" in first.trace.get("mode", "")
    gap = [None] if is_line and len(parts) > 1 else []

    def column(read: Any) -> list[Any]:
        return [value for part in parts for value in [*read(part), *gap]]

    trace["x"] = column(lambda part: part.trace["x"])
    trace["y"] = column(lambda part: part.trace["y"])
    for name in ("text", "textposition"):
        if name in first.trace:
            trace[name] = column(lambda part, name=name: _spread(part.trace[name], len(part.trace["x"])))
    if first.has_colors:
        trace["marker"]["color"] = column(lambda part: _spread(part.trace["marker"]["color"], len(part.trace["x"])))
    if "error_y" in first.trace:
        trace["error_y"]["array"] = column(lambda part: part.trace["error_y"]["array"])
    meta = trace["meta"]
    meta["trials"] = [[part.trial, len(part.trace["x"]) + len(gap)] for part in parts]
    if any(part.note for part in parts):
        meta["notes"] = [part.note for part in parts]
    if "smoothed" in first.trace["meta"]:
        meta["smoothed"] = column(lambda part: part.trace["meta"]["smoothed"])
    return trace


def _spread(value: Any, count: int) -> list[Any]:
    return value if isinstance(value, list) else [value] * count
