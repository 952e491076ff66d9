"""Two trials at once against one after the other: `python -m tests.benchmarks.concurrency`.

The same two trials of the small policy, one thread each, by the executor of a study on this machine.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from grpo_core.config import TrainConfig
from sweeps.executors import wait_any
from sweeps.executors.local import LocalExecutor
from sweeps.executors.slots import Slot
from sweeps.jobs import Job
from tests.benchmarks.lines import Line
from tests.benchmarks.step_setups import tiny

NUM_REPEATS = 5
NUM_STEPS = 8


def measure() -> dict[str, Any]:
    """Median seconds of both ways, and the median of their ratios, each pair measured next to each other."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = _config(folder)
        executor = LocalExecutor([Slot(), Slot()])
        try:
            executor.check_server()
            _run(executor, config, folder / "warm-up", slots=(0,))
            pairs = [_pair(executor, config, folder / str(repeat)) for repeat in range(NUM_REPEATS)]
        finally:
            executor.close()
    return {
        "one after the other, s": statistics.median(pair[0] for pair in pairs),
        "at once, s": statistics.median(pair[1] for pair in pairs),
        "ratio": statistics.median(pair[0] / pair[1] for pair in pairs),
    }


def lines(figures: dict[str, Any]) -> list[Line]:
    """The line of the table."""
    return [Line("two concurrent tiny trials against one after the other", figures["ratio"], at_least=1.7)]


def _config(folder: Path) -> TrainConfig:
    data = tiny(folder).model_dump(mode="json")
    data["num_steps"] = NUM_STEPS
    data["compute"]["num_threads"] = 1
    data["eval"] |= {"every": NUM_STEPS, "num_problems": 16}
    return TrainConfig.model_validate(data)


def _pair(executor: LocalExecutor, config: TrainConfig, folder: Path) -> tuple[float, float]:
    first, second = (_run(executor, config, folder / f"alone-{which}", slots=(0,)) for which in range(2))
    return first + second, _run(executor, config, folder / "together", slots=(0, 1))


def _run(executor: LocalExecutor, config: TrainConfig, folder: Path, slots: tuple[int, ...]) -> float:
    """Seconds until a trial in each of `slots` has ended."""
    started = time.perf_counter()
    handles = [executor.start(_job(config, folder / str(slot)), slot) for slot in slots]
    while running := [handle for handle in handles if handle.is_alive()]:
        for handle in wait_any(running, 0.5):
            for event in handle.poll():
                assert event.kind != "error", event.data
    return time.perf_counter() - started


def _job(config: TrainConfig, folder: Path) -> Job:
    folder.mkdir(parents=True)
    return Job(
        kind="trial",
        name=folder.name,
        config=config.model_dump(mode="json"),
        run_dir=str(folder),
        log_path=str(folder / "trial.log"),
        num_ranks=1,
        options={"stability": {"nonfinite": "off"}, "report_metric": None},
    )


if __name__ == "__main__":
    measured = measure()
    print(json.dumps(measured, indent=2))
    for line in lines(measured):
        print(line.text())
