"""Jobs that behave like training without a model: `study_jobs:<name>`. What a trial does follows from its settings."""

import json
import os
import signal
import time
from dataclasses import asdict
from pathlib import Path

from grpo_core.run_record import RunRecord, read_metrics
from sweeps.guard import StabilityGuard
from sweeps.sections import StabilityConfig
from sweeps.study_folder import write_json

HEALTHY = {
    "policy/entropy": 0.7,
    "reward/mean": 0.2,
    "groups/dead_frac": 0.3,
    "rollout/length_mean": 20.0,
    "rollout/truncated_frac": 0.05,
    "eval/accuracy": 0.17,
    "eval/accuracy_se": 0.02,
    "time/step_s": 0.02,
    "time/eval_s": 0.01,
    "num_problems": 16,
    "samples_per_problem": 4,
}


def preflight(job, link):
    """A healthy policy."""
    return HEALTHY


def preflight_too_hot(job, link):
    """A policy whose entropy is outside the band of the tests."""
    return {**HEALTHY, "policy/entropy": 1.7}


def preflight_hangs(job, link):
    """Never ends by itself."""
    time.sleep(600)


def final(job, link):
    """Some comparison on the test problems."""
    side = {"eval/accuracy": 0.4, "eval/accuracy_se": 0.02}
    return {"split": "test", "num_problems": 8, "base": side, "winner": side, "samples": []}


def trial(job, link):
    """Counts steps, with a checkpoint on a stop and every `checkpoint.every` steps, and goes on from the newest.

    Accuracy is 100 times lr; from an lr of 1e-3 on entropy rises out of the band. clip_range 0.11 kills itself once at
    step 4, 0.12 always; 0.13 raises; 0.14 has no finite accuracy; 0.15 takes its time.
    """
    run_dir = Path(job.run_dir)
    lr, clip_range = job.config["optim"]["lr"], job.config["algorithm"]["clip_range"]
    guard = StabilityGuard(StabilityConfig.model_validate(job.options["stability"]))
    for line in read_metrics(run_dir / "metrics.jsonl"):
        guard.check(line["step"], line["metrics"])
    record = RunRecord(run_dir)
    checkpoint = run_dir / "checkpoints" / "newest.json"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    step = json.loads(checkpoint.read_text()) if checkpoint.exists() else 0
    with (run_dir / "starts.txt").open("a") as file:
        file.write(f"{step}\n")
    is_first = step == 0
    while step < job.config["num_steps"]:
        step += 1
        time.sleep(0.15 if clip_range == 0.15 else 0.01)
        if clip_range == 0.13:
            raise KeyError("answer")
        metrics = {"reward/mean": 0.2 + step / 100, "policy/entropy": 0.7, "optim/grad_norm": 0.5, "time/step_s": 0.01}
        if lr >= 1e-3:
            metrics["policy/entropy"] = 0.7 + step / 10
        if step % job.config["eval"]["every"] == 0 or step == job.config["num_steps"]:
            metrics["eval/accuracy"] = float("nan") if clip_range == 0.14 else min(100 * lr, 0.9)
        verdict = None
        if record.write(step, metrics, [{"completion": "#### 4"}]):
            verdict = judge(guard, link, step, metrics, job.options["report_metric"])
        if step == 4 and ((clip_range == 0.11 and is_first) or clip_range == 0.12):
            write_json(checkpoint, 2)
            os.kill(os.getpid(), signal.SIGKILL)
        if verdict is not None and verdict["command"] == "prune":
            return _result("pruned", step, record, verdict["reason"], None)
        if verdict is not None or step % job.config["checkpoint"]["every"] == 0 or step == job.config["num_steps"]:
            write_json(checkpoint, step)
        if verdict is not None:
            return _result("stopped", step, record, None, checkpoint)
    return _result("complete", step, record, None, checkpoint)


def judge(guard, link, step, metrics, report_metric):
    """What `sweeps.step_judge` does, without the training code that it needs loaded: the verdict on one step."""
    breach = guard.check(step, metrics)
    commands = link.take_commands()
    link.send("step", {"step": step, "metrics": metrics})
    if breach is not None:
        return {"command": "prune", "reason": {**asdict(breach), "constraint": breach.constraint}}
    if report_metric in metrics:
        commands.append(link.wait_command(2.0) or {"command": "continue"})
    if link.is_gone:
        commands.append({"command": "stop"})
    return next((command for command in commands if command["command"] != "continue"), None)


def _result(status, step, record, reason, checkpoint):
    metrics, path = record.last_values, None if checkpoint is None else str(checkpoint)
    return {"status": status, "last_step": step, "metrics": metrics, "reason": reason, "checkpoint": path}


KINDS = {"trial": "study_jobs:trial", "preflight": "study_jobs:preflight", "final": "study_jobs:final"}
