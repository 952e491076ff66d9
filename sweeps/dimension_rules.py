"""What can be wrong with one entry of a search space by itself: which words it uses, and the order of its numbers."""

import math
from fractions import Fraction

from sweeps.mistakes import NOTHING, Mistake, show
from sweeps.search_space import path_of
from sweeps.sections import Dimension
from sweeps.train_fields import TrainField, field_of


def on_grid(low: float, step: float, value: float) -> bool:
    """Whether `value` is `low` plus a whole number of steps, as a person counts: 0.1 + 2 x 0.1 is 0.3."""
    return (exact(value) - exact(low)) % exact(step) == 0


def exact(number: float) -> Fraction:
    """The number that is written, without the error of its binary form."""
    return Fraction(repr(number))


def shape_mistakes(key: str, dimension: Dimension) -> list[Mistake]:
    """Mistakes that an entry has by itself: which words it uses, and the order of its numbers."""
    found = field_of(key)
    assert found is not None
    path = ("search_space", key)
    low, high = dimension.min, dimension.max
    if dimension.values is not None:
        mixed = [name for name in ("min", "max", "step") if getattr(dimension, name) is not None]
        mixed += ["log"] if dimension.log else []
        if mixed:
            return [Mistake((*path, mixed[0]), NOTHING, f"stands beside values; keep values or {', '.join(mixed)}")]
        if not dimension.values:
            return [Mistake((*path, "values"), [], "no values; list at least one, for example [4, 8, 16]")]
        return []
    if found.kind in ("boolean", "text"):
        choices = ", ".join(show(choice) for choice in found.choices) or "a, b"
        return [Mistake(path, NOTHING, f"{found.path} has no range; use values: [{choices}]")]
    if low is None and high is None:
        return [Mistake(path, NOTHING, "no range; give values: [...], or min and max")]
    if low is None or high is None:
        lacking = "min" if low is None else "max"
        return [Mistake(path, NOTHING, f"{lacking} is missing; add {lacking}, or list values")]
    mistakes = _whole_number_mistakes(key, dimension) if found.kind == "integer" else []
    return mistakes or _range_mistakes(path, found, dimension, low, high)


def _whole_number_mistakes(key: str, dimension: Dimension) -> list[Mistake]:
    mistakes = []
    for name in ("min", "max", "step"):
        value = getattr(dimension, name)
        if isinstance(value, float):
            near = [str(int(value))] if value.is_integer() else [str(math.floor(value)), str(math.ceil(value))]
            rule = f"{path_of(key)} is a whole number; use {' or '.join(near)}"
            mistakes.append(Mistake(("search_space", key, name), value, rule))
    return mistakes


def _range_mistakes(
    path: tuple[str, ...], found: TrainField, dimension: Dimension, low: float, high: float
) -> list[Mistake]:
    mistakes = []
    whole = found.kind == "integer"
    if low >= high:
        fix = f"swap them: min: {high}, max: {low}" if low > high else "raise max, or set the value in train"
        mistakes.append(Mistake((*path, "min"), low, f"not below max={show(high)}; {fix}"))
    if dimension.log and low <= 0:
        example = 1 if whole else float(f"{(high if high > 0 else 1.0) / 1000:.3g}")
        rule = f"a log scale has no place for 0 or less; use a min above 0, for example {show(example)}, or drop log"
        mistakes.append(Mistake((*path, "min"), low, rule))
    if dimension.step is None:
        return mistakes
    if dimension.log:
        mistakes.append(Mistake((*path, "step"), dimension.step, "a log scale has no step; drop step or log"))
    elif dimension.step <= 0:
        mistakes.append(Mistake((*path, "step"), dimension.step, "must be above 0; use a positive step or drop it"))
    elif low < high and not on_grid(low, dimension.step, high):
        nearest = _nearest_max(low, dimension.step, high)
        rule = (
            f"step={show(dimension.step)} from min={show(low)} does not reach it; "
            f"use {show(nearest)}, the nearest max that it reaches, or another step"
        )
        mistakes.append(Mistake((*path, "max"), high, rule))
    return mistakes


def _nearest_max(low: float, step: float, high: float) -> float:
    """The value nearest to `high` that is above `low` by a whole number of steps; the lower one of two as near."""
    num_steps = (exact(high) - exact(low)) // exact(step)
    legal = [exact(low) + exact(step) * count for count in (num_steps, num_steps + 1) if count > 0]
    nearest = min(legal, key=lambda end: abs(end - exact(high)))
    return int(nearest) if all(isinstance(number, int) for number in (low, step)) else float(nearest)
