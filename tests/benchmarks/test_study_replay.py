"""The clock of replayed studies, on settings whose times are reckoned by hand."""

import random

import pytest

from sweeps.config import load_sweep
from sweeps.guard import Breach
from tests.benchmarks import recorded_settings
from tests.benchmarks.recorded_settings import LR_WEIGHT, Recorded, nearest, neighbour_error, point_of, read_settings
from tests.benchmarks.study_replay import TURNAROUND_S, ReplayedStudy, random_point, random_search_s

NUM_STEPS, EVERY = 60, 20
FULL_S = TURNAROUND_S + 60 + 3 * 2


@pytest.fixture(scope="module")
def config():
    return load_sweep("search_spaces/gsm8k.yaml", profile="cpu")


def setting(reward: float, breach_at: int | None = None, point=(0.0,) * 4, accuracy: float | None = None) -> Recorded:
    """A setting with steps of a second and evaluations of 2."""
    breach = None if breach_at is None else Breach("entropy", breach_at, 1.5, 1.0, "above")
    curve = dict.fromkeys(range(EVERY, NUM_STEPS + 1, EVERY), reward if accuracy is None else accuracy)
    return Recorded(point, curve, reward, [float(step) for step in range(1, NUM_STEPS + 1)], 2.0, breach)


def one_after_the_other(*settings: Recorded):
    """What becomes of trials in the order in which they start, whatever they propose; the last one over and over."""
    waiting = list(settings)
    return lambda point: waiting.pop(0) if len(waiting) > 1 else waiting[0]


def test_a_point_has_ends_0_and_1_and_a_middle_by_logarithms(config):
    low = {"group_size": 4, "clip_range": 0.1, "reward_scale": 0.5, "lr": 3e-5}
    high = {"group_size": 16, "clip_range": 0.3, "reward_scale": 2.0, "lr": 3e-3}
    middle = {"group_size": 8, "clip_range": 0.2, "reward_scale": 1.25, "lr": 3e-4}
    assert point_of(config, low) == pytest.approx((0, 0, 0, 0))
    assert point_of(config, high) == pytest.approx((1, 1, 1, LR_WEIGHT))
    assert point_of(config, middle) == pytest.approx((0.5, 0.5, 0.5, LR_WEIGHT / 2))


def test_random_search_draws_every_part_of_the_space(config):
    points = [random_point(config, random.Random(seed)) for seed in range(300)]
    assert sorted({round(point[0], 9) for point in points}) == [0.0, 0.5, 1.0]
    for place, width in ((1, 1), (2, 1), (3, LR_WEIGHT)):
        assert sum(point[place] for point in points) / 300 == pytest.approx(width / 2, abs=width / 10)


def test_both_sides_pay_the_same_for_a_complete_trial(config):
    good = setting(0.5)
    assert random_search_s(config, lambda point: good, 0.5, random.Random(0)) == pytest.approx(FULL_S)
    assert ReplayedStudy(config, lambda point: good, 0).seconds_to(0.5) == pytest.approx(FULL_S)


def test_random_search_runs_two_full_length_trials_at_a_time_and_never_ends_one(config):
    bad, good = setting(0.1, breach_at=8), setting(0.5)
    for num_bad, rounds in ((1, 1), (2, 2), (3, 2), (4, 3)):
        trial_at = one_after_the_other(*[bad] * num_bad, good)
        assert random_search_s(config, trial_at, 0.5, random.Random(0)) == pytest.approx(rounds * FULL_S)


def test_a_breach_frees_the_slot_at_its_step_without_an_evaluation(config):
    bad, good = setting(0.9, breach_at=8), setting(0.5)
    seconds = ReplayedStudy(config, one_after_the_other(bad, bad, good), 0).seconds_to(0.5)
    assert seconds == pytest.approx(TURNAROUND_S + 8 + FULL_S)


def test_a_breaching_trial_never_reaches_a_target(config):
    assert ReplayedStudy(config, lambda point: setting(0.9, breach_at=30), 0).seconds_to(0.5) == float("inf")


def test_the_pruner_ends_a_trial_that_falls_behind_at_its_first_chance(config):
    # Six complete trials first, since the pruner waits for five; then two hopeless ones in both slots.
    fair, hopeless, good = setting(0.4), setting(0.0, accuracy=0.0), setting(0.5)
    trial_at = one_after_the_other(*[fair] * 6, hopeless, hopeless, good)
    pruned_s = TURNAROUND_S + 40 + 2 * 2
    assert ReplayedStudy(config, trial_at, 0).seconds_to(0.5) == pytest.approx(3 * FULL_S + pruned_s + FULL_S)


def test_the_nearest_settings_are_found_by_distance():
    pool = [setting(0.1 * place, point=(place, 0.0, 0.0, 0.0)) for place in range(6)]
    assert {each.point[0] for each in nearest(pool, (4.1, 0.0, 0.0, 0.0))} == {3, 4, 5}


def test_the_weight_of_the_learning_rate_is_where_neighbours_tell_most(config, monkeypatch):
    errors = {}
    for weight in (1.0, 3.0, LR_WEIGHT, 20.0, 100.0):
        monkeypatch.setattr(recorded_settings, "LR_WEIGHT", weight)
        errors[weight] = neighbour_error(read_settings(config))
    assert min(errors, key=errors.__getitem__) == LR_WEIGHT


def test_at_least_sixty_settings_are_recorded_at_full_length(config):
    settings = read_settings(config)
    assert len(settings) >= 60
    assert {len(each.ends_at_s) for each in settings} == {config.train.num_steps}
    assert len({each.point for each in settings}) == len(settings)
