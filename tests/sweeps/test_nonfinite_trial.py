"""A loss that turns NaN at a step: the trial ends there, with the reason, and the step is on record as it was."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from grpo_core import train as training
from grpo_core.credit import learning_batch
from grpo_core.run_record import read_metrics
from grpo_core.train import Verdict, train
from sweeps.config import load_sweep
from sweeps.guard import StabilityGuard


def test_a_loss_that_becomes_nan_ends_the_trial_at_that_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_sweep("search_spaces/smoke.yaml")
    guard = StabilityGuard(config.stability)
    steps_done = 0

    def poisoned(*given):  # the third rollout batch has an advantage that is not a number
        nonlocal steps_done
        steps_done += 1
        batch, metrics = learning_batch(*given)
        if steps_done == 3:
            batch.advantages[0] = torch.nan
        return batch, metrics

    def on_step(step: int, metrics: dict[str, float]) -> Verdict | None:
        breach = guard.check(step, metrics)
        return None if breach is None else Verdict("prune", dataclasses.asdict(breach))

    monkeypatch.setattr(training, "learning_batch", poisoned)
    longer = config.train.model_copy(update={"num_steps": 6})
    result = train(longer, run_dir=tmp_path, on_step=on_step)
    assert (result.status, result.last_step) == ("pruned", 3)
    assert result.reason is not None and (result.reason["rule"], result.reason["step"]) == ("nonfinite", 3)
    lines = [line["metrics"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert [math.isnan(line["loss/policy"]) for line in lines] == [False, False, True]
    assert [line["optim/skipped_steps"] for line in lines] == [0, 0, 1]
    assert math.isfinite(lines[2]["policy/entropy"]), "the policy that sampled was still a good one"
