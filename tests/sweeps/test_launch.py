import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweeps.study_folder import StudyFolder

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "search_spaces" / "smoke.yaml"


def run(*arguments: str | Path, cwd: Path, module: str = "sweeps.launch") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)


def test_importing_the_launcher_loads_nothing_heavy() -> None:
    heavy = {"torch", "optuna", "mlflow", "pydantic", "yaml", "rich", "argparse"}
    code = f"import sweeps.launch, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_smoke_study_runs_to_its_report_and_then_is_complete(tmp_path: Path) -> None:
    done = run(SMOKE, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == "profile none: the file has no profiles"
    folder = StudyFolder(tmp_path / "runs" / "smoke")
    outcomes = [trial.outcome() for trial in folder.trials()]
    assert [outcome["state"] for outcome in outcomes] == ["complete", "complete"]
    assert [len(trial.steps()) for trial in folder.trials()] == [3, 3]
    assert folder.report_file.stat().st_size > 10_000
    assert folder.final_file.exists() and (tmp_path / "runs" / "mlflow.db").exists()
    assert "best: trial" in done.stdout and "warning: " not in done.stdout.replace("preflight: warning: ", "")

    again = run(SMOKE, cwd=tmp_path)
    assert again.returncode == 0
    assert "study smoke is complete (2 complete); no trial was run" in again.stdout
    assert "python -m sweeps resume smoke --n-trials 4" in again.stdout and "--fresh" in again.stdout

    best = run("best", "smoke", "--export", tmp_path / "policy", cwd=tmp_path, module="sweeps")
    assert best.returncode == 0
    assert "python -m grpo_core.train runs/smoke/trials/" in best.stdout
    code = "import sys, transformers as t; t.AutoTokenizer.from_pretrained(sys.argv[1]);"
    code += "print(t.AutoModelForCausalLM.from_pretrained(sys.argv[1]).config.model_type)"
    loaded = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "policy"], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "llama"

    changed = run(SMOKE, "--set", "train.num_steps=4", cwd=tmp_path)
    assert changed.returncode == 2
    assert "train.num_steps: 3 -> 4" in changed.stderr and "Traceback" not in changed.stderr

    more = run("resume", "smoke", "--n-trials", "3", cwd=tmp_path, module="sweeps")
    assert more.returncode == 0, more.stdout + more.stderr
    assert len(folder.trials()) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "train.nonsense=1"], "nonsense"),
        (["--n-trials", "0"], "n_trials"),
        (["--profile", "tpu"], "--profile"),
        (["--study", "../up"], "study.name"),
        (["--set", "train.algorithm.group_size=1"], "use 2 to 64"),
        (["--set", "study.sampler.options={no_such: 1}"], "study.sampler.options"),
        (["--import", "nobody"], "--import nobody: no such study"),
        (["--executor", "moon"], "resources.executor"),
    ],
)
def test_a_mistake_costs_one_message_and_leaves_nothing(tmp_path: Path, arguments: list[str], message: str) -> None:
    started = time.monotonic()
    done = run(SMOKE, *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert time.monotonic() - started < 5  # 2 s on a machine that does nothing else


def test_a_runs_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    done = run(SMOKE, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "--runs-dir runs: cannot be written to: File exists\n"


def test_more_ranks_than_gpus_is_refused(tmp_path: Path) -> None:
    done = run(SMOKE, "--set", "train.compute.device=cuda", cwd=tmp_path)
    assert done.returncode == 2
    assert "resources.processes_per_trial=1" in done.stderr and "Traceback" not in done.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = run("nowhere.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert "nowhere.yaml" in done.stderr and "Traceback" not in done.stderr


def test_lint_errors_refuse_the_launch(tmp_path: Path) -> None:
    only_idle = tmp_path / "idle.yaml"
    only_idle.write_text(
        "study: {name: idle, n_trials: 2}\n"
        "search_space:\n  clip_range: {min: 0.1, max: 0.3}\n"
        "train:\n  algorithm: {updates_per_batch: 1}\n"
    )
    done = run(only_idle, cwd=tmp_path)
    assert done.returncode == 2
    assert "no searched key can matter" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_dry_run_measures_and_starts_nothing(tmp_path: Path) -> None:
    done = run(SMOKE, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "study smoke: 2 trials" in done.stdout
    assert "measured on this machine" in done.stdout and "all trials: at most" in done.stdout
    assert list(tmp_path.iterdir()) == []
