"""The points of a search space whose keys all have finitely many values."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeps.search_space import in_order, is_active, points
from sweeps.sections import Dimension

#: Spaces with more points count as endless: a repetition there is no longer likely.
MAX_POINTS = 20_000


def combinations(space: Mapping[str, Dimension], seed: int) -> list[dict[str, Any]]:
    """Every point of a finite space in an order drawn with `seed`, conditional keys only where they apply.

    Empty when a key is continuous or the space has more than MAX_POINTS points.
    """
    values: dict[str, list[Any]] = {}
    for key, dimension in space.items():
        options = points(key, dimension, limit=MAX_POINTS)
        if options is None:
            return []
        values[key] = options
    found: list[dict[str, Any]] = []
    for point in _extend({}, in_order(space), space, values):
        found.append(point)
        if len(found) > MAX_POINTS:
            return []
    random.Random(seed).shuffle(found)
    return found


def _extend(
    params: dict[str, Any], keys: Sequence[str], space: Mapping[str, Dimension], values: Mapping[str, list[Any]]
) -> Iterator[dict[str, Any]]:
    """Every way to complete `params` by the keys that are left."""
    if not keys:
        yield params
        return
    key, *rest = keys
    if not is_active(key, space, params):
        yield from _extend(params, rest, space, values)
        return
    for value in values[key]:
        yield from _extend({**params, key: value}, rest, space, values)
