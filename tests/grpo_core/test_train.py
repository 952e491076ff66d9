"""Whole runs of a tiny policy: repeatable, resumable, and stopped where they should be."""

import json
from pathlib import Path

import pytest

from grpo_core import metric_names as names
from grpo_core.checkpoints import all_checkpoints, export_policy, newest_checkpoint
from grpo_core.metric_names import depends_on_machine
from grpo_core.run_record import RunRecord, read_metrics, read_rollouts
from grpo_core.train import Verdict, train

from .conftest import small_config

TRACE = Path(__file__).with_name("trace.json")
ALWAYS = {
    names.REWARD_MEAN,
    names.REWARD_STD,
    names.GROUPS_DEAD_FRAC,
    names.POLICY_ENTROPY,
    names.POLICY_KL,
    names.POLICY_CLIP_FRAC,
    names.POLICY_RATIO_MAX,
    names.LOSS_POLICY,
    names.OPTIM_GRAD_NORM,
    names.OPTIM_LR,
    names.OPTIM_SKIPPED_STEPS,
    names.ROLLOUT_LENGTH_MEAN,
    names.ROLLOUT_TRUNCATED_FRAC,
    names.TIME_STEP_S,
}


def recorded(run_dir):
    return [
        (line["step"], {key: value for key, value in line["metrics"].items() if not depends_on_machine(key)})
        for line in read_metrics(run_dir / "metrics.jsonl")
    ]


def test_a_run_records_every_step_before_it_tells(tmp_path):
    told = []

    def on_step(step, metrics):
        told.append((step, [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")]))

    result = train(small_config(), run_dir=tmp_path, on_step=on_step)
    assert told == [(1, [1]), (2, [1, 2]), (3, [1, 2, 3])]
    assert (result.status, result.last_step) == ("complete", 3)
    for step, metrics in recorded(tmp_path):
        assert set(metrics) | {names.TIME_STEP_S} >= ALWAYS
        assert (names.EVAL_ACCURACY in metrics) == (step in (2, 3))
    rollouts = list(read_rollouts(tmp_path / "rollouts.jsonl.zst"))
    assert [each["step"] for each in rollouts] == [1] * 16 + [2] * 16 + [3] * 16
    assert Path(result.checkpoint).name == "step_000003"


def test_same_settings_and_seed_give_the_same_metrics(tmp_path):
    for name in ("a", "b"):
        train(small_config(algorithm={"updates_per_batch": 2}), run_dir=tmp_path / name)
    assert recorded(tmp_path / "a") == recorded(tmp_path / "b")


def test_the_first_ratio_is_1_and_a_second_update_moves_it(tmp_path):
    train(small_config(num_steps=1), run_dir=tmp_path / "one")
    assert recorded(tmp_path / "one")[0][1][names.POLICY_RATIO_MAX] == pytest.approx(1, abs=1e-4)
    train(small_config(num_steps=1, algorithm={"updates_per_batch": 2}), run_dir=tmp_path / "two")
    assert recorded(tmp_path / "two")[0][1][names.POLICY_RATIO_MAX] > 1.0001


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path, kl_coef):
    config = small_config(num_steps=5, algorithm={"kl_coef": kl_coef, "updates_per_batch": 2})
    train(config, run_dir=tmp_path / "whole")
    first = train(config, run_dir=tmp_path / "cut", on_step=lambda step, _: Verdict("stop") if step == 3 else None)
    assert (first.status, first.last_step) == ("stopped", 3)
    told = []
    second = train(config, run_dir=tmp_path / "cut", on_step=lambda step, _: told.append(step))
    assert (second.status, second.last_step, told) == ("complete", 5, [4, 5])
    assert recorded(tmp_path / "cut") == recorded(tmp_path / "whole")
    assert list(read_rollouts(tmp_path / "cut" / "rollouts.jsonl.zst")) == list(
        read_rollouts(tmp_path / "whole" / "rollouts.jsonl.zst")
    )


def test_steps_after_the_last_checkpoint_are_not_recorded_twice(tmp_path):
    class Killed(Exception):
        pass

    def killed_at_4(step, metrics):
        if step == 4:
            raise Killed

    config = small_config(num_steps=5, checkpoint={"every": 2})
    with pytest.raises(Killed):
        train(config, run_dir=tmp_path, on_step=killed_at_4)
    assert newest_checkpoint(tmp_path).name == "step_000002"
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "ti')
    told = []
    train(config, run_dir=tmp_path, on_step=lambda step, _: told.append(step))
    assert told == [5]
    assert [step for step, _ in recorded(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_finished_run_does_nothing_more(tmp_path):
    first = train(small_config(), run_dir=tmp_path)
    again = train(small_config(), run_dir=tmp_path, on_step=lambda *_: pytest.fail("no step is left"))
    assert again == first


def test_a_pruned_run_ends_at_that_step_without_a_checkpoint(tmp_path):
    verdict = Verdict("prune", {"rule": "entropy"})
    result = train(small_config(), run_dir=tmp_path, on_step=lambda step, _: verdict if step == 2 else None)
    assert (result.status, result.last_step, result.reason) == ("pruned", 2, {"rule": "entropy"})
    assert result.checkpoint is None
    assert len(recorded(tmp_path)) == 2


def test_checkpoints_are_thinned_and_loadable(tmp_path, task):
    config = small_config(num_steps=5, checkpoint={"every": 1, "keep": 2})
    train(config, run_dir=tmp_path)
    assert [each.name for each in all_checkpoints(tmp_path)] == ["step_000004", "step_000005"]
    export_policy(newest_checkpoint(tmp_path), tmp_path / "exported")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert model.config.num_hidden_layers == 1
    text = task.prompt(task.train[0])
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    with pytest.raises(ValueError, match="not empty"):
        export_policy(newest_checkpoint(tmp_path), tmp_path / "exported")


def test_five_steps_equal_the_committed_trace(tmp_path):
    """The numerics of five steps; a change of this file needs its reason in CHANGELOG."""
    train(small_config(num_steps=5, algorithm={"updates_per_batch": 2, "entropy_coef": 0.01}), run_dir=tmp_path)
    trace = json.loads(TRACE.read_text())
    assert [step for step, _ in recorded(tmp_path)] == [1, 2, 3, 4, 5]
    for (_, metrics), expected in zip(recorded(tmp_path), trace, strict=True):
        assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_torn_rollout_frame_is_cut_off(tmp_path):
    record = RunRecord(tmp_path)
    for step in (1, 2):
        record.write(step, {"reward/mean": float(step)}, [{"completion": "a" * 50}])
    file = tmp_path / "rollouts.jsonl.zst"
    whole = file.stat().st_size
    with file.open("ab") as torn:
        torn.write(file.read_bytes()[: whole // 4])
    assert [each["step"] for each in read_rollouts(file)] == [1, 2]
    again = RunRecord(tmp_path)
    assert (again.last_step, again.last_values, file.stat().st_size) == (2, {"reward/mean": 2.0}, whole)
    assert not again.write(2, {}, []) and again.write(3, {"reward/mean": 3.0}, [{"completion": "b"}])
    assert [each["step"] for each in read_rollouts(file)] == [1, 2, 3]
