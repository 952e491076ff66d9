"""Every command and every YAML of README and docs/ is run, in order, on the smallest study."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from grpo_core.config import AlgorithmConfig, TrainConfig
from grpo_core.presets import PRESETS
from sweeps.config import load_sweep
from sweeps.knobs import KNOBS

ROOT = Path(__file__).parents[1]
DASH = "\N{EN DASH}"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# What takes minutes, installs, or never ends is checked another way; the rest runs as printed.
INSTEAD = {
    "make sweep": "make --dry-run sweep",
    "make test": "make --dry-run test",
    "make check": "make --dry-run check",
    "make bench": "make --dry-run bench",
    "make faults": "make --dry-run faults",
    "python -m tests.benchmarks.algorithms": "python -m tests.benchmarks.algorithms --help",
    "python -m tests.benchmarks.loss_share": "python -m tests.benchmarks.loss_share --presets grpo",
    "pip install -e .": "python -c 'import sweeps, reports, mlflow_server, grpo_core'",
    "python -m mlflow_server": (
        "python -m mlflow_server --port 0 & "
        "for i in $(seq 60); do python -m mlflow_server check && break; sleep 0.5; done; "
        "python -m mlflow_server stop && wait"
    ),
}


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), flags=re.MULTILINE | re.DOTALL)


def commands(document: Path) -> list[str]:
    lines = [line for block in blocks(document, "bash") for line in block.replace("\\\n", " ").splitlines()]
    return [line.split("  #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def on_the_smallest_study(command: str) -> str:
    """The command with the study of the tests in the place of the default one."""
    return INSTEAD.get(command, command).replace("gsm8k", "smoke")


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.name)
def test_commands_run_as_printed(document, tmp_path):
    given = commands(document)
    if not given:
        return
    folder = tmp_path / "clone"
    folder.mkdir()
    for entry in ("Makefile", "search_spaces", "tests", "pyproject.toml"):
        (folder / entry).symlink_to(ROOT / entry)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GRPO_SWEEPS_CACHE": str(tmp_path / "cache"),
    }
    for printed in given:
        command = on_the_smallest_study(printed)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, f"{printed}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.name)
def test_modules_named_in_commands_exist(document):
    for command in commands(document):
        words = shlex.split(command)
        if words[:2] == ["python", "-m"]:
            parts = words[2].split(".")
            assert (ROOT.joinpath(*parts).is_dir()) or ROOT.joinpath(*parts).with_suffix(".py").is_file(), command


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda each: each.name)
def test_yaml_is_a_sweep_or_a_part_of_one(document, tmp_path):
    base = yaml.safe_load((ROOT / "search_spaces" / "smoke.yaml").read_text())
    base.pop("profiles", None)
    for block in blocks(document, "yaml"):
        given = yaml.safe_load(block)
        if set(given) <= set(TrainConfig.model_fields):
            given = {"train": given}
        file = tmp_path / "block.yaml"
        file.write_text(yaml.safe_dump({**base, **given}))
        load_sweep(file)


def test_the_example_task_works(monkeypatch):
    from grpo_core.config import TaskConfig
    from grpo_core.tasks import TASKS, Completion, load_task

    monkeypatch.setattr("grpo_core.tasks.TASKS", dict(TASKS))
    code = next(block for block in blocks(ROOT / "CONTRIBUTING.md", "python") if "load_parity" in block)
    exec(code, {"TASKS": __import__("grpo_core.tasks").tasks.TASKS})
    task = load_task(TaskConfig(name="parity", num_validation=3))
    assert [problem.answer for problem in task.validation] == ["yes", "no", "yes"]
    assert task.score(task.train[1], Completion(" No ", True, 1)) == {"correct": 1.0}


def test_the_example_algorithm_trains(tmp_path):
    from grpo_core import presets
    from grpo_core.train import train

    code = next(block for block in blocks(ROOT / "CONTRIBUTING.md", "python") if "reinforce_pp_baseline" in block)
    given = load_sweep(ROOT / "search_spaces" / "smoke.yaml").train.model_dump()
    try:
        exec(code, {})
        config = TrainConfig.model_validate({**given, "algorithm": {"name": "reinforce_pp_baseline"}})
        assert (config.algorithm.kl_coef, config.algorithm.advantage_scale) == (0.001, "batch_std")
        assert train(config, run_dir=tmp_path).status == "complete"
    finally:
        presets.PRESETS.pop("reinforce_pp_baseline", None)


def test_the_table_of_algorithms_is_that_of_the_presets():
    text = (ROOT / "docs" / "algorithms.md").read_text().partition("## Presets by knob")[2].partition("\n## ")[0]
    header, _, *rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    assert header[1:] == list(PRESETS)
    table = {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}
    assert {knob for preset in PRESETS.values() for knob in preset} <= table.keys()
    for name in PRESETS:
        algorithm = AlgorithmConfig(name=name)
        for knob, cells in table.items():
            if knob.startswith("paper"):
                continue
            read = KNOBS.get(f"algorithm.{knob}")
            # The table says what a preset does with its KL once kl_coef is set.
            with_kl = TrainConfig.model_validate({"algorithm": {"name": name, "kl_coef": 0.1}})
            assert (cells[name] == DASH) == (read is not None and not read.holds(with_kl)), f"{name}.{knob}"
            if cells[name] == DASH:
                continue
            value = algorithm.high_clip if knob == "clip_range_high" else getattr(algorithm, knob)
            shown = {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
            told = shown if isinstance(shown, str) else f"{shown:g}"
            assert told == cells[name], f"{name}.{knob}"


def test_the_example_guard_rule_works(monkeypatch):
    from sweeps import guard
    from sweeps.sections import GradNormLimit

    monkeypatch.setattr(guard, "GUARD_RULES", dict(guard.GUARD_RULES))
    code = next(block for block in blocks(ROOT / "CONTRIBUTING.md", "python") if "def truncation" in block)
    exec(code, {})
    check = guard.GUARD_RULES["truncation"](GradNormLimit(max=0.5, patience=2))
    assert check(1, {"rollout/truncated_frac": 0.9}) is None
    breach = check(2, {"rollout/truncated_frac": 0.8})
    assert (breach.rule, breach.step, breach.value) == ("truncation", 2, 0.8)
