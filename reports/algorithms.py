"""Which algorithm is ahead, where the study searched the algorithm itself: a table, and what it allows to say."""

from collections import Counter
from dataclasses import dataclass
from statistics import median

from grpo_core.metric_names import POLICY_ENTROPY, TIME_STEP_S
from reports import formats
from reports.estimates import Estimate
from reports.study_data import Dimension, Study, Trial

KEY = "algorithm.name"
#: Entropy and seconds are averaged over this many last steps.
_LAST_STEPS = 10
#: Trials of an algorithm below which its best says little about the algorithm.
_FEW = 3


@dataclass(frozen=True)
class Contender:
    """One algorithm with its trials."""

    name: str
    trials: list[Trial]
    best: Trial | None
    """Its complete trial with the best objective."""

    @property
    def shown(self) -> Trial:
        """Its best trial; where none is complete, the one that came furthest."""
        return self.best or max(self.trials, key=lambda trial: trial.last_step)

    @property
    def as_preset(self) -> Trial | None:
        """The trial that ran its preset's own knobs."""
        return next((trial for trial in self.trials if trial.source in ("defaults", "cover")), None)


@dataclass(frozen=True)
class AlgorithmRow:
    """What one algorithm came to."""

    name: str
    best: str
    """In brackets where no trial is complete: the last value of the one that came furthest."""
    trial: int
    """The trial that `best`, `settings` and `entropy` tell of."""
    middle: str
    """Median objective of its complete trials."""
    as_preset: str
    """Objective of the trial that ran its preset's own knobs."""
    trials: list[str]
    settings: list[tuple[str, str]]
    stopped: list[str]
    """What stopped its trials, with their number."""
    entropy: str
    step_s: str


def is_compared(study: Study) -> bool:
    """Whether trials ran more than one algorithm."""
    return len(contenders(study)) > 1


def contenders(study: Study) -> list[Contender]:
    """The algorithms that trials ran, the one with the best complete trial first; those without one at the end."""
    by_name: dict[str, list[Trial]] = {}
    for trial in study.trials:
        if KEY in trial.params:
            by_name.setdefault(str(trial.params[KEY]), []).append(trial)
    places = {trial.number: place for place, trial in enumerate(study.ranked)}
    found = []
    for name, trials in by_name.items():
        complete = [trial for trial in trials if trial.number in places]
        found.append(Contender(name, trials, min(complete, key=lambda trial: places[trial.number], default=None)))
    return sorted(found, key=lambda each: len(places) if each.best is None else places[each.best.number])


def algorithm_rows(study: Study) -> list[AlgorithmRow]:
    """One row an algorithm, in the order of `contenders`."""
    return [_row(study, contender) for contender in contenders(study)]


def comparison(study: Study) -> list[str]:
    """What the rows allow to say: who is ahead, who may be as good, and what the figures do not tell."""
    found = contenders(study)
    complete = [contender for contender in found if contender.best is not None]
    if not complete:
        return ["No algorithm has a complete trial yet, so none can be compared."]
    sentences = _standing(study, complete)
    if unfinished := [contender.name for contender in found if contender.best is None]:
        none = "has no complete trial yet" if len(unfinished) == 1 else "have no complete trial yet"
        sentences.append(f"{formats.listed(unfinished)} {none if study.is_running else 'completed no trial'}.")
    values = (_dimension(study) or Dimension(KEY, [], None, None, False)).values or []
    if untried := [str(value) for value in values if str(value) not in {contender.name for contender in found}]:
        yet = " yet" if study.is_running else ""
        sentences.append(f"No trial ran {formats.listed(untried, 'or')}{yet}.")
    return sentences + _caveat(found)


def _standing(study: Study, complete: list[Contender]) -> list[str]:
    """Who leads by how much, who may be as good, and who is behind by more than luck."""
    leader, estimates = complete[0], [_estimate(study, contender) for contender in complete]
    top = estimates[0]
    sentence = f"{leader.name} has the best trial: trial {leader.shown.number}, "
    sentence += f"{formats.metric(study.objective)} {top} on validation"
    if len(complete) > 1:
        sentence += f", {top.minus(estimates[1]).with_interval} against the best of {complete[1].name}"
    level: list[str] = []
    behind: list[str] = []
    unknown: list[str] = []
    for contender, estimate in zip(complete[1:], estimates[1:], strict=True):
        if top.se is None or estimate.se is None:
            unknown.append(contender.name)
        else:
            (level if estimate.overlaps(top) else behind).append(contender.name)
    sentences = [f"{sentence}."]
    if level:
        may = "may be as good: its interval overlaps" if len(level) == 1 else "may be as good: their intervals overlap"
        sentences.append(f"{formats.listed(level)} {may} with that of {leader.name}, so this is a tie, not a ranking.")
    if behind:
        fall = "falls" if len(behind) == 1 else "fall"
        sentences.append(f"{formats.listed(behind)} {fall} behind by more than the luck of the problems.")
    if unknown:
        fall = "falls" if len(unknown) == 1 else "fall"
        sentences.append(
            f"Whether {formats.listed(unknown)} {fall} behind by more than luck is not known: "
            "no standard errors were recorded."
        )
    return sentences


def _caveat(found: list[Contender]) -> list[str]:
    """What few trials, or unequal numbers of them, leave open; nothing where there were enough."""
    counts = [sum(trial.has_ended for trial in contender.trials) for contender in found]
    fewest, most = min(counts), max(counts)
    if fewest >= _FEW and most < 2 * fewest:
        return []
    again = "for a decision, run those in question again with other seeds (train.seed)."
    if fewest == most:
        return [f"Each algorithm ended {formats.counted(most, 'trial')} only, and one seed says little: {again}"]
    fair = " The column of the presets compares one trial each;" if all(each.as_preset for each in found) else ""
    return [
        f"The algorithms ended {fewest} to {most} trials each: the best of more trials is higher by luck alone, and "
        f"one seed says little{'.' if fair else ';'}{fair} {again}"
    ]


def _row(study: Study, contender: Contender) -> AlgorithmRow:
    shown, preset, trials = contender.shown, contender.as_preset, contender.trials
    estimate = study.score_estimate(shown)
    text = formats.NONE if estimate is None else str(estimate)
    scores = [trial.objective for trial in trials if trial.state == "complete" and trial.objective is not None]
    seconds = [mean for trial in trials if (mean := _mean_of_last(trial, TIME_STEP_S)) is not None]
    stops = Counter(str(trial.rule) for trial in trials if trial.state in ("pruned", "failed"))
    states = Counter(trial.state for trial in trials)
    ordered = [state for state in ("complete", "pruned", "failed", "running", "interrupted") if state in states]
    return AlgorithmRow(
        name=contender.name,
        best=text if contender.best is not None or estimate is None else f"({text})",
        trial=shown.number,
        middle=f"{median(scores):.2f}" if scores else formats.NONE,
        as_preset=formats.NONE if preset is None else _outcome(study, preset),
        trials=[f"{states[state]} {state}" for state in ordered],
        settings=[(key, formats.value(value)) for key, value in shown.params.items() if key != KEY],
        stopped=[f"{count} by {rule}" for rule, count in stops.most_common()],
        entropy=formats.value(_mean_of_last(shown, POLICY_ENTROPY)),
        step_s=formats.value(median(seconds)) if seconds else formats.NONE,
    )


def _outcome(study: Study, trial: Trial) -> str:
    estimate = study.score_estimate(trial) if trial.state == "complete" else None
    return trial.state if estimate is None else str(estimate)


def _estimate(study: Study, contender: Contender) -> Estimate:
    """Objective of the best trial of an algorithm that completed one."""
    found = study.score_estimate(contender.shown)
    assert found is not None, f"{contender.name}: no complete trial"
    return found


def _dimension(study: Study) -> Dimension | None:
    return next((dimension for dimension in study.dimensions if dimension.name == KEY), None)


def _mean_of_last(trial: Trial, metric: str) -> float | None:
    values = trial.curves[metric].finite()[-_LAST_STEPS:] if metric in trial.curves else []
    return sum(values) / len(values) if values else None
