"""A search space at work: what a trial may draw, and the TrainConfig that a draw makes.

A key is a short name (`SHORT_NAMES`) or the dotted path of a TrainConfig field. Optuna is imported where it is used.
"""

import itertools
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from grpo_core.config import AlgorithmConfig, TrainConfig
from grpo_core.presets import PRESETS
from sweeps.sections import Dimension, SweepConfig
from sweeps.train_fields import SHORT_NAMES, TrainField, field_of, get_value, path_of

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

__all__ = [
    "SHORT_NAMES",
    "ancestors",
    "apply_params",
    "as_choices",
    "conditions",
    "context_of",
    "covered_params",
    "covered_settings",
    "default_params",
    "distributions",
    "in_order",
    "is_active",
    "path_of",
    "place_params",
    "points",
    "suggest",
]

Space = Mapping[str, Dimension]


def apply_params(train: TrainConfig, params: Mapping[str, Any]) -> TrainConfig:
    """`train` with the drawn params in place, validated again; raises ValueError where they do not fit together."""
    return TrainConfig.model_validate(place_params(train, params))


def place_params(train: TrainConfig, params: Mapping[str, Any]) -> dict[str, Any]:
    """The data of `train` with the drawn params in place, not validated.

    Another `algorithm.name` brings the knobs of its preset; knobs that differ from the old preset's are kept.
    """
    data = train.model_dump(mode="python")
    drawn = {path_of(key): value for key, value in params.items()}
    name = drawn.get("algorithm.name", train.algorithm.name)
    if name != train.algorithm.name and name in PRESETS:
        preset = AlgorithmConfig(name=train.algorithm.name).model_dump()
        data["algorithm"] = {key: value for key, value in data["algorithm"].items() if value != preset[key]}
    for path, value in drawn.items():
        *sections, leaf = path.split(".")
        section = data
        for part in sections:
            if section[part] is None:
                section[part] = {}
            section = section[part]
        section[leaf] = value
    return data


def default_params(config: SweepConfig) -> dict[str, Any]:
    """The file's own value of every searched key that is active at these values: the params of trial 0."""
    return params_of(config.train, config.search_space)


def params_of(train: TrainConfig, space: Space) -> dict[str, Any]:
    """The params that make `train`: its value of every key of the space that is active at these values."""
    values = {key: get_value(train, path_of(key)) for key in space}
    return {key: value for key, value in values.items() if is_active(key, space, values)}


def covered_settings(config: SweepConfig) -> list[dict[str, Any]]:
    """Every combination of the values of the keys in `study.cover`."""
    covered = config.study.cover
    if not covered:
        return []
    choices = [config.search_space[key].values or () for key in covered]
    return [dict(zip(covered, values, strict=True)) for values in itertools.product(*choices)]


def covered_params(config: SweepConfig) -> list[dict[str, Any]]:
    """Params of the trials that `study.cover` asks for: its settings, the rest as the file has it under them; trial 0
    is among them or not, as its own values say."""
    return [params_of(apply_params(config.train, each), config.search_space) for each in covered_settings(config)]


def is_active(key: str, space: Space, params: Mapping[str, Any]) -> bool:
    """Whether a key exists under these params: each key of its `when` is itself active and has a value listed there."""
    return all(
        parent in params and params[parent] in as_choices(wanted) and is_active(parent, space, params)
        for parent, wanted in space[key].when.items()
    )


def ancestors(key: str, space: Space) -> list[str]:
    """The key itself and all keys that its conditions read, directly or not."""
    seen: list[str] = []
    waiting = [key]
    while waiting:
        current = waiting.pop(0)
        if current not in seen and current in space:
            seen.append(current)
            waiting += space[current].when
    return seen


def conditions(key: str, space: Space) -> dict[str, list[Any]]:
    """The keys that decide whether `key` exists, each with the values at which it does: none where they contradict."""
    found: dict[str, list[Any]] = {}
    for each in ancestors(key, space):
        for parent, wanted in space[each].when.items():
            choices = as_choices(wanted)
            found[parent] = [value for value in found.get(parent, choices) if value in choices]
    return found


def context_of(key: str, space: Space) -> dict[str, Any]:
    """Params under which a conditional key exists: the first values that its conditions allow."""
    return {parent: values[0] for parent, values in conditions(key, space).items()}


def as_choices(wanted: Any) -> list[Any]:
    """The values of one entry of `when`, which may be a value or a list."""
    return list(wanted) if isinstance(wanted, list | tuple) else [wanted]


def in_order(space: Space) -> list[str]:
    """The keys of a space, those that a `when` reads before those that have it, else as in the file."""
    ordered: list[str] = []

    def add(key: str) -> None:
        if key not in ordered:
            for parent in space[key].when:
                add(parent)
            ordered.append(key)

    for key in space:
        add(key)
    return ordered


def suggest(trial: "optuna.Trial", space: Space) -> dict[str, Any]:
    """Params that `trial` draws from the space; keys whose `when` does not hold are left out."""
    params: dict[str, Any] = {}
    for key in in_order(space):
        dimension = space[key]
        if not is_active(key, space, params):
            continue
        if dimension.values is not None:
            params[key] = trial.suggest_categorical(key, dimension.values)
        elif _field(key).kind == "integer":
            low, high = int(dimension.min or 0), int(dimension.max or 0)
            params[key] = trial.suggest_int(key, low, high, step=int(dimension.step or 1), log=dimension.log)
        else:
            low_f, high_f = float(dimension.min or 0), float(dimension.max or 0)
            step = None if dimension.step is None else float(dimension.step)
            params[key] = trial.suggest_float(key, low_f, high_f, step=step, log=dimension.log)
    return params


def distributions(space: Space) -> "dict[str, BaseDistribution]":
    """The Optuna distribution of every key."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, BaseDistribution] = {}
    for key, dimension in space.items():
        if dimension.values is not None:
            found[key] = CategoricalDistribution(dimension.values)
        elif _field(key).kind == "integer":
            low, high = int(dimension.min or 0), int(dimension.max or 0)
            found[key] = IntDistribution(low, high, log=dimension.log, step=int(dimension.step or 1))
        else:
            low_f, high_f = float(dimension.min or 0), float(dimension.max or 0)
            step = None if dimension.step is None else float(dimension.step)
            found[key] = FloatDistribution(low_f, high_f, log=dimension.log, step=step)
    return found


def points(key: str, dimension: Dimension, limit: int = 1000) -> list[Any] | None:
    """Every value that a key may take, or None where it is a continuous range or has more than `limit`."""
    if dimension.values is not None:
        return list(dimension.values)
    if dimension.min is None or dimension.max is None:
        return None
    if dimension.step is None and _field(key).kind != "integer":
        return None
    low, high, step = (Fraction(repr(number)) for number in (dimension.min, dimension.max, dimension.step or 1))
    num_points = int((high - low) / step) + 1
    if num_points > limit:
        return None
    as_number = int if _field(key).kind == "integer" else float
    return [as_number(low + step * place) for place in range(num_points)]


def _field(key: str) -> TrainField:
    found = field_of(key)
    assert found is not None, f"{key} was let through as a search-space key"
    return found
