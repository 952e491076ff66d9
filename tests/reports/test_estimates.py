import pytest

from reports.estimates import Estimate, measured


def test_interval_is_196_standard_errors_wide_on_each_side():
    estimate = Estimate(0.5, 0.1)
    assert estimate.low == pytest.approx(0.5 - 0.195996, abs=1e-6)
    assert estimate.high == pytest.approx(0.5 + 0.195996, abs=1e-6)
    assert str(estimate) == "0.50 ± 0.20"
    assert estimate.with_interval == "+0.50 [0.30, 0.70]"


def test_difference_adds_the_variances():
    difference = Estimate(0.5, 0.03).minus(Estimate(0.2, 0.04))
    assert difference.mean == pytest.approx(0.3)
    assert difference.se == pytest.approx(0.05)
    assert difference.excludes_zero


def test_without_a_standard_error_nothing_is_proven():
    difference = Estimate(0.5).minus(Estimate(0.2, 0.04))
    assert difference.se is None
    assert not difference.excludes_zero
    assert str(Estimate(0.5)) == "0.50"


@pytest.mark.parametrize(("other", "overlaps"), [(0.60, True), (0.89, True), (0.90, False)])
def test_intervals_overlap_until_their_ends_pass_each_other(other: float, overlaps: bool):
    assert Estimate(0.5, 0.1).overlaps(Estimate(other, 0.1)) is overlaps


def test_values_that_are_not_finite_are_no_estimate():
    assert measured(float("nan"), 0.1) is None
    assert measured(0.5, float("inf")) == Estimate(0.5, None)
