"""One study from its launch to its report: preflight, trials, the comparison on test problems, the books closed."""

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from grpo_core.config import TrainConfig
from sweeps.continuation import Refused, check_unchanged, import_trials, write_sweep
from sweeps.controller_record import ControllerRecord
from sweeps.executors import EXECUTORS, Executor
from sweeps.executors.slots import usable_cores
from sweeps.lint import lint
from sweeps.mlflow_records import config_of
from sweeps.monitor import Monitor
from sweeps.phases import Interrupted, PhaseFailed, Phases
from sweeps.preflight import judge
from sweeps.process_tree import end_orphans
from sweeps.progress import Progress, open_progress
from sweeps.record_repair import repair_records, set_aside
from sweeps.report_writer import ReportWriter
from sweeps.sampling import build_pruner, build_sampler
from sweeps.sections import SweepConfig
from sweeps.signals import StopSignals
from sweeps.study import SweepStudy
from sweeps.study_folder import StudyFolder, best_trial, read_json, write_json
from sweeps.study_storage import is_damaged, is_storage_error, storage_advice
from sweeps.summary import best_lines, count_states, next_commands, reproduce_command, resume_command
from sweeps.tracking import Tracker, tracking_uri
from sweeps.trial_loop import StudyFailed, TrialLoop

#: Time that MLflow has to take the last records of a study that was interrupted, and of one that ended.
_INTERRUPTED_TRACKING_S = 2.0
_TRACKING_S = 30.0


@dataclass(frozen=True)
class StudyResult:
    """How a launch ended: exit code 0 done, 1 failed, 2 refused, 130 and 143 interrupted and resumable."""

    exit_code: int
    state: str
    message: str
    best: dict[str, Any] | None
    """Outcome record of the best trial so far."""
    folder: Path


def run_study(
    config: SweepConfig,
    *,
    runs_dir: str | Path = "runs",
    fresh: bool = False,
    import_from: str | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    job_kinds: Mapping[str, str] | None = None,
) -> StudyResult:
    """Runs a study, or what is left of it, and returns once it is done, has failed, or was stopped by a signal.

    `fresh` moves a study of the same name aside; `import_from` names a study whose fitting trials are taken over;
    `job_kinds` replaces the jobs `trial`, `preflight`, … by functions of one's own. A given executor is not closed.

    Raises:
        ConfigError: an option of the sampler or pruner is wrong.
        StudyChanged: the study on disk holds other trials than `config` asks for.
        Refused: the machine lacks what `resources` asks for, or `import_from` or `runs_dir` cannot be used.
        StudyBusy: another process runs the study.
    """
    runs_dir = Path(runs_dir)
    folder = StudyFolder(runs_dir / config.study.name)
    source = None if import_from is None else StudyFolder(runs_dir / import_from)
    if source is not None and not source.exists:
        raise Refused(f"--import {import_from}: no such study under {runs_dir}")
    # What is wrong with these shows before anything is on disk.
    build_sampler(config)
    build_pruner(config)
    own_executor = executor or open_executor(config)
    with ExitStack() as stack:
        shown = progress or open_progress()
        stack.callback(shown.close)
        try:
            stack.enter_context(folder.lock())
        except OSError as error:
            raise Refused(f"--runs-dir {runs_dir}: cannot be written to: {error.strerror}") from error
        if folder.exists and not fresh:
            check_unchanged(folder, config)
        elif folder.path.exists():
            aside = _move_aside(folder)
            shown.say(f"the old study is kept in {aside}")
            if source == folder:
                source = StudyFolder(aside)
        if executor is None:
            stack.callback(own_executor.close)
        signals = stack.enter_context(StopSignals())
        try:
            monitor = Monitor(config.monitoring, config.study.name, shown.say)
        except ValueError as error:
            raise Refused(str(error)) from error
        except OSError as error:
            port = f"monitoring.port={config.monitoring.port}"
            why = f"cannot be had on {config.monitoring.host} ({error.strerror})"
            raise Refused(f"{port}: {why}; take another, or 0 for any that is free") from error
        launch = _Launch(config, folder, runs_dir, own_executor, shown, signals, job_kinds or {}, monitor)
        try:
            result = launch.run(source)
        except BaseException as error:
            monitor.end("failed", type(error).__name__)
            raise
        problem = monitor.end(result.state, result.message)
        if problem is not None:
            shown.say(f"warning: {problem}")
        return result


def open_executor(config: SweepConfig) -> Executor:
    """The executor that the sweep names, with nothing started; raises Refused where the machine lacks what it needs."""
    try:
        return EXECUTORS[config.resources.executor](config)
    except ValueError as error:
        raise Refused(str(error)) from error


def _move_aside(folder: StudyFolder) -> Path:
    aside = folder.path.with_name(f"{folder.name}.old-{datetime.now():%Y%m%d-%H%M%S}")
    return folder.path.rename(aside)


class _Launch:
    """One launch of a study whose folder this process holds."""

    def __init__(
        self,
        config: SweepConfig,
        folder: StudyFolder,
        runs_dir: Path,
        executor: Executor,
        progress: Progress,
        signals: StopSignals,
        job_kinds: Mapping[str, str],
        monitor: Monitor,
    ) -> None:
        self._config = config
        self._folder = folder
        self._runs_dir = runs_dir
        self._executor = executor
        self._progress = progress
        self._signals = signals
        self._monitor = monitor
        self._job_kinds = job_kinds
        self._tracker = Tracker(config, folder, runs_dir)
        self._report = ReportWriter(folder)
        self._phases = Phases(executor, folder, progress, self._is_stopped, config.study.retries, job_kinds)

    def run(self, source: StudyFolder | None) -> StudyResult:
        is_new = not self._folder.exists
        if is_new and source is not None:
            num_taken, num_finished = import_trials(source, self._folder, self._config)
            self._progress.say(f"{num_taken} of {num_finished} finished trials of {source.name} fit and are taken over")
        write_sweep(self._folder, self._config)
        for line in repair_records(self._folder):
            self._progress.say(f"warning: {line}")
        self._end_orphans()
        with closing(self._open_study()) as study:
            return self._conduct(study)

    def _open_study(self) -> SweepStudy:
        """The study in Optuna's storage.

        An SQLite file of ours that is damaged, or knows of an end that the disk has lost, is made anew from the trials.
        """
        is_ours = self._config.study.storage is None
        try:
            study = SweepStudy(self._config, self._folder)
        except Exception as error:
            if is_ours and is_damaged(error):
                return self._remade_study("is damaged")
            if is_storage_error(error):
                raise Refused(storage_advice(error, self._config, self._folder)) from error
            raise
        if is_ours and study.disagrees_with_disk:
            study.close()
            return self._remade_study("has the end of a trial that is open on disk")
        return study

    def _remade_study(self, why: str) -> SweepStudy:
        for log in self._folder.path.glob("study.db-???"):
            set_aside(log)
        aside = set_aside(self._folder.study_db)
        self._progress.say(f"warning: study.db {why}; it is kept as {aside.name} and made again from the trials")
        return SweepStudy(self._config, self._folder)

    def _conduct(self, study: SweepStudy) -> StudyResult:
        if study.num_left == 0 and self._folder.controller().get("state") == "done":
            self._progress.say(
                f"study {self._folder.name} is complete ({count_states(self._folder)}); no trial was run"
            )
            return self._result(0, "done", "complete")
        warnings = [str(finding) for finding in lint(self._config) if finding.level == "warning"]
        self._record = ControllerRecord(self._folder, self._config, warnings)
        self._executor.warm_up()
        self._tracker.start()
        before = "" if study.num_attempts == 0 else f", {study.num_attempts} of them begun before"
        self._progress.say(
            f"study {self._folder.name}: {self._config.study.n_trials} trials{before}, "
            f"{self._executor.capacity} at a time, in {self._folder.path}"
        )
        try:
            self._before_trials()
            loop = self._run_trials(study)
            self._after_trials()
        except (Interrupted, KeyboardInterrupt):
            return self._interrupted()
        except PhaseFailed as failure:
            return self._end("failed", str(failure), 2 if failure.cause == "config" else 1)
        except StudyFailed as failure:
            then = f"; go on with: {resume_command(self._folder)}" if failure.is_resumable else ""
            return self._end("failed", f"{failure}{then}", failure.exit_code)
        except Exception as error:
            # Not foreseen, so it is shown whole; the books are closed first.
            self._record.end("failed", f"{type(error).__name__}: {error}", 1)
            self._tracker.close("failed", _INTERRUPTED_TRACKING_S)
            raise
        message = count_states(self._folder)
        if loop.is_out_of_time:
            message += f"; study.timeout passed with {study.num_left} trials to go"
        return self._end("done", message, 0)

    def _is_stopped(self) -> bool:
        return self._signals.exit_code is not None

    def _end_orphans(self) -> None:
        """Ends what a controller that was killed left running, before its trials go on."""
        self._phases.end_orphans()
        for trial in self._folder.trials():
            if trial.outcome() is None:
                end_orphans(trial.path)

    def _before_trials(self) -> None:
        train = self._config.train
        if train.warm_start.num_steps:
            self._progress.phase("warm start: from the cache, or trained once for all studies")
            self._phases.run("warm_start", train)
        measured = read_json(self._folder.preflight_file)
        if measured is None:
            self._progress.phase("preflight: the untouched policy is measured")
            measured = self._phases.run("preflight", train)
            write_json(self._folder.preflight_file, measured)
        findings = judge(measured, self._config)
        warnings = [f"preflight: {finding}" for finding in findings if finding.level == "warning"]
        self._record.add_warnings(warnings)
        for warning in warnings:
            self._progress.say(warning)
        errors = [finding for finding in findings if finding.level == "error"]
        if errors:
            raise StudyFailed(
                "\n".join(f"preflight: {finding.key}: {finding.message}" for finding in errors), exit_code=2
            )

    def _run_trials(self, study: SweepStudy) -> TrialLoop:
        loop = TrialLoop(
            self._config,
            self._folder,
            study,
            self._executor,
            tracker=self._tracker,
            report=self._report,
            record=self._record,
            progress=self._progress,
            monitor=self._monitor,
            should_stop=self._is_stopped,
            kind=self._job_kinds.get("trial", "trial"),
        )
        loop.run()
        return loop

    def _after_trials(self) -> None:
        """Measures the winner and the untouched policy on the test problems, unless that was done for this winner."""
        best = best_trial(self._folder, self._config.study.objective.direction)
        known = read_json(self._folder.final_file) or {}
        if best is None or best["checkpoint"] is None or known.get("trial") == best["number"]:
            return
        self._progress.phase(f"trial {best['number']} and the untouched policy are measured on the test problems")
        trial = self._folder.trial(best["number"])
        train = TrainConfig.model_validate(config_of(trial))
        options = {
            "checkpoint": str(trial.path / best["checkpoint"]),
            "out": str(self._folder.path / "phases" / "final" / "final.json"),
        }
        try:
            # Nothing else runs now.
            found = self._phases.run("final", train, num_threads=usable_cores(), **options)
        except PhaseFailed as failure:
            # The trials stand without it.
            self._progress.say(f"warning: no test comparison: {failure}")
            return
        write_json(self._folder.final_file, {**found, "trial": best["number"]})

    def _end(self, state: str, message: str, exit_code: int) -> StudyResult:
        """Closes the books of a launch that came to its end."""
        problems = [self._record.end(state, message, exit_code)]
        self._progress.phase("the report is written and the last records are sent to MLflow")
        problems += [self._report.finish(), self._tracker.close(state, _TRACKING_S)]
        self._progress.close()
        for problem in problems:
            if problem is not None:
                self._progress.say(f"warning: {problem}")
        self._progress.say(f"study {self._folder.name} {state}: {message}")
        return self._result(exit_code, state, message)

    def _interrupted(self) -> StudyResult:
        """Closes the books of a launch that was stopped, within the seconds that a machine gives on its way down."""
        exit_code = self._signals.exit_code or 130
        self._report.cancel()
        problems = [self._record.end("interrupted", "stopped by a signal", exit_code)]
        problems.append(self._tracker.close("interrupted", _INTERRUPTED_TRACKING_S))
        for problem in problems:
            if problem is not None:
                self._progress.say(f"warning: {problem}")
        message = f"stopped; go on with: {resume_command(self._folder)}"
        self._progress.say(message)
        return self._result(exit_code, "interrupted", message)

    def _result(self, exit_code: int, state: str, message: str) -> StudyResult:
        best = best_trial(self._folder, self._config.study.objective.direction)
        if state == "done":
            uri = tracking_uri(self._config, self._runs_dir)
            lines = best_lines(self._folder, self._config)
            if best is not None:
                num_ranks = self._config.resources.processes_per_trial
                lines.append(f"  again:   {reproduce_command(self._folder.trial(best['number']).path, num_ranks)}")
            for line in [*lines, *next_commands(self._folder, self._config, self._runs_dir, uri)]:
                self._progress.say(line)
        return StudyResult(exit_code, state, message, best, self._folder.path)
