"""What rank 0 of a trial decides after each step: go on, be pruned, or stop."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo_core.run_record import read_metrics
from grpo_core.train import Verdict
from sweeps.guard import Breach, StabilityGuard
from sweeps.rank_link import RankLink

#: Time the controller has to answer the report of a step; later answers count at the next step.
ANSWER_TIMEOUT_S = 2.0


class StepJudge:
    """The `on_step` of a trial: the guard first, then the news to the controller, then the controller's commands."""

    def __init__(self, guard: StabilityGuard, link: RankLink, report_metric: str | None) -> None:
        """At steps that have `report_metric` the controller is asked whether to go on."""
        self._guard = guard
        self._link = link
        self._report_metric = report_metric

    def __call__(self, step: int, metrics: dict[str, float]) -> Verdict | None:
        """The verdict on a step that is on disk; None to go on."""
        breach = self._guard.check(step, metrics)
        # Taken before the step is reported, so that what waits here cannot pass for the answer to this step.
        commands = self._link.take_commands()
        self._link.send("step", {"step": step, "metrics": metrics})
        if breach is not None:
            return Verdict("prune", breach_reason(breach))
        for command in commands:
            if (verdict := _verdict(command)) is not None:
                return verdict
        if self._report_metric in metrics:
            answer = self._link.wait_command(ANSWER_TIMEOUT_S)
            if answer is not None and (verdict := _verdict(answer)) is not None:
                return verdict
        if self._link.is_gone:
            return Verdict("stop", {"rule": "controller_gone", "step": step, "message": "the controller is gone"})
        return None


def replay(guard: StabilityGuard, metrics_file: Path) -> tuple[Breach | None, dict[str, Any]]:
    """Feeds a resumed trial's recorded steps to its guard, so that patience and windows go on where they stood.

    Returns the breach that the earlier process did not live to report, if any, and `last_step` and last known
    `metrics` of the record.
    """
    last_step, metrics = 0, {}
    for line in read_metrics(metrics_file):
        last_step = line["step"]
        metrics.update(line["metrics"])
        if (breach := guard.check(last_step, line["metrics"])) is not None:
            return breach, {"last_step": last_step, "metrics": metrics}
    return None, {"last_step": last_step, "metrics": metrics}


def breach_reason(breach: Breach) -> dict[str, Any]:
    """A breach as the reason of a pruned trial, with the constraint that the sampler learns from."""
    return {**asdict(breach), "constraint": breach.constraint}


def _verdict(command: Mapping[str, Any]) -> Verdict | None:
    match command["command"]:
        case "continue":
            return None
        case "prune":
            return Verdict("prune", command.get("reason") or {})
        case "stop":
            return Verdict("stop", command.get("reason") or {})
    raise AssertionError(f"unknown command {command!r}")
