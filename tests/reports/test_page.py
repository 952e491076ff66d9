import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reports.__main__ import main
from reports.page import build_report, commands, render, safe_json

from .small_study import pruned, study, trial
from .study_fixture import final_record, sample, write, write_study

SECTIONS = ["outcome", "reproduce", "events", "curves", "settings", "diagnosis", "trials", "rollouts", "config"]
HOSTILE = "</script><script>window.stolen = 1</script><!-- \u2028 <img src=x onerror='window.stolen = 1'>"


def test_default_study_makes_one_small_file_in_time(finished_study: Path):
    started = time.perf_counter()
    path = build_report(finished_study)
    assert time.perf_counter() - started < 5
    assert path == finished_study / "report.html"
    assert path.stat().st_size < 6_000_000
    assert [file.name for file in finished_study.iterdir() if file.name.startswith(".")] == []


def test_parts_come_in_order_and_nothing_comes_from_outside(report: Path):
    page = report.read_text()
    places = [page.index(f'<section id="{name}"') for name in SECTIONS]
    assert places == sorted(places)
    assert page.count("plotly.js v") == 1
    assert not re.search(r'(src|href)="(?!#|data:)', page.split("<script>")[0])
    assert "default-src 'none'" in page


def test_the_data_of_every_chart_is_there(report: Path):
    page = report.read_text()
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', page, re.S)[1])["charts"]
    assert set(figures) == set(re.findall(r'data-chart="([^"]+)"', page))
    assert {"curve-reward-mean", "curve-policy-entropy", "curve-optim-grad_norm", "curve-eval-accuracy"} <= set(figures)
    assert {"importance", "parallel", "slice-lr", "stability-clip_range"} <= set(figures)
    assert all(figure["data"] for figure in figures.values())


def test_text_from_outside_is_escaped_everywhere(tmp_path: Path):
    folder = write_study(tmp_path, num_trials=3, num_steps=12)
    answer = {"text": HOSTILE, "reward": 0.0, "ended": True}
    hostile = {**sample(0), "question": HOSTILE, "answer": HOSTILE, "base": answer, "winner": answer}
    write(folder / "final.json", final_record(0.5, samples=[hostile]))
    outcome = json.loads((folder / "trials/0001/outcome.json").read_text())
    reason = {"rule": HOSTILE, "step": 9, "message": HOSTILE}
    write(folder / "trials/0001/outcome.json", {**outcome, "state": "pruned", "reason": reason})
    page = build_report(folder).read_text()
    scripts = re.findall(r"<script[^>]*>", page)
    assert scripts == ['<script type="application/json" id="figures">', "<script>", "<script>"]
    assert page.count("</script>") == 3
    assert "<img" not in page.split('<script type="application/json"')[0]
    assert "&lt;img src=x" in page


def test_json_inside_a_script_cannot_end_it():
    text = safe_json({"a": "</script><!--\u2028&", "b": float("nan"), "c": [0.123456789]})
    assert not re.search("[<>&\u2028]", text)
    assert json.loads(text) == {"a": "</script><!--\u2028&", "b": None, "c": [0.123457]}


def test_credentials_do_not_reach_the_page():
    found = study(trial(0, 0.5), config_text="tracking: {uri: 'postgresql://ann:s3cret@db/mlflow'}\n")
    page = render(found)
    assert "s3cret" not in page
    assert "postgresql://***@db/mlflow" in page


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (study(), "No trial has started."),
        (study(trial(0, state="running"), is_running=True), "Running, 0 of 1 trials done."),
        (study(pruned(0), pruned(1)), "All 2 trials were pruned (2 by entropy)"),
        (study(trial(0, state="failed", reason={"rule": "crash", "message": "boom"})), "All 1 trial failed"),
        (study(trial(0, 0.5)), "Trial 0 is best"),
    ],
    ids=["empty", "running", "all pruned", "all failed", "done"],
)
def test_every_state_of_a_study_makes_a_page(found, text: str):
    assert text in render(found)


def test_long_rollouts_are_folded(tmp_path: Path):
    folder = write_study(tmp_path, num_trials=1, num_steps=10)
    page = build_report(folder).read_text()
    assert page.count('<article class="card rollout">') == 5
    assert page.count('<span class="cut">') == 1


def test_commands_reproduce_export_and_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    found = study(trial(7, 0.5), folder=Path("runs/gsm8k"))
    assert [command for _, command in commands(found)] == [
        "python -m grpo_core.train runs/gsm8k/trials/0007/config.yaml --run-dir runs/gsm8k/trials/0007-again",
        "python -m sweeps best gsm8k --export gsm8k-best",
        "python -m sweeps.launch search_spaces/gsm8k.yaml --profile cpu --fresh",
    ]
    elsewhere = study(trial(7, 0.5), folder=Path("other place/gsm8k"))
    assert "--runs-dir 'other place'" in commands(elsewhere)[1][1]


def test_command_line_writes_the_report(finished_study: Path, capsys: pytest.CaptureFixture):
    assert main(["gsm8k", "--runs-dir", str(finished_study.parent)]) == 0
    assert capsys.readouterr().out.strip() == str(finished_study / "report.html")


@pytest.mark.parametrize("name", [["other"], ["../gsm8k"], []])
def test_an_unknown_study_is_refused_with_the_names_of_the_others(finished_study: Path, capsys, name: list[str]):
    assert main([*name, "--runs-dir", str(finished_study.parent)]) == 2
    assert capsys.readouterr().err.strip().endswith("studies there: gsm8k")


def test_no_study_at_all(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert main(["gsm8k", "--runs-dir", str(tmp_path)]) == 2
    assert "start one with python -m sweeps.launch" in capsys.readouterr().err


def test_a_report_loads_no_trainer_and_no_tracker(finished_study: Path):
    program = (
        "import sys; from pathlib import Path; from reports.page import build_report; "
        f"build_report(Path({str(finished_study)!r})); "
        "print(sorted({'torch', 'mlflow', 'optuna', 'transformers', 'accelerate'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_trial_of_several_ranks_is_trained_again_under_torchrun():
    found = study(trial(0, 0.5), config={"resources": {"processes_per_trial": 2}})
    assert commands(found)[0][1].startswith("torchrun --standalone --nproc-per-node 2 -m grpo_core.train ")
