"""What lint rules work with: the findings they make, and a sweep seen as all trials it may hold."""

import itertools
import math
import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import ValidationError

from grpo_core.config import TrainConfig
from sweeps.search_space import apply_params, context_of, default_params, in_order, is_active, path_of, points
from sweeps.sections import SweepConfig
from sweeps.train_fields import get_value

#: Combinations of searched knobs, and values of one, that are looked at.
MAX_VARIANTS = 400
MAX_VALUES = 16
#: Where the knobs are that others are read by, and those that are not always read.
AREAS = ("algorithm.", "rollout.temperature", "optim.value_lr_factor")
#: Knobs whose value changes nothing about what the others do.
NUMBERS = ("algorithm.group_size", "algorithm.reward_scale")


@dataclass(frozen=True)
class Finding:
    """One thing to know before a study starts: the dotted `key` of the sweep file that it is about, rule and fix."""

    level: Literal["error", "warning"]
    key: str
    message: str
    idle: bool = False
    """Whether it says that the key changes nothing."""

    def __str__(self) -> str:
        return f"{self.level}: {self.key}: {self.message}"


def idle(key: str, message: str) -> Finding:
    """The warning that a key cannot matter, with the reason and what to do."""
    return Finding("warning", key, f"cannot matter: {message}", idle=True)


@dataclass(frozen=True)
class Variant:
    """A trial that a sweep may hold: the searched knobs that make it, and what it trains with."""

    params: dict[str, Any]
    train: TrainConfig


@dataclass(frozen=True)
class Sweep:
    """A sweep as the rules see it: what trials may be made of."""

    config: SweepConfig

    @cached_property
    def variants(self) -> list[Variant]:
        """Trials over the values or ends of the searched knobs, each knob alone and all together; at least trial 0."""
        space = self.config.search_space
        knobs = [key for key in space if path_of(key).startswith(AREAS) and path_of(key) not in NUMBERS]
        needed = {key for knob in knobs for key in (knob, *context_of(knob, space))}
        choices = {key: self._values(key) for key in in_order(space) if key in needed}
        alone = [context_of(key, space) | {key: value} for key, values in choices.items() for value in values]
        found = [Variant(default_params(self.config), self.config.train)]
        for drawn in (*alone, *_combinations(choices)):
            params = {key: value for key, value in drawn.items() if is_active(key, space, drawn)}
            try:
                found.append(Variant(params, apply_params(self.config.train, params)))
            except ValidationError:
                continue  # space_mistakes has named it
        return found

    @property
    def trains(self) -> list[TrainConfig]:
        """What the variants train with."""
        return [variant.train for variant in self.variants]

    def _values(self, key: str) -> list[Any]:
        dimension = self.config.search_space[key]
        every = dimension.values or points(key, dimension, MAX_VALUES) or (dimension.min, dimension.max)
        return list(every)[:MAX_VALUES]

    def possible(self, path: str) -> set[Any]:
        """Values that a field of `algorithm` may have in a trial."""
        return {get_value(train, path) for train in self.trains}

    def searched(self, path: str) -> str | None:
        """The search-space key that varies a field, or None."""
        return next(iter(self.keys_of(path)), None)

    def keys_of(self, path: str) -> list[str]:
        """The search-space keys that vary a field; several where labels tell them apart."""
        return [key for key in self.config.search_space if path_of(key) == path]

    def with_key(self, key: str) -> list[Variant]:
        """The variants that draw a key."""
        return [variant for variant in self.variants if key in variant.params]

    def place(self, path: str) -> str:
        """Where the file sets a field: its search-space key, or its path under train."""
        key = self.searched(path)
        return f"search_space.{key}" if key else f"train.{path}"

    def turned(self, path: str) -> bool:
        """Whether a field is searched, or set to something else than the algorithm's preset has."""
        train = self.config.train
        preset = TrainConfig.model_validate({"algorithm": {"name": train.algorithm.name}})
        return self.searched(path) is not None or get_value(train, path) != get_value(preset, path)


def _combinations(choices: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Every way to choose a value for each key; a fixed draw of MAX_VARIANTS where there are more."""
    num_ways = math.prod(map(len, choices.values()))
    if num_ways <= MAX_VARIANTS:
        return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    draw = random.Random(0)
    return [{key: draw.choice(values) for key, values in choices.items()} for _ in range(MAX_VARIANTS)]
