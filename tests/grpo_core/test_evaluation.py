import json
import math
import statistics

import pytest

from grpo_core.evaluation import compare_on_test, evaluate, evaluation_metrics, standard_error
from grpo_core.policy import load_policy
from grpo_core.preflight import measure_base_policy
from grpo_core.ranks import Ranks
from grpo_core.tasks import load_task
from grpo_core.train import train

from .conftest import small_config


def test_evaluation_counts_problems_not_samples():
    config = small_config(eval={"num_problems": 16, "samples_per_problem": 4})
    task = load_task(config.task)
    policy = load_policy(config.policy, task)
    results = evaluate(policy, task, task.validation[:16], config, Ranks(0, 1))
    metrics = evaluation_metrics(results)
    accuracies = [result.accuracy for result in results]
    assert set(accuracies) <= {0, 0.25, 0.5, 0.75, 1} and len(set(accuracies)) > 1
    assert metrics["eval/accuracy"] == pytest.approx(sum(accuracies) / 16)
    assert metrics["eval/accuracy_se"] == pytest.approx(statistics.stdev(accuracies) / 4)
    assert metrics["eval/accuracy_greedy"] == statistics.fmean(result.greedy for result in results)
    again = evaluate(policy, task, task.validation[:16], config.model_copy(update={"seed": 9}), Ranks(0, 1))
    assert [result.accuracy for result in again] == accuracies, "trials of other seeds meet the same draws"


def test_greedy_can_be_left_out():
    config = small_config(eval={"greedy": False})
    task = load_task(config.task)
    results = evaluate(load_policy(config.policy, task), task, task.validation[:4], config, Ranks(0, 1))
    assert "eval/accuracy_greedy" not in evaluation_metrics(results)


def test_standard_error():
    assert standard_error([0.0, 1.0]) == pytest.approx(0.5)
    assert standard_error([0.3]) == math.inf
    assert math.isnan(standard_error([0.5, math.nan, 0.25]))


def test_winner_and_base_meet_the_same_test_problems(tmp_path):
    config = small_config()
    checkpoint = train(config, run_dir=tmp_path / "run").checkpoint
    record = compare_on_test(config, checkpoint, tmp_path / "final.json")
    assert json.loads((tmp_path / "final.json").read_text()) == record
    assert (record["split"], record["num_problems"], record["samples_per_problem"]) == ("test", 8, 2)
    gain = record["winner"]["eval/accuracy"] - record["base"]["eval/accuracy"]
    assert record["difference"]["mean"] == pytest.approx(gain)
    assert len(record["samples"]) == 5
    assert record["samples"][0]["problem_id"] == "test/0"
    assert set(record["samples"][0]["base"]) == {"text", "reward", "ended"}


def test_preflight_measures_the_untouched_policy(tmp_path):
    config = small_config()
    measured = measure_base_policy(config, tmp_path)
    assert json.loads((tmp_path / "preflight.json").read_text()) == measured
    task = load_task(config.task)
    from grpo_core.warm_start import ensure_warm_start

    policy = load_policy(config.policy, task, ensure_warm_start(config))
    results = evaluate(policy, task, task.validation[:8], config, Ranks(0, 1))
    assert measured["eval/accuracy"] == evaluation_metrics(results)["eval/accuracy"]
    assert 4.5 < measured["policy/entropy"] < math.log(170)
    assert measured["time/step_s"] > 0 and measured["time/eval_s"] > 0
