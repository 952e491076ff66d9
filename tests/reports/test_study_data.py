import pytest

from reports.study_data import Dimension

from .small_study import pruned, study, trial


@pytest.mark.parametrize(
    ("dimension", "value", "unit"),
    [
        (Dimension("lr", None, 1e-5, 1e-3, True), 1e-4, 0.5),
        (Dimension("clip_range", None, 0.1, 0.3, False), 0.15, 0.25),
        (Dimension("group_size", [16, 4, 8], None, None, False), 8, 0.5),
        (Dimension("name", ["grpo", "dapo"], None, None, False), "dapo", 1.0),
        (Dimension("name", ["grpo", "dapo"], None, None, False), "rloo", None),
        (Dimension("lr", None, 1e-5, 1e-3, True), None, None),
    ],
)
def test_place_in_a_dimension_is_on_its_own_scale(dimension: Dimension, value, unit):
    assert dimension.unit(value) == (pytest.approx(unit) if unit is not None else None)


def test_best_is_the_highest_objective_and_the_earlier_of_equals():
    found = study(trial(0, 0.4), trial(1, 0.5), trial(2, 0.5), pruned(3, objective=0.9))
    assert [each.number for each in found.ranked] == [1, 2, 0]
    assert found.best is found.trials[1]


def test_minimised_objective_ranks_the_other_way():
    found = study(trial(0, 0.4), trial(1, 0.5), config={"study": {"objective": {"direction": "minimize"}}})
    assert found.best is found.trials[0]


def test_leaders_are_those_whose_interval_meets_that_of_the_best():
    found = study(trial(0, 0.30, 0.02), trial(1, 0.50, 0.02), trial(2, 0.45, 0.02), trial(3, 0.42, 0.02))
    assert [each.number for each in found.leaders] == [1, 2]


def test_a_stopped_trial_scores_with_the_last_value_that_it_reached():
    found = study(trial(0, 0.4), pruned(1, objective=0.3), pruned(2))
    assert [found.score(each) for each in found.trials] == [0.4, 0.3, None]
