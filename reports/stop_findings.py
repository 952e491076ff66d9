"""Findings about trials that were stopped: by the stability guard, or by a fault."""

from collections.abc import Sequence
from statistics import fmean, median

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
    skipped = [trial for trial in study.trials if (trial.last(OPTIM_SKIPPED_STEPS) or 0) > 0]
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
    separating = _separating_setting(study, stopped, study.in_state("complete"))
    if separating is None:
        cause = (
            "Updates too large for the signal." if over else "The policy commits to few answers before it has explored."
        )
        return Finding(symptom, cause, f"{change}.")
    name, is_high, edge = separating
    side, bound = ("above", "max") if is_high else ("below", "min")
    all_of = f"{sum((trial.params[name] > edge) == is_high for trial in stopped)} of {len(stopped)}"
    cause = f"{name}: {all_of} of these trials have it {side} {formats.value(edge)}, the middle of the complete ones."
    return Finding(symptom, cause, f"{change}; in the search space, move {name}.{bound} towards {formats.value(edge)}.")


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


def _separating_setting(
    study: Study, stopped: Sequence[Trial], kept: Sequence[Trial]
) -> tuple[str, bool, float] | None:
    """The numeric setting that best tells stopped from kept trials: name, whether stopped ones are high, kept median.

    Judged by the share of pairs that it puts in order (area under the ROC curve), of which at least 80% is asked.
    """
    best: tuple[float, str, bool, float] | None = None
    for dimension in study.dimensions:
        if not dimension.is_numeric:
            continue
        bad = [trial.params[dimension.name] for trial in stopped if dimension.name in trial.params]
        good = [trial.params[dimension.name] for trial in kept if dimension.name in trial.params]
        if not bad or len(good) < 2:
            continue
        area = fmean((one > other) + 0.5 * (one == other) for one in bad for other in good)
        strength = max(area, 1 - area)
        if strength >= 0.8 and (best is None or strength > best[0]):
            best = (strength, dimension.name, area > 0.5, median(good))
    return best[1:] if best else None
