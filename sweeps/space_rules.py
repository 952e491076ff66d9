"""What can be wrong with a search space, judged on the TrainConfig that it varies."""

import itertools
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from grpo_core.config import TrainConfig
from sweeps.dimension_rules import on_grid, shape_mistakes
from sweeps.key_rules import condition_mistakes, cover_mistakes, key_mistakes
from sweeps.mistakes import NOTHING, Mistake, dotted, show
from sweeps.search_space import (
    apply_params,
    context_of,
    covered_params,
    covered_settings,
    default_params,
    is_active,
    path_of,
    place_params,
    points,
)
from sweeps.sections import Dimension, SweepConfig
from sweeps.train_fields import get_value
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
        found = key_mistakes(key, space) or shape_mistakes(key, dimension)
        found += condition_mistakes(key, space, ignored)
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
    unfit = cover_mistakes(config.study.cover, space, ignored)
    mistakes += unfit or ([] if mistakes or ignored else _covered_trial_mistakes(config))
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
    context = context_of(key, config.search_space)
    trains = [apply_params(config.train, {**context, key: value}) for value in dimension.values]
    values = tuple(get_value(train, path_of(key)) for train in trains)
    return dimension.model_copy(update={"values": values})


def _candidates(key: str, dimension: Dimension) -> list[Any]:
    return points(key, dimension, MAX_POINTS) or [dimension.min, dimension.max]


def _value_mistakes(config: SweepConfig) -> Iterator[tuple[str, list[Mistake]]]:
    """Each key with the mistakes of its values: those that the field or a rule of TrainConfig refuses, and repeats."""
    for key, dimension in config.search_space.items():
        refused: dict[str, list[Any]] = {}
        taken: list[Any] = []
        repeated: list[Any] = []
        context = context_of(key, config.search_space)
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
        context = {**context_of(first, space), **context_of(second, space)}
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


def _covered_trial_mistakes(config: SweepConfig) -> list[Mistake]:
    """More covered settings than trials, settings that do not fit together, and values outside the space, in a space
    without other mistakes."""
    path = ("study", "cover")
    for settings in covered_settings(config):
        train, rule = _apply(config.train, settings, config.study.cover[0])
        if train is None:
            return [Mistake(path, NOTHING, f"with {_words(settings)}: {rule}; or list values that fit")]
    fresh = [params for params in covered_params(config) if params != default_params(config)]
    if fresh and len(fresh) + 1 > config.study.n_trials:
        rule = (
            f"{len(fresh)} settings and trial 0 are more than n_trials; raise it to {len(fresh) + 1} or more, "
            "or cover less"
        )
        return [Mistake(("study", "n_trials"), config.study.n_trials, rule, (path,))]
    for params in fresh:
        for key, value in params.items():
            if not _contains(key, config.search_space[key], value, config):
                rule = (
                    f"the covered trial with {_words({each: params[each] for each in config.study.cover})} runs "
                    f"{path_of(key)}={show(value)}, which is outside {config.search_space[key].show()}; widen it, or "
                    f"set train.{path_of(key)} inside"
                )
                return [Mistake(("search_space", key), NOTHING, rule, (path,))]
    return []


def _words(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key}={show(value)}" for key, value in settings.items())


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
