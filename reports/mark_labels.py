"""Where the number of a stopped trial goes, so that numbers of neighbours do not cover each other."""

from collections.abc import Sequence

#: Plotly's name of a position, and the way from mark to label in shares of the chart's width and height.
_POSITIONS = (
    ("top center", 0.0, 0.065),
    ("bottom center", 0.0, -0.065),
    ("middle right", 0.03, 0.0),
    ("middle left", -0.03, 0.0),
    ("top right", 0.03, 0.065),
    ("top left", -0.03, 0.065),
    ("bottom right", 0.03, -0.065),
    ("bottom left", -0.03, -0.065),
)
_WIDTH, _HEIGHT = 0.032, 0.06


def place_labels(points: Sequence[tuple[float, float]]) -> list[str]:
    """A Plotly `textposition` for each point (shares of width and height): the first that is still free.

    Where all are taken, the label goes above its mark.
    """
    taken = list(points)
    positions = []
    for x, y in points:
        free = (spot for spot in _POSITIONS if not _covers(taken, x + spot[1], y + spot[2]))
        name, right, up = next(free, _POSITIONS[0])
        taken.append((x + right, y + up))
        positions.append(name)
    return positions


def _covers(taken: Sequence[tuple[float, float]], x: float, y: float) -> bool:
    outside = not (0 <= x <= 1.03 and 0 <= y <= 1)
    return outside or any(abs(x - other[0]) < _WIDTH and abs(y - other[1]) < _HEIGHT for other in taken)
