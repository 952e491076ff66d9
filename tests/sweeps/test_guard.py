import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeps.guard import GUARD_RULES, MUST_BE_FINITE, Breach, StabilityGuard
from sweeps.sections import StabilityConfig

BAND = {"entropy": {"min": 0.5, "max": 1.0, "warmup_steps": 5, "patience": 3}}
NAN = math.nan


def breaches(config: dict, metric: str, values, **others) -> list[Breach]:
    """Feeds values as steps 1, 2, …; None leaves the metric out of a step."""
    guard = StabilityGuard(StabilityConfig.model_validate(config))
    found = []
    for step, value in enumerate(values, start=1):
        metrics = dict(others) if value is None else {metric: value, **others}
        breach = guard.check(step, metrics)
        if breach is not None:
            found.append(breach)
    return found


def first(config: dict, metric: str, values, **others) -> tuple | None:
    found = breaches(config, metric, values, **others)
    return (found[0].rule, found[0].step, found[0].value, found[0].limit) if found else None


def test_every_rule_is_a_field_of_the_config():
    assert list(GUARD_RULES) == list(StabilityConfig.model_fields)


def test_healthy_steps_breach_nothing():
    # An on-policy loss of 0 with a small gradient is what a healthy run looks like.
    metrics = {"loss/policy": 0.0, "optim/grad_norm": 0.09, "policy/entropy": 0.7, "reward/mean": 0.2}
    config = {**BAND, "reward_collapse": {"drop": 0.5, "window": 2}, "grad_norm": {"max": 10.0}}
    guard = StabilityGuard(StabilityConfig.model_validate(config))
    assert [guard.check(step, metrics) for step in range(1, 100)] == [None] * 99


@pytest.mark.parametrize("name", MUST_BE_FINITE)
@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf])
def test_what_is_not_finite_stops_at_once(name, value):
    (breach,) = breaches({}, name, [0.1, 0.2, value])
    assert (breach.rule, breach.step, breach.limit) == ("nonfinite", 3, None)
    assert breach.constraint == 1.0
    assert name in breach.message and "lower optim.lr" in breach.message


def test_a_skipped_update_stops_at_once_though_every_curve_is_finite():
    (breach,) = breaches({}, "optim/skipped_steps", [0, 0, 1], **{"loss/policy": 0.0})
    assert (breach.rule, breach.step, breach.value, breach.limit) == ("nonfinite", 3, 1, None)
    assert breach.constraint == 1.0


@pytest.mark.parametrize("off", ["off", False, "no"])
def test_nonfinite_can_be_turned_off(off):
    assert breaches({"nonfinite": off}, "loss/policy", [NAN, NAN]) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Outside during warm-up counts neither at once nor towards the streak.
        ([0.1] * 5 + [0.7] * 5, None),
        ([0.1] * 8, ("entropy", 8, 0.1, 0.5)),
        ([0.1] * 7 + [0.7] + [0.1] * 2 + [0.7], None),
        # Both ends belong to the band.
        ([0.5, 1.0] * 6, None),
        ([0.7] * 5 + [1.1, 1.2, 1.5], ("entropy", 8, 1.5, 1.0)),
        # Below and above are both outside, and count together.
        ([0.7] * 5 + [1.1, 0.2, 1.5], ("entropy", 8, 1.5, 1.0)),
        ([0.7] * 6 + [0.4, 0.4, 0.4], ("entropy", 9, 0.4, 0.5)),
        # A step without the metric is not judged: it neither ends nor feeds a streak.
        ([0.7] * 5 + [0.4, 0.4, None, 0.4], ("entropy", 9, 0.4, 0.5)),
        ([None] * 20, None),
    ],
)
def test_entropy_band(values, expected):
    assert first(BAND, "policy/entropy", values) == expected


def test_nan_is_never_inside_a_limit():
    config = {"nonfinite": "off", **BAND, "grad_norm": {"max": 10.0, "patience": 2}}
    breach = breaches(config, "policy/entropy", [0.7] * 5 + [NAN] * 3)[0]
    assert (breach.rule, breach.step, breach.constraint) == ("entropy", 8, 1.0)
    assert first({"nonfinite": "off", "grad_norm": {"max": 10.0, "patience": 2}}, "optim/grad_norm", [NAN, NAN])[
        :2
    ] == (
        "grad_norm",
        2,
    )


def test_the_message_of_an_entropy_breach_says_value_limit_steps_truncation_and_what_to_change():
    (breach,) = breaches(BAND, "policy/entropy", [0.7] * 5 + [0.31] * 3, **{"rollout/truncated_frac": 0.125})
    assert breach.message == (
        "policy/entropy is 0.31 nats at step 8, below 0.5 for 3 steps (rollout/truncated_frac 12%); "
        "lower optim.lr, or raise algorithm.entropy_coef, or lower stability.entropy.min"
    )
    (breach,) = breaches(BAND, "policy/entropy", [0.7] * 5 + [4.8] * 3, **{"rollout/truncated_frac": 0.9})
    assert breach.message == (
        "policy/entropy is 4.8 nats at step 8, above 1 for 3 steps "
        "(rollout/truncated_frac 90%); "
        "lower optim.lr or algorithm.entropy_coef, or raise stability.entropy.max"
    )


COLLAPSE = {"reward_collapse": {"drop": 0.5, "window": 2, "patience": 2}}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Windows: .4, .4, .2 (not beyond the half), .1, .0: steps 5 and 6 are beyond.
        ([0.4, 0.4, 0.4, 0.0, 0.2, 0.0], ("reward_collapse", 6, 0.1, 0.2)),
        # Windows: .4 .3 .1 .3 .1: no two in a row.
        ([0.4, 0.4, 0.2, 0.0, 0.6, 0.0, 0.2, 0.6], None),
        # The best window is what counts, not the first: .2 .5 .5 .2 .1
        ([0.2, 0.2, 0.8, 0.2, 0.2, 0.2], ("reward_collapse", 6, 0.2, 0.25)),
        # Rewards below zero: the best window is -1, half of |best| below it is -1.5. Windows -1 -2 -3.
        ([-1, -1, -3, -3], ("reward_collapse", 4, -3, -1.5)),
        # Nothing was ever earned, so nothing can be lost.
        ([0.0] * 10, None),
        # Missing rewards shift the windows, no more.
        ([0.4, None, 0.4, 0.0, None, 0.0, 0.0], ("reward_collapse", 7, 0.0, 0.2)),
    ],
)
def test_reward_collapse(values, expected):
    found = first(COLLAPSE, "reward/mean", values)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert found[:2] == expected[:2]
        assert found[2:] == pytest.approx(expected[2:])


def test_reward_collapse_waits_for_the_first_full_window():
    config = {"reward_collapse": {"drop": 0.1, "window": 10, "patience": 1}}
    falling = [1.0 / step for step in range(1, 30)]
    assert first(config, "reward/mean", falling)[1] == 11


def test_a_reward_that_is_nan_counts_as_fallen_but_enters_no_window():
    config = {"nonfinite": "off", **COLLAPSE}
    assert first(config, "reward/mean", [0.4, 0.4, NAN, 0.4, NAN, 0.4]) is None
    assert first(config, "reward/mean", [0.4, 0.4, NAN, NAN])[:2] == ("reward_collapse", 4)


def test_reward_collapse_warm_up_leaves_steps_out_of_the_windows():
    config = {"reward_collapse": {"drop": 0.5, "window": 2, "patience": 1, "warmup_steps": 2}}
    assert first(config, "reward/mean", [9.0, 9.0, 0.4, 0.4, 0.4]) is None


def test_grad_norm():
    config = {"grad_norm": {"max": 10.0, "patience": 3, "warmup_steps": 1}}
    assert first(config, "optim/grad_norm", [99, 11, 11, 10, 11, 11, 12]) == ("grad_norm", 7, 12, 10.0)
    assert first(config, "optim/grad_norm", [99, 11, 10.0] * 9) is None


def test_constraint_grows_with_the_excess_and_stays_in_its_interval():
    assert Breach("entropy", 1, 2.0, 1.0, "").constraint == 0.5
    assert Breach("entropy", 1, 4.0, 1.0, "").constraint == 0.75
    assert Breach("entropy", 1, 0.25, 0.5, "").constraint == pytest.approx(1 / 3)
    assert Breach("reward_collapse", 1, -0.1, 0.0, "").constraint == pytest.approx(0.1 / 1.1)
    assert Breach("entropy", 1, math.nextafter(1.0, 2.0), 1.0, "").constraint == 1e-6
    assert Breach("grad_norm", 1, math.inf, 10.0, "").constraint == 1.0


@given(st.floats(), st.floats(allow_nan=False, allow_infinity=False) | st.none())
def test_constraint_is_above_0_and_at_most_1(value, limit):
    assert 0 < Breach("grad_norm", 1, value, limit, "").constraint <= 1


def test_the_first_rule_wins_and_all_rules_see_every_step():
    config = {
        "entropy": {"min": 0.5, "max": 1.0, "warmup_steps": 0, "patience": 2},
        "grad_norm": {"max": 1, "patience": 3},
    }
    guard = StabilityGuard(StabilityConfig.model_validate(config))
    steps = [{"policy/entropy": 0.1, "optim/grad_norm": 5.0}] * 3
    assert [breach and breach.rule for breach in (guard.check(k, m) for k, m in enumerate(steps, 1))] == [
        None,
        "entropy",
        "entropy",
    ]
    assert guard.check(4, {"optim/grad_norm": 5.0}).rule == "grad_norm"


def test_a_breach_is_plain_data():
    breach = breaches(BAND, "policy/entropy", [0.1] * 8)[0]
    assert dataclasses.asdict(breach).keys() == {"rule", "step", "value", "limit", "message"}
