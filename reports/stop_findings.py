"""Findings about trials that were stopped: by the stability guard, or by a fault."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from grpo_core.metric_names import OPTIM_GRAD_NORM, OPTIM_SKIPPED_STEPS
from reports import formats
from reports.finding import Finding
from reports.study_data import Study, Trial


def failed_trials(study: Study) -> Finding | None:
    failed = study.in_state("failed")
    if not failed:
        return None
    numbers = formats.listed([trial.number for trial in failed])
    return Finding(
        f"{formats.counted(len(failed), 'trial')} failed ({numbers}): {failed[0].reason_text[:200]}",
        "The process ended by itself: a fault of the machine (memory, disk, driver) or an exception in task or reward.",
        f"Read the last lines of trials/{failed[0].folder.name}/trial.log; where memory was short, lower "
        "resources.max_concurrent_trials or rollout.chunk_size.",
    )


def not_finite(study: Study) -> Finding | None:
    stopped = [trial for trial in study.in_state("pruned") if trial.rule == "nonfinite"]
    skipped = [trial for trial in study.trials if trial.maximum(OPTIM_SKIPPED_STEPS) > 0]
    if not stopped and not skipped:
        return None
    touched = sorted({trial.number for trial in [*stopped, *skipped]})
    return Finding(
        f"Loss or gradients were not finite in trial {formats.listed(touched)}; those updates were not applied.",
        "Overflow: a learning rate too high, half precision, or tokens that have become impossible.",
        "Lower lr or optim.max_grad_norm; with bfloat16, try compute.precision: float32.",
    )


def entropy_stops(study: Study) -> Finding | None:
    stopped = [trial for trial in study.in_state("pruned") if trial.rule == "entropy"]
    if not stopped:
        return None
    band = study.entropy_band or {}
    values = [trial.reason.get("value") for trial in stopped if trial.reason]
    known = [value for value in values if isinstance(value, int | float)]
    over = not known or band.get("max") is None or median(known) > band["max"]
    what = "ran over the upper limit" if over else "fell under the lower limit"
    steps = formats.listed(sorted({trial.stop_step for trial in stopped}))
    symptom = f"The entropy {what} in {formats.counted(len(stopped), 'trial')} (stopped at step {steps})."
    change = (
        "Lower the learning rate, entropy_coef or the upper clip range"
        if over
        else "Raise algorithm.entropy_coef or clip_range_high, or lower the learning rate"
    )
    boundary = _boundary(study, stopped, study.in_state("complete"))
    if boundary is None:
        cause = "Updates too large for the signal." if over else "The policy commits to few answers too early."
        return Finding(symptom, cause, f"{change}.")
    side = "or more" if boundary.is_upper else "or less"
    return Finding(
        symptom,
        f"{boundary.name} of {formats.value(boundary.edge)} {side}: so it was in {boundary.num_stopped} of these "
        f"{len(stopped)} trials, and in {boundary.num_kept} of the {len(study.in_state('complete'))} complete ones.",
        f"{change}; in the search space, {'lower' if boundary.is_upper else 'raise'} "
        f"{boundary.name}.{'max' if boundary.is_upper else 'min'} to about {formats.value(boundary.edge)}.",
    )


def reward_collapse(study: Study) -> Finding | None:
    stopped = [trial for trial in study.in_state("pruned") if trial.rule == "reward_collapse"]
    if not stopped:
        return None
    return Finding(
        f"The reward collapsed in {formats.counted(len(stopped), 'trial')} "
        f"({formats.listed([trial.number for trial in stopped])}) after it had been higher.",
        "Steps so large that the policy left the region where its old log-probabilities mean something.",
        "Lower lr or updates_per_batch, narrow clip_range, or add kl_coef.",
    )


def other_rules(study: Study) -> Finding | None:
    """Stops by a rule that has no finding of its own."""
    own = {"entropy", "nonfinite", "reward_collapse", "grad_norm", "pruner", "timeout"}
    stopped = [trial for trial in study.in_state("pruned") if trial.rule not in own]
    if not stopped:
        return None
    rules = formats.listed(sorted({str(trial.rule) for trial in stopped}))
    return Finding(
        f"{formats.counted(len(stopped), 'trial')} stopped by {rules}. The first: {stopped[0].reason_text[:200]}",
        f"A limit in the stability section ({rules}) was reached.",
        "Compare these trials with the complete ones in the stability map, and move the limit or the search space.",
    )


def gradient_norm(study: Study) -> Finding | None:
    stopped = [trial for trial in study.in_state("pruned") if trial.rule == "grad_norm"]
    limit = study.train("optim", "max_grad_norm")
    if stopped:
        return Finding(
            f"The gradient norm stayed above its limit in {formats.counted(len(stopped), 'trial')} "
            f"({formats.listed([trial.number for trial in stopped])}).",
            "Rewards on a large scale, or a policy that has become very sure of itself.",
            "Lower reward_scale or lr, or set algorithm.advantage_scale: group_std.",
        )
    if study.best is None or limit is None or OPTIM_GRAD_NORM not in study.best.curves:
        return None
    norms = study.best.curves[OPTIM_GRAD_NORM].finite()
    clipped = sum(norm > limit for norm in norms) / max(1, len(norms))
    if clipped <= 0.8:
        return None
    return Finding(
        f"In the best trial {clipped:.0%} of the updates are cut to optim.max_grad_norm={limit}.",
        "The clip, not the learning rate, sets the size of a step.",
        f"Raise optim.max_grad_norm towards the median norm of {formats.value(median(norms))}, with a lower lr.",
    )


@dataclass(frozen=True)
class _Boundary:
    """A value of one setting beyond which trials were stopped rather than complete."""

    name: str
    is_upper: bool
    edge: float
    num_stopped: int
    num_kept: int


def _boundary(study: Study, stopped: Sequence[Trial], kept: Sequence[Trial]) -> _Boundary | None:
    """The boundary that best tells stopped from kept trials, or None where none does so for four in five of each."""
    found: list[tuple[float, _Boundary]] = []
    for dimension in study.dimensions:
        if not dimension.is_numeric:
            continue
        bad = [trial.params[dimension.name] for trial in stopped if dimension.name in trial.params]
        good = [trial.params[dimension.name] for trial in kept if dimension.name in trial.params]
        for edge in bad if len(good) > 1 else []:
            for is_upper in (True, False):
                num_bad = sum((value >= edge) if is_upper else (value <= edge) for value in bad)
                num_good = sum((value >= edge) if is_upper else (value <= edge) for value in good)
                told = min(num_bad / len(bad), 1 - num_good / len(good))
                found.append((told, _Boundary(dimension.name, is_upper, edge, num_bad, num_good)))
    # Of settings that tell equally well, the learning rate is the likeliest cause.
    found.sort(key=lambda pair: (pair[0], pair[1].name in ("lr", "optim.lr")))
    return found[-1][1] if found and found[-1][0] >= 0.8 else None
