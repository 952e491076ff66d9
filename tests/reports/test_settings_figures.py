import math

import pytest

from reports.importance import MIN_TRIALS, importance_figure, setting_shares
from reports.parallel import parallel_figure
from reports.slices import slice_figures, stability_figures
from reports.study_data import Dimension

from .small_study import pruned, study, trial


def lr_decides(num_trials: int):
    """Trials whose objective is a step in lr, with all other settings spread without effect."""
    trials = []
    for index in range(num_trials):
        lr = 10 ** (-4.5 + 2 * ((7 * index) % num_trials) / (num_trials - 1))
        params = {
            "group_size": [4, 8, 16][index % 3],
            "clip_range": 0.1 + 0.2 * ((5 * index) % num_trials) / num_trials,
            "reward_scale": 0.5 + 1.5 * ((3 * index) % num_trials) / num_trials,
            "lr": lr,
        }
        trials.append(trial(index, 0.5 if lr > 3e-4 else 0.2, params=params))
    return study(*trials)


def test_the_setting_that_decides_stands_out_of_16_trials_and_the_others_do_not():
    shares = setting_shares(lr_decides(16))
    assert shares[0].name == "lr"
    assert shares[0].stands_out and shares[0].mean > 0.4
    assert not any(share.stands_out for share in shares[1:])
    assert all(0 <= share.low <= share.high <= 1 for share in shares)


def test_importance_is_the_same_each_time_and_says_that_it_is_a_hint():
    found = lr_decides(16)
    assert setting_shares(found) == setting_shares(found)
    figure = importance_figure(found, setting_shares(found))
    assert figure is not None
    assert "lr stands out" in figure.caption
    assert "From only 16 trials this is a hint, not a measurement" in figure.caption


def test_importance_needs_trials_and_spread():
    assert setting_shares(lr_decides(MIN_TRIALS - 1)) == []
    assert setting_shares(study(*(trial(index, 0.5) for index in range(16)))) == []
    assert importance_figure(study(), []) is None


def test_pruned_trials_count_with_their_last_objective():
    trials = [pruned(index, objective=0.1 * index, params={"lr": 1e-4 * (index + 1)}) for index in range(8)]
    assert len(setting_shares(study(*trials))) == 4


def test_parallel_coordinates_run_over_all_settings_to_the_objective():
    params = {"group_size": 4, "clip_range": 0.1, "reward_scale": 2.0, "lr": 3e-4}
    figure = parallel_figure(study(trial(0, 0.2, params=params), trial(1, 0.6), pruned(2)))
    assert figure is not None
    lines = {trace["meta"]["trial"]: trace for trace in figure.data if "meta" in trace}
    assert lines[0]["y"] == pytest.approx([0.0, 0.0, 1.0, 0.5, 0.0])
    assert lines[1]["y"][-1] == pytest.approx(1.0)
    assert lines[1]["line"]["width"] > lines[0]["line"]["width"]
    assert lines[1]["line"]["color"] == "var(--ramp-6)" and lines[0]["line"]["color"] == "var(--ramp-0)"
    assert lines[2]["line"] == {"color": "var(--muted)", "width": 1.2, "dash": "dash"}
    assert lines[2]["y"][-1] is None


def test_a_setting_that_does_not_apply_breaks_the_line():
    space = {"clip_range_high": {"min": 0.2, "max": 0.4, "when": {"algorithm.name": "dapo"}}}
    figure = parallel_figure(study(trial(0, 0.2), trial(1, 0.6), config={"search_space": space}))
    assert figure is not None
    assert figure.data[0]["y"][4] is None


def test_slices_and_stability_map_have_every_trial_that_belongs_there():
    found = study(trial(0, 0.2, 0.01), trial(1, 0.6, 0.01), pruned(2, objective=0.3), pruned(3))
    slices = slice_figures(found)
    assert [figure.title for figure in slices] == ["group_size", "clip_range", "reward_scale", "lr"]
    assert [trace["meta"]["trial"] for trace in slices[0].data] == [0, 2, 1]
    assert slices[0].data[0]["x"] == ["8"]
    assert slices[3].layout["xaxis"]["range"][0] == pytest.approx(math.log10(3e-5) - 0.08)
    maps = stability_figures(found)
    assert [figure.title for figure in maps] == ["lr and group_size", "lr and clip_range", "lr and reward_scale"]
    assert [trace["marker"]["symbol"] for trace in maps[1].data] == ["circle", "x", "x", "star"]


def test_no_trials_no_charts():
    assert parallel_figure(study()) is None
    assert slice_figures(study()) == [] and stability_figures(study()) == []


def test_no_map_of_two_settings_that_exclude_each_other():
    space = {
        "algorithm.name": {"values": ["grpo", "gspo"]},
        "clip_range": {"min": 0.1, "max": 0.3, "when": {"algorithm.name": "grpo"}},
        "clip_range/gspo": {"min": 1e-4, "max": 1e-3, "log": True, "when": {"algorithm.name": "gspo"}},
    }
    trials = [
        trial(0, 0.5, params={"algorithm.name": "grpo", "clip_range": 0.2, "reward_scale": 1.0}),
        trial(1, 0.4, params={"algorithm.name": "gspo", "clip_range/gspo": 3e-4, "reward_scale": 0.5}),
    ]
    dimensions = [Dimension.read(name, entry) for name, entry in space.items()]
    maps = stability_figures(study(*trials, dimensions=dimensions))
    assert [figure.title for figure in maps] == ["clip_range and algorithm.name"]
    everywhere = Dimension.read("reward_scale", {"min": 0.5, "max": 2.0})
    maps = stability_figures(study(*trials, dimensions=[*dimensions, everywhere]))
    assert [(figure.title, len(figure.data)) for figure in maps] == [
        ("reward_scale and algorithm.name", 2),
        ("reward_scale and clip_range", 1),
        ("reward_scale and clip_range/gspo", 1),
    ]
