"""Two real ranks over gloo."""

import json
import math
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from grpo_core.batches import build_batch
from grpo_core.policy import load_policy
from grpo_core.ranks import Ranks, open_ranks
from grpo_core.rollouts import sample_groups
from grpo_core.run_setup import build_learner
from grpo_core.tasks import load_task
from grpo_core.update import accumulate_gradients

from .conftest import small_config

RANK_JOBS = Path(__file__).with_name("rank_jobs.py")


def run_two_ranks(job: str, folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANK_JOBS), job, str(folder)], env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()


def two_rank_config(**sections):
    return small_config(task={"name": "grade_school"}, compute={"num_ranks": 2}, **sections)


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["sequence_mean", "token_mean"])
def test_two_ranks_have_the_gradient_of_one(tmp_path, aggregation):
    config = two_rank_config(algorithm={"aggregation": aggregation}, optim={"micro_batch_size": 4})
    alone = small_config(task={"name": "grade_school"}, algorithm={"aggregation": aggregation})
    policy = load_policy(alone.policy, load_task(alone.task))
    prompts = [[5, 9, 12], [7, 30, 41, 8], [11], [20, 21]]
    draws = torch.Generator().manual_seed(0)
    rollouts = sample_groups(policy, prompts, 4, alone.rollout, generator=draws)
    advantages = torch.randn(4, 4, generator=draws)
    tensors = {name: values for name, values in asdict(rollouts).items() if name != "temperature"}
    torch.save({**tensors, "advantages": advantages}, tmp_path / "batch.pt")
    (tmp_path / "config.json").write_text(config.model_dump_json())

    learner = build_learner(policy, alone, Accelerator(cpu=True), Ranks(0, 1))
    sums, _ = accumulate_gradients(learner, build_batch(rollouts, advantages, False), alone)
    one = torch.cat([weight.grad.flatten() for weight in policy.model.parameters()])
    run_two_ranks("gradient", tmp_path)
    two = torch.load(tmp_path / "two_ranks.pt", weights_only=True)
    assert (two["gradient"] - one).norm() <= 1e-5 * one.norm()
    assert two["loss"] == pytest.approx(sums["loss"], abs=1e-6)


@pytest.mark.slow
def test_all_ranks_stop_at_the_step_that_rank_0_names(tmp_path):
    (tmp_path / "config.json").write_text(two_rank_config().model_dump_json())
    run_two_ranks("pruned", tmp_path)
    for rank in range(2):
        assert json.loads((tmp_path / f"rank{rank}.json").read_text()) == ["pruned", 2, {"rule": "test"}]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


@pytest.mark.slow
def test_metrics_are_pooled_and_errors_heard(tmp_path):
    (tmp_path / "config.json").write_text(two_rank_config().model_dump_json())
    run_two_ranks("pooled", tmp_path)
    first, second = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2))
    assert first["frac"] == second["frac"] == 0.375
    assert first["largest"]["ratio"] == 1.0
    assert math.isnan(first["largest"]["lost"]) and math.isnan(second["largest"]["lost"])
    assert "another rank failed" in first["heard"]
    assert second["heard"] is None


@pytest.mark.slow
def test_a_rank_without_a_signal_takes_part_in_every_update(tmp_path):
    knobs = {"dynamic_sampling": True, "max_refills": 1, "updates_per_batch": 2, "num_minibatches": 2}
    config = two_rank_config(algorithm=knobs)
    (tmp_path / "config.json").write_text(config.model_dump_json())
    run_two_ranks("uneven", tmp_path)
    lines = [json.loads(line)["metrics"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["optim/idle_steps"] for line in lines] == [0.0] * 3
    assert [line["rollout/used_frac"] for line in lines] == [0.5] * 3
    # Each rank samples its two groups again, though rank 0 lacks none.
    assert [line["rollout/extra_completions"] for line in lines] == [16.0] * 3
    assert all(line["optim/grad_norm"] > 0 for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["ppo", "reinforce_pp"])
def test_algorithms_of_tokens_run_on_two_ranks(tmp_path, preset):
    config = two_rank_config(algorithm={"name": preset, "kl_coef": 0.1, "updates_per_batch": 1})
    (tmp_path / "config.json").write_text(config.model_dump_json())
    run_two_ranks("whole_run", tmp_path)
    lines = [json.loads(line)["metrics"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert len(lines) == 3 and all(("loss/value" in line) == (preset == "ppo") for line in lines)


@pytest.mark.slow
def test_a_rank_that_raises_is_heard_by_the_other(tmp_path):
    (tmp_path / "config.json").write_text(two_rank_config().model_dump_json())
    run_two_ranks("raises", tmp_path)
    assert json.loads((tmp_path / "rank1.json").read_text()) == "ZeroDivisionError"
    assert json.loads((tmp_path / "rank0.json").read_text()) == "PeerFailed"


def test_a_launcher_with_another_number_of_ranks_is_refused():
    with pytest.raises(ValueError, match=r"compute\.num_ranks=2: the launcher started 1"):
        open_ranks(two_rank_config().compute)


def test_one_rank_pools_nothing():
    alone = Ranks(0, 1)
    assert alone.add_up({"a": 1.0}) == {"a": 1.0}
    assert alone.gather([1, 2]) == [1, 2]
    assert alone.share([1, 2]) == [1, 2]
    assert Ranks(1, 2).share([1, 2, 3, 4]) == [3, 4]
