import math

import pytest

from reports.curves import MAX_POINTS, curve_figures, smoothed
from reports.mark_labels import place_labels
from reports.span import span_of
from reports.theme import Figure, log_axis

from .small_study import curve, pruned, study, trial


def figures(*trials, **fields) -> dict[str, Figure]:
    return {figure.name: figure for figure in curve_figures(study(*trials, **fields))}


def named(figure: Figure, number: int) -> list[dict]:
    return [trace for trace in figure.data if trace["meta"]["trial"] == number]


def test_a_pruned_trial_is_dashed_and_crossed_at_the_step_where_it_stopped():
    entropy = curve([0.7] * 9 + [1.01, 1.03, 1.05])
    figure = figures(
        trial(0, 0.5, curves={"policy/entropy": curve([0.7] * 60)}), pruned(3, curves={"policy/entropy": entropy})
    )
    line, mark = named(figure["curve-policy-entropy"], 3)
    assert line["line"]["dash"] != "solid"
    assert (mark["x"], mark["y"], mark["text"]) == ([12], [1.05], ["3"])
    assert mark["marker"]["symbol"] == "x"
    assert "entropy 1.05 at step 12" in mark["hovertemplate"]


def test_the_band_and_the_warm_up_are_drawn():
    figure = figures(trial(0, 0.5, curves={"policy/entropy": curve([0.7] * 60)}))["curve-policy-entropy"]
    boxes = [
        (shape["x0"], shape["x1"], shape["y0"], shape["y1"])
        for shape in figure.layout["shapes"]
        if shape["type"] == "rect"
    ]
    assert boxes == [(0, 1, 0.5, 1.0), (0, 5, 0, 1)]
    assert [note["text"] for note in figure.layout["annotations"]] == ["limit 0.5", "limit 1", "warm-up"]
    assert (
        figure.caption
        == "A trial is stopped when it stays outside 0.5 to 1.0 for 3 steps in a row, after 5 warm-up steps."
    )


def test_gradient_norm_is_on_a_log_axis_with_its_limit_and_without_what_has_no_logarithm():
    figure = figures(trial(0, 0.5, curves={"optim/grad_norm": curve([1.0, 0.0, math.inf, math.nan, 2.0])}))[
        "curve-optim-grad_norm"
    ]
    assert figure.layout["yaxis"]["type"] == "log"
    assert figure.data[0]["y"] == [1.0, None, None, None, 2.0]
    assert figure.layout["shapes"][0]["y0"] == 10.0
    assert figure.layout["annotations"][0]["y"] == pytest.approx(1.0)


def test_the_best_trial_is_drawn_last_and_thickest():
    reward = {"reward/mean": curve([0.1, 0.2])}
    figure = figures(trial(0, 0.9, curves=reward), trial(1, 0.5, curves=reward), pruned(2, curves=reward))[
        "curve-reward-mean"
    ]
    lines = [trace for trace in figure.data if "lines" in trace["mode"]]
    assert [trace["meta"]["group"] for trace in lines] == ["complete", "pruned", "best"]
    assert max(lines, key=lambda trace: trace["line"]["width"]) is lines[-1]


def test_a_value_that_is_not_finite_at_the_stop_leaves_the_cross_at_the_last_finite_one():
    figure = figures(pruned(0, rule="nonfinite", step=3, curves={"reward/mean": curve([0.1, 0.2, math.nan])}))
    mark = named(figure["curve-reward-mean"], 0)[1]
    assert (mark["x"], mark["y"]) == ([3], [0.2])


def test_evaluations_have_intervals_and_lead_on_to_the_cross():
    curves = {
        "eval/accuracy": curve([0.2, 0.3], first=10, every=10),
        "eval/accuracy_se": curve([0.01, 0.02], first=10, every=10),
    }
    figure = figures(trial(0, 0.3, curves=curves), pruned(1, step=23, curves=curves))["curve-eval-accuracy"]
    best = named(figure, 0)[0]
    assert best["error_y"]["array"] == pytest.approx([0.0196, 0.0392], abs=1e-4)
    line, mark = named(figure, 1)
    assert (line["x"], line["y"]) == ([10, 20, 23], [0.2, 0.3, 0.3])
    assert (mark["x"], mark["y"]) == ([23], [0.3])


def test_long_runs_are_thinned_and_keep_their_last_step():
    figure = figures(trial(0, 0.5, curves={"reward/mean": curve([0.5] * 2001)}))["curve-reward-mean"]
    steps = figure.data[0]["x"]
    assert len(steps) <= MAX_POINTS + 1
    assert steps[0] == 1 and steps[-1] == 2001


def test_smoothing_is_the_mean_of_five_steps_over_the_finite_ones():
    assert smoothed([1.0, 2.0, 3.0, 4.0, 5.0, 11.0]) == [1.0, 1.5, 2.0, 2.5, 3.0, 5.0]
    assert smoothed([1.0, math.nan, 3.0]) == [1.0, 1.0, 2.0]


def test_runaway_values_do_not_flatten_the_band():
    span = span_of([0.7, 40.0], [0.5, 1.0])
    assert span.high < 3.3
    assert span.place(40.0) == span.high
    assert span.place(math.nan) is None


def test_log_axis_is_labelled_at_1_2_5():
    assert log_axis("lr", -4.1, -2.9)["ticktext"] == ["1e-4", "2e-4", "5e-4", "1e-3"]
    assert log_axis("lr", -6, -2)["ticktext"] == ["1e-6", "1e-5", "1e-4", "1e-3", "0.01"]


def test_labels_of_neighbours_take_different_places():
    assert place_labels([(0.5, 0.5)]) == ["top center"]
    assert len(set(place_labels([(0.5, 0.5), (0.505, 0.505), (0.495, 0.51)]))) == 3
    assert place_labels([(0.5, 0.99)]) == ["bottom center"]


def test_text_from_outside_is_escaped_in_hover_texts():
    figure = figures(pruned(0, rule="<img src=x>", curves={"reward/mean": curve([0.1])}))["curve-reward-mean"]
    assert "<img" not in figure.data[0]["hovertemplate"]
    assert "&lt;img" in figure.data[0]["hovertemplate"]


def test_no_steps_no_charts():
    assert curve_figures(study()) == []


@pytest.mark.parametrize(("of_file", "expected"), [(0.0, {2, 3}), (0.02, {0, 2, 3})])
def test_kl_to_the_reference_is_drawn_for_the_trials_that_have_one(of_file: float, expected: set[int]):
    kl = {"policy/kl": curve([0.1, 0.2])}
    trials = [
        trial(0, 0.5, params={"algorithm.name": "grpo"}, curves=kl),
        trial(1, 0.5, params={"algorithm.name": "ppo", "algorithm.kl_coef": 0.0}, curves=kl),
        trial(2, 0.5, params={"algorithm.name": "ppo", "algorithm.kl_coef": 0.05}, curves=kl),
        trial(3, 0.5, params={"algorithm.name": "rloo", "algorithm.kl_coef/rloo": 0.1}, curves=kl),
    ]
    found = figures(*trials, config={"train": {"algorithm": {"kl_coef": of_file}}})
    assert {trace["meta"]["trial"] for trace in found["curve-policy-kl"].data} == expected
    assert "curve-policy-kl" not in figures(trials[1], config={"train": {"algorithm": {"kl_coef": of_file}}})
