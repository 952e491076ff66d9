"""What can be wrong with a search space, judged on the TrainConfig that it varies."""

import itertools
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from grpo_core.config import TrainConfig
from sweeps.dimension_rules import on_grid, shape_mistakes
from sweeps.known_keys import SYNONYMS
from sweeps.mistakes import NOTHING, Mistake, dotted, show
from sweeps.search_space import (
    apply_params,
    as_choices,
    covered_params,
    default_params,
    is_active,
    path_of,
    place_params,
    points,
)
from sweeps.sections import Dimension, SweepConfig
from sweeps.train_fields import SHORT_NAMES, field_of, get_value, similar_keys
from sweeps.validation import translate

#: Values of one key that are tried, and pairs of values of two keys; enough for any space that a person writes.
MAX_POINTS = 256
MAX_PAIRS = 2000
#: Values of one key beyond which a grid is none.
MAX_GRID = 1000


def space_mistakes(config: SweepConfig, ignored: frozenset[str] = frozenset()) -> list[Mistake]:
    """Every mistake of `config.search_space`; `ignored` names entries that were refused before and left out."""
    space = config.search_space
    if not space and not ignored:
        return [Mistake(("search_space",), NOTHING, "nothing to search; add a key such as lr: {values: [1e-4, 3e-4]}")]
    mistakes: list[Mistake] = []
    sound: dict[str, Dimension] = {}
    for key, dimension in space.items():
        found = _key_mistakes(key, space) or shape_mistakes(key, dimension)
        found += _condition_mistakes(key, config, ignored)
        mistakes += found
        if not found:
            sound[key] = dimension
    # Only entries without a mistake are applied to a config, and only those whose conditions are sound as well.
    while unsound := [key for key in sound if not sound[key].when.keys() <= sound.keys()]:
        for key in unsound:
            del sound[key]
    config = config.model_copy(update={"search_space": sound})
    fitting = dict(_value_mistakes(config))
    mistakes += [mistake for found in fitting.values() for mistake in found]
    whole = [key for key in sound if not fitting[key]]
    mistakes += _pair_mistakes(config, whole)
    mistakes += _default_mistakes(config, whole)
    mistakes += _cover_mistakes(config, whole)
    if config.study.sampler.name == "grid":
        mistakes += _grid_mistakes(sound)
    return mistakes


def normalise(config: SweepConfig) -> SweepConfig:
    """The same sweep with every listed value in its field's own type, so `"8"` or 8.0 becomes 8 for a whole number."""
    space = {key: _in_field_type(key, dimension, config) for key, dimension in config.search_space.items()}
    return config.model_copy(update={"search_space": space})


def _in_field_type(key: str, dimension: Dimension, config: SweepConfig) -> Dimension:
    if dimension.values is None:
        return dimension
    context = _context(key, config.search_space)
    trains = [apply_params(config.train, {**context, key: value}) for value in dimension.values]
    values = tuple(get_value(train, path_of(key)) for train in trains)
    return dimension.model_copy(update={"values": values})


def _key_mistakes(key: str, space: dict[str, Dimension]) -> list[Mistake]:
    path = ("search_space", key)
    if path_of(key) == "compute.num_ranks":
        return [
            Mistake(path, NOTHING, "belongs to the machine, not to the settings; set resources.processes_per_trial")
        ]
    if field_of(key) is None:
        near = similar_keys(SYNONYMS.get(key, key))
        fix = f"did you mean {' or '.join(near)}?" if near else f"use {', '.join(SHORT_NAMES)} or a path as optim.beta1"
        return [Mistake(path, NOTHING, f"not a field of train; {fix}")]
    twins = [other for other in space if other != key and path_of(other) == path_of(key)]
    for twin in twins:
        if list(space).index(key) > list(space).index(twin) and not _exclude(key, twin, space):
            rule = (
                f"the same field as search_space.{twin}; keep one of the two, or give them conditions (when) of which "
                "at most one holds"
            )
            return [Mistake(path, NOTHING, rule)]
    return []


def _exclude(one: str, other: str, space: dict[str, Dimension]) -> bool:
    """Whether the conditions of two keys want different values of one parent, so that they never exist together."""
    first, second = space[one].when, space[other].when
    return any(
        not any(value in as_choices(second[parent]) for value in as_choices(first[parent]))
        for parent in first.keys() & second.keys()
    )


def _condition_mistakes(key: str, config: SweepConfig, ignored: frozenset[str]) -> list[Mistake]:
    mistakes = []
    space = config.search_space
    for parent, wanted in space[key].when.items():
        path = ("search_space", key, "when", parent)
        if parent in ignored:
            continue
        if parent not in space:
            same = next((other for other in space if path_of(other) == path_of(parent)), None)
            fix = f"write it {same}" if same else f"add {parent} to search_space, or drop the condition"
            mistakes.append(Mistake(path, NOTHING, f"a condition reads a searched key of this file; {fix}"))
        elif key in _ancestors(parent, space):
            mistakes.append(Mistake(path, NOTHING, "the conditions run in a circle; drop one of them"))
        else:
            possible = points(parent, space[parent]) if field_of(parent) else None
            missing = [value for value in as_choices(wanted) if possible is not None and value not in possible]
            if missing or not as_choices(wanted):
                rule = (
                    f"search_space.{parent} never has that value; use one of {show(possible or space[parent].show())}"
                )
                mistakes.append(Mistake(path, missing[0] if len(missing) == 1 else wanted, rule))
    return mistakes


def _ancestors(key: str, space: dict[str, Dimension]) -> set[str]:
    """The key itself and all keys that its conditions read, directly or not."""
    seen: set[str] = set()
    waiting = [key]
    while waiting:
        current = waiting.pop()
        if current not in seen and current in space:
            seen.add(current)
            waiting += space[current].when
    return seen


def _context(key: str, space: dict[str, Dimension]) -> dict[str, Any]:
    """Params under which a conditional key exists."""
    params: dict[str, Any] = {}
    for parent, wanted in space[key].when.items():
        params |= {**_context(parent, space), parent: as_choices(wanted)[0]}
    return params


def _candidates(key: str, dimension: Dimension) -> list[Any]:
    return points(key, dimension, MAX_POINTS) or [dimension.min, dimension.max]


def _value_mistakes(config: SweepConfig) -> Iterator[tuple[str, list[Mistake]]]:
    """Each key with the mistakes of its values: those that the field or a rule of TrainConfig refuses, and repeats."""
    for key, dimension in config.search_space.items():
        refused: dict[str, list[Any]] = {}
        taken: list[Any] = []
        repeated: list[Any] = []
        context = _context(key, config.search_space)
        for value in _candidates(key, dimension):
            train, rule = _apply(config.train, {**context, key: value}, key)
            if isinstance(value, bool) and not isinstance(get_value(config.train, path_of(key)), bool | None):
                train, rule = None, f"{path_of(key)} is not true or false; list values of its own kind"
            if train is None:
                refused.setdefault(rule, []).append(value)
                continue
            own = get_value(train, path_of(key))
            (repeated if any(own == other and type(own) is type(other) for other in taken) else taken).append(own)
        mistakes = []
        for rule, values in refused.items():
            leaf = _leaf(dimension, values)
            mistakes.append(Mistake(("search_space", key, *leaf), values[0] if len(values) == 1 else values, rule))
        if repeated:
            rule = "listed more than once; list each value once"
            mistakes.append(Mistake(("search_space", key, "values"), repeated[0], rule))
        yield key, mistakes


def _leaf(dimension: Dimension, values: list[Any]) -> tuple[str, ...]:
    """The word of an entry that brings these values."""
    if dimension.values is not None:
        return ("values",)
    if values == [dimension.min]:
        return ("min",)
    return ("max",) if values == [dimension.max] else ()


def _apply(train: TrainConfig, params: dict[str, Any], key: str) -> tuple[TrainConfig | None, str]:
    """The TrainConfig of these params, or None and the rule that refuses them, said about `key`."""
    data = place_params(train, params)
    try:
        return TrainConfig.model_validate(data), ""
    except ValidationError as error:
        mistake = translate(error, data, ("train",))[0]
    if dotted(mistake.path) == path_of(key):
        return None, mistake.message
    return None, f"makes train.{dotted(mistake.path)}={show(mistake.value)} wrong: {mistake.message}"


def _pair_mistakes(config: SweepConfig, keys: list[str]) -> list[Mistake]:
    """Values that are right one by one but not together, one mistake for two keys."""
    mistakes = []
    budget = MAX_PAIRS
    space = config.search_space
    for first, second in itertools.combinations(keys, 2):
        context = {**_context(first, space), **_context(second, space)}
        pairs = list(itertools.product(_candidates(first, space[first]), _candidates(second, space[second])))
        budget -= len(pairs)
        if budget < 0:
            break
        for one, two in pairs:
            params = {**context, first: one, second: two}
            if not (is_active(first, space, params) and is_active(second, space, params)):
                continue
            train, rule = _apply(config.train, params, first)
            if train is None:
                rule = f"with {second}={show(two)}: {rule}; or make the two keys fit"
                mistakes.append(Mistake(("search_space", first), one, rule, (("search_space", second),)))
                break
    return mistakes


def _default_mistakes(config: SweepConfig, keys: list[str]) -> list[Mistake]:
    """Keys whose value in `train` lies outside the space, though trial 0 runs it."""
    mistakes = []
    for key, value in default_params(config).items():
        dimension = config.search_space[key]
        if key in keys and not _contains(key, dimension, value, config):
            path = ("train", *path_of(key).split("."))
            rule = (
                f"trial 0 runs the file's own values, and this one is outside search_space.{key}, "
                f"{dimension.show()}; set one inside, or widen the space"
            )
            mistakes.append(Mistake(path, value, rule, (("search_space", key),)))
    return mistakes


def _cover_mistakes(config: SweepConfig, keys: list[str]) -> list[Mistake]:
    """Covered keys without listed values, more covered settings than trials, and values outside the space."""
    path = ("study", "cover")
    for key in config.study.cover:
        if key not in config.search_space:
            return [Mistake(path, key, "covers a searched key with listed values; add it to search_space, or drop it")]
        if config.search_space[key].values is None or config.search_space[key].when:
            return [Mistake(path, key, "covers a key with values and without a condition; list its values, or drop it")]
    if not set(config.study.cover) <= set(keys):
        return []
    covered = covered_params(config)
    fresh = [params for params in covered if params != default_params(config)]
    if len(fresh) + 1 > config.study.n_trials and covered:
        rule = f"{len(fresh)} settings and trial 0 are more than n_trials; raise it to {len(fresh) + 1} or more"
        return [Mistake(("study", "n_trials"), config.study.n_trials, rule, (path,))]
    for params in fresh:
        for key, value in params.items():
            if key in keys and not _contains(key, config.search_space[key], value, config):
                named = ", ".join(f"{each}={show(params[each])}" for each in config.study.cover)
                rule = (
                    f"the covered trial with {named} runs {path_of(key)}={show(value)}, which is outside "
                    f"{config.search_space[key].show()}; widen it, or set train.{path_of(key)} inside"
                )
                return [Mistake(("search_space", key), NOTHING, rule, (path,))]
    return []


def _contains(key: str, dimension: Dimension, value: Any, config: SweepConfig) -> bool:
    if dimension.values is not None:
        values = _in_field_type(key, dimension, config).values or ()
        return any(value == other and type(value) is type(other) for other in values)
    if value is None or dimension.min is None or dimension.max is None:
        return False
    inside = dimension.min <= value <= dimension.max
    return inside and (dimension.step is None or on_grid(dimension.min, dimension.step, value))


def _grid_mistakes(space: dict[str, Dimension]) -> list[Mistake]:
    rule = "sampler grid tries every value, and this range has no end of them; list values, or give a step"
    return [
        Mistake(("search_space", key), NOTHING, rule)
        for key, dimension in space.items()
        if points(key, dimension, MAX_GRID) is None
    ]
