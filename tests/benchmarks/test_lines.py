"""Lines of the benchmark's table."""

import math

import pytest

from tests.benchmarks.lines import Line


@pytest.mark.parametrize(("value", "met"), [(1.8, True), (1.79, False), (math.nan, False), (math.inf, True)])
def test_a_lower_limit(value, met):
    line = Line("step", value, at_least=1.8)
    assert line.is_met is met
    assert ("NOT MET" in line.text()) is not met


@pytest.mark.parametrize(("value", "met"), [(0.5, True), (0.51, False), (math.nan, False)])
def test_an_upper_limit(value, met):
    assert Line("turnaround", value, at_most=0.5, unit="s").is_met is met
