"""What a step learns from: prompts sampled, completions scored, groups without a signal replaced."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_core.advantages import dead_groups
from grpo_core.config import RolloutConfig, TrainConfig
from grpo_core.policy import Policy
from grpo_core.prompt_order import refill_problems
from grpo_core.ranks import Ranks
from grpo_core.rollouts import Rollouts, concatenate, sample_groups
from grpo_core.scoring import Score, decode_completions, score_completions
from grpo_core.seeds import generator
from grpo_core.shaping import shaped_rewards
from grpo_core.tasks import Completion, Problem, Task


@dataclass(frozen=True)
class Collection:
    """One rank's groups of a step, all that were sampled; rows of one group are neighbours."""

    problems: list[Problem]
    """One a group."""
    rollouts: Rollouts
    completions: list[Completion]
    scores: list[Score]
    rewards: Tensor
    """[num_groups, group_size] float64, after shaping; NaN for a completion without a score."""
    used: Tensor
    """[num_groups], True for groups that the step learns from."""
    num_refills: int = 0
    """Times that groups were sampled in the place of some without a signal."""

    @property
    def group_size(self) -> int:
        return self.rewards.shape[1]

    def rows_of(self, groups: Tensor) -> Tensor:
        """Rows of the completions of `groups` (indices), in order."""
        rows = groups.unsqueeze(1) * self.group_size + torch.arange(self.group_size)
        return rows.flatten()


def collect(
    policy: Policy,
    task: Task,
    config: TrainConfig,
    rollout: RolloutConfig,
    ranks: Ranks,
    problems: list[Problem],
    step: int,
) -> Collection:
    """This rank's part of the groups on `problems`, which all ranks hold, sampled under `rollout` and scored.

    With `dynamic_sampling` (Yu et al. 2025, arXiv:2503.14476) groups of equal task rewards are not used, and other
    problems are sampled in their place, at most `max_refills` times; what is missing then makes the step smaller.
    """
    algorithm = config.algorithm
    sampled = _sample(policy, task, config, rollout, ranks, ranks.share(problems), step, 0)
    if not algorithm.dynamic_sampling:
        return sampled
    seen = {problem.id for problem in problems}
    wanted = config.prompts_per_rank
    for number in range(1, algorithm.max_refills + 1):
        # Every rank samples as many as the one that lacks most, so that all do the same number of rounds.
        missing = int(ranks.largest({"missing": float(wanted - _live(sampled).sum())})["missing"])
        if missing <= 0:
            break
        others = refill_problems(task, config, step, number, missing * ranks.size, seen)
        seen |= {problem.id for problem in others}
        more = _sample(policy, task, config, rollout, ranks, ranks.share(others), step, number)
        sampled = _joined(sampled, more, policy.pad_id, number)
    live = _live(sampled)
    return replace(sampled, used=live & (live.cumsum(0) <= wanted))


def _live(sampled: Collection) -> Tensor:
    """[num_groups], True where the task's own rewards differ: lengths alone, once charged for, are no signal."""
    rewards = torch.tensor([score.reward for score in sampled.scores], dtype=torch.float64)
    return ~dead_groups(rewards.view_as(sampled.rewards))


def _sample(
    policy: Policy,
    task: Task,
    config: TrainConfig,
    rollout: RolloutConfig,
    ranks: Ranks,
    problems: list[Problem],
    step: int,
    number: int,
) -> Collection:
    size = config.algorithm.group_size
    with ranks.together():
        prompts = [policy.encode_prompt(task.prompt(problem)) for problem in problems]
        purpose = (config.seed, "rollout", step, ranks.rank, *((number,) if number else ()))
        draws = generator(policy.model.device, *purpose)
        rollouts = sample_groups(policy, prompts, size, rollout, generator=draws)
        completions = decode_completions(policy, rollouts)
        asked = [problem for problem in problems for _ in range(size)]
        scores = score_completions(task, asked, completions)
        lengths = [completion.num_tokens for completion in completions]
        shaped = shaped_rewards([score.reward for score in scores], lengths, config)
    rewards = torch.tensor(shaped, dtype=torch.float64).view(-1, size)
    return Collection(problems, rollouts, completions, scores, rewards, torch.ones(len(problems), dtype=torch.bool))


def _joined(first: Collection, second: Collection, pad_id: int, num_refills: int) -> Collection:
    return Collection(
        first.problems + second.problems,
        concatenate([first.rollouts, second.rollouts], pad_id),
        first.completions + second.completions,
        first.scores + second.scores,
        torch.cat([first.rewards, second.rewards]),
        torch.cat([first.used, second.used]),
        num_refills,
    )
