"""One trial in its slot, from the files that precede its start to the record of how it ended."""

import os
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_core.config import TrainConfig
from grpo_core.metric_names import POLICY_ENTROPY, REWARD_MEAN, TIME_STEP_S
from sweeps.executors import Executor, Handle
from sweeps.jobs import Event, Job
from sweeps.kernel_kills import num_memory_kills
from sweeps.outcomes import Ending, Outcome, decide, objective_breach, pruner_reason
from sweeps.progress import TrialRow
from sweeps.retries import Retries, can_shrink
from sweeps.search_space import apply_params
from sweeps.sections import SweepConfig
from sweeps.study import Draw, SweepStudy
from sweeps.study_folder import TrialFolder, write_json, write_yaml
from sweeps.summary import settings
from sweeps.watchdog import Watchdog

StopReason = Literal["interrupt", "timeout"]


@dataclass
class TrialRun:
    """A trial that runs, or is about to."""

    config: SweepConfig
    draw: Draw
    folder: TrialFolder
    study: SweepStudy
    kind: str = "trial"
    """Job kind, for tests that need no model."""
    slot: int = -1
    handle: Handle | None = None
    retries: Retries = field(default_factory=Retries)
    stop_reason: StopReason | None = None
    slot_freed_at: float | None = None
    """When the slot's last trial gave its last word, seconds since the epoch."""
    slot_gap_s: float | None = None
    """From there to the start of this trial's first step."""
    last_step: int = 0
    last_word_at: float = 0.0
    _started_at: float = 0.0
    _last_word: Event | None = None
    _watchdog: Watchdog | None = None
    _hung_after_s: float | None = None
    _was_preempted: bool = False
    _num_memory_kills: int = 0
    _metrics: dict[str, float] = field(default_factory=dict)

    @property
    def silent_s(self) -> float:
        """Seconds since the trial's last news."""
        return 0.0 if self._watchdog is None else self._watchdog.silent_s

    @property
    def number(self) -> int:
        return self.draw.number

    def train_config(self) -> TrainConfig:
        """The TrainConfig of this trial; raises ValueError where the drawn params do not fit together."""
        params = dict(self.draw.params)
        if "seed" not in params:
            params["seed"] = self.draw.seed
        return self.retries.applied_to(apply_params(self.config.train, params))

    def prepare(self) -> str | None:
        """Writes params.json and config.yaml, and takes up what an earlier run of this trial recorded.

        Returns what is wrong with the drawn params where they do not fit together.
        """
        problem = None
        self.retries = Retries.of(self.folder)
        if self.folder.params() is None:
            # The config first: a trial exists from its params.json on.
            try:
                config = self.train_config().model_dump(mode="json")
                write_yaml(self.folder.config_file, config)
            except ValueError as error:
                problem = str(error)
            write_json(self.folder.params_file, {**self.draw.record(), "created_at": time.time()})
        for line in self.folder.steps():
            self._note(line["step"], line["metrics"])
        self._started_at = (self.folder.params() or {}).get("created_at") or time.time()
        return problem

    def overdue_verdict(self) -> dict[str, Any] | None:
        """Reason to prune at the last recorded step, where a restart came between an evaluation and its verdict."""
        reason = None
        for line in self.folder.steps():
            reason = self._judge(line["step"], line["metrics"])
        return reason

    def ended_before_start(self, event: Event) -> None:
        """Takes the last word for a trial that needs no process any more."""
        self._last_word, self.last_word_at = event, event.time

    def start(self, executor: Executor, slot: int, slot_freed_at: float | None) -> None:
        """Starts the trial's ranks, from its last checkpoint if it has one."""
        self.slot, self.slot_freed_at, self._last_word = slot, slot_freed_at, None
        self._watchdog = Watchdog(self.config.resources.hang_timeout)
        self._hung_after_s, self._was_preempted, self._num_memory_kills = None, False, num_memory_kills()
        job = Job(
            kind=self.kind,
            name=self.folder.path.name,
            config=self.train_config().model_dump(mode="json"),
            run_dir=str(self.folder.path),
            log_path=str(self.folder.log_file),
            num_ranks=self.config.resources.processes_per_trial,
            options={
                "stability": self.config.stability.model_dump(mode="json"),
                "report_metric": self.config.study.objective.metric,
            },
        )
        self.handle = executor.start(job, slot)

    def take(self, event: Event) -> None:
        """Takes one event; answers an evaluation with `continue` or `prune`."""
        assert self.handle is not None
        if event.kind == "step":
            step, metrics = event.data["step"], event.data["metrics"]
            if self.slot_freed_at is not None and self.slot_gap_s is None:
                self.slot_gap_s = event.time - metrics.get(TIME_STEP_S, 0.0) - self.slot_freed_at
            self._note(step, metrics)
            if self._watchdog is not None:
                self._watchdog.step()
            if self.config.study.objective.metric in metrics:
                reason = self._judge(step, metrics)
                if self.stop_reason is not None:
                    self.handle.send({"command": "stop"})
                elif reason is not None:
                    self.handle.send({"command": "prune", "reason": reason})
                else:
                    self.handle.send({"command": "continue"})
        elif event.kind == "preempted":
            self._was_preempted = True
            self.handle.send({"command": "stop"})
        elif event.kind in ("result", "error"):
            self._last_word, self.last_word_at = event, event.time

    def end_if_hung(self) -> bool:
        """Ends a trial that has been silent for too long, the stacks of its ranks in their logs; whether it did."""
        if self.handle is None or self._watchdog is None or self._last_word is not None:
            return False
        if not self._watchdog.is_hung():
            return False
        self._hung_after_s = self._watchdog.silent_s
        self.handle.log_stacks()
        self.handle.kill()
        return True

    def note_retry(self, outcome: Outcome) -> None:
        """Records that the trial is tried again, with half as much in memory where that is what it lacked."""
        assert outcome.reason is not None
        if outcome.reason["rule"] == "out_of_memory":
            self.retries.halve(self.train_config())
        self.retries.note(self.folder, outcome.reason, outcome.counts)

    def stop(self, reason: StopReason) -> None:
        """Asks the trial to leave a checkpoint and end."""
        assert self.handle is not None
        self.stop_reason = reason
        self.handle.send({"command": "stop"})

    def outcome(self) -> Outcome:
        """How the trial ended, once its handle is no longer alive."""
        if self._last_word is None:
            self.last_word_at = time.time()
        # What reached the disk counts, also where its event was lost with the process.
        self.last_step = max([self.last_step, *(line["step"] for line in self.folder.steps())])
        exit_code = None if self.handle is None else self.handle.exit_code
        ending = Ending(
            self._last_word,
            exit_code,
            self.last_step,
            self.stop_reason,
            hung_after_s=self._hung_after_s,
            was_preempted=self._was_preempted,
            ran_out_of_memory=num_memory_kills() > self._num_memory_kills,
            can_shrink=self.handle is not None and can_shrink(self.train_config()),
        )
        return decide(
            ending,
            objective_metric=self.config.study.objective.metric,
            num_retries=self.retries.num_counted,
            max_retries=self.config.study.retries,
        )

    def record(self, outcome: Outcome) -> dict[str, Any]:
        """Writes outcome.json and returns its content."""
        now = time.time()
        checkpoint = None if self._last_word is None else self._last_word.data.get("checkpoint")
        record = {
            "number": self.number,
            "state": outcome.state,
            "objective": outcome.objective,
            "reason": outcome.reason,
            "constraint": outcome.constraint,
            "last_step": self.last_step,
            "started_at": self._started_at,
            "ended_at": now,
            "duration_s": now - self._started_at,
            "checkpoint": None if checkpoint is None else os.path.relpath(checkpoint, self.folder.path),
            "num_retries": len(self.retries.history),
            "changes": self.retries.changes,
            "slot_gap_s": self.slot_gap_s,
        }
        write_json(self.folder.outcome_file, record)
        return record

    def row(self, state: str = "running", note: str = "") -> TrialRow:
        """The trial as a row of the progress table."""
        return TrialRow(
            number=self.number,
            state=state,
            step=self.last_step,
            num_steps=self.config.train.num_steps,
            objective=self._metrics.get(self.config.study.objective.metric),
            reward=self._metrics.get(REWARD_MEAN),
            entropy=self._metrics.get(POLICY_ENTROPY),
            settings=settings(self.draw.params),
            note=note,
        )

    def _note(self, step: int, metrics: dict[str, float]) -> None:
        self.last_step = step
        self._metrics |= metrics

    def _judge(self, step: int, metrics: dict[str, float]) -> dict[str, Any] | None:
        """Reason to prune the trial at an evaluation, or None."""
        metric = self.config.study.objective.metric
        value = metrics.get(metric)
        if value is None:
            return None
        breach = objective_breach(metric, step, value)
        if breach is None and self.study.report(self.number, step, value):
            return pruner_reason(self.config.study.pruner.name, metric, step, value)
        return breach
