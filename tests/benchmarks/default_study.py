"""Runs the default study as a user would and prints what it took: `python -m tests.benchmarks.default_study`.

Seconds, turnaround, the controller's share, peak memory (PSS) of each kind of process, and the report.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.benchmarks.machine import matrix_product_gflops

POLL_S = 0.5


def main() -> None:
    """Runs the study and prints one table; `--json FILE` writes the figures too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--space", default="search_spaces/gsm8k.yaml")
    parser.add_argument("--runs-dir", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep-cache", action="store_true", help="take a warm start of earlier runs")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        runs_dir = given.runs_dir or Path(temporary) / "runs"
        environment = dict(os.environ)
        if not given.keep_cache:
            environment["GRPO_SWEEPS_CACHE"] = f"{temporary}/cache"
        figures = measure(given.space, runs_dir, environment)
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:<{width}}  {value:.3f}" if isinstance(value, float) else f"{name:<{width}}  {value}")
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2))


def measure(space: str, runs_dir: Path, environment: dict[str, str]) -> dict[str, float | int | str]:
    """Figures of one study from its start to its report."""
    gflops_before = matrix_product_gflops()
    started = time.time()
    controller = psutil.Popen(
        [sys.executable, "-m", "sweeps.launch", space, "--runs-dir", str(runs_dir), "--fresh"], env=environment
    )
    peaks = watch_memory(controller)
    wall_s = time.time() - started
    (folder,) = (each.parent for each in runs_dir.glob("*/study.db"))
    outcomes = [json.loads(each.read_text()) for each in sorted(folder.glob("trials/*/outcome.json"))]
    gaps = [each["slot_gap_s"] for each in outcomes if each.get("slot_gap_s") is not None]
    first_start = min(each["started_at"] for each in outcomes)
    final = json.loads((folder / "final.json").read_text())
    report_started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "reports", folder.name, "--runs-dir", str(runs_dir)], check=True)
    report_s = time.perf_counter() - report_started
    return {
        "exit code": controller.returncode,
        "matrix product before, GFLOP/s on one thread": gflops_before,
        "matrix product after, GFLOP/s on one thread": matrix_product_gflops(),
        "whole command, s": wall_s,
        "before the first trial (warm start, preflight), s": first_start - started,
        "trials, s": max(each["ended_at"] for each in outcomes) - first_start,
        "attempts": len(outcomes),
        "complete": sum(each["state"] == "complete" for each in outcomes),
        "pruned by rule": json.dumps(rules(outcomes)),
        "freed slot to next trial's first step, median s": statistics.median(gaps) if gaps else float("nan"),
        "freed slot to next trial's first step, largest s": max(gaps, default=float("nan")),
        "controller's share of wall-clock": json.loads((folder / "controller.json").read_text())["overhead_frac"],
        **{f"peak PSS of {kind}, MB": peak / 1e6 for kind, peak in sorted(peaks.items())},
        "report, MB": (folder / "report.html").stat().st_size / 1e6,
        "report, s": report_s,
        "base accuracy on test": final["base"]["eval/accuracy"],
        "winner accuracy on test": final["winner"]["eval/accuracy"],
    }


def rules(outcomes: list[dict]) -> dict[str, int]:
    """How many trials each rule pruned."""
    found = [each["reason"]["rule"] for each in outcomes if each["state"] == "pruned"]
    return {rule: found.count(rule) for rule in sorted(set(found))}


def watch_memory(controller: psutil.Popen) -> dict[str, float]:
    """Peak proportional set size by kind of process, in bytes, until the controller has ended."""
    peaks: dict[str, float] = {}
    while controller.poll() is None:
        for process in [controller, *controller.children(recursive=True)]:
            try:
                kind = kind_of(process, controller)
                peaks[kind] = max(peaks.get(kind, 0), process.memory_full_info().pss)
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        time.sleep(POLL_S)
    return peaks


def kind_of(process: psutil.Process, controller: psutil.Process) -> str:
    """`controller`, `report`, or by its place: the fork server and, below it, the ranks."""
    if process.pid == controller.pid:
        return "controller"
    line = process.cmdline()
    if "reports" in line:
        return "report process"
    if "resource_tracker" in " ".join(line):
        return "resource tracker"
    return "fork server" if process.ppid() == controller.pid else "trial process"


if __name__ == "__main__":
    main()
