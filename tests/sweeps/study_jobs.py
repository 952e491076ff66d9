"""Jobs that behave like training without a model: `study_jobs:<name>`. What a trial does follows from its settings."""

import errno
import json
import os
import resource
import signal
import time
from dataclasses import asdict
from pathlib import Path

import psutil

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
    step 4, 0.12 always; 0.13 raises; 0.14 has no finite accuracy; 0.15 takes its time. 0.16 hangs once at step 4, 0.17
    needs 8 MB a completion of its micro-batch under a limit of 300 MB, and 0.18 finds its disk full.
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
        if clip_range == 0.17:
            _take_memory(8_000_000 * (job.config["optim"]["micro_batch_size"] or 64), limit=300_000_000)
        if clip_range == 0.18:
            raise OSError(errno.ENOSPC, "No space left on device")
        metrics = {"reward/mean": 0.2 + step / 100, "policy/entropy": 0.7, "optim/grad_norm": 0.5, "time/step_s": 0.01}
        if lr >= 1e-3:
            metrics["policy/entropy"] = 0.7 + step / 10
        if step % job.config["eval"]["every"] == 0 or step == job.config["num_steps"]:
            metrics["eval/accuracy"] = float("nan") if clip_range == 0.14 else min(100 * lr, 0.9)
        verdict = None
        if record.write(step, metrics, [{"completion": "#### 4"}]):
            verdict = judge(guard, link, step, metrics, job.options["report_metric"])
        if step == 4 and clip_range == 0.16 and is_first:
            write_json(checkpoint, 3)
            time.sleep(600)
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


def _take_memory(num_bytes, limit):
    """Asks for memory in a process that may have no more than `limit` beyond what it has."""
    allowed = psutil.Process().memory_info().vms + limit
    resource.setrlimit(resource.RLIMIT_AS, (allowed, resource.RLIM_INFINITY))
    bytearray(num_bytes)


def never_fits(job, link):
    """A trial that asks for more memory than there is."""
    _take_memory(400_000_000, limit=300_000_000)


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


def waits_in_a_collective(job, link):
    """A trial of two ranks of which rank 1 never comes to the collective of step 2, once; rank 0 waits for it."""
    import torch
    import torch.distributed as dist

    run_dir = Path(job.run_dir)
    record = RunRecord(run_dir) if link.rank == 0 else None
    first = not (run_dir / "hung").exists()
    dist.init_process_group("gloo")
    for step in range(1, job.config["num_steps"] + 1):
        if first and step == 2 and link.rank == 1:
            (run_dir / "hung").touch()
            time.sleep(600)
        dist.all_reduce(torch.ones(1))
        metrics = {"reward/mean": 0.2, "policy/entropy": 0.7, "eval/accuracy": 0.3}
        if record is not None and record.write(step, metrics, []):
            link.send("step", {"step": step, "metrics": metrics})
            link.wait_command(2.0)
    dist.destroy_process_group()
    return _result("complete", step, record, None, None) if record is not None else {}


KINDS = {"trial": "study_jobs:trial", "preflight": "study_jobs:preflight", "final": "study_jobs:final"}
