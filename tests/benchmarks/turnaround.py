"""From a freed slot to the next trial's first step, against a fresh `accelerate launch` of the same trial.

`python -m tests.benchmarks.turnaround`: small studies with one slot and launches of one of their trials, in turns. Both
are measured to the start of the first step.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from grpo_core import metric_names as names
from grpo_core.run_record import METRICS_FILE, read_metrics
from tests.benchmarks.lines import Line
from tests.benchmarks.step_setups import SPACE

NUM_REPEATS = 5
#: Settings of the studies: short trials, one at a time, all to their end.
SHORT = (
    "study.n_trials=4",
    "study.sampler.name=random",
    "study.pruner.name=none",
    "study.pruner.options={}",
    "stability.entropy=off",
    "stability.grad_norm=off",
    "stability.reward_collapse=off",
    "resources.max_concurrent_trials=1",
    "train.num_steps=2",
    "train.eval.every=2",
    "train.eval.num_problems=16",
    "train.eval.num_test_problems=16",
    "train.checkpoint.every=2",
)


def measure() -> dict[str, Any]:
    """Medians over all gaps of the studies and over the launches."""
    gaps, launches = [], []
    for _ in range(NUM_REPEATS):
        with tempfile.TemporaryDirectory() as temporary:
            gaps += _gaps_of_study(Path(temporary))
            launches.append(_launch(Path(temporary)))
    gap_s, launch_s = statistics.median(gaps), statistics.median(launches)
    return {"gap_s": gap_s, "largest_gap_s": max(gaps), "accelerate_launch_s": launch_s, "ratio": launch_s / gap_s}


def lines(figures: dict[str, Any]) -> list[Line]:
    """The lines of the table."""
    return [
        Line("turnaround, against accelerate launch", figures["ratio"], at_least=15),
        Line("turnaround, from a freed slot to the first step", figures["gap_s"], at_most=0.5, unit="s"),
    ]


def _gaps_of_study(folder: Path) -> list[float]:
    overrides = [word for each in SHORT for word in ("--set", each)]
    command = [sys.executable, "-m", "sweeps.launch", SPACE, "--profile", "cpu", "--runs-dir", str(folder / "runs")]
    subprocess.run([*command, *overrides], check=True, stdout=subprocess.DEVNULL)
    outcomes = [json.loads(file.read_text()) for file in folder.glob("runs/*/trials/*/outcome.json")]
    return [each["slot_gap_s"] for each in outcomes if each["slot_gap_s"] is not None]


def _launch(folder: Path) -> float:
    """Seconds from the command to the start of the first step of the study's first trial."""
    (config,) = folder.glob("runs/*/trials/0000/config.yaml")
    run_dir = folder / "launched"
    accelerate = shutil.which("accelerate", path=Path(sys.executable).parent) or "accelerate"
    command = [accelerate, "launch", "--cpu", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no"]
    started = time.time()
    subprocess.run(
        [*command, "--dynamo_backend", "no", "-m", "grpo_core.train", str(config), "--run-dir", str(run_dir)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    first = next(iter(read_metrics(run_dir / METRICS_FILE)))
    return first["time"] - first["metrics"][names.TIME_STEP_S] - started


if __name__ == "__main__":
    measured = measure()
    print(json.dumps(measured, indent=2))
    for line in lines(measured):
        print(line.text())
