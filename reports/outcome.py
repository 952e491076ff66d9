"""What came out of a study, in plain sentences and two tables."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_core.metric_names import EVAL_ACCURACY, EVAL_ACCURACY_GREEDY
from reports import formats
from reports.estimates import Estimate, measured
from reports.study_data import Study, Trial


@dataclass(frozen=True)
class Verdict:
    """The sentence that a reader sees first, and those that qualify it."""

    kind: str
    """winner, tie, none or running."""
    headline: str
    details: list[str]


@dataclass(frozen=True)
class SettingRow:
    """One searched setting of the best trial beside the defaults."""

    name: str
    best: str
    default: str
    searched: str
    changed: bool


@dataclass(frozen=True)
class FigureRow:
    """One policy measured on one split."""

    policy: str
    split: str
    sampled: str
    greedy: str


def base_name(study: Study) -> str:
    """What the untouched policy is called."""
    return "the warm-started policy" if study.train("warm_start", "num_steps", default=0) else "the base policy"


def verdict(study: Study) -> Verdict:
    """The outcome of a study, at any time of it."""
    best, num_done = study.best, len(study.ended)
    if study.is_running:
        progress = f"Running, {num_done} of {study.num_planned} trials done."
        found = f" Best so far: {_validation_sentence(study, best)}." if best else " No trial is complete yet."
        return Verdict("running", progress + found, [])
    if best is None:
        return Verdict("none", _no_winner(study), _unfinished(study))
    leaders = study.leaders
    details = []
    if len(leaders) > 1:
        others = formats.listed([trial.number for trial in leaders if trial is not best])
        noun = "that of trial" if len(leaders) == 2 else "those of trials"
        details.append(
            f"On the validation problems the 95% interval of trial {best.number} overlaps with {noun} {others}: "
            "any of them may be the best. More evaluation problems or more seeds would tell them apart."
        )
    if (gain := tuning_gain(study)) is not None:
        details.append(gain)
    return Verdict("tie" if len(leaders) > 1 else "winner", _winner_sentence(study, best), details + _unfinished(study))


def _winner_sentence(study: Study, best: Trial) -> str:
    place = f"Trial {best.number} is best"
    if len(study.leaders) > 1:
        place = f"Tie between {len(study.leaders)} trials, of which trial {best.number} scored highest"
    metric, winner, base, difference = _test_estimates(study)
    if winner is None or base is None:
        return f"{place}: {_validation_sentence(study, best, named=False)}. It was not measured on the test problems."
    gap = f", difference {difference.with_interval}" if difference is not None else ""
    return f"{place}: {formats.metric(metric)} {winner} on test vs {base} for {base_name(study)}{gap}."


def _validation_sentence(study: Study, trial: Trial, named: bool = True) -> str:
    base = preflight_estimate(study)
    against = f" vs {base} for {base_name(study)}" if base is not None else ""
    name = f"trial {trial.number}, " if named else ""
    return f"{name}{formats.metric(study.objective)} {study.score_estimate(trial)} on validation{against}"


def _no_winner(study: Study) -> str:
    num = len(study.ended)
    if num == 0:
        message = str(study.controller.get("message") or "").rstrip(".")
        return f"No trial has {'ended' if study.trials else 'started'}{f': {message}' if message else ''}."
    pruned, failed = study.in_state("pruned"), study.in_state("failed")
    reasons = formats.listed([f"{count} by {rule}" for rule, count in _rules(pruned)])
    if len(pruned) == num:
        return f"All {formats.counted(num, 'trial')} were pruned ({reasons}), so there is no winner."
    if len(failed) == num:
        first = failed[0].reason_text.rstrip(".")
        return f"All {formats.counted(num, 'trial')} failed, so there is no winner. The first: {first}."
    return f"No trial completed ({len(pruned)} pruned, {len(failed)} failed), so there is no winner."


def _unfinished(study: Study) -> list[str]:
    missing = study.num_planned - len(study.ended)
    if missing <= 0 or not study.ended:
        return []
    state = study.controller.get("state")
    message = str(study.controller.get("message") or "").strip()
    why = f" ({message})" if message else ""
    ended = "The study ended" if state == "done" else "The study was interrupted"
    return [f"{ended} with {len(study.ended)} of {study.num_planned} trials done{why}."]


def tuning_gain(study: Study) -> str | None:
    """What the search gained over the file's own settings, on the validation problems; None without both."""
    best, defaults = study.best, study.defaults
    if best is None or defaults is None:
        return None
    if best.number == defaults.number:
        return f"The defaults (trial {defaults.number}) are best: the search found nothing better."
    if defaults.state != "complete":
        return (
            f"The defaults (trial {defaults.number}) did not complete: {defaults.state} at step {defaults.stop_step}."
        )
    after, before = study.score_estimate(best), study.score_estimate(defaults)
    if after is None or before is None:
        return None
    gain = after.minus(before)
    proof = "" if gain.se is None or gain.excludes_zero else " The interval includes 0, so the gain is not proven."
    return (
        f"Against the defaults (trial {defaults.number}, {before} on validation) the search changed "
        f"{formats.metric(study.objective)} by {gain.with_interval}.{proof}"
    )


def setting_rows(study: Study) -> list[SettingRow]:
    """The searched settings that the best trial has, in the order of the file; empty without a best trial."""
    if study.best is None:
        return []
    defaults = study.defaults.params if study.defaults else {}
    rows = []
    for dimension in study.dimensions:
        # A setting with a `when` has no value where it does not apply.
        if dimension.name not in study.best.params:
            continue
        best, default = study.best.params[dimension.name], defaults.get(dimension.name)
        if dimension.values is not None:
            searched = ", ".join(formats.value(value) for value in dimension.values)
        else:
            searched = (
                f"{formats.value(dimension.low)} to {formats.value(dimension.high)}{', log' if dimension.log else ''}"
            )
        rows.append(SettingRow(dimension.name, formats.value(best), formats.value(default), searched, best != default))
    return rows


def figure_rows(study: Study) -> list[FigureRow]:
    """The objective of best trial and base policy on test, and of these and the defaults on validation."""
    base = "warm-started" if study.train("warm_start", "num_steps", default=0) else "base"
    best = f"best (trial {study.best.number})" if study.best else "best"
    rows = []
    metric, winner, test_base, difference = _test_estimates(study)
    if winner is not None and test_base is not None and study.final is not None:
        split = f"{study.final.get('num_problems')} test"
        rows.append(FigureRow(best, split, str(winner), _greedy(study.final["winner"], metric)))
        rows.append(FigureRow(base, split, str(test_base), _greedy(study.final["base"], metric)))
        if difference is not None:
            rows.append(FigureRow("difference, paired", split, difference.with_interval, formats.NONE))
    num_problems = (study.preflight or {}).get("num_problems") or study.train("eval", "num_problems")
    split = f"{num_problems} validation" if num_problems else "validation"
    roles = [(best, study.best)]
    if study.defaults is not None and study.defaults is not study.best:
        roles.append((f"defaults (trial {study.defaults.number})", study.defaults))
    for role, trial in roles:
        estimate = study.score_estimate(trial) if trial is not None else None
        if trial is not None and estimate is not None:
            stopped = "" if trial.state == "complete" else f", {trial.state} at step {trial.stop_step}"
            last = {EVAL_ACCURACY_GREEDY: trial.last(EVAL_ACCURACY_GREEDY)}
            rows.append(FigureRow(role + stopped, split, str(estimate), _greedy(last, study.objective)))
    estimate = preflight_estimate(study)
    if estimate is not None and study.preflight is not None:
        rows.append(FigureRow(base, split, str(estimate), _greedy(study.preflight, study.objective)))
    return rows


def preflight_estimate(study: Study) -> Estimate | None:
    """The objective of the untouched policy on the validation problems."""
    return _estimate(study.preflight, study.objective)


def _test_estimates(study: Study) -> tuple[str, Estimate | None, Estimate | None, Estimate | None]:
    """The metric that was compared on the test problems, and its estimates: winner, base, difference."""
    final = study.final or {}
    metric = study.objective if study.objective in (final.get("winner") or {}) else EVAL_ACCURACY
    difference = final.get("difference") if metric == EVAL_ACCURACY else None
    winner, base = _estimate(final.get("winner"), metric), _estimate(final.get("base"), metric)
    gap = measured(difference.get("mean"), difference.get("se")) if difference else None
    return metric, winner, base, gap


def _estimate(record: dict[str, Any] | None, metric: str) -> Estimate | None:
    mean = (record or {}).get(metric)
    return measured(mean, (record or {}).get(f"{metric}_se"))


def _greedy(record: dict[str, Any], metric: str) -> str:
    """Greedy accuracy beside a sampled one."""
    value = record.get(EVAL_ACCURACY_GREEDY) if metric == EVAL_ACCURACY else None
    return f"{value:.2f}" if isinstance(value, int | float) else formats.NONE


def _rules(trials: Sequence[Trial]) -> list[tuple[str, int]]:
    """How many trials each rule stopped, the commonest rule first."""
    return Counter(str(trial.rule) for trial in trials).most_common()


def counts(study: Study) -> list[tuple[str, str]]:
    """What happened to the trials, as pairs of a name and a text."""
    pruned = study.in_state("pruned")
    rules = formats.listed([f"{count} by {rule}" for rule, count in _rules(pruned)])
    failed = study.in_state("failed")
    causes = formats.listed([f"{count} by {rule}" for rule, count in _rules(failed)])
    open_trials = study.in_state("running", "interrupted")
    trial_time = sum(trial.duration_s or 0.0 for trial in study.trials)
    rows = [
        ("Complete", str(len(study.in_state("complete")))),
        ("Pruned", f"{len(pruned)}{f': {rules}' if rules else ''}"),
        ("Failed", f"{len(failed)}{f': {causes}' if causes else ''}"),
    ]
    if open_trials:
        rows.append((open_trials[0].state.capitalize(), str(len(open_trials))))
    if retries := sum(trial.num_retries for trial in study.trials):
        rows.append(("Retries", str(retries)))
    rows.append(("Planned", str(study.num_planned)))
    rows.append(("Wall time", formats.duration(study.wall_time_s)))
    if study.config.get("profile"):
        reason = study.config.get("profile_reason") or ""
        rows.append(("Profile", f"{study.config['profile']}{f' ({reason})' if reason else ''}"))
    rows.append(("Time in trials", formats.duration(trial_time)))
    return rows
