"""What the controller hands to an executor, and what comes back while it runs."""

from dataclasses import dataclass, field
from typing import Any, Literal

EventKind = Literal["started", "step", "progress", "preempted", "result", "error"]


@dataclass(frozen=True)
class Job:
    """One piece of work for the ranks of one slot: a trial, or what a study does before and after its trials."""

    kind: str
    """A key of `sweeps.trial_process.JOB_KINDS`, or `module:function` for a function `(Job, RankLink) -> dict`."""
    name: str
    """For people, for example the trial's number `0007`."""
    config: dict[str, Any]
    """A TrainConfig, as `model_dump(mode="json")` gives it."""
    run_dir: str
    """Folder that the job writes to; made if missing."""
    log_path: str
    """File that standard output and error of rank 0 are appended to; rank 1 has `<stem>.rank1<suffix>`, and so on."""
    num_ranks: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    """What the kind asks for: trial `stability`, `report_metric`; final `checkpoint`, `out`."""


@dataclass(frozen=True)
class Event:
    """News from a running job, in the order in which it happened.

    - `started`: the ranks run; `pid` of rank 0, `num_ranks`.
    - `step`: a trial's step is on disk; `step`, `metrics`.
    - `progress`: a job of another kind got on; what it says of itself.
    - `preempted`: a rank was sent SIGTERM, as before its machine is taken away; `rank`.
    - `result`: the job's last word. A trial has `status` (complete, pruned, stopped), `last_step`, `metrics`, `reason`,
      `checkpoint`; the warm start has `path`; preflight and final have what they measured.
    - `error`: the job's last word when it raised; `type`, `message`, `traceback`, `rank`, and `cause`, one of
      `out_of_memory`, `config` (the person's mistake), `disk` (takes nothing any more), `machine` (may well work next
      time), `code`.
    """

    kind: EventKind
    data: dict[str, Any]
    time: float
    """Seconds since the epoch."""
