"""Findings about how the policies learned, and about the space that was searched."""

from statistics import fmean, median

from grpo_core.metric_names import (
    EVAL_ACCURACY,
    GROUPS_DEAD_FRAC,
    POLICY_CLIP_FRAC,
    POLICY_ENTROPY,
    REWARD_MEAN,
    ROLLOUT_TRUNCATED_FRAC,
)
from reports import formats
from reports.estimates import Estimate, measured
from reports.finding import Finding
from reports.outcome import preflight_estimate
from reports.study_data import Study, Trial


def truncation(study: Study) -> Finding | None:
    """Answers cut before their end look like a bad policy: reward 0 although nothing is wrong with it."""
    fractions = [_mean_of_tail(trial, ROLLOUT_TRUNCATED_FRAC) for trial in study.trials]
    known = [fraction for fraction in fractions if fraction is not None]
    before = (study.preflight or {}).get(ROLLOUT_TRUNCATED_FRAC)
    share = before if isinstance(before, int | float) and before > 0.3 else median(known) if known else 0.0
    if share <= 0.3:
        return None
    limit = study.train("rollout", "max_new_tokens")
    rewards = [trial.last(REWARD_MEAN) for trial in study.trials]
    no_reward = all(reward is not None and abs(reward) < 0.02 for reward in rewards) and bool(rewards)
    also = ", and no trial gets any reward" if no_reward else ""
    return Finding(
        f"{share:.0%} of the completions reach the limit of {limit} tokens{also}.",
        "Answers are cut off before they end, so that they cannot be scored. This is no fault of the policy.",
        f"Raise rollout.max_new_tokens (now {limit}), or ask for shorter answers in the prompt.",
    )


def entropy_near_limit(study: Study) -> Finding | None:
    measured = (study.preflight or {}).get(POLICY_ENTROPY)
    band = study.entropy_band
    if not isinstance(measured, int | float) or not band or band.get("min") is None or band.get("max") is None:
        return None
    room = 0.1 * (band["max"] - band["min"])
    if band["min"] + room <= measured <= band["max"] - room:
        return None
    side = "lower" if measured < band["min"] + room else "upper"
    edge = band["min"] if side == "lower" else band["max"]
    place = "close to" if band["min"] <= measured <= band["max"] else "beyond"
    return Finding(
        f"Before training the entropy is {measured:.2f}, {place} the {side} limit {edge}.",
        "Trials start at the edge of the stability band and are stopped by small changes.",
        "Move stability.entropy so that the untouched policy lies well inside, or change rollout.temperature.",
    )


def dead_groups(study: Study) -> Finding | None:
    trial = study.best or max(study.trials, key=lambda trial: trial.last_step, default=None)
    dead = _mean_of_tail(trial, GROUPS_DEAD_FRAC) if trial else None
    if trial is None or dead is None or dead <= 0.5:
        return None
    reward = trial.last(REWARD_MEAN) or 0.0
    size = trial.params.get("group_size", study.train("algorithm", "group_size"))
    easy = reward > 0.5
    return Finding(
        f"In trial {trial.number} {dead:.0%} of the groups carry no signal at the end: all their rewards are equal.",
        f"With mean reward {reward:.2f} most problems are too {'easy' if easy else 'hard'} for a group of {size}.",
        f"Use a larger group_size, {'harder' if easy else 'easier'} problems, or a reward with partial credit.",
    )


def clip_never_used(study: Study) -> Finding | None:
    """The first searched clip range that its own trials never reach; other algorithms may leave it out."""
    for name in [d.name for d in study.dimensions if d.name.split(".")[-1].startswith("clip_range")]:
        trials = [trial for trial in study.in_state("complete") if name in trial.params]
        fractions = [_mean_of_tail(trial, POLICY_CLIP_FRAC) for trial in trials]
        known = [fraction for fraction in fractions if fraction is not None]
        if not known or max(known) >= 1e-3:
            continue
        updates = study.train("algorithm", "updates_per_batch", default=1)
        return Finding(
            f"{name} is searched, but hardly any ratio is ever clipped (at most {max(known):.2%} of the tokens).",
            f"With {formats.counted(updates, 'update')} a batch the policy stays close to the one that sampled.",
            f"Raise algorithm.updates_per_batch, narrow {name}, or take it out of the search.",
        )
    return None


def no_learning(study: Study) -> Finding | None:
    if study.best is None:
        return None
    best, base = study.score_estimate(study.best), preflight_estimate(study)
    if best is None or base is None or best.se is None or base.se is None:
        return None
    gain = best.minus(base)
    if gain.excludes_zero and (gain.mean > 0) == study.maximize:
        return None
    return Finding(
        f"The best trial is not better than the untouched policy (difference {gain.with_interval} on validation).",
        "Too few steps, a learning rate too low for them, or a reward that gives no signal.",
        "If the reward curves are flat, raise lr and train.num_steps; if groups are dead, change the problems.",
    )


def best_at_edge(study: Study) -> Finding | None:
    if study.best is None:
        return None
    found = []
    for dimension in study.dimensions:
        unit = dimension.unit(study.best.params.get(dimension.name))
        if not dimension.is_numeric or unit is None or (dimension.values is not None and len(dimension.values) < 2):
            continue
        if unit <= 0.05 or unit >= 0.95:
            found.append((dimension.name, "max" if unit >= 0.95 else "min", study.best.params[dimension.name]))
    if not found:
        return None
    where = formats.listed([f"{name} = {formats.value(value)} ({side})" for name, side, value in found])
    moves = formats.listed([f"{'raise' if side == 'max' else 'lower'} the {side} of {name}" for name, side, _ in found])
    return Finding(
        f"The best trial lies at the edge of the search space: {where}.",
        "The best settings may lie outside of what was searched.",
        f"Extend the range: {moves}.",
    )


def still_rising(study: Study) -> Finding | None:
    if study.best is None or (change := _last_change(study, study.best)) is None:
        return None
    improved = change.mean if study.maximize else -change.mean
    if improved <= max(change.se or 0.0, 0.005):
        return None
    return Finding(
        f"The best trial was still improving at its last step ({change.mean:+.3f} over the last quarter).",
        f"{study.num_steps} steps are too few to see where it ends.",
        "Raise train.num_steps.",
    )


def past_its_peak(study: Study) -> Finding | None:
    if study.best is None or study.objective not in study.best.curves:
        return None
    curve, last = study.best.curves[study.objective], study.best.estimate(study.objective)
    values = curve.finite()
    if last is None or last.se is None or len(values) < 3:
        return None
    peak = max(values) if study.maximize else min(values)
    loss = abs(peak - last.mean)
    if loss <= 2 * last.se:
        return None
    step = curve.steps[curve.values.index(peak)]
    return Finding(
        f"The best trial was better at step {step} ({peak:.2f}) than at its end ({last.mean:.2f}).",
        "It was trained past its best point.",
        "Lower lr, use optim.lr_schedule: linear, or fewer steps.",
    )


def selection_luck(study: Study) -> Finding | None:
    winner = (study.final or {}).get("winner") or {}
    validation = study.score_estimate(study.best) if study.best and study.objective == EVAL_ACCURACY else None
    test = measured(winner.get(EVAL_ACCURACY), winner.get(f"{EVAL_ACCURACY}_se"))
    if validation is None or test is None:
        return None
    gap = test.minus(validation)
    if gap.se is None or gap.high >= 0:
        return None
    return Finding(
        f"On test the best trial scores {test.mean:.2f}, on validation {validation.mean:.2f}.",
        "It was chosen as the highest of many, which favours luck; or the test problems are harder.",
        "Trust the test figure; evaluate on more problems (eval.num_problems).",
    )


def _mean_of_tail(trial: Trial, metric: str) -> float | None:
    """Mean of the last quarter of a curve."""
    values = trial.curves[metric].finite() if metric in trial.curves else []
    return fmean(values[-max(1, len(values) // 4) :]) if values else None


def _last_change(study: Study, trial: Trial) -> Estimate | None:
    """How far the objective moved over the last quarter of the steps (at least between two evaluations)."""
    curve, last = trial.curves.get(study.objective), trial.estimate(study.objective)
    if curve is None or last is None or len(curve.steps) < 2:
        return None
    earlier = [value for step, value in zip(curve.steps, curve.values, strict=True) if step <= 0.75 * curve.steps[-1]]
    if not earlier:
        return None
    return Estimate(last.mean, last.se).minus(Estimate(earlier[-1], last.se))
