"""A made-up study that searched the algorithm: eight of them, settings that only some have, and two that never ended.

`python -m tests.reports.algorithm_study FOLDER` writes one to look at.
"""

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import yaml

from .study_fixture import PREFLIGHT, START, entropy_reason, standard_error, sweep_config, write

#: Where its accuracy ends, and what its entropy gains a step.
ALGORITHMS = {
    "grpo": (0.54, 0.0),
    "dr_grpo": (0.50, 0.001),
    "dapo": (0.55, 0.001),
    "gspo": (0.40, 0.0),
    "ppo": (0.45, -0.007),
    "rloo": (0.52, 0.0005),
    "reinforce_pp": (0.44, 0.012),
    "cispo": (0.47, 0.001),
}
_NONE = {"values": None, "min": None, "max": None, "log": False, "step": None, "when": None}
SPACE: dict[str, dict[str, Any]] = {
    "algorithm.name": {**_NONE, "values": list(ALGORITHMS)},
    "lr": {**_NONE, "min": 5e-5, "max": 3e-4, "log": True},
    "clip_range": {
        **_NONE,
        "min": 0.1,
        "max": 0.3,
        "when": {"algorithm.name": ["grpo", "dr_grpo", "dapo", "ppo", "rloo", "reinforce_pp"]},
    },
    "algorithm.clip_range_high": {**_NONE, "min": 0.2, "max": 0.4, "when": {"algorithm.name": "dapo"}},
    "clip_range/gspo": {**_NONE, "min": 1e-4, "max": 1e-3, "log": True, "when": {"algorithm.name": "gspo"}},
    "algorithm.ratio_cap": {**_NONE, "min": 2.0, "max": 8.0, "when": {"algorithm.name": "cispo"}},
    "algorithm.value_coef": {**_NONE, "min": 0.1, "max": 1.0, "log": True, "when": {"algorithm.name": "ppo"}},
}
PRESETS = {
    "lr": 1e-4,
    "clip_range": 0.2,
    "algorithm.clip_range_high": 0.28,
    "clip_range/gspo": 3e-4,
    "algorithm.ratio_cap": 5.0,
    "algorithm.value_coef": 0.5,
}


def algorithm_sweep(num_trials: int) -> dict[str, Any]:
    """The resolved config of the study."""
    config = sweep_config("algorithms", num_trials)
    config["study"]["cover"] = ["algorithm.name"]
    config["search_space"] = SPACE
    config["stability"]["entropy"] = {"min": 0.5, "max": 1.0, "warmup_steps": 5, "patience": 3}
    return config


def write_algorithm_study(runs_dir: Path, *, num_trials: int = 16, num_running: int = 0) -> Path:
    """Writes a study of which the first eight trials run each algorithm as its preset says; gives its folder.

    The last `num_running` trials have no outcome.
    """
    folder = Path(runs_dir) / "algorithms"
    folder.mkdir(parents=True)
    (folder / "sweep.yaml").write_text(yaml.safe_dump(algorithm_sweep(num_trials), sort_keys=False))
    write(folder / "preflight.json", PREFLIGHT)
    for number in range(num_trials):
        _write_trial(folder, number, has_ended=number < num_trials - num_running)
    write(folder / "controller.json", {"pid": 1, "pid_start_time": 0.0, "state": "done", "started_at": START})
    return folder


def _write_trial(folder: Path, number: int, has_ended: bool) -> None:
    rng = random.Random(number)
    names = list(ALGORITHMS)
    name = names[number] if number < len(names) else rng.choice(names)
    params = {"algorithm.name": name}
    for key, entry in SPACE.items():
        when = (entry["when"] or {}).get("algorithm.name", name)
        if key != "algorithm.name" and name in (when if isinstance(when, list) else [when]):
            params[key] = PRESETS[key] if number < len(names) else _drawn(entry, rng)
    trial = folder / "trials" / f"{number:04d}"
    trial.mkdir(parents=True)
    source = "defaults" if number == 0 else "cover" if number < len(names) else "sampler"
    write(trial / "params.json", {"number": number, "params": params, "seed": 0, "source": source})
    started_at, lines, reason, objective = START + 40.0 * number, [], None, None
    for step, metrics in enumerate(_simulate(name, params["lr"], rng), start=1):
        lines.append(json.dumps({"step": step, "time": started_at + 0.7 * step, "metrics": metrics}))
        objective = metrics.get("eval/accuracy", objective)
        if step > 5 and not 0.5 <= metrics["policy/entropy"] <= 1.0:
            reason = entropy_reason(step, metrics["policy/entropy"])
        if reason or (not has_ended and step == 15):
            break
    (trial / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if has_ended:
        state = "pruned" if reason else "complete"
        outcome = {"number": number, "state": state, "objective": None if reason else objective, "reason": reason}
        outcome |= {"last_step": len(lines), "started_at": started_at, "ended_at": started_at + 0.7 * len(lines)}
        write(trial / "outcome.json", {**outcome, "duration_s": 0.7 * len(lines)})


def _drawn(entry: dict[str, Any], rng: random.Random) -> float:
    if entry["log"]:
        return math.exp(rng.uniform(math.log(entry["min"]), math.log(entry["max"])))
    return rng.uniform(entry["min"], entry["max"])


def _simulate(name: str, lr: float, rng: random.Random) -> list[dict[str, float]]:
    end, drift = ALGORITHMS[name]
    steps = []
    for step in range(1, 61):
        accuracy = 0.17 + (end - 0.17) * (1 - math.exp(-step / 15)) + 0.03 * math.log10(lr / 1e-4)
        metrics = {
            "reward/mean": max(0.0, rng.gauss(accuracy, 0.03)),
            "policy/entropy": 0.72 + drift * step + rng.gauss(0, 0.004),
            "policy/clip_frac": 0.02,
            "policy/kl": 1e-4 * step,
            "optim/grad_norm": 0.4 * math.exp(rng.gauss(0, 0.2)),
            "time/step_s": 0.7 + 0.02 * len(name),
        }
        if name == "ppo":
            metrics |= {"loss/value": 0.12 * math.exp(-step / 30), "value/explained_variance": 0.6 - 1.5 / step}
        if name == "dapo":
            metrics |= {"rollout/refills": 2.0, "rollout/temperature": 1.0, "reward/smoothed": accuracy}
        if step % 20 == 0 or step == 60:
            metrics |= {"eval/accuracy": accuracy, "eval/accuracy_se": standard_error(accuracy)}
        steps.append(metrics)
    return steps


if __name__ == "__main__":
    print(write_algorithm_study(Path(sys.argv[1])))
