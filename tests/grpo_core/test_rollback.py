"""A run whose evaluations fall in a row returns to its best checkpoint, so often and no more."""

import math

import pytest

from grpo_core import metric_names as names
from grpo_core import train as training
from grpo_core.checkpoints import all_checkpoints, checkpoint_folder
from grpo_core.config import RollbackConfig, TrainConfig
from grpo_core.rollback import may_be_needed, note_evaluation
from grpo_core.run_record import read_metrics
from grpo_core.run_state import RunState
from grpo_core.train import Verdict, train

from .conftest import small_config

#: Accuracy at steps 1 to 12: the best at 3, three drops to 6, then three drops from the best again to 9.
SCRIPT = (0.1, 0.3, 0.5, 0.4, 0.3, 0.2, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0)


@pytest.fixture
def scripted(monkeypatch):
    """Evaluations that say what SCRIPT says."""
    monkeypatch.setattr(training, "evaluate_step", lambda run: {names.EVAL_ACCURACY: SCRIPT[run.state.step - 1]})


def config(**rollback) -> TrainConfig:
    return small_config(num_steps=12, eval={"every": 1}, rollback=rollback)


def metrics_of(run_dir):
    return {line["step"]: line["metrics"] for line in read_metrics(run_dir / "metrics.jsonl")}


@pytest.mark.usefixtures("scripted")
def test_three_drops_return_to_the_best_weights_with_half_the_rate(tmp_path):
    seen = {}

    def on_step(step, metrics):
        seen[step] = [folder.name for folder in all_checkpoints(tmp_path)]

    train(config(), run_dir=tmp_path, on_step=on_step)
    metrics = metrics_of(tmp_path)
    assert {step: line[names.OPTIM_ROLLBACKS] for step, line in metrics.items() if names.OPTIM_ROLLBACKS in line} == {
        6: 1,
        9: 2,
    }
    rates = [metrics[step][names.OPTIM_LR] for step in range(1, 13)]
    assert rates == pytest.approx([1e-3] * 6 + [5e-4] * 3 + [2.5e-4] * 3, rel=1e-12)
    # The best checkpoint stays while it may be needed, and goes when no return is left.
    assert all("step_000003" in seen[step] for step in range(4, 10))
    assert [folder.name for folder in all_checkpoints(tmp_path)] == ["step_000012"]


@pytest.mark.usefixtures("scripted")
def test_the_step_after_a_rollback_starts_from_the_best_weights(tmp_path, monkeypatch):
    import torch

    after = {}
    step_before = training.train_step

    def watched(run, step):
        after[step] = {name: weight.detach().clone() for name, weight in run.policy.model.named_parameters()}
        return step_before(run, step)

    monkeypatch.setattr(training, "train_step", watched)
    train(config(), run_dir=tmp_path)
    # Weights before step 4 are those after step 3.
    for step in (7, 10):
        assert all(torch.equal(after[step][name], weight) for name, weight in after[4].items())
    assert any(not torch.equal(after[6][name], weight) for name, weight in after[4].items())


@pytest.mark.usefixtures("scripted")
def test_rollbacks_can_be_switched_off(tmp_path):
    train(config(max_times=0), run_dir=tmp_path)
    assert not any(names.OPTIM_ROLLBACKS in line for line in metrics_of(tmp_path).values())


@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("cut", [5, 6, 7, 9])
def test_an_interrupted_run_rolls_back_as_an_uninterrupted_one(tmp_path, cut):
    train(config(), run_dir=tmp_path / "whole")
    train(config(), run_dir=tmp_path / "cut", on_step=lambda step, _: Verdict("stop") if step == cut else None)
    train(config(), run_dir=tmp_path / "cut")
    whole, resumed = metrics_of(tmp_path / "whole"), metrics_of(tmp_path / "cut")
    for step, line in whole.items():
        assert {key: value for key, value in line.items() if not names.depends_on_machine(key)} == {
            key: value for key, value in resumed[step].items() if not names.depends_on_machine(key)
        }


@pytest.mark.usefixtures("scripted")
def test_a_best_checkpoint_that_was_lost_is_said_and_survived(tmp_path, capfd):
    import shutil

    def on_step(step, metrics):
        if step == 4:
            shutil.rmtree(checkpoint_folder(tmp_path, 3))

    result = train(config(), run_dir=tmp_path, on_step=on_step)
    assert result.status == "complete"
    assert "step 6: eval/accuracy dropped 3 times in a row, no rollback" in capfd.readouterr().out
    assert not any(names.OPTIM_ROLLBACKS in line for line in metrics_of(tmp_path).values())


def state() -> RunState:
    return RunState(kl_coef=0.0, entropy_coef=0.0)


def test_equal_values_are_no_drop_and_nan_is_one():
    each, rule = state(), RollbackConfig(after_drops=2)
    assert [note_evaluation(each, rule, step, value) for step, value in enumerate((0.5, 0.5, 0.4, 0.4, 0.3), 1)] == [
        False
    ] * 5
    assert (each.best_value, each.best_step, each.num_drops) == (0.5, 1, 1)
    assert note_evaluation(each, rule, 6, math.nan)
    assert each.best_value == 0.5


@pytest.mark.parametrize(("step", "needed"), [(20, False), (40, False)])
def test_a_short_run_keeps_no_checkpoint_for_a_rollback(step, needed):
    """Three evaluations cannot drop three times before the last one."""
    assert may_be_needed(state(), TrainConfig.model_validate({"num_steps": 60}), step) is needed


def test_a_longer_run_does():
    long = TrainConfig.model_validate({"num_steps": 200})
    assert [may_be_needed(state(), long, step) for step in (20, 120, 140)] == [True, True, False]
    late = state()
    late.num_drops = 2
    assert may_be_needed(late, long, 160)
    late.num_rollbacks = 2
    assert not may_be_needed(late, long, 20)
