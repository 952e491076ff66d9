"""What a study does before and after its trials: the warm start, the preflight, the comparison on the test problems."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_core.config import TrainConfig
from sweeps.executors import Executor, wait_any
from sweeps.jobs import Event, Job
from sweeps.process_tree import end_orphans
from sweeps.progress import Progress
from sweeps.study_folder import StudyFolder

_POLL_S = 0.25


class Interrupted(Exception):
    """The study was asked to stop while a phase ran."""


class PhaseFailed(RuntimeError):
    """A phase raised or died; the text says how, `cause` is that of its error event, or `crash`."""

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


@dataclass(frozen=True)
class Phases:
    """Runs one job at a time in slot 0 while no trial runs."""

    executor: Executor
    folder: StudyFolder
    progress: Progress
    should_stop: Callable[[], bool]
    max_retries: int
    job_kinds: Mapping[str, str] = field(default_factory=dict)
    """Other job kinds to run in place of those named, for example `{"preflight": "module:function"}`."""

    def end_orphans(self) -> None:
        """Ends what a controller that died left running."""
        for path in (self.folder.path / "phases").glob("*/"):
            end_orphans(path)

    def run(self, kind: str, train: TrainConfig, *, num_threads: int | None = None, **options: Any) -> dict[str, Any]:
        """The result of a job of this kind on one rank, with `num_threads` CPU threads if that is given.

        Raises:
            Interrupted: the study was asked to stop; nothing of the job is left.
            PhaseFailed: it failed, and after a crash or a fault of the machine failed again on the next try.
        """
        run_dir = self.folder.path / "phases" / kind
        alone = train.compute.model_copy(
            update={"num_ranks": 1, "num_threads": num_threads or train.compute.num_threads}
        )
        job = Job(
            kind=self.job_kinds.get(kind, kind),
            name=kind,
            config=train.model_copy(update={"compute": alone}).model_dump(mode="json"),
            run_dir=str(run_dir),
            log_path=str(run_dir / "phase.log"),
            options=options,
        )
        for attempt in range(self.max_retries + 1):
            last_word, exit_code = self._run_once(job)
            if last_word is not None and last_word.kind == "result":
                return last_word.data
            if last_word is not None and (last_word.data["cause"] != "machine" or attempt == self.max_retries):
                message = f"{kind} failed: {last_word.data['message']} ({last_word.data['type']})"
                raise PhaseFailed(message, last_word.data["cause"])
        raise PhaseFailed(f"{kind} failed: its process ended with exit code {exit_code}; see {job.log_path}", "crash")

    def _run_once(self, job: Job) -> tuple[Event | None, int | None]:
        try:
            handle = self.executor.start(job, 0)
        except RuntimeError as error:
            raise PhaseFailed(f"{job.name} cannot be started: {error}", "machine") from error
        last_word = None
        while handle.is_alive():
            if self.should_stop():
                handle.kill()
                raise Interrupted
            wait_any([handle], _POLL_S)
            for event in handle.poll():
                if event.kind == "progress":
                    self.progress.phase(_words(job.name, event.data))
                elif event.kind in ("result", "error"):
                    last_word = event
        return last_word, handle.exit_code


def _words(kind: str, data: dict[str, Any]) -> str:
    name = kind.replace("_", " ")
    step, num_steps, loss = data.get("step"), data.get("num_steps"), data.get("loss")
    return f"{name}: step {step} of {num_steps}" + (f", loss {loss:.3f}" if loss is not None else "")
