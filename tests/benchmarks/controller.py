"""What a trial costs the controller, against the bare calls: `python -m tests.benchmarks.controller`.

500 trials that do nothing in 2 slots: the loop of a study with ask, records on disk, events, verdicts of the pruner,
tell, MLflow, and the report that it orders now and then; that one is written by a process of its own with the lowest
priority, which has a core for 2% of the time at most. Beside it the calls that `bare_calls` makes for as many trials.
Blocks of 100 trials take turns in one process, and our clock of a block runs until MLflow has all of it.

The line is held against stores set up as ours are, with a write-ahead log; stores as the libraries make them are
slower, and their figures stand beside.
"""

import contextlib
import io
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna

from sweeps.config import load_sweep
from sweeps.continuation import write_sweep
from sweeps.controller_record import ControllerRecord
from sweeps.monitor import Monitor
from sweeps.progress import open_progress
from sweeps.report_writer import ReportWriter
from sweeps.sections import SweepConfig
from sweeps.study import SweepStudy
from sweeps.study_folder import StudyFolder, read_json
from sweeps.tracking import Tracker
from sweeps.trial_loop import TrialLoop
from tests.benchmarks.bare_calls import BareCalls
from tests.benchmarks.idle_trials import EVALUATED, NUM_STEPS, IdleExecutor
from tests.benchmarks.lines import Line
from tests.benchmarks.step_setups import SPACE

NUM_TRIALS, BLOCK = 500, 100
OURS, ALIKE, AS_MADE = "ours", "bare, stores set up alike", "bare, stores as made"
_OVERRIDES = (
    f"study.n_trials={NUM_TRIALS}",
    f"study.pruner.min_steps={EVALUATED}",
    f"train.num_steps={NUM_STEPS}",
    f"train.eval.every={EVALUATED}",
)
_POLL_S = 0.02


def measure() -> dict[str, Any]:
    """Milliseconds a trial of each in each block, and the medians of the blocks' ratios."""
    config = load_sweep(SPACE, _OVERRIDES, profile="cpu")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        seconds = _in_turns(config, Path(folder))
    figures: dict[str, Any] = {f"{name}, ms a trial by block": _ms(values) for name, values in seconds.items()}
    figures |= {f"{name}, ms a trial": statistics.fmean(_ms(values)) for name, values in seconds.items()}
    return figures | {
        "ratio": _ratio(seconds[OURS], seconds[ALIKE]),
        "ratio to stores as made": _ratio(seconds[OURS], seconds[AS_MADE]),
    }


def lines(figures: dict[str, Any]) -> list[Line]:
    """The line of the table."""
    return [Line("controller, seconds a trial against the bare calls", figures["ratio"], at_most=1.5)]


def _ms(seconds: list[float]) -> list[float]:
    return [1e3 * value / BLOCK for value in seconds]


def _ratio(ours: list[float], bare: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ours, bare, strict=True))


def _in_turns(config: SweepConfig, folder: Path) -> dict[str, list[float]]:
    """Seconds of each block of each."""
    peers = {
        ALIKE: BareCalls(config, folder / "alike", is_set_up_as_ours=True),
        AS_MADE: BareCalls(config, folder / "as_made", is_set_up_as_ours=False),
    }
    seconds: dict[str, list[float]] = {OURS: [], **{name: [] for name in peers}}
    study_folder = StudyFolder(folder / "runs" / config.study.name)
    write_sweep(study_folder, config)
    tracker = Tracker(config, study_folder, folder / "runs")
    block_started = 0.0

    def end_block() -> None:
        seconds[OURS].append(time.perf_counter() - block_started)
        for name, peer in peers.items():
            seconds[name].append(peer.run_trials(BLOCK))

    def before_start(num_started: int) -> None:
        nonlocal block_started
        if num_started % BLOCK == 0:
            if num_started:
                _wait_for(tracker, study_folder, num_started)
                end_block()
            block_started = time.perf_counter()

    tracker.start()
    while not study_folder.tracking_file.exists():
        time.sleep(_POLL_S)
    record = ControllerRecord(study_folder, config, [])
    with contextlib.closing(SweepStudy(config, study_folder)) as study, contextlib.closing(open_progress()) as progress:
        loop = TrialLoop(
            config,
            study_folder,
            study,
            IdleExecutor(before_start),
            tracker=tracker,
            report=ReportWriter(study_folder),
            record=record,
            progress=progress,
            monitor=Monitor(config.monitoring, config.study.name, progress.say),
            should_stop=lambda: False,
        )
        loop.run()
        problem = tracker.close("done", timeout_s=120)
        assert problem is None, problem
        end_block()
    return seconds


def _wait_for(tracker: Tracker, folder: StudyFolder, num_started: int) -> None:
    """Until MLflow has every trial that has ended: all that were started but those still in a slot."""
    tracker.wake()
    read_at = None
    while True:
        # Read again only where a pass has ended since: the thread that is measured needs the interpreter.
        if (written_at := folder.tracking_file.stat().st_mtime_ns) != read_at:
            read_at = written_at
            trials = (read_json(folder.tracking_file) or {}).get("trials", {})
            if sum(trial["ended"] for trial in trials.values()) >= num_started - IdleExecutor.capacity:
                return
        time.sleep(_POLL_S)


if __name__ == "__main__":
    measured = measure()
    print(json.dumps(measured, indent=2))
    for line in lines(measured):
        print(line.text())
