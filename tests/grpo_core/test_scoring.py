import dataclasses
import math

import pytest

from grpo_core.scoring import score_completions
from grpo_core.step_metrics import reward_metrics
from grpo_core.tasks import Completion


@pytest.mark.parametrize("given", [None, {"correct": None}, {"correct": math.nan}, {"correct": math.inf}, "raises"])
def test_a_completion_without_a_score_leaves_its_group(task, given):
    def score(problem, completion):
        if completion.text != "odd":
            return {"correct": float(completion.text), "format": 0.0}
        if given == "raises":
            raise RuntimeError("no parser for this")
        return given

    odd = dataclasses.replace(task, score=score)
    completions = [Completion(text, True, 3) for text in ("1", "odd", "0", "0")]
    scores = score_completions(odd, [task.train[0]] * 4, completions)
    assert [score.reward for score in scores][0::2] == [1.0, 0.0]
    assert math.isnan(scores[1].reward)
    assert scores[1].fault and "train/0" in scores[1].fault
    metrics = reward_metrics(scores)
    assert metrics["reward/mean"] == pytest.approx(1 / 3)
    assert metrics["reward/unscored"] == 1


def test_reward_parts_are_averaged(task):
    right = Completion(f"#### {task.train[0].answer}", True, 3)
    cut = Completion(right.text, False, 3)
    scores = score_completions(task, [task.train[0]] * 4, [right, right, right, cut])
    metrics = reward_metrics(scores)
    assert metrics["reward/mean"] == 0.75
    assert metrics["reward/correct"] == 0.75
    assert metrics["reward/std"] == pytest.approx(math.sqrt(0.75 * 0.25))
