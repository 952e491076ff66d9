"""Samplers and pruners by name: a new one is one builder and one registry line."""

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sweeps.mistakes import NOTHING, ConfigError, Problem
from sweeps.sections import SweepConfig

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

#: Samplers that learn from COMPLETE trials only; a breach is told to them as the worst objective seen.
READS_ONLY_COMPLETE = frozenset({"gp", "cmaes", "nsga2"})
#: Samplers whose seed orders the whole study, so that a resumed study keeps it.
_SEED_ORDERS_STUDY = frozenset({"grid", "qmc"})


def _tpe(config: SweepConfig, seed: int, options: dict[str, Any]) -> "BaseSampler":
    from optuna.samplers import TPESampler

    # Joint sampling needs the space in parts when some keys are conditional.
    grouped = any(dimension.when for dimension in config.search_space.values())
    defaults = {"n_startup_trials": config.study.sampler.n_startup_trials, "group": grouped}
    return TPESampler(seed=seed, **{**defaults, **options})


def _gp(config: SweepConfig, seed: int, options: dict[str, Any]) -> "BaseSampler":
    from optuna.samplers import GPSampler

    defaults = {"n_startup_trials": config.study.sampler.n_startup_trials, "warn_independent_sampling": False}
    return GPSampler(seed=seed, **{**defaults, **options})


def _cmaes(config: SweepConfig, seed: int, options: dict[str, Any]) -> "BaseSampler":
    import_module("cmaes")  # Optuna itself asks for it only at the first draw.
    from optuna.samplers import CmaEsSampler

    defaults = {"n_startup_trials": config.study.sampler.n_startup_trials, "warn_independent_sampling": False}
    return CmaEsSampler(seed=seed, **{**defaults, **options})


def _random(config: SweepConfig, seed: int, options: dict[str, Any]) -> "BaseSampler":
    from optuna.samplers import RandomSampler

    return RandomSampler(seed=seed, **options)


def _qmc(config: SweepConfig, seed: int, options: dict[str, Any]) -> "BaseSampler":
    from optuna.samplers import QMCSampler

    defaults = {"scramble": True, "warn_independent_sampling": False, "warn_asynchronous_seeding": False}
    return QMCSampler(seed=seed, **{**defaults, **options})


def _nsga2(config: SweepConfig, seed: int, options: dict[str, Any]) -> "BaseSampler":
    from optuna.samplers import NSGAIISampler

    defaults = {"population_size": max(4, config.study.n_trials // 4)}
    return NSGAIISampler(seed=seed, **{**defaults, **options})


def _hyperband(config: SweepConfig, options: dict[str, Any]) -> "BasePruner":
    from optuna.pruners import HyperbandPruner

    longest = config.train.num_steps
    defaults = {"min_resource": min(config.study.pruner.min_steps, longest), "max_resource": longest}
    return HyperbandPruner(**{**defaults, "reduction_factor": 3, **options})


def _asha(config: SweepConfig, options: dict[str, Any]) -> "BasePruner":
    from optuna.pruners import SuccessiveHalvingPruner

    defaults = {"min_resource": config.study.pruner.min_steps, "reduction_factor": 3}
    return SuccessiveHalvingPruner(**{**defaults, **options})


def _median(config: SweepConfig, options: dict[str, Any]) -> "BasePruner":
    from optuna.pruners import MedianPruner

    return MedianPruner(**{"n_warmup_steps": config.study.pruner.min_steps, **options})


def _percentile(config: SweepConfig, options: dict[str, Any]) -> "BasePruner":
    from optuna.pruners import PercentilePruner

    return PercentilePruner(**{"percentile": 50.0, "n_warmup_steps": config.study.pruner.min_steps, **options})


def _patient(config: SweepConfig, options: dict[str, Any]) -> "BasePruner":
    from optuna.pruners import PatientPruner

    patience = {key: options[key] for key in ("patience", "min_delta") if key in options}
    wrapped = {key: value for key, value in options.items() if key not in patience}
    return PatientPruner(_median(config, wrapped), **{"patience": 2, **patience})


def _threshold(config: SweepConfig, options: dict[str, Any]) -> "BasePruner":
    from optuna.pruners import ThresholdPruner

    return ThresholdPruner(**{"n_warmup_steps": config.study.pruner.min_steps, **options})


def _none(config: SweepConfig, options: dict[str, Any]) -> "BasePruner":
    from optuna.pruners import NopPruner

    return NopPruner(**options)


SAMPLERS: dict[str, Callable[[SweepConfig, int, dict[str, Any]], "BaseSampler"]] = {
    "tpe": _tpe,
    "gp": _gp,
    "cmaes": _cmaes,
    "random": _random,
    "grid": _random,  # `study.SweepStudy` hands out the grid's points itself, each once, conditional keys included.
    "qmc": _qmc,
    "nsga2": _nsga2,
}

PRUNERS: dict[str, Callable[[SweepConfig, dict[str, Any]], "BasePruner"]] = {
    "none": _none,
    "hyperband": _hyperband,
    "asha": _asha,
    "median": _median,
    "percentile": _percentile,
    "patient": _patient,
    "threshold": _threshold,
}


def build_sampler(config: SweepConfig, num_trials: int = 0) -> "BaseSampler":
    """The study's sampler for a study that holds `num_trials` trials already.

    Raises:
        ConfigError: an option that the sampler does not take, or a package that it needs is missing.
    """
    sampler = config.study.sampler
    # The same seed again would draw the first trials of the study again.
    seed = sampler.seed + (0 if sampler.name in _SEED_ORDERS_STUDY else num_trials)
    return _build("sampler", sampler.name, lambda: SAMPLERS[sampler.name](config, seed, sampler.options))


def build_pruner(config: SweepConfig) -> "BasePruner":
    """The study's pruner.

    Raises:
        ConfigError: an option that the pruner does not take.
    """
    pruner = config.study.pruner
    return _build("pruner", pruner.name, lambda: PRUNERS[pruner.name](config, pruner.options))


def _build(kind: str, name: str, build: Callable[[], Any]) -> Any:
    try:
        with warnings.catch_warnings():
            # What is experimental for Optuna is pinned by our version range.
            warnings.simplefilter("ignore")
            return build()
    except ImportError as error:
        message = f"needs a package that is not installed ({error.name}); pip install {error.name}, or take another"
        raise ConfigError([Problem(f"study.{kind}.name", None, name, message)]) from error
    except (TypeError, ValueError) as error:
        raise ConfigError(
            [Problem(f"study.{kind}.options", None, NOTHING, f"not accepted by {name}: {error}")]
        ) from error
