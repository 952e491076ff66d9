"""Which problems a step samples: whole epochs, draws by priority, refills; how priorities follow the rewards."""

import dataclasses
import math
from collections import Counter
from itertools import combinations

import pytest
import torch

from grpo_core.prompt_order import problems_of_step, refill_problems, updated_priorities
from grpo_core.tasks import Problem, load_task

from .conftest import small_config

NAN = math.nan


def numbered(task, num_problems):
    """A task of `num_problems` training problems whose ids are their numbers."""
    return dataclasses.replace(task, train=[Problem(str(number), "", "") for number in range(num_problems)])


def drawing(num_prompts, exponent, **sections):
    rollout = {"completions_per_step": 2 * num_prompts, "priority_exponent": exponent}
    return small_config(rollout=rollout, algorithm={"group_size": 2}, **sections)


def ids(problems):
    return [problem.id for problem in problems]


def test_every_problem_once_an_epoch():
    config = small_config(task={"num_train": 10, "num_validation": 16})
    small = load_task(config.task)
    taken = [problem.id for step in range(1, 6) for problem in problems_of_step(small, config, step)]
    assert len(taken) == 20
    assert sorted(taken[:10]) == sorted(taken[10:]) == sorted(problem.id for problem in small.train)
    assert taken[:10] != taken[10:]


def test_priorities_change_nothing_with_exponent_0(task):
    config = drawing(4, 0.0)
    assert problems_of_step(task, config, 3, {task.train[0].id: 100.0}) == problems_of_step(task, config, 3)


def test_problems_are_drawn_in_proportion_to_their_priority(task):
    """Of four problems two a step: the first of the two, and which two, against their exact probabilities."""
    exponent, num_steps = 0.6, 4000
    small, config = numbered(task, 4), drawing(2, exponent)
    priorities = {"0": 0.05, "1": 0.3, "2": 0.6}  # problem 3 is unseen
    weights = [priorities.get(str(number), 1.0) ** exponent for number in range(4)]
    total = sum(weights)
    draws = [ids(problems_of_step(small, config, step, priorities)) for step in range(num_steps)]

    def assert_frequency(count, probability):
        sigma = math.sqrt(num_steps * probability * (1 - probability))
        assert abs(count - num_steps * probability) < 5 * sigma

    firsts = Counter(int(first) for first, _ in draws)
    for number in range(4):
        assert_frequency(firsts[number], weights[number] / total)
    pairs = Counter(frozenset(map(int, pair)) for pair in draws)
    assert sum(pairs.values()) == num_steps and all(len(pair) == 2 for pair in pairs)
    for a, b in combinations(range(4), 2):
        one_way = weights[a] / total * weights[b] / (total - weights[a])
        other_way = weights[b] / total * weights[a] / (total - weights[b])
        assert_frequency(pairs[frozenset((a, b))], one_way + other_way)


def test_an_unseen_problem_has_at_least_the_largest_priority(task):
    num_steps = 2000
    small, config = numbered(task, 2), drawing(1, 1.0)
    taken = Counter(problems_of_step(small, config, step, {"0": 40.0})[0].id for step in range(num_steps))
    assert abs(taken["1"] - num_steps / 2) < 5 * math.sqrt(num_steps / 4)


def test_a_step_draws_by_seed_and_step_alone(task):
    small, config = numbered(task, 50), drawing(8, 0.6)
    priorities = {str(number): 0.1 + number / 100 for number in range(40)}
    first = ids(problems_of_step(small, config, 5, priorities))
    torch.manual_seed(1)
    assert ids(problems_of_step(small, config, 5, dict(reversed(priorities.items())))) == first
    assert ids(problems_of_step(small, config, 6, priorities)) != first
    assert ids(problems_of_step(small, drawing(8, 0.6, seed=1), 5, priorities)) != first


def test_more_prompts_than_problems_take_all_before_any_again(task):
    drawn = ids(problems_of_step(numbered(task, 5), drawing(12, 1.0), 1, {"0": 0.05}))
    assert sorted(drawn[:5]) == sorted(drawn[5:10]) == list("01234")
    assert len(set(drawn[10:])) == 2


def test_many_problems_are_drawn_without_replacement(task):
    small, config = numbered(task, 100_000), drawing(64, 1.0)
    priorities = {str(number): 1e-9 for number in range(99_900)}
    drawn = ids(problems_of_step(small, config, 1, priorities))
    assert len(set(drawn)) == 64
    assert all(int(each) >= 99_900 for each in drawn)


def test_a_refill_takes_problems_that_the_step_has_not(task):
    small, config = numbered(task, 20), small_config()
    exclude = {str(number) for number in range(15)}
    refill = ids(refill_problems(small, config, 2, 1, 5, exclude))
    assert sorted(refill, key=int) == ["15", "16", "17", "18", "19"]
    assert ids(refill_problems(small, config, 2, 1, 3, exclude)) == refill[:3]
    for step, number, seed in ((3, 1, 0), (2, 2, 0), (2, 1, 1)):
        assert ids(refill_problems(small, small_config(seed=seed), step, number, 20, set())) != ids(
            refill_problems(small, config, 2, 1, 20, set())
        )


def test_a_refill_repeats_problems_where_too_few_are_left(task):
    small, config = numbered(task, 4), small_config()
    refill = ids(refill_problems(small, config, 1, 1, 9, {"0", "1", "2"}))
    assert refill[0] == "3"
    assert sorted(refill[:4]) == sorted(refill[4:8]) == list("0123")
    assert len(refill) == 9
    assert sorted(ids(refill_problems(small, config, 1, 1, 4, set("0123")))) == list("0123")


def test_refills_take_every_problem_as_often(task):
    small, config, num_steps = numbered(task, 5), small_config(), 2000
    taken = Counter(
        each for step in range(num_steps) for each in ids(refill_problems(small, config, step, 1, 1, {"0"}))
    )
    assert taken["0"] == 0
    for number in "1234":
        assert abs(taken[number] - num_steps / 4) < 5 * math.sqrt(num_steps * 3 / 16)


def test_a_priority_is_the_spread_of_the_last_group(task):
    problems = numbered(task, 6).train
    rewards = torch.tensor(
        [
            [0.0, 1.0, 0.0, 1.0],  # variance 1 / 3
            [1.0, 1.0, 1.0, 1.0],
            [NAN, NAN, NAN, NAN],
            [NAN, 0.0, NAN, 2.0],  # variance 2
            [NAN, NAN, NAN, 1.0],
        ]
    )
    old = {"1": 0.7, "2": 0.4, "5": 0.2}
    new = updated_priorities(old, problems[:5], rewards)
    assert new == pytest.approx(
        {"0": math.sqrt(1 / 3) + 0.05, "1": 0.05, "2": 0.4, "3": math.sqrt(2) + 0.05, "5": 0.2}, rel=1e-6
    )
    assert old == {"1": 0.7, "2": 0.4, "5": 0.2}
    assert all(type(value) is float for value in new.values())


def test_of_several_groups_of_a_problem_the_last_with_scores_counts(task):
    problem = numbered(task, 1).train[0]
    new = updated_priorities({}, [problem] * 3, torch.tensor([[1.0, 1.0], [0.0, 1.0], [NAN, NAN]]))
    assert new == pytest.approx({"0": math.sqrt(0.5) + 0.05})


def test_groups_of_one_completion_set_no_priority(task):
    problems = numbered(task, 2).train
    assert updated_priorities({"1": 0.3}, problems, torch.tensor([[1.0], [0.0]])) == {"1": 0.3}
