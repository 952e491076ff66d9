"""A made-up study folder in the exact format of a real one: trials that learned, and some that were stopped.

`python tests/reports/study_fixture.py FOLDER` writes one to look at.
"""

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import yaml

START = 1_790_000_000.0
NUM_PROBLEMS = 256
DEFAULTS = {"group_size": 8, "clip_range": 0.2, "reward_scale": 1.0, "lr": 1e-4}
DISTRIBUTIONS = {
    "group_size": json.dumps({"name": "CategoricalDistribution", "attributes": {"choices": [4, 8, 16]}}),
    "clip_range": json.dumps(
        {"name": "FloatDistribution", "attributes": {"step": None, "low": 0.1, "high": 0.3, "log": False}}
    ),
    "reward_scale": json.dumps(
        {"name": "FloatDistribution", "attributes": {"step": None, "low": 0.5, "high": 2.0, "log": False}}
    ),
    "lr": json.dumps(
        {"name": "FloatDistribution", "attributes": {"step": None, "low": 3e-5, "high": 3e-3, "log": True}}
    ),
}


def sweep_config(name: str = "gsm8k", num_trials: int = 16, num_steps: int = 60) -> dict[str, Any]:
    """The resolved config of the study."""
    none = {"values": None, "min": None, "max": None, "log": False, "step": None, "when": None}
    return {
        "study": {
            "name": name,
            "objective": {"metric": "eval/accuracy", "direction": "maximize"},
            "n_trials": num_trials,
            "timeout": 14400.0,
            "sampler": {"name": "tpe", "seed": 7, "n_startup_trials": 5, "options": {}},
            "pruner": {"name": "hyperband", "min_steps": 10, "options": {}},
            "storage": None,
            "retries": 1,
        },
        "search_space": {
            "group_size": {**none, "values": [4, 8, 16]},
            "clip_range": {**none, "min": 0.1, "max": 0.3},
            "reward_scale": {**none, "min": 0.5, "max": 2.0},
            "lr": {**none, "min": 3e-5, "max": 3e-3, "log": True},
        },
        "stability": {
            "nonfinite": "stop",
            "entropy": {"min": 0.5, "max": 1.0, "warmup_steps": 5, "patience": 3},
            "reward_collapse": {"drop": 0.5, "window": 10, "patience": 3},
            "grad_norm": {"max": 10.0, "patience": 3, "warmup_steps": 0},
        },
        "train": {
            "task": {"name": "grade_school", "seed": 0},
            "policy": {"name": "tiny", "num_layers": 3, "hidden_size": 96},
            "warm_start": {"num_steps": 500, "batch_size": 64, "lr": 3e-3},
            "rollout": {"completions_per_step": 128, "max_new_tokens": 64, "temperature": 1.0},
            "algorithm": {
                "name": "grpo",
                **{key: DEFAULTS[key] for key in ("group_size", "clip_range", "reward_scale")},
                "updates_per_batch": 2,
                "entropy_coef": 0.02,
            },
            "optim": {"lr": DEFAULTS["lr"], "max_grad_norm": 1.0},
            "eval": {"every": 10, "num_problems": NUM_PROBLEMS, "samples_per_problem": 4, "greedy": True},
            "num_steps": num_steps,
            "seed": 0,
        },
        "resources": {"executor": "local", "processes_per_trial": 1, "max_concurrent_trials": "auto"},
        "tracking": {"uri": None, "experiment": None},
        "profile": "cpu",
        "profile_reason": "no CUDA device is visible",
        "source": "search_spaces/gsm8k.yaml",
    }


def write_study(
    runs_dir: Path, *, name: str = "gsm8k", num_trials: int = 16, num_steps: int = 60, num_planned: int | None = None
) -> Path:
    """Writes a finished study with its final figures and gives its folder."""
    folder = Path(runs_dir) / name
    folder.mkdir(parents=True)
    config = sweep_config(name, num_planned or num_trials, num_steps)
    (folder / "sweep.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    write(folder / "preflight.json", PREFLIGHT)
    accuracies: dict[int, float] = {}
    for number in range(num_trials):
        write_trial(folder, number, num_steps, accuracies)
    ended_at = START + 20.0 * num_trials + 30.0
    controller = {"pid": 1, "pid_start_time": 0.0, "state": "done", "started_at": START - 5.0, "ended_at": ended_at}
    controller |= {"active_s": ended_at - START + 5.0, "warnings": []}
    write(folder / "controller.json", {**controller, "message": ""})
    if accuracies:
        best = max(accuracies, key=lambda number: accuracies[number])
        write(folder / "final.json", {**final_record(accuracies[best]), "trial": best})
    return folder


def write_trial(folder: Path, number: int, num_steps: int, accuracies: dict[int, float]) -> None:
    """Writes one trial; `accuracies` holds the objective of the complete ones so far."""
    rng = random.Random(1000 + number)
    params = dict(DEFAULTS) if number == 0 else draw_params(rng)
    trial = folder / "trials" / f"{number:04d}"
    trial.mkdir(parents=True)
    source = "defaults" if number == 0 else "sampler"
    write(
        trial / "params.json",
        {"number": number, "params": params, "distributions": DISTRIBUTIONS, "seed": 100 + number, "source": source},
    )
    (trial / "config.yaml").write_text(yaml.safe_dump({"num_steps": num_steps, "optim": {"lr": params["lr"]}}))
    started_at = START + 20.0 * number
    lines, reason, objective = [], None, None
    state = "complete"
    num_breaches = 0
    for step, metrics in enumerate(simulate(params, num_steps, rng), start=1):
        lines.append(json.dumps({"step": step, "time": started_at + 0.7 * step, "metrics": metrics}))
        objective = metrics.get("eval/accuracy", objective)
        num_breaches = num_breaches + 1 if step > 5 and metrics["policy/entropy"] > 1.0 else 0
        if num_breaches == 3:
            state, reason = "pruned", entropy_reason(step, metrics["policy/entropy"])
        elif number == 11 and step == 23:
            state, reason = "failed", {"rule": "crash", "step": step, "message": "rank 0 ended by signal 9 (SIGKILL)"}
        elif step == 20 and objective is not None and objective < 0.245 and number:
            message = f"eval/accuracy {objective:.3f} at step 20 is behind the other trials (hyperband, bracket 1)"
            state, reason = "pruned", {"rule": "pruner", "step": step, "value": objective, "message": message}
        if reason:
            break
    if state == "complete" and objective is not None:
        accuracies[number] = objective
    (trial / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    outcome = {"number": number, "state": state, "objective": objective if state == "complete" else None}
    outcome |= {"reason": reason, "last_step": len(lines), "started_at": started_at, "num_retries": int(number == 11)}
    outcome |= {"ended_at": started_at + 0.7 * len(lines), "duration_s": 0.7 * len(lines)}
    outcome |= {"checkpoint": f"checkpoints/step_{len(lines):06d}" if state == "complete" else None}
    write(trial / "outcome.json", outcome)


def draw_params(rng: random.Random) -> dict[str, Any]:
    return {
        "group_size": rng.choice([4, 8, 16]),
        "clip_range": rng.uniform(0.1, 0.3),
        "reward_scale": rng.uniform(0.5, 2.0),
        "lr": 10 ** rng.uniform(math.log10(3e-5), math.log10(3e-3)),
    }


def simulate(params: dict[str, Any], num_steps: int, rng: random.Random) -> list[dict[str, float]]:
    """Metrics of each step: faster learning at a higher rate, until the entropy runs away."""
    gain = params["lr"] / 1e-4
    drift = 0.0009 * gain**1.1 / params["reward_scale"] ** 1.5
    rate = 0.016 * gain**0.75 * params["reward_scale"] ** 0.2
    entropy, steps = 0.71, []
    for step in range(1, num_steps + 1):
        entropy += drift * (1 + max(0.0, entropy - 0.9)) + rng.gauss(0, 0.004)
        damage = max(0.0, entropy - 0.95) * 0.8
        accuracy = max(0.0, 0.17 + 0.38 * (1 - math.exp(-rate * step)) - damage)
        metrics = {
            "reward/mean": max(0.0, rng.gauss(accuracy, 0.04)),
            "reward/std": math.sqrt(accuracy * (1 - accuracy)),
            "groups/dead_frac": max(0.0, min(1.0, (1 - accuracy) ** params["group_size"] + rng.gauss(0, 0.03))),
            "policy/entropy": entropy,
            "policy/clip_frac": 0.02 * math.sqrt(gain),
            "loss/policy": rng.gauss(0, 0.01),
            "optim/grad_norm": 0.35 * gain**0.3 * math.exp(rng.gauss(0, 0.25)) * (1 + 5 * damage),
            "optim/lr": params["lr"],
            "rollout/length_mean": 31 + rng.gauss(0, 0.5),
            "rollout/truncated_frac": 0.01 + damage / 4,
            "time/step_s": 0.7,
        }
        if step % 10 == 0 or step == num_steps:
            measured = max(0.0, min(1.0, rng.gauss(accuracy, 0.012)))
            metrics["eval/accuracy"] = measured
            metrics["eval/accuracy_se"] = standard_error(measured)
            metrics["eval/accuracy_greedy"] = min(1.0, measured + 0.15)
            metrics["eval/reward"] = measured
        steps.append(metrics)
    return steps


def standard_error(accuracy: float) -> float:
    return math.sqrt(accuracy * (1 - accuracy) / NUM_PROBLEMS) * 0.8


def entropy_reason(step: int, value: float) -> dict[str, Any]:
    message = f"policy/entropy {value:.3f} at step {step} is above 1.0 for 3 steps in a row"
    return {"rule": "entropy", "step": step, "value": value, "limit": 1.0, "message": message, "constraint": 0.1}


PREFLIGHT = {
    "policy/entropy": 0.71,
    "reward/mean": 0.17,
    "groups/dead_frac": 0.31,
    "rollout/length_mean": 31.2,
    "rollout/truncated_frac": 0.01,
    "eval/accuracy": 0.168,
    "eval/accuracy_se": 0.0166,
    "eval/accuracy_greedy": 0.0,
    "eval/reward": 0.168,
    "time/step_s": 0.8,
    "time/eval_s": 3.1,
    "num_problems": NUM_PROBLEMS,
    "samples_per_problem": 4,
}


def final_record(accuracy: float, samples: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The figures on the test problems, with five samples."""
    base, winner = 0.17, accuracy - 0.01
    return {
        "split": "test",
        "num_problems": 512,
        "samples_per_problem": 4,
        "base": {"eval/accuracy": base, "eval/accuracy_se": 0.0117, "eval/accuracy_greedy": 0.0, "eval/reward": base},
        "winner": {
            "eval/accuracy": winner,
            "eval/accuracy_se": 0.0155,
            "eval/accuracy_greedy": winner + 0.17,
            "eval/reward": winner,
        },
        "difference": {"mean": winner - base, "se": 0.017},
        "samples": [sample(index) for index in range(5)] if samples is None else samples,
    }


def sample(index: int) -> dict[str, Any]:
    a, b = 7 + index, 3 + 2 * index
    work = f"First there are {a} apples . Then {b} more come . So {a} + {b} = {a + b} ."
    return {
        "problem_id": f"test-{index}",
        "question": f"Mia has {a} apples . She buys {b} more . How many apples does Mia have now ?",
        "answer": str(a + b),
        "base": {"text": f"{work} So the answer is {a + b} .", "reward": 0.0, "ended": True},
        "winner": {
            "text": f"{work} #### {a + b}" if index != 3 else " ".join([work] * 8),
            "reward": float(index != 3),
            "ended": index != 3,
        },
    }


def write(path: Path, record: Any) -> None:
    path.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    print(write_study(Path(sys.argv[1])))
