"""What a step collects: groups without a signal replaced, a bounded number of times."""

import dataclasses

import pytest
import torch

from grpo_core.advantages import dead_groups
from grpo_core.collection import collect
from grpo_core.ranks import Ranks
from grpo_core.rollouts import concatenate
from grpo_core.run_state import rollout_of_step
from grpo_core.tasks import load_task

from .conftest import small_config


def scored_by(config, reward):
    """The task of `config` with `reward(problem, how often the problem was asked)` in place of its score."""
    asked: dict[str, int] = {}

    def score(problem, completion):
        asked[problem.id] = asked.get(problem.id, 0) + 1
        return {"correct": reward(problem, asked[problem.id]), "format": 0.0}

    return dataclasses.replace(load_task(config.task), score=score), asked


def collected(policy, config, reward, step=1):
    task, asked = scored_by(config, reward)
    problems = task.train[: config.prompts_per_rank]
    rollout = rollout_of_step(config, step)
    return collect(policy, task, config, rollout, Ranks(0, 1), list(problems), step), asked


def test_without_dynamic_sampling_every_group_is_used(tiny_policy):
    collection, asked = collected(tiny_policy, small_config(), lambda problem, time: 1.0)
    assert collection.used.tolist() == [True] * 4
    assert len(asked) == 4 and collection.num_refills == 0
    assert collection.rewards.shape == (4, 4)


def test_uniform_groups_are_replaced_by_other_problems(tiny_policy):
    config = small_config(algorithm={"dynamic_sampling": True})
    first = {problem.id for problem in load_task(config.task).train[:2]}
    collection, asked = collected(
        tiny_policy, config, lambda problem, time: 0.0 if problem.id in first else float(time % 2)
    )
    assert collection.used.tolist() == [False, False, True, True, True, True]
    assert collection.num_refills == 1
    assert set(asked.values()) == {4}, "a problem is asked once, its group at once"
    assert [problem.id for problem in collection.problems[:2]] == sorted(first)
    assert len({problem.id for problem in collection.problems}) == 6


def test_when_every_group_is_uniform_it_ends(tiny_policy):
    config = small_config(algorithm={"dynamic_sampling": True, "max_refills": 2})
    collection, _ = collected(tiny_policy, config, lambda problem, time: 1.0)
    assert collection.used.tolist() == [False] * 12
    assert collection.num_refills == 2


def test_a_charge_for_length_makes_no_group_worth_learning_from(tiny_policy):
    knobs = {"dynamic_sampling": True, "max_refills": 1, "overlong_penalty": 1.0, "overlong_buffer_tokens": 20}
    collection, _ = collected(tiny_policy, small_config(algorithm=knobs), lambda problem, time: 1.0)
    assert not dead_groups(collection.rewards).all()
    assert not collection.used.any()


def test_more_groups_with_a_signal_than_wanted_are_left_out(tiny_policy):
    config = small_config(algorithm={"dynamic_sampling": True})
    collection, _ = collected(tiny_policy, config, lambda problem, time: float(time % 2))
    assert collection.used.tolist() == [True] * 4
    assert collection.num_refills == 0


def test_refills_are_other_draws_and_repeat_with_the_seed(tiny_policy):
    config = small_config(algorithm={"dynamic_sampling": True, "max_refills": 1})
    runs = [collected(tiny_policy, config, lambda problem, time: 1.0)[0] for _ in range(2)]
    assert torch.equal(runs[0].rollouts.completion_ids, runs[1].rollouts.completion_ids)
    ids = runs[0].rollouts.completion_ids
    assert not torch.equal(ids[:16], ids[16:])


def test_rows_of_groups(tiny_policy):
    collection, _ = collected(tiny_policy, small_config(), lambda problem, time: 1.0)
    assert collection.rows_of(torch.tensor([2, 0])).tolist() == [8, 9, 10, 11, 0, 1, 2, 3]


def test_long_completions_pay_before_the_floor(tiny_policy):
    config = small_config(
        rollout={"max_new_tokens": 10},
        algorithm={"overlong_penalty": 4.0, "overlong_buffer_tokens": 4, "reward_floor": -2.5},
    )
    collection, _ = collected(tiny_policy, config, lambda problem, time: 1.0)
    expected = [
        max(1.0 - 4.0 * max(0, length - 6) / 4, -2.5) for length in (each.num_tokens for each in collection.completions)
    ]
    assert collection.rewards.flatten().tolist() == pytest.approx(expected)
    assert min(expected) == -2.5
    assert [score.reward for score in collection.scores] == [1.0] * 16, "the record keeps what the task gave"


def test_the_temperature_follows_its_schedule(tiny_policy):
    config = small_config(rollout={"temperature_decay": 0.5, "temperature_min": 0.3})
    assert [rollout_of_step(config, step).temperature for step in (1, 2, 3, 4)] == [1.0, 0.5, 0.3, 0.3]
    collection, _ = collected(tiny_policy, config, lambda problem, time: 1.0, step=2)
    assert collection.rollouts.temperature == 0.5
    assert concatenate([collection.rollouts, collection.rollouts], 0).temperature == 0.5
