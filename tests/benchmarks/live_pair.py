"""One pair of live studies, to confirm the replayed ones: `python -m tests.benchmarks.live_pair`, about 15 minutes.

The default space once with its sampler, guard and pruner, and once by random search with nothing ended early, as many
attempts each. Printed: the best reward of random search (mean over a trial's last steps), and the seconds that both
took to reach it. Trial 0 runs the file's defaults in both and counts for neither.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

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


def main() -> None:
    """Runs both studies, one after the other, and prints what came of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.live_pair", description=__doc__)
    parser.add_argument("--n-trials", type=int, default=17)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    seed = f"study.sampler.seed={given.seed}"
    with tempfile.TemporaryDirectory() as runs_dir:
        by_random = rewards(Path(runs_dir), "by-random", given.n_trials, (*PLAIN, seed))
        by_sweep = rewards(Path(runs_dir), "by-sweep", given.n_trials, (seed,))
    target = max(reward for _, reward in by_random)
    times = [min((at for at, reward in found if reward >= target), default=None) for found in (by_random, by_sweep)]
    print(
        json.dumps(
            {"target": target, "random_s": times[0], "sweep_s": times[1], "by_random": by_random, "by_sweep": by_sweep}
        )
    )


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
