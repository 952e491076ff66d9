"""Lint rules about the study: objective, budget, pruner, stability limits, and whether its trials compare."""

from collections.abc import Callable, Iterator

from grpo_core import metric_names
from grpo_core.metric_names import EVALUATION_METRICS, depends_on_machine
from sweeps.findings import Finding, Sweep, idle
from sweeps.grid import combinations
from sweeps.knobs import METRICS
from sweeps.search_space import path_of

#: Fields that, searched, make trials differ in more than their settings, with what then differs.
UNEQUAL = {
    # Fresh adapters change nothing, whatever their size.
    "policy.lora.": None,
    "policy.": "trials start from different weights",
    "warm_start.": "trials start from different weights",
    "task.": "trials solve different problems",
    "eval.": "trials are measured in different ways",
    "rollout.completions_per_step": "trials spend different numbers of completions",
    "num_steps": "trials spend different numbers of steps",
    "seed": "trials differ by luck, and the best seed is no setting",
}
#: Samplers that use `n_startup_trials`.
HAS_STARTUP = ("tpe", "gp", "cmaes")
#: Pruners that compare a trial with earlier ones, with the trials that Optuna lets pass first.
COMPARES_AFTER = {"median": 5, "percentile": 5, "patient": 5}


def metrics_known() -> list[str]:
    """Names of the metrics that training records, reward parts aside."""
    names = (value for name, value in vars(metric_names).items() if name.isupper())
    return sorted(value for value in names if isinstance(value, str))


def objective(sweep: Sweep) -> Iterator[Finding]:
    """The objective must be a metric that trials record, and one worth ranking by."""
    metric, direction = sweep.config.study.objective.metric, sweep.config.study.objective.direction
    key = "study.objective.metric"
    part = metric.removeprefix("reward/")
    if metric not in metrics_known() and (part == metric or not part):
        message = f"{metric} is not recorded; use one of {', '.join(metrics_known())}, or reward/<part>"
        yield Finding("error", key, message)
    elif metric in METRICS and not all(map(METRICS[metric].holds, sweep.trains)):
        some = any(map(METRICS[metric].holds, sweep.trains))
        message = (
            f"{'not every trial has' if some else 'no trial has'} {metric}: it says something only when "
            f"{METRICS[metric].when}; set that in train, or rank by eval/accuracy"
        )
        yield Finding("error", key, message)
    elif depends_on_machine(metric):
        yield Finding("warning", key, f"{metric} differs between two equal trials; rank by eval/accuracy")
    if direction == "minimize" and metric.startswith(("eval/acc", "eval/reward", "reward/mean")):
        yield Finding("warning", "study.objective.direction", f"the worst {metric} wins; use direction: maximize")


def budget(sweep: Sweep) -> Iterator[Finding]:
    """How the number of trials fits the sampler and the size of the space."""
    study, space = sweep.config.study, sweep.config.search_space
    if study.sampler.name in HAS_STARTUP and study.n_trials <= study.sampler.n_startup_trials:
        message = (
            f"all {study.n_trials} trials are drawn at random, {study.sampler.name} starts after "
            f"{study.sampler.n_startup_trials}; raise study.n_trials, or lower n_startup_trials"
        )
        yield Finding("warning", "study.sampler.n_startup_trials", message)
    num_points = len(combinations(space, seed=0))
    if num_points > study.n_trials and study.sampler.name == "grid":
        message = f"the grid has {num_points} points, {study.n_trials} trials leave some out; use {num_points} trials"
        yield Finding("warning", "study.n_trials", message)
    if 0 < num_points < study.n_trials:
        message = f"the space has only {num_points} different settings; use {num_points} trials, or widen the space"
        yield Finding("warning", "study.n_trials", message)
    numbers = [key for key, dimension in space.items() if dimension.values is None]
    if study.sampler.name == "cmaes" and len(numbers) < max(2, len(space)):
        message = "cmaes models two or more ranges (min, max), listed values are drawn at random; use sampler tpe"
        yield Finding("warning", "study.sampler.name", message)


def pruner(sweep: Sweep) -> Iterator[Finding]:
    """A pruner acts where the objective is recorded, after min_steps and before the last step."""
    study, train = sweep.config.study, sweep.config.train
    if study.pruner.name == "none":
        return
    every = train.eval.every if study.objective.metric in EVALUATION_METRICS else 1
    first_chance = every * max(1, -(-study.pruner.min_steps // every))
    if first_chance >= train.num_steps:
        if study.pruner.min_steps >= train.num_steps:
            key, fix = "study.pruner.min_steps", f"use less than train.num_steps={train.num_steps}"
        else:
            key, fix = "train.eval.every", f"{study.objective.metric} comes every {every} steps; evaluate more often"
        message = f"pruner {study.pruner.name} gets no value between min_steps and the last step; {fix}"
        yield idle(key, message)
    startup = study.pruner.options.get("n_startup_trials", COMPARES_AFTER.get(study.pruner.name))
    if study.pruner.name in COMPARES_AFTER and isinstance(startup, int) and study.n_trials <= startup:
        message = f"pruner {study.pruner.name} lets the first {startup} trials pass; use more trials"
        yield idle("study.pruner", message)


def stability(sweep: Sweep) -> Iterator[Finding]:
    """A limit whose warm-up, window and patience outlast the run never fires."""
    limits, num_steps = sweep.config.stability, sweep.config.train.num_steps
    needs = {}
    if limits.entropy is not None:
        needs["entropy"] = limits.entropy.warmup_steps + limits.entropy.patience
        if sweep.searched("rollout.temperature") or sweep.searched("rollout.temperature_decay"):
            message = "entropy is measured at the temperature that is searched here, so one band cannot fit all trials"
            yield Finding("warning", "stability.entropy", f"{message}; widen it, or fix the temperature")
    if limits.grad_norm is not None:
        needs["grad_norm"] = limits.grad_norm.warmup_steps + limits.grad_norm.patience
    if limits.reward_collapse is not None:
        collapse = limits.reward_collapse
        # The first full window is the best so far, and cannot lie below itself.
        needs["reward_collapse"] = collapse.warmup_steps + collapse.window + collapse.patience
        if collapse.drop >= 1:
            message = "rewards of 0 or more cannot fall by all they have; use a drop below 1"
            yield idle("stability.reward_collapse.drop", message)
    for rule, first_step in needs.items():
        if first_step > num_steps:
            message = (
                f"it fires at step {first_step} at the earliest, after num_steps={num_steps}; "
                "lower its warmup_steps, window or patience"
            )
            yield idle(f"stability.{rule}", message)


def comparable(sweep: Sweep) -> Iterator[Finding]:
    """Searched fields that make trials differ in more than their settings, and keys with one value."""
    for key, dimension in sweep.config.search_space.items():
        path = path_of(key)
        reason = next((words for start, words in UNEQUAL.items() if path.startswith(start)), None)
        if reason:
            message = f"{reason}, so their results do not compare; set it in train"
            yield Finding("warning", f"search_space.{key}", message)
        if dimension.values is not None and len(dimension.values) == 1:
            message = "it has a single value; add another, or set it in train"
            yield idle(f"search_space.{key}", message)


STUDY_RULES: tuple[Callable[[Sweep], Iterator[Finding]], ...] = (
    objective,
    budget,
    pruner,
    stability,
    comparable,
)
