"""The section that compares algorithms: who leads, who may be as good, and conditional keys that trials lack."""

import json
import re

import pytest

from reports.algorithms import algorithm_figures, algorithm_rows, comparison, is_compared
from reports.page import render

from .small_study import curve, pruned, study, trial

SPACE = {
    "algorithm.name": {"values": ["grpo", "dapo", "gspo", "ppo"]},
    "lr": {"min": 1e-5, "max": 1e-3, "log": True},
    "clip_range": {"min": 0.1, "max": 0.3, "when": {"algorithm.name": ["grpo", "dapo", "ppo"]}},
    "clip_range/gspo": {"min": 1e-4, "max": 1e-3, "log": True, "when": {"algorithm.name": "gspo"}},
    "algorithm.value_coef": {"min": 0.1, "max": 1.0, "when": {"algorithm.name": "ppo"}},
}
CURVES = {
    "reward/mean": curve([0.1, 0.3, 0.5]),
    "policy/entropy": curve([0.6] * 20),
    "time/step_s": curve([0.5] * 20),
    "value/explained_variance": curve([-3.0, 0.1, 0.2]),
}


def ran(number, name, objective=None, se=0.01, make=trial, **fields):
    own = {"gspo": {"clip_range/gspo": 3e-4}, "ppo": {"clip_range": 0.2, "algorithm.value_coef": 0.5}}
    params = {"algorithm.name": name, "lr": 1e-4, **own.get(name, {"clip_range": 0.2})}
    scored = {} if objective is None else {"objective": objective, "se": se}
    return make(number, params=params, curves=CURVES, **scored, **fields)


def compared(*trials, **fields):
    found = study(*trials, **fields)
    found.config["search_space"] = SPACE
    from reports.study_data import Dimension

    dimensions = [Dimension.read(name, entry) for name, entry in SPACE.items()]
    return study(*trials, dimensions=dimensions, **fields)


FOUR = (
    ran(0, "grpo", 0.50, source="defaults"),
    ran(1, "dapo", 0.51, source="cover"),
    ran(2, "gspo", 0.30, source="cover"),
    ran(3, "ppo", make=pruned, source="cover"),
    ran(4, "dapo", 0.55),
    ran(5, "grpo", 0.54),
)


def test_rows_are_ranked_by_the_best_trial_of_each_algorithm():
    rows = algorithm_rows(compared(*FOUR))
    assert [row.name for row in rows] == ["dapo", "grpo", "gspo", "ppo"]
    assert [row.best_trial for row in rows] == [4, 5, 2, None]
    assert [row.as_preset for row in rows] == ["0.51 ± 0.02", "0.50 ± 0.02", "0.30 ± 0.02", "pruned"]
    assert rows[0].best == "0.55 ± 0.02" and rows[0].trials == "2 (2 complete)"
    assert (rows[2].settings, rows[2].entropy, rows[2].step_s) == ("lr 1e-4, clip_range/gspo 3e-4", "0.6", "0.5")
    assert (rows[3].best, rows[3].stopped, rows[3].trials) == ("\N{EN DASH}", "entropy 1", "1 (1 pruned)")


def test_a_tie_is_said_and_who_is_behind_by_more_than_luck():
    sentences = comparison(compared(*FOUR))
    assert sentences[0] == "dapo has the best trial: trial 4, eval accuracy 0.55 ± 0.02 on validation."
    assert sentences[1].startswith("grpo may be as good: its interval overlaps with that of dapo, so this is a tie")
    assert sentences[2] == "gspo falls behind by more than the luck of the problems."
    assert sentences[3] == "ppo completed no trial."
    assert sentences[4].startswith("The algorithms ran 1 to 2 trials each: the best of more trials is higher by luck")


def test_without_standard_errors_nobody_is_behind():
    sentences = comparison(compared(ran(0, "grpo", 0.5, se=None), ran(1, "gspo", 0.1, se=None)))
    assert sentences[1].startswith("gspo may be as good")


def test_one_algorithm_is_no_comparison():
    alone = compared(ran(0, "grpo", 0.5), ran(1, "grpo", 0.6))
    assert not is_compared(alone) and algorithm_figures(alone) == []
    assert 'id="algorithms"' not in render(alone)


def test_before_a_trial_is_complete_it_says_so():
    begun = compared(
        ran(0, "grpo", make=trial, state="running"), ran(1, "ppo", make=trial, state="running"), is_running=True
    )
    assert comparison(begun) == ["No algorithm has a complete trial yet, so none can be compared."]
    assert 'id="algorithms"' in render(begun)


@pytest.mark.parametrize("is_running", [False, True])
def test_a_page_of_conditional_settings_has_all_its_charts(is_running):
    page = render(compared(*FOUR, is_running=is_running))
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.S)[1])
    assert {"slice-algorithm.name", "algorithms-reward", "slice-clip_range/gspo"} <= set(figures)
    assert set(figures) == set(re.findall(r'data-chart="([^"]+)"', page))
    assert page.count('data-chart="slice-algorithm.name"') == 1
    assert len(figures["slice-clip_range/gspo"]["data"]) == 1, "only the trials that have the key"
    names = [trace["name"] for trace in figures["algorithms-reward"]["data"]]
    assert names == ["dapo (trial 4)", "grpo (trial 5)", "gspo (trial 2)"]
    assert "curve-value-explained_variance" in figures and "curve-loss-value" not in figures
