import math

import pytest

from sweeps.jobs import Event
from sweeps.outcomes import Ending, Outcome, decide, objective_breach, pruner_reason, same_failure

ACCURACY = "eval/accuracy"


def outcome_of(ending: Ending, num_retries: int = 0, max_retries: int = 1) -> Outcome:
    return decide(ending, objective_metric=ACCURACY, num_retries=num_retries, max_retries=max_retries)


def result(status: str, **data) -> Event:
    return Event("result", {"status": status, "last_step": 60, "metrics": {}, "reason": None, **data}, 0.0)


def error(cause: str) -> Event:
    return Event("error", {"type": "SomeError", "message": "it broke", "cause": cause}, 0.0)


def test_a_finished_trial_is_complete_with_its_objective() -> None:
    assert outcome_of(Ending(result("complete", metrics={ACCURACY: 0.57}), 0)) == Outcome("complete", objective=0.57)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_never_becomes_an_objective(value: float) -> None:
    outcome = outcome_of(Ending(result("complete", metrics={ACCURACY: value}), 0))
    assert outcome.state == "pruned"
    assert outcome.objective is None
    assert outcome.constraint == 1.0
    assert outcome.reason is not None and outcome.reason["rule"] == "nonfinite" and outcome.reason["step"] == 60


def test_an_objective_that_was_never_recorded_is_named() -> None:
    outcome = outcome_of(Ending(result("complete", metrics={"reward/mean": 1.0}), 0))
    assert outcome.state == "failed"
    assert outcome.reason is not None and outcome.reason["message"].startswith("eval/accuracy was never recorded; set")


def test_a_guard_breach_keeps_reason_and_constraint() -> None:
    breach = {"rule": "entropy", "step": 15, "value": 1.4, "limit": 1.0, "message": "too high", "constraint": 0.2857}
    outcome = outcome_of(Ending(result("pruned", last_step=15, reason=breach), 0))
    assert (outcome.state, outcome.constraint, outcome.reason) == ("pruned", 0.2857, breach)


@pytest.mark.parametrize(("given", "told"), [(0.0, 1e-6), (3.0, 1.0), (None, 1.0), (math.nan, 1.0)])
def test_a_breach_is_never_feasible_and_never_above_one(given: float | None, told: float) -> None:
    breach = {"rule": "grad_norm", "step": 3, "constraint": given, "message": ""}
    assert outcome_of(Ending(result("pruned", reason=breach), 0)).constraint == told


def test_falling_behind_is_no_breach() -> None:
    reason = pruner_reason("hyperband", ACCURACY, 20, 0.123456)
    assert reason["message"] == "eval/accuracy 0.1235 at step 20 falls behind the other trials (hyperband)"
    outcome = outcome_of(Ending(result("pruned", last_step=20, reason=reason), 0))
    assert (outcome.state, outcome.constraint) == ("pruned", 0.0)


def test_a_crash_is_retried_as_often_as_allowed() -> None:
    died = Ending(None, exit_code=-9, last_step=12)
    assert outcome_of(died, num_retries=0, max_retries=2).state == "retry"
    assert outcome_of(died, num_retries=1, max_retries=2).state == "retry"
    last = outcome_of(died, num_retries=2, max_retries=2)
    assert last.state == "failed"
    assert last.reason == {
        "rule": "crash",
        "step": 12,
        "value": -9,
        "limit": None,
        "message": "the trial's process ended by signal 9 and left no result",
    }


@pytest.mark.parametrize(
    ("cause", "state", "rule"),
    [
        ("machine", "retry", "machine"),
        ("out_of_memory", "failed", "out_of_memory"),
        ("config", "failed", "error"),
        ("code", "failed", "error"),
    ],
)
def test_only_what_another_try_may_mend_is_tried_again(cause: str, state: str, rule: str) -> None:
    outcome = outcome_of(Ending(error(cause), 1, last_step=3))
    assert outcome.state == state
    assert outcome.reason is not None
    assert outcome.reason["rule"] == rule and outcome.reason["message"].startswith("SomeError: it broke")


def test_a_rank_that_was_killed_explains_the_lost_line_of_its_peer() -> None:
    outcome = outcome_of(Ending(error("machine"), exit_code=-9, last_step=3))
    assert outcome.state == "retry" and outcome.reason is not None and outcome.reason["rule"] == "crash"
    fault = outcome_of(Ending(error("code"), exit_code=-9, last_step=3))
    assert fault.reason is not None and fault.reason["rule"] == "error"


def test_a_hang_is_retried_and_a_preemption_does_not_count() -> None:
    hung = outcome_of(Ending(None, -9, last_step=3, hung_after_s=600.4))
    assert (hung.state, hung.counts) == ("retry", True)
    assert hung.reason is not None and hung.reason["message"].startswith("no news for 600 s")
    assert outcome_of(Ending(None, -9, hung_after_s=600.4), num_retries=1).state == "failed"
    left = outcome_of(Ending(result("stopped", last_step=7), 0, was_preempted=True), num_retries=1)
    assert (left.state, left.counts) == ("retry", False)
    assert left.reason is not None and left.reason["rule"] == "preempted"


def test_memory_is_tried_again_only_where_less_is_possible() -> None:
    less = outcome_of(Ending(error("out_of_memory"), 1, can_shrink=True), num_retries=1)
    assert (less.state, less.counts) == ("retry", False)
    killed = outcome_of(Ending(None, -9, ran_out_of_memory=True, can_shrink=True), num_retries=1)
    assert killed.state == "retry" and killed.reason is not None and killed.reason["rule"] == "out_of_memory"
    least = outcome_of(Ending(error("out_of_memory"), 1))
    assert least.state == "failed" and least.reason is not None
    assert "one completion at a time is still too much" in least.reason["message"]


def test_a_full_disk_blocks_also_while_the_study_is_stopped() -> None:
    assert outcome_of(Ending(error("disk"), 1)).state == "blocked"
    assert outcome_of(Ending(error("disk"), 1, stop_reason="timeout")).state == "blocked"


def test_what_was_stopped_goes_on_later_unless_time_is_up() -> None:
    stopped = result("stopped", last_step=7)
    assert outcome_of(Ending(stopped, 0, stop_reason="interrupt")).state == "interrupted"
    assert outcome_of(Ending(None, -9, stop_reason="interrupt")).state == "interrupted"
    late = outcome_of(Ending(stopped, 0, last_step=7, stop_reason="timeout"))
    assert (late.state, late.constraint) == ("pruned", 0.0)
    assert late.reason is not None and late.reason["rule"] == "timeout" and late.reason["step"] == 7


def test_a_trial_that_stopped_unasked_lost_its_controller_and_is_tried_again() -> None:
    stopped = Ending(result("stopped", last_step=7), 0, last_step=7)
    assert outcome_of(stopped).state == "retry"
    assert outcome_of(stopped, num_retries=1).state == "failed"


def test_a_trial_that_ended_before_the_stop_reached_it_has_its_own_outcome() -> None:
    done = result("complete", metrics={ACCURACY: 0.5})
    assert outcome_of(Ending(done, 0, stop_reason="interrupt")) == Outcome("complete", objective=0.5)


def test_only_a_finite_evaluation_goes_on() -> None:
    assert objective_breach(ACCURACY, 20, 0.4) is None
    breach = objective_breach(ACCURACY, 20, math.nan)
    assert breach is not None
    assert (breach["rule"], breach["step"], breach["constraint"]) == ("nonfinite", 20, 1.0)


def failed(rule: str, message: str) -> dict:
    return {"state": "failed", "reason": {"rule": rule, "message": message}}


def test_a_study_stops_when_its_first_trials_share_a_fault_that_lasts() -> None:
    broken = failed("error", "KeyError: 'answer'")
    assert same_failure([broken] * 3) == "KeyError: 'answer'"
    assert same_failure([broken] * 2) is None
    assert same_failure([{"state": "complete", "reason": None}, broken, broken, broken]) is None
    assert same_failure([broken, broken, failed("error", "another")]) is None
    assert same_failure([failed("crash", "died")] * 3) is None
    memory = [failed("out_of_memory", f"tried to allocate {size} MiB") for size in (3, 5, 9)]
    assert same_failure(memory) == "tried to allocate 3 MiB"
