"""The GPU check itself, on a CPU with a model of toy size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.gpu.check", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_correctness_is_checked_without_a_gpu_too(tmp_path):
    done = run("--device", "cpu", "--tiny", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads((tmp_path / "figures.json").read_text())}
    limited = [row for row in rows.values() if row["at_most"] is not None]
    assert len(limited) == 3 and all(row["is_met"] for row in limited)
    assert 0 < rows["sampler - trainer, bfloat16, mean"]["value"] < 0.02
    assert rows["gradient against plain rows, float32, relative"]["value"] < 1e-5
    assert rows["update, plain / ours"]["value"] > 0
    assert "NOT MET" not in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="says so only where there is none")
def test_it_says_so_where_there_is_no_gpu():
    done = run()
    assert done.returncode == 2
    assert done.stderr.strip().startswith("torch sees no CUDA device")
