"""Settings that cannot work, or cannot matter, found before any model loads.

An `error` refuses the study; a `warning` is printed. A rule is a function from a `Sweep` to its findings in `RULES`.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import ValidationError

from grpo_core.config import TrainConfig
from sweeps.mistakes import dotted
from sweeps.search_space import apply_params, in_order, is_active, path_of, points
from sweeps.sections import SweepConfig
from sweeps.space_rules import space_mistakes
from sweeps.train_fields import get_value

#: Combinations of searched settings that are looked at; those of the algorithm's own knobs come first.
MAX_VARIANTS = 400
MAX_VALUES = 8


@dataclass(frozen=True)
class Finding:
    """One thing to know before a study starts: the dotted `key` of the sweep file that it is about, rule and fix."""

    level: Literal["error", "warning"]
    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.level}: {self.key}: {self.message}"


@dataclass(frozen=True)
class Sweep:
    """A sweep as the rules see it: what trials may be made of."""

    config: SweepConfig

    @cached_property
    def variants(self) -> list[TrainConfig]:
        """TrainConfigs of trials, over the values or ends of the searched knobs of the algorithm; at least the base."""
        space = self.config.search_space
        keys = [key for key in in_order(space) if path_of(key).startswith("algorithm.")]
        # Words select what an algorithm is; numbers seldom do, and may be left out where there are too many.
        keys.sort(key=lambda key: (space[key].values is None, path_of(key) == "algorithm.group_size"))
        choices = []
        for key in keys:
            values = points(key, space[key], MAX_VALUES) or space[key].values or (space[key].min, space[key].max)
            choices.append([(key, value) for value in list(values)[:MAX_VALUES]])
        found = [self.config.train]
        for drawn in itertools.islice(itertools.product(*choices), MAX_VARIANTS):
            params = dict(drawn)
            active = {key: value for key, value in params.items() if is_active(key, space, params)}
            try:
                found.append(apply_params(self.config.train, active))
            except ValidationError:
                continue  # space_mistakes has named it
        return found

    def possible(self, path: str) -> set[Any]:
        """Values that a field of `algorithm` may have in a trial."""
        return {get_value(train, path) for train in self.variants}

    def searched(self, path: str) -> str | None:
        """The search-space key that varies a field, or None."""
        return next((key for key in self.config.search_space if path_of(key) == path), None)

    def place(self, path: str) -> str:
        """Where the file sets a field: its search-space key, or its path under train."""
        key = self.searched(path)
        return f"search_space.{key}" if key else f"train.{path}"

    def turned(self, path: str) -> bool:
        """Whether a field of `algorithm` is searched, or set to something else than its preset has."""
        train = self.config.train
        preset = TrainConfig.model_validate({"algorithm": {"name": train.algorithm.name}})
        return self.searched(path) is not None or get_value(train, path) != get_value(preset, path)


def lint(config: SweepConfig) -> list[Finding]:
    """Everything worth knowing about a sweep before it starts, errors first."""
    from sweeps.lint_study import STUDY_RULES
    from sweeps.lint_training import TRAINING_RULES

    mistakes = [Finding("error", dotted(mistake.path), mistake.message) for mistake in space_mistakes(config)]
    if mistakes:
        return mistakes
    sweep = Sweep(config)
    findings = [finding for rule in (*TRAINING_RULES, *STUDY_RULES) for finding in rule(sweep)]
    findings += _nothing_matters(sweep, findings)
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.level)


def _nothing_matters(sweep: Sweep, findings: list[Finding]) -> Iterator[Finding]:
    idle = {finding.key for finding in findings if IDLE in finding.message}
    keys = {f"search_space.{key}" for key in sweep.config.search_space}
    if keys <= idle:
        yield Finding("error", "search_space", "no searched key can matter, so all trials are the same; see warnings")


#: What the message of every finding says whose key changes nothing.
IDLE = "cannot matter"
