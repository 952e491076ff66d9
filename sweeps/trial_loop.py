"""The event loop over the trials of a study: a free slot is filled, news is taken, an end is decided and told."""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from sweeps.controller_record import ControllerRecord
from sweeps.disk import disk_advice, is_disk_error
from sweeps.executors import Executor, wait_any
from sweeps.health import EndedTrials, Health, RunningTrial
from sweeps.jobs import Event
from sweeps.monitor import Monitor
from sweeps.outcomes import Outcome, same_failure
from sweeps.phases import Interrupted
from sweeps.progress import Progress, StudyView
from sweeps.report_writer import ReportWriter
from sweeps.sections import SweepConfig
from sweeps.study import SweepStudy
from sweeps.study_folder import StudyFolder
from sweeps.study_storage import is_storage_error, storage_advice
from sweeps.study_view import row_of_ended
from sweeps.summary import describe_outcome
from sweeps.tracking import Tracker
from sweeps.trial_run import StopReason, TrialRun

#: Time between two looks at how the study stands.
LOOK_INTERVAL_S = 1.0
#: Longest wait for news, so that a signal is noticed and the display stays alive.
TICK_S = 0.5
#: Time for trials to leave a checkpoint when the study is interrupted: with what follows, 10 s in all.
INTERRUPT_GRACE_S = 6.0
#: The same when study.timeout passed, where nobody waits.
TIMEOUT_GRACE_S = 60.0


class StudyFailed(Exception):
    """The study cannot go on; `exit_code` is 2 where the person's settings are the cause, else 1.

    `is_resumable`: its open trials go on at the next launch, once what stood in the way is gone.
    """

    def __init__(self, message: str, exit_code: int = 1, *, is_resumable: bool = False) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.is_resumable = is_resumable


class TrialLoop:
    """Runs trials in the executor's slots until the study has no more of them."""

    def __init__(
        self,
        config: SweepConfig,
        folder: StudyFolder,
        study: SweepStudy,
        executor: Executor,
        *,
        tracker: Tracker,
        report: ReportWriter,
        record: ControllerRecord,
        progress: Progress,
        monitor: Monitor,
        should_stop: Callable[[], bool],
        kind: str = "trial",
    ) -> None:
        self._config = config
        self._folder = folder
        self._study = study
        self._executor = executor
        self._tracker = tracker
        self._report = report
        self._record = record
        self._progress = progress
        self._monitor = monitor
        self._look_at = 0.0
        self._should_stop = should_stop
        self._kind = kind
        self._running: dict[int, TrialRun] = {}
        self._to_retry: list[TrialRun] = []
        self._slot_freed_at: dict[int, float] = {}
        self._outcomes = {trial.number: outcome for trial in folder.trials() if (outcome := trial.outcome())}
        self._rows = [row_of_ended(folder.trial(number), each, config) for number, each in self._outcomes.items()]
        self._ended = EndedTrials(config.study.objective.direction)
        for outcome in self._outcomes.values():
            self._ended.add(outcome)
        self._progress_at = time.time()
        self._is_drained = False
        self._has_news_of_ends = False
        self._kill_at: float | None = None
        self.is_out_of_time = False
        """Whether study.timeout ended the study."""

    def run(self) -> None:
        """Runs what is left of the study.

        Raises:
            Interrupted: it was asked to stop; no process is left, and open trials go on at the next launch.
            StudyFailed: its first trials all failed of one cause, the executor cannot start anything, or the disk takes
                no record.
        """
        started, started_cpu, tracking_before_s = time.monotonic(), time.thread_time(), self._tracker.busy_cpu_s
        try:
            while self._tick():
                pass
        except StudyFailed:
            self._stop("interrupt", INTERRUPT_GRACE_S)
            raise
        except Exception as error:
            problem = self._problem_of_machine(error)
            if problem is None:
                raise
            # What ends now may not be recorded either; it goes on at the next launch.
            with contextlib.suppress(OSError, StudyFailed):
                self._stop("interrupt", INTERRUPT_GRACE_S)
            raise StudyFailed(problem, is_resumable=True) from error
        finally:
            self.kill()
            wall_s = max(time.monotonic() - started, 1e-9)
            loop_s, tracking_s = time.thread_time() - started_cpu, self._tracker.busy_cpu_s - tracking_before_s
            self._record.note(
                trials_wall_s=wall_s,
                loop_cpu_s=loop_s,
                tracking_cpu_s=tracking_s,
                overhead_frac=(loop_s + tracking_s) / wall_s,
            )

    def _problem_of_machine(self, error: Exception) -> str | None:
        """What a person has to mend before the study can go on, None where `error` is no such thing."""
        if is_disk_error(error):
            return f"{error}; {disk_advice(self._folder.path)}"
        if is_storage_error(error):
            return storage_advice(error, self._config, self._folder)
        return None

    def kill(self) -> None:
        """Ends every process of the trials that still run; they go on at the next launch."""
        for run in list(self._running.values()):
            if run.handle is not None:
                run.handle.kill()
        self._running = {}
        self._tracker.running(set())

    def _tick(self) -> bool:
        """One round; False when nothing runs any more and nothing is left to start."""
        if self._should_stop():
            self._stop("interrupt", INTERRUPT_GRACE_S)
            raise Interrupted
        self._watch_the_clock()
        if self.is_out_of_time:
            self._prune_what_waits()
        else:
            self._fill_slots()
        # Whatever can wait comes after the slots are filled again.
        if self._has_news_of_ends:
            self._has_news_of_ends = False
            self._tell_tracker()
            self._tracker.wake()
            self._report.trial_ended()
        self._look()
        self._report.poll()
        self._progress.show(self._view())
        if not self._running:
            return bool(self._to_retry) and not self.is_out_of_time
        self._take_news()
        return True

    def _look(self) -> None:
        """Lets those who asked for it know how the study stands, and shows on disk that the controller lives."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_INTERVAL_S
        health = self._health()
        self._monitor.look(health)
        self._record.beat(health=health.record())

    def _health(self) -> Health:
        num_steps, runs = self._config.train.num_steps, [self._running[slot] for slot in sorted(self._running)]
        retries = sum(len(run.retries.history) for run in [*runs, *self._to_retry])
        return Health(
            study=self._config.study.name,
            n_trials=self._config.study.n_trials,
            running=tuple(RunningTrial(run.number, run.last_step, num_steps, round(run.silent_s, 1)) for run in runs),
            ended=dict(self._ended.states),
            num_breaches=self._ended.num_breaches,
            num_retries=self._ended.num_retries + retries,
            best=self._ended.best,
            progress_at=self._progress_at,
            tracking_problem=self._tracker.problem,
        )

    def _watch_the_clock(self) -> None:
        timeout_s = self._config.study.timeout_s
        if not self.is_out_of_time and timeout_s is not None and self._record.active_s >= timeout_s:
            self.is_out_of_time = True
            self._kill_at = time.monotonic() + TIMEOUT_GRACE_S
            for run in self._running.values():
                run.stop("timeout")
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            for run in self._running.values():
                assert run.handle is not None
                run.handle.kill()

    def _fill_slots(self) -> None:
        for slot in range(self._executor.capacity):
            while slot not in self._running:
                run = self._to_retry.pop(0) if self._to_retry else self._next_run()
                if run is None:
                    return
                if not self._ended_already(run):
                    self._start(run, slot)

    def _next_run(self) -> TrialRun | None:
        draw = None if self._is_drained else self._study.draw()
        if draw is None:
            self._is_drained = True
            return None
        return TrialRun(self._config, draw, self._folder.trial(draw.number), self._study, self._kind)

    def _ended_already(self, run: TrialRun) -> bool:
        """Prepares a trial, and ends it where its record already holds the reason to."""
        problem = run.prepare() if run.handle is None else None
        if problem is not None:
            run.ended_before_start(_word("error", {"type": "ConfigError", "message": problem, "cause": "config"}))
        elif run.handle is None and (reason := run.overdue_verdict()) is not None:
            word = {"status": "pruned", "last_step": run.last_step, "metrics": {}, "reason": reason, "checkpoint": None}
            run.ended_before_start(_word("result", word))
        else:
            return False
        self._conclude(run, run.outcome())
        return True

    def _start(self, run: TrialRun, slot: int) -> None:
        self._running[slot] = run
        self._tell_tracker()
        try:
            run.start(self._executor, slot, self._slot_freed_at.pop(slot, None))
        except (RuntimeError, OSError) as error:
            del self._running[slot]
            if is_disk_error(error):
                raise
            raise StudyFailed(f"no trial can be started: {error}") from error

    def _take_news(self) -> None:
        handles = [run.handle for run in self._running.values() if run.handle is not None]
        wait_any(handles, TICK_S)
        for slot, run in list(self._running.items()):
            assert run.handle is not None
            run.end_if_hung()
            for event in run.handle.poll():
                run.take(event)
                self._progress_at = event.time
            if not run.handle.is_alive():
                del self._running[slot]
                self._conclude(run, run.outcome())
                self._slot_freed_at[slot] = run.last_word_at

    def _conclude(self, run: TrialRun, outcome: Outcome) -> None:
        if outcome.state == "interrupted":
            return
        message = (outcome.reason or {}).get("message")
        if outcome.state == "blocked":
            raise StudyFailed(f"trial {run.number}: {message}; {disk_advice(run.folder.path)}", is_resumable=True)
        if outcome.state == "retry":
            run.note_retry(outcome)
            self._to_retry.append(run)
            smaller = "".join(f", {key} {value}" for key, value in run.retries.changes.items())
            self._progress.say(f"trial {run.number}: {message}; it goes on from its last checkpoint{smaller}")
            return
        # On disk first: Optuna and MLflow can be told again from there.
        record = run.record(outcome)
        self._study.tell(record)
        self._outcomes[run.number] = record
        self._ended.add(record)
        self._rows.append(run.row(outcome.state, (outcome.reason or {}).get("rule", "")))
        self._has_news_of_ends = True
        self._progress.say(describe_outcome(record, self._config, run.draw.params))
        failure = same_failure([self._outcomes[number] for number in sorted(self._outcomes)])
        if failure is not None:
            raise StudyFailed(f"the first trials all failed alike, as every further one would: {failure}")

    def _prune_what_waits(self) -> None:
        """Ends trials that an earlier launch left open and for which no time is left."""
        waiting = self._to_retry
        self._to_retry = []
        while self._study.num_waiting:
            run = self._next_run()
            assert run is not None
            run.prepare()
            waiting.append(run)
        for run in waiting:
            run.stop_reason = "timeout"
            self._conclude(run, run.outcome())

    def _stop(self, reason: StopReason, grace_s: float) -> None:
        """Asks all trials to stop and takes what they still say, for `grace_s` at most."""
        for run in self._running.values():
            run.stop(reason)
        deadline = time.monotonic() + grace_s
        while self._running and time.monotonic() < deadline:
            self._take_news()
        for run in self._running.values():
            assert run.handle is not None
            run.handle.kill()
        if self._running:
            self._take_news()

    def _tell_tracker(self) -> None:
        self._tracker.running({run.number for run in [*self._running.values(), *self._to_retry]})

    def _view(self) -> StudyView:
        running = [self._running[slot].row() for slot in sorted(self._running)]
        study = self._config.study
        return StudyView(
            name=study.name,
            objective=study.objective.metric,
            n_trials=study.n_trials,
            rows=[*self._rows, *running],
            elapsed_s=self._record.active_s,
            note=f"tracking waits: {self._tracker.problem}" if self._tracker.problem else "",
        )


def _word(kind: Any, data: dict[str, Any]) -> Event:
    return Event(kind, data, time.time())
