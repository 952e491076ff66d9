"""How a trial ended: the one place where an outcome is decided, from what its processes left behind."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sweeps.jobs import Event

State = Literal["complete", "pruned", "failed", "retry", "blocked", "interrupted"]

#: Rules that say nothing about the stability of a setting: the sampler learns no constraint from them.
_RULES_WITHOUT_CONSTRAINT = frozenset({"pruner", "timeout"})
#: Rule on record for each `cause` of an error event; a person's mistake in the config and a fault of the code are alike
#: in that no retry mends them.
_RULE_OF_CAUSE = {
    "out_of_memory": "out_of_memory",
    "machine": "machine",
    "disk": "disk",
    "config": "error",
    "code": "error",
}
#: Rules of a fault of the machine, which `study.retries` bounds.
_RETRIED = frozenset({"machine", "crash", "hang"})

_SMALLER = "take a smaller policy, lower rollout.max_new_tokens, or train adapters (policy.lora)"

#: Failures of the same cause, from the first trial on, after which a study stops.
MAX_EQUAL_FAILURES = 3


@dataclass(frozen=True)
class Ending:
    """What is known of a trial once all of its processes are gone."""

    event: Event | None
    """Its last word, a `result` or an `error`; None when it died without one."""
    exit_code: int | None = None
    """Exit code of the process that failed first; negative for a signal."""
    last_step: int = 0
    """Last step on record."""
    stop_reason: Literal["interrupt", "timeout"] | None = None
    """Why the controller asked it to stop, if it did."""
    hung_after_s: float | None = None
    """Seconds of silence after which the watchdog ended it, if it did."""
    was_preempted: bool = False
    """Whether a rank was sent SIGTERM, as before its machine is taken away."""
    ran_out_of_memory: bool = False
    """Whether the kernel ended processes for want of memory while it ran."""
    can_shrink: bool = False
    """Whether it can be tried again with half as many completions in memory at once."""


@dataclass(frozen=True)
class Outcome:
    """The decision: `retry` goes on from the last checkpoint at once, `interrupted` at the next launch, and `blocked`
    too, since nothing can be written here; the others are final.
    """

    state: State
    objective: float | None = None
    reason: dict[str, Any] | None = None
    constraint: float = 0.0
    """What the sampler learns: in (0, 1] when the settings breach stability, else 0."""
    counts: bool = False
    """Whether a `retry` is one of those that `study.retries` bounds."""


def decide(ending: Ending, *, objective_metric: str, num_retries: int, max_retries: int) -> Outcome:
    """Outcome of a trial that ended like `ending` after `num_retries` earlier retries that counted."""
    event = ending.event
    if event is not None and event.kind == "result" and event.data["status"] != "stopped":
        return _decide_result(event.data, ending, objective_metric)
    if ending.hung_after_s is not None:
        message = f"no news for {ending.hung_after_s:.0f} s, though its processes lived; their stacks are in the log"
        reason = _reason("hang", ending.last_step, message)
    elif event is not None and event.kind == "error" and not _is_echo(event.data, ending.exit_code):
        reason = _error_reason(event.data, ending.last_step)
    elif ending.was_preempted and event is not None:
        reason = _reason("preempted", ending.last_step, "it was sent SIGTERM and left a checkpoint")
    else:
        # Also a trial that stopped unasked: it lost its line to us.
        reason = _crash_reason(ending)
    rule = reason["rule"]
    if ending.stop_reason is not None and rule != "disk":
        return _decide_stopped(ending, reason)
    if rule == "disk":
        return Outcome("blocked", reason=reason)
    if rule == "preempted" or (rule == "out_of_memory" and ending.can_shrink):
        return Outcome("retry", reason=reason)
    if rule == "out_of_memory":
        reason["message"] += "; one completion at a time is still too much: " + _SMALLER
    if rule in _RETRIED and num_retries < max_retries:
        return Outcome("retry", reason=reason, counts=True)
    return Outcome("failed", reason=reason)


def _decide_result(result: Mapping[str, Any], ending: Ending, objective_metric: str) -> Outcome:
    status, last_step = result["status"], int(result.get("last_step") or ending.last_step)
    if status == "pruned":
        reason = {"step": last_step, **(result.get("reason") or {"rule": "unknown", "message": "pruned"})}
        return Outcome("pruned", reason=reason, constraint=_constraint(reason))
    objective = result["metrics"].get(objective_metric)
    if objective is None:
        message = f"{objective_metric} was never recorded; set study.objective.metric to a metric of this training"
        return Outcome("failed", reason=_reason("no_objective", last_step, message))
    if not math.isfinite(objective):
        message = f"{objective_metric} is {objective} at the last step"
        return Outcome("pruned", reason=_reason("nonfinite", last_step, message, objective), constraint=1.0)
    return Outcome("complete", objective=float(objective))


def _decide_stopped(ending: Ending, reason: dict[str, Any]) -> Outcome:
    if ending.stop_reason == "interrupt":
        return Outcome("interrupted", reason=reason)
    message = f"study.timeout passed at step {ending.last_step}"
    return Outcome("pruned", reason=_reason("timeout", ending.last_step, message))


def objective_breach(metric: str, step: int, value: float) -> dict[str, Any] | None:
    """Reason to prune a trial whose objective is not a finite number at an evaluation, else None."""
    if math.isfinite(value):
        return None
    return {**_reason("nonfinite", step, f"{metric} is {value} at step {step}", value), "constraint": 1.0}


def pruner_reason(pruner: str, metric: str, step: int, value: float) -> dict[str, Any]:
    """Reason of a trial that the pruner stopped at an evaluation."""
    message = f"{metric} {value:.4g} at step {step} falls behind the other trials ({pruner})"
    return _reason("pruner", step, message, value)


def same_failure(outcomes: Sequence[Mapping[str, Any]]) -> str | None:
    """Message shared by the first trials when they all failed of one cause that every further trial would meet.

    `outcomes` are outcome records by trial number.
    """
    first = outcomes[:MAX_EQUAL_FAILURES]
    if len(first) < MAX_EQUAL_FAILURES or any(outcome["state"] != "failed" for outcome in first):
        return None
    reasons = [outcome["reason"] for outcome in first]
    # Messages about memory name sizes, which differ from trial to trial.
    causes = {(r["rule"], "" if r["rule"] == "out_of_memory" else r["message"]) for r in reasons}
    lasting = all(reason["rule"] in ("error", "no_objective", "out_of_memory") for reason in reasons)
    return reasons[0]["message"] if lasting and len(causes) == 1 else None


def _constraint(reason: Mapping[str, Any]) -> float:
    if reason.get("rule") in _RULES_WITHOUT_CONSTRAINT:
        return 0.0
    constraint = reason.get("constraint")
    if constraint is None or not math.isfinite(constraint):
        return 1.0
    # A breach never counts as feasible, however small its excess.
    return min(1.0, max(1e-6, float(constraint)))


def _is_echo(error: Mapping[str, Any], exit_code: int | None) -> bool:
    """Whether a rank only lost its line to another that was killed: the signal is what there is to tell."""
    return error.get("cause") == "machine" and exit_code is not None and exit_code < 0


def _error_reason(error: Mapping[str, Any], last_step: int) -> dict[str, Any]:
    rule = _RULE_OF_CAUSE.get(str(error.get("cause")), "error")
    return _reason(rule, last_step, f"{error.get('type', 'Error')}: {error.get('message', '')}")


def _crash_reason(ending: Ending) -> dict[str, Any]:
    code = ending.exit_code
    if code == -9 and ending.ran_out_of_memory:
        return _reason("out_of_memory", ending.last_step, "the kernel ended the trial's process for want of memory")
    how = "without an exit code" if code is None else f"by signal {-code}" if code < 0 else f"with exit code {code}"
    return _reason("crash", ending.last_step, f"the trial's process ended {how} and left no result", code)


def _reason(rule: str, step: int, message: str, value: float | None = None) -> dict[str, Any]:
    return {"rule": rule, "step": step, "value": value, "limit": None, "message": message}
