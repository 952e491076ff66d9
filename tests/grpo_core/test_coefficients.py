"""Coefficients that follow KL and entropy, by hand and in a loop that answers to them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_core.coefficients import smoothed, steered_entropy_coef, steered_kl_coef


@pytest.mark.parametrize(
    ("kl", "expected"),
    [(0.1, 0.5), (0.11, 0.505), (0.095, 0.4975), (0.12, 0.51), (5.0, 0.51), (0.08, 0.49), (0.0, 0.49)],
)
def test_the_kl_coefficient_moves_with_the_relative_error(kl, expected):
    assert steered_kl_coef(0.5, kl, 0.1) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_moves_no_coefficient(value):
    assert steered_kl_coef(0.3, value, 0.1) == 0.3
    assert steered_entropy_coef(0.3, value, 1.0, 0.01) == 0.3


def test_a_kl_coefficient_reaches_the_target_of_a_divergence_that_answers():
    coef = 0.01
    for _ in range(1000):
        coef = steered_kl_coef(coef, 0.02 / coef, 0.05)
    assert 0.02 / coef == pytest.approx(0.05, rel=1e-6)


@given(coef=st.floats(0, 1e3), kl=st.floats(allow_nan=True), target=st.floats(1e-6, 1e3))
def test_a_step_moves_the_kl_coefficient_by_at_most_a_fiftieth(coef, kl, target):
    steered = steered_kl_coef(coef, kl, target)
    assert 0.98 * coef * (1 - 1e-12) <= steered <= 1.02 * coef * (1 + 1e-12)


@pytest.mark.parametrize(
    ("coef", "entropy", "expected"),
    [(0.01, 0.3, 0.015), (0.01, 0.7, 0.005), (0.01, 0.5, 0.01), (0.0, 0.3, 0.005), (0.003, 0.7, 0.0), (0.0, 0.7, 0.0)],
)
def test_the_entropy_coefficient_moves_by_steps_and_not_below_0(coef, entropy, expected):
    assert steered_entropy_coef(coef, entropy, 0.5, 0.005) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("values", "window", "expected"),
    [
        ([1.0, 2.0, 6.0], 2, 4.0),
        ([1.0, 2.0, 6.0], 9, 3.0),
        ([5.0], 1, 5.0),
        ([1.0, math.nan, 3.0, math.inf], 3, 3.0),
        ([8.0, math.nan, 2.0], 3, 5.0),
    ],
)
def test_smoothing_takes_the_finite_values_of_the_window(values, window, expected):
    assert smoothed(values, window) == expected


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.nan]])
def test_smoothing_without_a_finite_value_gives_none(values):
    assert math.isnan(smoothed(values, 1))
