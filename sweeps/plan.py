"""The dry run: what a study would run, what that costs, and how long it takes, before anything is started."""

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_core.config import TrainConfig
from grpo_core.metric_names import TIME_EVAL_S, TIME_STEP_S
from sweeps.config import load_resolved
from sweeps.continuation import differences
from sweeps.controller import open_executor
from sweeps.grid import combinations
from sweeps.phases import PhaseFailed, Phases
from sweeps.progress import PlainProgress, duration
from sweeps.sampling import build_pruner, build_sampler
from sweeps.search_space import covered_params, default_params
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, read_json
from sweeps.summary import settings

#: Validation problems that the time of an evaluation is measured on.
_PROBLEMS_MEASURED = 32


@dataclass(frozen=True)
class Cost:
    """What one trial spends when it runs to its last step."""

    num_completions: int
    max_completions: int
    """Where every round of dynamic sampling is spent; else `num_completions`."""
    num_eval_completions: int
    num_updates: int
    max_tokens: int
    """Sampled tokens, if every completion is as long as it may be."""
    time_s: float | None
    """Seconds in its slot, None where nothing was measured."""


def trial_cost(train: TrainConfig, step_s: float | None, eval_s: float | None) -> Cost:
    """Cost of one trial, given the seconds of a step and of an evaluation."""
    num_evals = -(-train.num_steps // train.eval.every)
    per_eval = train.eval.num_problems * (train.eval.samples_per_problem + train.eval.greedy)
    trained, evaluated = train.num_steps * train.rollout.completions_per_step, num_evals * per_eval
    refills = train.algorithm.max_refills if train.algorithm.dynamic_sampling else 0
    known = step_s is not None and eval_s is not None
    return Cost(
        num_completions=trained,
        max_completions=trained * (1 + refills),
        num_eval_completions=evaluated,
        num_updates=train.num_steps * train.algorithm.updates_per_batch,
        max_tokens=(trained * (1 + refills) + evaluated) * train.rollout.max_new_tokens,
        time_s=train.num_steps * step_s + num_evals * eval_s if known and step_s and eval_s else None,
    )


def print_plan(config: SweepConfig, runs_dir: str | Path, write: Callable[[str], None] = print) -> None:
    """Prints the plan of a study; measures a step on this machine where the policy is at hand.

    Raises ConfigError or Refused for what would also keep the study from starting.
    """
    build_sampler(config)
    build_pruner(config)
    capacity = open_executor(config).capacity
    study, train = config.study, config.train
    write(f"study {study.name}: {study.n_trials} trials, {capacity} at a time on {config.resources.executor}")
    write(f"  objective: {study.objective.direction} {study.objective.metric}")
    write(
        f"  sampler {study.sampler.name}, pruner {study.pruner.name}; task {train.task.name}, "
        f"policy {train.policy.name}"
    )
    for key, dimension in config.search_space.items():
        write(f"  {key}: {dimension.show()}{' (log)' if dimension.log else ''}")
    points = combinations(config.search_space, seed=0)
    if points:
        write(f"  {len(points)} different settings; what exceeds them repeats some with another seed")
    write(f"trial 0: {settings(default_params(config))} (the file's own values)")
    num_covered = sum(params != default_params(config) for params in covered_params(config))
    if num_covered:
        write(f"  then {num_covered} covered settings of {', '.join(study.cover)}, before the sampler draws")
    measured, source = _measurements(config, Path(runs_dir))
    cost = trial_cost(train, measured.get(TIME_STEP_S), measured.get(TIME_EVAL_S))
    refilled = f", {cost.max_completions:,} at most" if cost.max_completions > cost.num_completions else ""
    write(
        f"a trial: {train.num_steps} steps, {cost.num_updates} updates, "
        f"{cost.num_completions:,} training completions{refilled}"
    )
    write(f"  {cost.num_eval_completions:,} evaluation completions, at most {cost.max_tokens:,} sampled tokens")
    for line in _time_lines(config, cost, capacity, source):
        write(line)
    write("nothing was started; the same command without --dry-run starts it")


def _time_lines(config: SweepConfig, cost: Cost, capacity: int, source: str) -> list[str]:
    if cost.time_s is None:
        return [f"  time: {source}"]
    rounds = math.ceil(config.study.n_trials / capacity)
    total_s, slots = rounds * cost.time_s, config.study.n_trials * cost.time_s
    ranks = config.resources.processes_per_trial
    limit = config.study.timeout_s
    cut = f", cut at study.timeout {duration(limit)}" if limit is not None and total_s > limit else ""
    return [
        f"  time: {duration(cost.time_s)} ({source})",
        f"all trials: at most {duration(total_s)}{cut}, {slots * ranks / 3600:.2f} process-hours, "
        f"{config.study.n_trials * cost.max_tokens:,} tokens; pruned trials cost less",
    ]


def _measurements(config: SweepConfig, runs_dir: Path) -> tuple[dict[str, Any], str]:
    """Seconds of a step and of an evaluation, and where they come from or why there are none."""
    folder = StudyFolder(runs_dir / config.study.name)
    if folder.exists and not differences(load_resolved(folder.sweep_file), config):
        measured = read_json(folder.preflight_file)
        if measured is not None:
            return measured, f"as the preflight of {folder.path} measured"
    policy = config.train.policy.name
    if policy != "tiny" and not Path(policy).is_dir():
        return {}, f"known once the preflight has loaded {policy}"
    return _measure(config)


def _measure(config: SweepConfig) -> tuple[dict[str, Any], str]:
    """Runs a step and a small evaluation of the policy as it is before any warm start, which takes the longest."""
    train = config.train
    num_problems = min(_PROBLEMS_MEASURED, train.eval.num_problems)
    quick = train.model_copy(
        update={
            "warm_start": train.warm_start.model_copy(update={"num_steps": 0}),
            "eval": train.eval.model_copy(update={"num_problems": num_problems}),
        }
    )
    executor = open_executor(config)
    with tempfile.TemporaryDirectory() as folder:
        phases = Phases(executor, StudyFolder(Path(folder)), PlainProgress(), lambda: False, max_retries=0)
        try:
            measured = phases.run("preflight", quick)
        except PhaseFailed as failure:
            return {}, f"could not be measured: {failure}"
        finally:
            executor.close()
    measured[TIME_EVAL_S] *= train.eval.num_problems / num_problems
    return measured, "at most, measured on this machine with completions of full length"
