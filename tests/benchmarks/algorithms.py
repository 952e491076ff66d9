"""What each preset makes of the same start: `python -m tests.benchmarks.algorithms`.

Trains every preset from one warm start with the settings of search_spaces/algorithms.yaml, three seeds each, and prints
held-out accuracy (test problems, which no other script looks at) before and after, with a 95% interval of the gain,
entropy over the last ten steps, and seconds. Exit code 1 where a preset gains less than `--gain`.
"""

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from grpo_core import metric_names as names
from grpo_core.config import TrainConfig
from grpo_core.evaluation import compare_on_test
from grpo_core.presets import PRESETS
from grpo_core.run_record import read_metrics
from grpo_core.train import train
from grpo_core.warm_start import ensure_warm_start
from sweeps.config import load_sweep
from sweeps.search_space import place_params

SPACE = "search_spaces/algorithms.yaml"


def main() -> None:
    """Trains, prints the table, and writes it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--space", default=SPACE, help="sweep file whose training settings are taken")
    parser.add_argument("--presets", nargs="+", default=list(PRESETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--gain", type=float, default=0.10, help="least gain in accuracy, mean over seeds")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    base = load_sweep(given.space, profile="cpu").train
    ensure_warm_start(base)
    jobs = [
        config_of(base, preset, seed, given.steps).model_dump(mode="json")
        for preset in given.presets
        for seed in given.seeds
    ]
    with ProcessPoolExecutor(given.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(run, jobs))
    rows = [row_of(preset, [each for each in results if each["preset"] == preset]) for preset in given.presets]
    print(table(rows, len(given.seeds), given.steps))
    if given.json:
        given.json.write_text(json.dumps({"rows": rows, "runs": results}, indent=2))
    short = [row["preset"] for row in rows if not row["gain"] >= given.gain]
    if short:
        sys.exit(f"gained less than {given.gain:g}: {', '.join(short)}")


def config_of(base: TrainConfig, preset: str, seed: int, num_steps: int) -> TrainConfig:
    """The settings of the file under another preset and seed, evaluated once at the end."""
    data = place_params(base, {"algorithm.name": preset, "seed": seed, "num_steps": num_steps})
    data["eval"]["every"] = num_steps
    return TrainConfig.model_validate(data)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """One training run from its start to the comparison on the test problems."""
    config = TrainConfig.model_validate(job)
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, run_dir=folder)
        assert result.checkpoint is not None
        compared = compare_on_test(config, result.checkpoint, Path(folder) / "test.json")
        steps = [line["metrics"] for line in read_metrics(Path(folder) / "metrics.jsonl")]
    return {
        "preset": config.algorithm.name,
        "seed": config.seed,
        "start": compared["base"][names.EVAL_ACCURACY],
        "end": compared["winner"][names.EVAL_ACCURACY],
        "gain": compared["difference"]["mean"],
        "gain_se": compared["difference"]["se"],
        "entropy": statistics.fmean(step[names.POLICY_ENTROPY] for step in steps[-10:]),
        "seconds": sum(step[names.TIME_STEP_S] for step in steps),
    }


def row_of(preset: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds; the interval joins the spread of seeds with that of problems."""
    means = {
        key: statistics.fmean(each[key] for each in results) for key in ("start", "end", "gain", "entropy", "seconds")
    }
    of_problems = math.sqrt(statistics.fmean(each["gain_se"] ** 2 for each in results))
    gains = [each["gain"] for each in results]
    of_seeds = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    # Every seed meets the same problems, so their error does not shrink with the number of seeds.
    return {"preset": preset, **means, "half_width": 1.96 * math.hypot(of_problems, of_seeds)}


def table(rows: list[dict[str, Any]], num_seeds: int, num_steps: int) -> str:
    """The rows as text."""
    lines = [
        f"{num_steps} steps, mean over {num_seeds} seeds",
        f"{'preset':<14}{'start':>8}{'end':>8}{'gain':>8}{'95% interval':>18}{'entropy':>9}{'seconds':>9}",
    ]
    for row in rows:
        low, high = row["gain"] - row["half_width"], row["gain"] + row["half_width"]
        lines.append(
            f"{row['preset']:<14}{row['start']:>8.3f}{row['end']:>8.3f}{row['gain']:>+8.3f}"
            f"{f'{low:+.3f} to {high:+.3f}':>18}{row['entropy']:>9.2f}{row['seconds']:>9.1f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
