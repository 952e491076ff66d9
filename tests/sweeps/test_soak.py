"""A study of many trials takes no more memory at its end than after its first ones."""

import time
from pathlib import Path

import pytest

from sweeps.controller import run_study
from sweeps.jobs import Event, Job
from sweeps.sections import SweepConfig
from tests.benchmarks.idle_trials import IdleExecutor, IdleHandle
from tests.soak import memory_mb, slope

from .study_jobs import HEALTHY
from .study_runs import Lines, data_of, trials_of

# MLflow's own models use what SQLAlchemy is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

NUM_TRIALS, WARM_UP = 300, 100
#: Optuna, the rows of the table and the records keep a trial on purpose; its steps and processes they do not.
MAX_KB_PER_TRIAL = 40.0


class Executor(IdleExecutor):
    """Trials that do nothing, and a healthy preflight."""

    def start(self, job: Job, slot: int) -> IdleHandle:
        if job.kind == "trial":
            return super().start(job, slot)
        Path(job.run_dir).mkdir(parents=True)
        handle = IdleHandle(job)
        handle._news = [Event("result", HEALTHY, time.time())]
        return handle


@pytest.mark.slow
def test_three_hundred_trials_grow_by_their_records_alone(runs_dir: Path) -> None:
    seen: list[tuple[float, float]] = []

    def look(num_started: int) -> None:
        if num_started >= WARM_UP and num_started % 10 == 0:
            seen.append((num_started, memory_mb() * 1000))

    data = data_of({"lr": {"min": 1e-5, "max": 9e-4}}, n_trials=NUM_TRIALS, num_steps=3)
    config = SweepConfig.model_validate(data)
    result = run_study(config, runs_dir=runs_dir, executor=Executor(look), progress=Lines())
    assert result.exit_code == 0 and len(trials_of(runs_dir)) == NUM_TRIALS
    growth = slope(seen)
    print(f"{growth:.1f} kB a trial over {len(seen)} points, {seen[0][1] / 1000:.0f} to {seen[-1][1] / 1000:.0f} MB")
    assert growth < MAX_KB_PER_TRIAL
