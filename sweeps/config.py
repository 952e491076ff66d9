"""A sweep file as a `SweepConfig`, or as the list of everything that is wrong with it.

Loads no torch, Optuna or MLflow, so that a mistake costs well under a second.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from sweeps import yaml_source
from sweeps.known_keys import FILLED_IN, suggestion
from sweeps.mistakes import NOTHING, ConfigError, Mistake, Path, Problem, dotted
from sweeps.overrides import parse_override, put
from sweeps.profiles import choose_profile, overlay
from sweeps.sections import (
    Dimension,
    EntropyBand,
    GradNormLimit,
    MonitoringConfig,
    ObjectiveConfig,
    PrunerConfig,
    ResourcesConfig,
    RewardCollapse,
    SamplerConfig,
    StabilityConfig,
    StudyConfig,
    SweepConfig,
    TrackingConfig,
)
from sweeps.space_rules import normalise, space_mistakes
from sweeps.validation import look_up, validate

__all__ = [
    "ConfigError",
    "Dimension",
    "EntropyBand",
    "GradNormLimit",
    "MonitoringConfig",
    "ObjectiveConfig",
    "Problem",
    "PrunerConfig",
    "ResourcesConfig",
    "RewardCollapse",
    "SamplerConfig",
    "StabilityConfig",
    "StudyConfig",
    "SweepConfig",
    "TrackingConfig",
    "load_resolved",
    "load_sweep",
]

_OVERLAID = [key for key in SweepConfig.model_fields if key not in FILLED_IN]
RANKS: Path = ("train", "compute", "num_ranks")


def load_sweep(path: str | FilePath, overrides: Sequence[str] = (), profile: str | None = None) -> SweepConfig:
    """The sweep that a YAML file describes, with a profile and `KEY=VALUE` overrides applied.

    Without `profile` the machine decides: `gpu` where CUDA is present, else `cpu`. Profiles that are not chosen are
    checked too. Raises ConfigError with every mistake of file and options.
    """
    source = yaml_source.read(path)
    problems = list(source.problems)
    profiles, base = _split_profiles(source, str(path), problems)
    try:
        chosen, reason = choose_profile(list(profiles), profile)
    except ValueError as error:
        problems.append(Problem("profile", None, profile, str(error), "--profile"))
        chosen, reason = None, ""
    variants = [chosen, *(name for name in profiles if name != chosen)]
    if chosen is None and profiles:
        # Without an overlay the file need not be complete, unless that is what will run.
        variants = [*variants[1:], *([] if profile is not None else [None])]
    configs = {}
    for name in variants:
        draft = _Draft(copy.deepcopy(base), source, str(path), name)
        if name is not None:
            draft.data = overlay(draft.data, copy.deepcopy(profiles[name]))
        if name == chosen:
            problems += draft.apply(overrides)
        configs[name] = draft.check(problems)
    if problems:
        # Profiles share the rest of the file, and so its mistakes.
        once = {str(problem): problem for problem in problems}
        raise ConfigError(sorted(once.values(), key=lambda problem: problem.line or 0))
    config = configs[chosen]
    assert config is not None, "a sweep without problems has a config"
    return config.model_copy(update={"profile": chosen, "profile_reason": reason, "source": str(path)})


def load_resolved(path: str | FilePath) -> SweepConfig:
    """The sweep in a `sweep.yaml` that was written from `SweepConfig.dump`; raises ConfigError."""
    source = yaml_source.read(path)
    problems = list(source.problems)
    config = _Draft(source.data, source, str(path), None).check(problems)
    if problems or config is None:
        raise ConfigError(problems)
    return config


def _split_profiles(
    source: yaml_source.Source, name: str, problems: list[Problem]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The overlays of a file by name, and the rest of it."""
    base = {key: value for key, value in source.data.items() if key != "profiles"}
    for key in FILLED_IN:
        if key in base:
            rule = f"unknown key; {suggestion((key,))}"
            problems.append(Problem(key, source.lines[(key,)], base.pop(key), rule, name))
    given = source.data.get("profiles")
    if given is None:
        return {}, base
    if not isinstance(given, dict):
        rule = "wants a mapping; write cpu: and gpu: below it, each an overlay of the whole file"
        problems.append(Problem("profiles", source.lines[("profiles",)], given, rule, name))
        return {}, base
    profiles: dict[str, Any] = {}
    for key, value in given.items():
        line = source.lines[("profiles", key)]
        profiles[key] = value if isinstance(value, dict) else {}
        if value is not None and not isinstance(value, dict):
            rule = "wants a mapping; write the keys that this profile changes below it"
            problems.append(Problem(f"profiles.{key}", line, value, rule, name))
        for inner in ("profiles", *FILLED_IN):
            if inner in profiles[key]:
                rule = f"a profile overlays {', '.join(_OVERLAID)}; move it out"
                inner_line = source.lines[("profiles", key, inner)]
                problems.append(Problem(f"profiles.{key}.{inner}", inner_line, NOTHING, rule, name))
                profiles[key] = {name: part for name, part in profiles[key].items() if name != inner}
    return profiles, base


@dataclass
class _Draft:
    """One variant of a file on its way to a config, with where each of its values came from."""

    data: dict[str, Any]
    source: yaml_source.Source
    name: str
    profile: str | None
    options: set[Path] = field(default_factory=set)

    def apply(self, overrides: Sequence[str]) -> list[Problem]:
        """Puts `KEY=VALUE` options into the data; returns the mistakes of those that name no key.

        As in a profile, null takes a key out of the search space.
        """
        problems: list[Problem] = []
        for text in overrides:
            try:
                path, value = parse_override(text)
            except ConfigError as error:
                problems += error.problems
                continue
            put(self.data, path, value)
            self.options.add(path)
            if path[0] == "search_space" and len(path) == 2 and value is None:
                del self.data["search_space"][path[1]]
        return problems

    def check(self, problems: list[Problem]) -> SweepConfig | None:
        """Validates the data and adds its mistakes to `problems`; the config is None where there are any."""
        mistakes = self._share_ranks()
        outcome = validate(self.data)
        mistakes += outcome.mistakes
        if outcome.config is not None:
            ignored = frozenset(str(path[1]) for path in outcome.removed if path[0] == "search_space" and len(path) > 1)
            found = space_mistakes(outcome.config, ignored)
            mistakes += [mistake for mistake in found if not outcome.reads_removed(mistake)]
        problems += [self._locate(mistake) for mistake in mistakes]
        return None if mistakes or outcome.config is None else normalise(outcome.config)

    def _share_ranks(self) -> list[Mistake]:
        """Gives the processes of a trial to its TrainConfig, the one place where training reads them."""
        ranks = look_up(self.data, ("resources", "processes_per_trial"))
        given = look_up(self.data, RANKS)
        if given is not NOTHING and given != (1 if ranks is NOTHING else ranks):
            rule = "processes of a trial are set in one place; drop it and set resources.processes_per_trial"
            return [Mistake(RANKS, given, rule)]
        if isinstance(ranks, int) and not isinstance(ranks, bool) and ranks > 0:
            train = self.data.get("train")
            compute = train.get("compute") if isinstance(train, dict) else None
            if (train is None or isinstance(train, dict)) and (compute is None or isinstance(compute, dict)):
                put(self.data, RANKS, ranks)
        return []

    def _locate(self, mistake: Mistake) -> Problem:
        """The mistake with its line, or with the option that brought it."""
        paths = [mistake.path, *mistake.reads]
        paths += [mistake.path[:end] for end in range(len(mistake.path) - 1, 0, -1)]
        for path in paths:
            if any(path[: len(option)] == option for option in self.options):
                return Problem(dotted(mistake.path), None, mistake.value, mistake.message, "--set")
            overlaid = ("profiles", self.profile, *path) if self.profile is not None else ()
            if overlaid in self.source.lines:
                key = dotted((*overlaid[:2], *mistake.path)) if path == mistake.path else dotted(mistake.path)
                return Problem(key, self.source.lines[overlaid], mistake.value, mistake.message, self.name)
            if path in self.source.lines:
                return Problem(dotted(mistake.path), self.source.lines[path], mistake.value, mistake.message, self.name)
        return Problem(dotted(mistake.path), None, mistake.value, mistake.message, self.name)
