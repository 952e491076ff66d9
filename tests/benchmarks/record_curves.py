"""Trains settings of the default space at full length, for replays: `python -m tests.benchmarks.record_curves`.

Writes tests/benchmarks/curves.json: the params of each setting, what the guard and the pruner read of every step, and
the CPU seconds of its steps and evaluations on one thread. Takes about half an hour on 2 cores.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import optuna

from grpo_core import metric_names as names
from grpo_core.config import TrainConfig
from grpo_core.train import train
from grpo_core.warm_start import ensure_warm_start
from sweeps.config import load_sweep
from sweeps.guard import MUST_BE_FINITE
from sweeps.search_space import apply_params, suggest
from tests.benchmarks.step_setups import SPACE

CURVES = Path(__file__).parent / "curves.json"
#: What is kept of each step, beside the seconds.
KEPT = (*MUST_BE_FINITE, names.OPTIM_SKIPPED_STEPS)
EVAL_EVERY = 10


def main() -> None:
    """Trains and writes the file; a setting that is in it already is not trained again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=80)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=CURVES)
    given = parser.parse_args()
    config = load_sweep(SPACE, profile="cpu")
    ensure_warm_start(config.train)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    settings = [suggest(study.ask(), config.search_space) for _ in range(given.settings)]
    known = json.loads(given.out.read_text())["trials"] if given.out.exists() else []
    jobs = [(config.train.model_dump(mode="json"), params) for params in settings[len(known) :]]
    with ProcessPoolExecutor(given.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for trial in pool.map(record, jobs):
            known.append(trial)
            rows = ",\n".join(json.dumps(each, separators=(",", ":")) for each in known)
            given.out.write_text(f'{{"space": "{SPACE}", "eval_every": {EVAL_EVERY}, "trials": [\n{rows}\n]}}\n')
            print(f"{len(known)} of {len(settings)}: accuracy {trial['accuracy'][-1]}", flush=True)


def record(job: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """One setting at full length, with nothing that could end it early."""
    base, params = job
    base["eval"]["every"] = EVAL_EVERY
    config = apply_params(TrainConfig.model_validate(base), params)
    curves: dict[str, list[float]] = {name: [] for name in KEPT}
    accuracy, step_s, eval_s = [], [], []
    before_s = time.process_time()

    def note(step: int, metrics: dict[str, float]) -> None:
        nonlocal before_s
        spent_s = time.process_time() - before_s
        evaluated_s = metrics.get(names.TIME_EVAL_S, 0.0)
        eval_share = evaluated_s / (evaluated_s + metrics[names.TIME_STEP_S])
        step_s.append(round(spent_s * (1 - eval_share), 4))
        if names.EVAL_ACCURACY in metrics:
            accuracy.append(metrics[names.EVAL_ACCURACY])
            eval_s.append(round(spent_s * eval_share, 4))
        for name in KEPT:
            curves[name].append(float(f"{metrics[name]:.6g}"))
        before_s = time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        train(config, run_dir=folder, on_step=note)
    return {"params": params, "accuracy": accuracy, "step_s": step_s, "eval_s": eval_s, "curves": curves}


if __name__ == "__main__":
    main()
