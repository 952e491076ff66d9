"""Which algorithm is ahead, where the study searched the algorithm itself: a table, what it tells, and two charts."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from statistics import median

from grpo_core.metric_names import POLICY_ENTROPY, REWARD_MEAN, TIME_STEP_S
from reports import formats, theme
from reports.curves import MAX_POINTS, SMOOTHING_STEPS, smoothed
from reports.estimates import Estimate
from reports.slices import slice_figure
from reports.study_data import Study, Trial
from reports.trial_groups import describe, group

KEY = "algorithm.name"
#: Entropy and seconds are averaged over this many last steps.
_LAST_STEPS = 10
#: Trials of an algorithm below which its best says little about the algorithm.
_FEW = 3
_HEIGHT = 380
_NONE = "\N{EN DASH}"


@dataclass(frozen=True)
class AlgorithmRow:
    """What one algorithm came to."""

    name: str
    trials: str
    as_preset: str
    """Objective of the trial that ran its preset's own knobs."""
    best: str
    best_trial: int | None
    settings: str
    """What its best trial drew."""
    stopped: str
    """What stopped its trials, with their number."""
    entropy: str
    step_s: str


def is_compared(study: Study) -> bool:
    """Whether trials ran more than one algorithm."""
    return len(_by_algorithm(study)) > 1


def algorithm_rows(study: Study) -> list[AlgorithmRow]:
    """One row an algorithm, the one with the best complete trial first; those without one at the end."""
    return [_row(study, name, trials) for name, trials in _ranked(study)]


def comparison(study: Study) -> list[str]:
    """What the rows allow to say: who is ahead, who may be as good, and what the figures do not tell."""
    scored = [(name, found) for name, trials in _ranked(study) if (found := _best(study, trials)) is not None]
    if not scored:
        return ["No algorithm has a complete trial yet, so none can be compared."]
    leader, top = scored[0]
    top_estimate = study.score_estimate(top) or Estimate(math.nan)
    level: list[str] = []
    behind: list[str] = []
    for name, trial in scored[1:]:
        estimate = study.score_estimate(trial)
        apart = estimate is not None and estimate.se is not None and not estimate.overlaps(top_estimate)
        (behind if apart else level).append(name)
    metric = formats.metric(study.objective)
    sentences = [f"{leader} has the best trial: trial {top.number}, {metric} {top_estimate} on validation."]
    if level:
        may = "may be as good: its interval overlaps" if len(level) == 1 else "may be as good: their intervals overlap"
        sentences.append(f"{formats.listed(level)} {may} with that of {leader}, so this is a tie, not a ranking.")
    if behind:
        fall = "falls" if len(behind) == 1 else "fall"
        sentences.append(f"{formats.listed(behind)} {fall} behind by more than the luck of the problems.")
    if unfinished := [name for name, trials in _ranked(study) if _best(study, trials) is None]:
        sentences.append(f"{formats.listed(unfinished)} completed no trial.")
    counts = [len(trials) for _, trials in _by_algorithm(study).items()]
    if min(counts) < _FEW or min(counts) * 2 < max(counts):
        sentences.append(
            f"The algorithms ran {min(counts)} to {max(counts)} trials each: the best of more trials is higher by luck "
            "alone, and one seed says little. The column of the presets compares one trial each; for a decision, run "
            "those in question again with other seeds (train.seed)."
        )
    return sentences


def algorithm_figures(study: Study) -> list[theme.Figure]:
    """The objective of every trial by algorithm, and the reward curve of each algorithm's best trial."""
    if not is_compared(study):
        return []
    dimension = next(dimension for dimension in study.dimensions if dimension.name == KEY)
    scored = [trial for trial in study.trials if study.score(trial) is not None]
    figures = []
    if scored:
        caption = "For a trial that was stopped (✕), the last value that it reached. Bars are 95% intervals."
        by_algorithm = slice_figure(study, dimension, scored)
        figures.append(replace(by_algorithm, title="Every trial by algorithm", caption=caption, height=_HEIGHT))
    return [*figures, *([curves] if (curves := _reward_curves(study)).data else [])]


def _by_algorithm(study: Study) -> dict[str, list[Trial]]:
    found: dict[str, list[Trial]] = {}
    for trial in study.trials:
        if KEY in trial.params:
            found.setdefault(str(trial.params[KEY]), []).append(trial)
    return found


def _best(study: Study, trials: list[Trial]) -> Trial | None:
    return next((trial for trial in study.ranked if trial in trials), None)


def _ranked(study: Study) -> list[tuple[str, list[Trial]]]:
    places = {trial.number: place for place, trial in enumerate(study.ranked)}

    def place(entry: tuple[str, list[Trial]]) -> int:
        best = _best(study, entry[1])
        return len(places) if best is None else places[best.number]

    return sorted(_by_algorithm(study).items(), key=place)


def _row(study: Study, name: str, trials: list[Trial]) -> AlgorithmRow:
    states = Counter(trial.state for trial in trials)
    best = _best(study, trials)
    shown = best or max(trials, key=lambda trial: trial.last_step)
    preset = next((trial for trial in trials if trial.source in ("defaults", "cover")), None)
    estimate = study.score_estimate(preset) if preset is not None and preset.state == "complete" else None
    stops = Counter(trial.rule for trial in trials if trial.state in ("pruned", "failed"))
    drawn = {key: value for key, value in shown.params.items() if key != KEY}
    seconds = [mean for trial in trials if (mean := _mean_of_last(trial, TIME_STEP_S)) is not None]
    entropy = _mean_of_last(shown, POLICY_ENTROPY)
    return AlgorithmRow(
        name=name,
        trials=f"{len(trials)} ({', '.join(f'{count} {state}' for state, count in states.items())})",
        as_preset=_NONE if preset is None else str(estimate) if estimate is not None else preset.state,
        best=str(study.score_estimate(best)) if best is not None else _NONE,
        best_trial=best.number if best is not None else None,
        settings=", ".join(f"{key} {formats.value(value)}" for key, value in drawn.items()),
        stopped=", ".join(f"{rule} {count}" for rule, count in stops.items()),
        entropy=formats.value(entropy) if entropy is not None else _NONE,
        step_s=formats.value(median(seconds)) if seconds else _NONE,
    )


def _mean_of_last(trial: Trial, metric: str) -> float | None:
    values = trial.curves[metric].finite()[-_LAST_STEPS:] if metric in trial.curves else []
    return sum(values) / len(values) if values else None


def _reward_curves(study: Study) -> theme.Figure:
    traces = []
    for place, (name, trials) in enumerate(_ranked(study)):
        best = _best(study, trials)
        if best is None or REWARD_MEAN not in best.curves:
            continue
        curve = best.curves[REWARD_MEAN]
        stride = math.ceil(len(curve.steps) / MAX_POINTS)
        values = [value if math.isfinite(value) else None for value in curve.values]
        smooth = [value if math.isfinite(value) else None for value in smoothed(curve.values)]
        hue, dash = theme.CATEGORIES[place % len(theme.CATEGORIES)]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": formats.chart_text(f"{name} (trial {best.number})"),
                "x": curve.steps[::stride],
                "y": values[::stride],
                "line": {"color": hue, "width": 2, "dash": dash},
                "hovertemplate": f"{describe(study, best)}<br>step %{{x}}: <b>%{{y:.4g}}</b><extra></extra>",
                "meta": {"group": group(study, best), "trial": best.number, "smoothed": smooth[::stride]},
            }
        )
    layout = theme.frame(
        theme.axis("step", range=[0, study.num_steps * 1.03]),
        theme.axis(formats.chart_text(REWARD_MEAN)),
        showlegend=True,
        legend={"orientation": "h", "y": -0.22, "x": 0},
    )
    caption = f"The complete trial with the best objective of each algorithm. Smoothed over {SMOOTHING_STEPS} steps."
    return theme.Figure("algorithms-reward", "Reward of the best trials", caption, traces, layout, _HEIGHT)
