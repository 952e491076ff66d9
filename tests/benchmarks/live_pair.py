"""Pairs of live studies, to confirm the replayed ones: `python -m tests.benchmarks.live_pair`, about 13 minutes each.

The default space by random search with every trial at its full length and nothing ended early, and then with its own
sampler, guard and pruner for as many seconds. Printed for each pair: the best reward of random search (mean over a
trial's last steps), and the seconds that both took to reach it, `null` where that was never. Trial 0 runs the file's
defaults in both and counts for neither.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from grpo_core.metric_names import REWARD_MEAN
from sweeps.study_folder import StudyFolder
from tests.benchmarks.recorded_settings import LAST_STEPS
from tests.benchmarks.step_setups import SPACE

#: Plain random search: every trial at its full length.
PLAIN = (
    "study.sampler.name=random",
    "study.pruner.name=none",
    "study.pruner.options={}",
    *(f"stability.{rule}=off" for rule in ("nonfinite", "entropy", "reward_collapse", "grad_norm")),
)


#: More attempts than there is time for.
_ENDLESS = 1000


def main() -> None:
    """Runs the pairs one after the other, both studies of a pair too, and prints what came of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.live_pair", description=__doc__)
    parser.add_argument("--n-trials", type=int, default=17, help="of random search")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7])
    given = parser.parse_args()
    for seed in given.seeds:
        print(json.dumps({"seed": seed, **measure(seed, given.n_trials)}), flush=True)


def measure(seed: int, n_trials: int) -> dict[str, Any]:
    """Figures of one pair."""
    same = f"study.sampler.seed={seed}"
    with tempfile.TemporaryDirectory() as runs_dir:
        by_random = rewards(Path(runs_dir), "by-random", n_trials, (*PLAIN, same))
        whole_s = by_random[-1][0]
        by_sweep = rewards(Path(runs_dir), "by-sweep", _ENDLESS, (same, f"study.timeout={whole_s:.0f}"))
    target = max(reward for _, reward in by_random)
    random_s, sweep_s = (_seconds_to(target, found) for found in (by_random, by_sweep))
    return {
        "target": target,
        "random_s": random_s,
        "sweep_s": sweep_s,
        "best_of_sweep": max((reward for _, reward in by_sweep), default=None),
        "both_had_s": whole_s,
        "by_random": by_random,
        "by_sweep": by_sweep,
    }


def _seconds_to(target: float, found: list[tuple[float, float]]) -> float | None:
    return min((at for at, reward in found if reward >= target), default=None)


def rewards(runs_dir: Path, name: str, n_trials: int, overrides: tuple[str, ...]) -> list[tuple[float, float]]:
    """Runs a study; of each complete trial but the first, the seconds from the study's start to its end, and its
    reward."""
    command = [sys.executable, "-m", "sweeps.launch", SPACE, "--profile", "cpu", "--runs-dir", str(runs_dir)]
    command += ["--study", name, "--n-trials", str(n_trials)]
    options = [word for each in overrides for word in ("--set", each)]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    trials = StudyFolder(runs_dir / name).trials()
    outcomes = {trial.number: trial.outcome() or {} for trial in trials}
    started_at = min(outcome["started_at"] for outcome in outcomes.values())
    found = []
    for trial in trials:
        outcome = outcomes[trial.number]
        if trial.number and outcome["state"] == "complete":
            steps = [line["metrics"][REWARD_MEAN] for line in trial.steps()]
            found.append((outcome["ended_at"] - started_at, statistics.fmean(steps[-LAST_STEPS:])))
    return sorted(found)


if __name__ == "__main__":
    main()
