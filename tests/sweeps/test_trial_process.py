import json
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_core.config import TrainConfig
from sweeps.executors import wait_any
from sweeps.executors.local import LocalExecutor
from sweeps.executors.slots import Slot
from sweeps.jobs import Job
from sweeps.trial_process import JOB_KINDS, job_function, rank_log, run_trial

TINY = {
    "policy": {"num_layers": 1, "hidden_size": 32},
    "task": {"num_train": 64, "num_validation": 8, "num_test": 8},
    "warm_start": {"num_steps": 2, "batch_size": 4},
    "rollout": {"completions_per_step": 16, "max_new_tokens": 12},
    "algorithm": {"group_size": 4},
    "eval": {"num_problems": 4, "num_test_problems": 4},
    "compute": {"device": "cpu"},
    "num_steps": 1,
}


def test_a_kind_is_a_name_or_a_function_of_a_module():
    assert list(JOB_KINDS) == ["trial", "warm_start", "preflight", "final"]
    assert job_function("trial") is run_trial
    assert job_function("json:dumps") is json.dumps
    with pytest.raises(ValueError, match="kind='tral': no such job; use one of trial, warm_start"):
        job_function("tral")


def test_each_rank_has_a_log_of_its_own():
    assert rank_log("/runs/0007/trial.log", 0) == Path("/runs/0007/trial.log")
    assert rank_log("/runs/0007/trial.log", 3) == Path("/runs/0007/trial.rank3.log")


def test_the_module_is_light():
    program = "import sys, sweeps.trial_process; print([m for m in ('torch', 'optuna', 'mlflow') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"


def test_what_a_study_does_around_its_trials(tmp_path):
    config = TrainConfig.model_validate(TINY)
    executor = LocalExecutor([Slot()])

    def run(kind, **options):
        folder = tmp_path / ("trials/0000" if kind == "trial" else "")
        log = folder / f"{kind}.log"
        job = Job(kind, kind, config.model_dump(mode="json"), str(folder), str(log), options=options)
        handle = executor.start(job, slot=0)
        events = []
        while handle.is_alive():
            wait_any([handle], 5.0)
            events += handle.poll()
        assert events[-1].kind == "result", events[-1]
        return events

    try:
        warm_start = run("warm_start")
        assert "progress" in [event.kind for event in warm_start]
        assert (Path(warm_start[-1].data["path"]) / "model.safetensors").exists()

        preflight = run("preflight")[-1].data
        assert preflight == json.loads((tmp_path / "preflight.json").read_text())
        assert preflight["policy/entropy"] > 0 and preflight["time/step_s"] > 0

        checkpoint = run("trial")[-1].data["checkpoint"]
        final = run("final", checkpoint=checkpoint, out=str(tmp_path / "final.json"))[-1].data
        assert final == json.loads((tmp_path / "final.json").read_text())
        assert (final["split"], final["num_problems"]) == ("test", 4)
    finally:
        executor.close()
