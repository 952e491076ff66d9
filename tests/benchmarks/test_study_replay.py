"""The clock of replayed studies, on settings whose times are reckoned by hand."""

import random

import pytest

from sweeps.config import load_sweep
from sweeps.guard import Breach
from tests.benchmarks.study_replay import TURNAROUND_S, Recorded, point_of, random_search_s, sweep_s

NUM_STEPS, EVERY = 60, 20


@pytest.fixture
def config():
    return load_sweep("search_spaces/gsm8k.yaml", profile="cpu")


def setting(config, place: float, accuracy: float, breach_at: int | None = None) -> Recorded:
    """A setting with steps of a second and evaluations of 2; its accuracy is in reach from the first evaluation on."""
    params = {"group_size": 8, "clip_range": round(0.1 + 0.2 * place, 6), "reward_scale": 1.0, "lr": 3e-4}
    breach = None if breach_at is None else Breach("entropy", breach_at, 1.5, 1.0, "above")
    curve = dict.fromkeys(range(EVERY, NUM_STEPS + 1, EVERY), accuracy)
    return Recorded(params, point_of(config, params), curve, [float(step) for step in range(1, 61)], 2.0, breach)


def test_a_point_has_ends_0_and_1_and_a_middle_by_logarithms(config):
    low = {"group_size": 4, "clip_range": 0.1, "reward_scale": 0.5, "lr": 3e-5}
    high = {"group_size": 16, "clip_range": 0.3, "reward_scale": 2.0, "lr": 3e-3}
    middle = {"group_size": 8, "clip_range": 0.2, "reward_scale": 1.25, "lr": 3e-4}
    assert point_of(config, low) == pytest.approx((0, 0, 0, 0))
    assert point_of(config, high) == pytest.approx((1, 1, 1, 1))
    assert point_of(config, middle) == pytest.approx((0.5, 0.5, 0.5, 0.5))


def test_random_search_runs_two_full_trials_at_a_time_and_pays_one_evaluation_each(config):
    pool = [setting(config, place / 4, 0.1) for place in range(4)] + [setting(config, 1.0, 0.5)]
    one = TURNAROUND_S + 60 + 2
    times = {random_search_s(pool, NUM_STEPS, 0.5, random.Random(seed)) for seed in range(40)}
    # First or second, third or fourth, fifth.
    assert sorted(times) == pytest.approx([one, 2 * one, 3 * one])


def test_a_complete_trial_pays_for_its_three_evaluations(config):
    assert sweep_s(config, [setting(config, 0.5, 0.5)], 0.5, seed=0) == pytest.approx(TURNAROUND_S + 60 + 3 * 2)


def test_a_breach_frees_the_slot_at_its_step_without_an_evaluation(config):
    pool = [setting(config, 0.0, 0.9, breach_at=8), setting(config, 0.1, 0.9, breach_at=8), setting(config, 1.0, 0.5)]
    one = TURNAROUND_S + 60 + 3 * 2
    times = {round(sweep_s(config, pool, 0.5, seed), 6) for seed in range(20)}
    # The good setting is among the first two, or takes the slot that the first breach freed.
    assert times <= {round(one, 6), round(TURNAROUND_S + 8 + one, 6)}
    assert len(times) == 2


def test_a_breaching_trial_never_counts_as_reaching_the_target(config):
    assert sweep_s(config, [setting(config, 0.5, 0.9, breach_at=30)], 0.5, seed=0) == float("inf")


def test_the_pruner_makes_later_good_trials_come_sooner(config):
    """Hopeless trials behind good ones are stopped at an evaluation, so the whole takes less than full lengths."""
    pool = [setting(config, place / 20, 0.3 - place / 100) for place in range(20)]
    pool.append(setting(config, 1.0, 0.5))
    full = 21 / 2 * (TURNAROUND_S + 66)
    assert max(sweep_s(config, pool, 0.5, seed) for seed in range(10)) < 0.8 * full
