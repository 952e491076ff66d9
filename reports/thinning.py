"""Which points of a long curve are drawn: a screen can't show all, and what stands out must not be lost."""

import math
from collections.abc import Sequence

#: A line is thinned to about this many points; more cannot be told apart on a screen.
MAX_POINTS = 500
#: In a chart of many lines each has its share of this many, but no fewer than `MIN_POINTS`.
POINTS_PER_CHART = 40_000
MIN_POINTS = 40


def points_per_line(num_lines: int) -> int:
    """Points that each of `num_lines` lines of a chart may have."""
    return max(MIN_POINTS, min(MAX_POINTS, POINTS_PER_CHART // max(num_lines, 1)))


def thinned(values: Sequence[float], limit: int) -> list[int]:
    """Places of `values` to draw, about `limit` of them: the first, the last, and both extremes of every stretch.

    A value that is not finite is kept where its stretch has one, so that a gap stays a gap.
    """
    if len(values) <= limit:
        return list(range(len(values)))
    num_stretches = max(1, limit // 2 - 1)
    kept = {0, len(values) - 1}
    for stretch in range(num_stretches):
        places = range(stretch * len(values) // num_stretches, (stretch + 1) * len(values) // num_stretches)
        finite = [place for place in places if math.isfinite(values[place])]
        if finite:
            kept |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        if len(finite) < len(places):
            kept.add(next(place for place in places if not math.isfinite(values[place])))
    return sorted(kept)
