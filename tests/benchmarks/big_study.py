"""A made-up finished study of any size, every trial with all its steps, in the format of a real one."""

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.reports.study_fixture import (
    DISTRIBUTIONS,
    PREFLIGHT,
    START,
    draw_params,
    entropy_reason,
    final_record,
    standard_error,
    sweep_config,
    write,
)

EVAL_EVERY = 10
_STEP_S = 0.7


def write_big_study(runs_dir: Path, num_trials: int, num_steps: int) -> Path:
    """Writes a study in which three trials of ten are pruned at their last step, and gives its folder."""
    folder = runs_dir / "big"
    folder.mkdir(parents=True)
    config = sweep_config("big", num_trials, num_steps)
    (folder / "sweep.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    write(folder / "preflight.json", PREFLIGHT)
    objectives = [_write_trial(folder, number, num_steps) for number in range(num_trials)]
    ended_at = START + 20.0 * num_trials
    controller = {"pid": 1, "pid_start_time": 0.0, "state": "done", "started_at": START, "ended_at": ended_at}
    write(folder / "controller.json", {**controller, "active_s": ended_at - START, "warnings": [], "message": ""})
    best = max(range(num_trials), key=lambda number: objectives[number])
    write(folder / "final.json", {**final_record(objectives[best]), "trial": best})
    return folder


def _write_trial(folder: Path, number: int, num_steps: int) -> float:
    """Writes one trial; gives its objective, -inf for one that was pruned."""
    draws = random.Random(number)
    params = draw_params(draws)
    trial = folder / "trials" / f"{number:04d}"
    trial.mkdir(parents=True)
    record = {"number": number, "params": params, "distributions": DISTRIBUTIONS, "seed": 0, "source": "sampler"}
    write(trial / "params.json", record)
    (trial / "config.yaml").write_text(yaml.safe_dump({"num_steps": num_steps, "optim": {"lr": params["lr"]}}))
    started_at, is_pruned = START + 20.0 * number, number % 10 < 3
    curves = _curves(number, params, num_steps, is_pruned)
    names = list(curves)
    table = np.column_stack([curves[name] for name in names])
    text = ", ".join(f'"{name}": %.17g' for name in names)
    with (trial / "metrics.jsonl").open("w") as file:
        for step in range(1, num_steps + 1):
            evaluated = ""
            if step % EVAL_EVERY == 0:
                accuracy = round(float(table[step - 1, 0]), 6)
                evaluated = ", " + json.dumps(
                    {"eval/accuracy": accuracy, "eval/accuracy_se": standard_error(accuracy), "eval/reward": accuracy}
                ).strip("{}")
            line = text % tuple(table[step - 1])
            file.write(f'{{"step": {step}, "time": {started_at + _STEP_S * step}, "metrics": {{{line}{evaluated}}}}}\n')
    objective = round(float(table[num_steps - 1, 0]), 6)
    outcome: dict[str, Any] = {"number": number, "state": "pruned" if is_pruned else "complete", "num_retries": 0}
    outcome |= {"objective": None if is_pruned else objective, "last_step": num_steps, "started_at": started_at}
    outcome |= {"reason": entropy_reason(num_steps, float(curves["policy/entropy"][-1])) if is_pruned else None}
    outcome |= {"ended_at": started_at + _STEP_S * num_steps, "duration_s": _STEP_S * num_steps, "checkpoint": None}
    write(trial / "outcome.json", outcome)
    return -math.inf if is_pruned else objective


def _curves(number: int, params: dict[str, Any], num_steps: int, is_pruned: bool) -> dict[str, np.ndarray]:
    """As many curves as a run records; the reward comes first."""
    draws = np.random.default_rng(number)
    steps = np.arange(1, num_steps + 1)
    learned = 1 - np.exp(-steps / num_steps * (1 + 40 * math.sqrt(params["lr"])))
    reward = np.clip(0.17 + 0.5 * learned * draws.uniform(0.3, 1) + draws.normal(0, 0.03, num_steps), 0, 1)
    entropy = 0.7 + draws.normal(0, 0.004, num_steps).cumsum() * 0.1
    if is_pruned:
        entropy += 0.6 * (steps / num_steps) ** 6
    curves = {"reward/mean": reward, "policy/entropy": entropy}
    curves["optim/grad_norm"] = np.exp(draws.normal(-1, 0.3, num_steps))
    curves["optim/lr"] = np.full(num_steps, params["lr"])
    others = ("reward/std", "reward/unscored", "reward/correct", "reward/format", "rollout/length_mean")
    others += ("rollout/truncated_frac", "groups/dead_frac", "loss/policy", "optim/skipped_steps", "policy/clip_frac")
    others += ("policy/ratio_max", "policy/kl", "time/rollout_s", "time/update_s", "time/step_s")
    curves |= {name: draws.uniform(0, 1, num_steps) for name in (*others, "throughput/tokens_per_s")}
    curves["optim/skipped_steps"] = np.zeros(num_steps)
    return curves
