"""The range of values that a chart shows."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """Height of a chart, in values or, on a logarithmic axis, in their decimal logarithm."""

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float | None:
        """The value as it can be drawn: None for one that has no place, the edge for one above the chart."""
        if not math.isfinite(value) or (self.is_log and value <= 0):
            return None
        return min(value, 10**self.high if self.is_log else self.high)

    def height(self, value: float) -> float:
        """Share of the chart's height at which the value lies."""
        return ((math.log10(value) if self.is_log else value) - self.low) / (self.high - self.low)


def span_of(values: list[float], limits: list[float], is_log: bool = False) -> Span:
    """Room for every finite value and every limit.

    Values that ran away end at three times the upper limit, or they would flatten all others.
    """
    finite = [value for value in values if math.isfinite(value)]
    if is_log:
        logs = [math.log10(value) for value in [*finite, *limits] if value > 0] or [0.0, 1.0]
        return Span(min(logs) - 0.15, max(logs) + 0.15, True)
    if limits:
        finite = [min(value, 3 * max(limits)) for value in finite] + limits
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    room = 0.06 * (high - low) or 0.1
    return Span(low - room, high + room)
