"""The section that compares algorithms: who leads, who may be as good, and conditional keys that trials lack."""

import json
import re
from pathlib import Path

import pytest

from reports.algorithm_figures import algorithm_figures
from reports.algorithms import algorithm_rows, comparison, is_compared
from reports.importance import setting_shares
from reports.outcome import setting_rows
from reports.page import build_report, render
from reports.parallel import parallel_figure
from reports.records import read_study
from reports.study_data import Dimension

from .algorithm_study import ALGORITHMS, write_algorithm_study
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
    assert [row.trial for row in rows] == [4, 5, 2, 3]
    assert [row.as_preset for row in rows] == ["0.51 ± 0.02", "0.50 ± 0.02", "0.30 ± 0.02", "pruned"]
    assert [row.middle for row in rows] == ["0.53", "0.52", "0.30", "\N{EN DASH}"]
    assert rows[0].best == "0.55 ± 0.02" and rows[0].trials == ["2 complete"]
    assert rows[2].settings == [("lr", "1e-4"), ("clip_range/gspo", "3e-4")]
    assert (rows[2].entropy, rows[2].step_s, rows[2].stopped) == ("0.6", "0.5", [])
    assert (rows[3].best, rows[3].stopped, rows[3].trials) == ("\N{EN DASH}", ["1 by entropy"], ["1 pruned"])


def test_a_tie_is_said_and_who_is_behind_by_more_than_luck():
    sentences = comparison(compared(*FOUR))
    assert sentences[0] == (
        "dapo has the best trial: trial 4, eval accuracy 0.55 ± 0.02 on validation, "
        "+0.01 [-0.02, 0.04] against the best of grpo."
    )
    assert sentences[1].startswith("grpo may be as good: its interval overlaps with that of dapo, so this is a tie")
    assert sentences[2] == "gspo falls behind by more than the luck of the problems."
    assert sentences[3] == "ppo completed no trial."
    assert sentences[4].startswith("The algorithms ended 1 to 2 trials each: the best of more trials is higher by luck")


def test_without_standard_errors_nobody_is_called_behind_or_level():
    sentences = comparison(compared(ran(0, "grpo", 0.5, se=None), ran(1, "gspo", 0.1, se=None)))
    assert sentences[:2] == [
        "grpo has the best trial: trial 0, eval accuracy 0.50 on validation, +0.40 against the best of gspo.",
        "Whether gspo falls behind by more than luck is not known: no standard errors were recorded.",
    ]
    assert sentences[2] == "No trial ran dapo or ppo."
    assert sentences[3].startswith("Each algorithm ended 1 trial only, and one seed says little")


def test_a_minimised_objective_ranks_the_other_way():
    lowest = {"study": {"objective": {"direction": "minimize"}}}
    sentences = comparison(compared(ran(0, "grpo", 0.5), ran(1, "gspo", 0.1), config=lowest))
    assert sentences[0].startswith("gspo has the best trial: trial 1, eval accuracy 0.10")
    assert sentences[1] == "grpo falls behind by more than the luck of the problems."


def test_with_enough_trials_of_each_there_is_no_caveat():
    many = [ran(number, ["grpo", "dapo", "gspo", "ppo"][number % 4], 0.4 + 0.01 * number) for number in range(12)]
    assert not any("one seed says little" in sentence for sentence in comparison(compared(*many)))


def test_an_algorithm_without_a_complete_trial_shows_the_one_that_came_furthest():
    found = compared(ran(0, "grpo", 0.5), ran(1, "ppo", 0.3, make=pruned), ran(2, "ppo", 0.4, make=pruned, step=20))
    row = algorithm_rows(found)[1]
    assert (row.best, row.trial, row.middle) == ("(0.40 ± 0.02)", 2, "\N{EN DASH}")
    lines = algorithm_figures(found)[1].data
    assert [(line["name"], line["line"]["dash"]) for line in lines] == [("grpo", "solid"), ("ppo", "dash")]


def test_every_trial_is_a_mark_in_the_row_of_its_algorithm():
    found = compared(*FOUR[:3], ran(3, "ppo", 0.2, make=pruned), *FOUR[4:])
    figure = algorithm_figures(found)[0]
    assert figure.layout["yaxis"]["ticktext"] == ["dapo", "grpo", "gspo", "ppo"]
    marks = {mark["meta"]["trial"]: mark for mark in figure.data}
    assert {number: round(mark["y"][0]) for number, mark in marks.items()} == {0: 1, 1: 0, 2: 2, 3: 3, 4: 0, 5: 1}
    symbols = {number: mark["marker"]["symbol"] for number, mark in marks.items()}
    assert symbols == {0: "circle", 1: "circle", 2: "star", 3: "x-open", 4: "star", 5: "star"}
    assert marks[0]["marker"]["color"] == marks[5]["marker"]["color"] == "var(--category-0)"
    assert marks[4]["error_x"]["array"] == pytest.approx([0.0196], abs=1e-4)
    assert "error_x" not in marks[1]


def test_one_algorithm_is_no_comparison():
    alone = compared(ran(0, "grpo", 0.5), ran(1, "grpo", 0.6))
    assert not is_compared(alone)
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
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.S)[1])["charts"]
    assert {"algorithms-objective", "algorithms-reward-mean", "slice-clip_range/gspo"} <= set(figures)
    assert set(figures) == set(re.findall(r'data-chart="([^"]+)"', page))
    assert "slice-algorithm.name" not in figures, "it would show the same again"
    assert len(figures["slice-clip_range/gspo"]["data"]) == 1, "only the trials that have the key"
    names = [trace["name"] for trace in figures["algorithms-reward-mean"]["data"]]
    assert names == ["dapo", "grpo", "gspo", "ppo"]
    assert "curve-value-explained_variance" in figures and "curve-loss-value" not in figures


def test_settings_of_the_best_trial_are_those_that_it_has():
    assert [row.name for row in setting_rows(compared(*FOUR))] == ["algorithm.name", "lr", "clip_range"]


def test_a_setting_takes_no_credit_for_where_it_applies():
    """gspo alone is bad, whatever its own clip range; the algorithm explains it, not the clip range that gspo has."""
    trials = []
    for number in range(24):
        name, part = ["grpo", "dapo", "gspo", "ppo"][number % 4], (7 * number % 24) / 24
        own = (
            {"clip_range/gspo": 1e-4 * 10 ** (0.6 + 0.4 * part)} if name == "gspo" else {"clip_range": 0.1 + 0.2 * part}
        )
        params = {"algorithm.name": name, "lr": 1e-4, **own}
        trials.append(trial(number, 0.2 if name == "gspo" else 0.5, params=params))
    shares = {share.name: share for share in setting_shares(compared(*trials))}
    assert shares["algorithm.name"].mean > 0.5
    assert shares["clip_range/gspo"].mean < 0.05 and shares["algorithm.value_coef"].mean < 0.05


def test_parallel_lines_are_dotted_over_what_a_trial_does_not_have():
    figure = parallel_figure(compared(ran(0, "gspo", 0.3), ran(1, "ppo", 0.5)))
    assert figure is not None and figure.caption.endswith("Dotted: on over settings that the trial does not have.")
    bridges = [trace["x"] for trace in figure.data if trace.get("line", {}).get("dash") == "dot"]
    assert bridges == [[1, 3, None, 3, 5, None], [2, 4, None]]


@pytest.mark.parametrize("num_running", [0, 10])
def test_a_study_of_eight_algorithms_from_its_folder(tmp_path: Path, num_running: int):
    folder = write_algorithm_study(tmp_path, num_running=num_running)
    rows = algorithm_rows(read_study(folder))
    assert {row.name for row in rows} == set(ALGORITHMS)
    stopped = {row.name for row in rows if row.stopped}
    assert stopped <= {"ppo", "reinforce_pp"} if num_running else stopped == {"ppo", "reinforce_pp"}
    page = build_report(folder).read_text()
    assert page.index('id="outcome"') < page.index('<section id="algorithms"') < page.index('id="reproduce"')


def test_a_sweep_file_that_is_lost_does_not_stop_the_comparison(tmp_path: Path):
    folder = write_algorithm_study(tmp_path)
    (folder / "sweep.yaml").write_text("{")
    assert len(algorithm_rows(read_study(folder))) == 8
    assert 'data-chart="algorithms-objective"' in build_report(folder).read_text()
