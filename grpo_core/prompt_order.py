"""Which training problems a step samples: each once an epoch, or those more often whose rewards differ most."""

from collections.abc import Mapping, Sequence
from itertools import cycle, islice

import torch
from torch import Tensor

from grpo_core.config import TrainConfig
from grpo_core.seeds import generator, shuffled
from grpo_core.tasks import Problem, Task

UNSEEN_PRIORITY = 1.0
"""Priority of a problem without a group so far."""
PRIORITY_FLOOR = 0.05
"""Added to every spread, so that a problem whose rewards were all equal is drawn again some time."""


def problems_of_step(task: Task, config: TrainConfig, step: int, priorities: Mapping[str, float] = {}) -> list[Problem]:
    """The training problems of `step` 1, 2, … over all ranks, the same on each and after a resume.

    With `rollout.priority_exponent` 0 each comes once an epoch, in an order drawn by `config.seed`. Above it they are
    drawn without replacement, problem i with a probability proportional to `priorities[i.id] ** priority_exponent`
    (Schaul et al. 2015, arXiv:1511.05952); one without a priority has `UNSEEN_PRIORITY`, or the largest of
    `priorities` if that is more. A step of more prompts than there are problems takes all of them before any again.
    """
    num_prompts = config.rollout.completions_per_step // config.algorithm.group_size
    if config.rollout.priority_exponent > 0:
        return _by_priority(task.train, config, step, priorities, num_prompts)
    problems, order, drawn_epoch = [], [], -1
    for place in range((step - 1) * num_prompts, step * num_prompts):
        epoch, index = divmod(place, len(task.train))
        if epoch != drawn_epoch:
            order, drawn_epoch = shuffled(len(task.train), config.seed, "epoch", epoch), epoch
        problems.append(task.train[order[index]])
    return problems


def _by_priority(
    problems: Sequence[Problem], config: TrainConfig, step: int, priorities: Mapping[str, float], num_draws: int
) -> list[Problem]:
    unseen = max([UNSEEN_PRIORITY, *priorities.values()])
    given = [priorities.get(problem.id, unseen) for problem in problems]
    weights = torch.tensor(given, dtype=torch.float64) ** config.rollout.priority_exponent
    draws = generator(torch.device("cpu"), config.seed, "priority", step)
    drawn: list[Problem] = []
    while len(drawn) < num_draws:
        # Arrival times of rates `weights`: in this order they are draws without replacement, as by the Gumbel top-k.
        times = torch.empty_like(weights).exponential_(generator=draws) / weights
        first = times.topk(min(num_draws - len(drawn), len(problems)), largest=False).indices
        drawn += [problems[place] for place in first.tolist()]
    return drawn


def refill_problems(
    task: Task, config: TrainConfig, step: int, round_number: int, num_problems: int, exclude: set[str]
) -> list[Problem]:
    """`num_problems` training problems whose ids are not in `exclude`, for refill `round_number` 1, 2, … of `step`.

    All are equally likely, without replacement. Where too few are left, excluded ones follow, then all again.
    """
    draws = generator(torch.device("cpu"), config.seed, "refill", step, round_number)
    order = torch.randperm(len(task.train), generator=draws).tolist()
    order.sort(key=lambda place: task.train[place].id in exclude)
    return [task.train[place] for place in islice(cycle(order), num_problems)]


def updated_priorities(
    priorities: Mapping[str, float], problems: Sequence[Problem], rewards: Tensor
) -> dict[str, float]:
    """`priorities` with those of `problems` renewed by their groups' `rewards` `[num_groups, G]`, NaN where unscored.

    The priority is the spread of the group's rewards, their sample standard deviation (n - 1), plus `PRIORITY_FLOOR`.
    A group of fewer than two scored completions leaves the old one; of a problem's several groups the last counts.
    """
    rewards = rewards.double()
    counts = rewards.isfinite().sum(dim=1)
    errors = rewards - rewards.nanmean(dim=1, keepdim=True)
    spreads = (errors.square().nansum(dim=1) / (counts - 1).clamp(min=1)).sqrt() + PRIORITY_FLOOR
    groups = zip(problems, spreads.tolist(), counts.tolist(), strict=True)
    return {**priorities, **{problem.id: spread for problem, spread, count in groups if count >= 2}}
