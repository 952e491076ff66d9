"""Growth of a process over a long run: measured alike everywhere, judged by a slope that outliers do not move."""

import ctypes
import gc
import itertools
import statistics

import psutil

_libc = ctypes.CDLL("libc.so.6")


def memory_mb() -> float:
    """Resident memory of this process once what is free was given back, in MB."""
    gc.collect()
    _libc.malloc_trim(0)
    return psutil.Process().memory_info().rss / 1e6


def slope(points: list[tuple[float, float]]) -> float:
    """Median of the slopes through all pairs of points (Theil 1950, Sen 1968)."""
    pairs = itertools.combinations(points, 2)
    return statistics.median((y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairs if x1 != x0)
