"""Which part of the product may know which: grpo_core <- sweeps <- reports, and mlflow_server alone."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"grpo_core", "sweeps", "reports", "mlflow_server"}
MAY_IMPORT = {
    "grpo_core": {"grpo_core"},
    "sweeps": {"grpo_core", "sweeps"},
    "reports": {"grpo_core", "sweeps", "reports"},
    "mlflow_server": {"mlflow_server"},
}


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package):
    for file in (ROOT / package).rglob("*.py"):
        forbidden = (imported(file) & OURS) - MAY_IMPORT[package]
        assert not forbidden, f"{file.relative_to(ROOT)} imports {forbidden}"


def test_the_core_knows_neither_optuna_nor_mlflow():
    for file in (ROOT / "grpo_core").rglob("*.py"):
        assert not imported(file) & {"optuna", "mlflow"}, file


@pytest.mark.parametrize(
    ("module", "without"),
    [
        ("grpo_core.config", ["torch"]),
        ("grpo_core.metric_names", ["torch", "pydantic"]),
        ("grpo_core.tasks", ["torch", "datasets"]),
        ("sweeps.config", ["torch", "optuna", "mlflow"]),
        ("sweeps.launch", ["torch", "optuna", "mlflow", "typer", "rich"]),
        ("sweeps.guard", ["torch", "optuna", "mlflow"]),
    ],
)
def test_what_must_start_fast_imports_nothing_heavy(module, without):
    code = f"import sys, {module}; print([each for each in {without} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_room_without_a_subject():
    nameless = {"utils.py", "helpers.py", "common.py", "misc.py"}
    assert not [file for package in OURS for file in (ROOT / package).rglob("*.py") if file.name in nameless]


def test_the_map_of_contributing_names_every_module_of_sweeps():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`(?:sweeps/)?(\w+\.py)`", text))
    files = {file.name for file in (ROOT / "sweeps").glob("*.py")} - {"__init__.py", "__main__.py"}
    assert files <= named, files - named
