"""Rewards of sampled completions. A completion whose score can't be had is outside its group, never a zero."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from grpo_core.policy import Policy
from grpo_core.rollouts import Rollouts
from grpo_core.tasks import Completion, Problem, Task


@dataclass(frozen=True)
class Score:
    reward: float
    """Weighted sum of the parts; NaN for a completion without a score."""
    parts: dict[str, float] = field(default_factory=dict)
    fault: str | None = None
    """Why there is no score."""


def decode_completions(policy: Policy, rollouts: Rollouts) -> list[Completion]:
    """The B completions of `rollouts` as text."""
    ids, lengths, ended = rollouts.completion_ids.tolist(), rollouts.lengths.tolist(), rollouts.ended.tolist()
    return [
        Completion(policy.decode(row[:length]), closed, length)
        for row, length, closed in zip(ids, lengths, ended, strict=True)
    ]


def score_completions(task: Task, problems: Sequence[Problem], completions: Sequence[Completion]) -> list[Score]:
    """Scores of `completions`, each for the problem at its own place in `problems`."""
    return [score_completion(task, problem, each) for problem, each in zip(problems, completions, strict=True)]


def score_completion(task: Task, problem: Problem, completion: Completion) -> Score:
    """The score of one completion; a task that raises or gives no number leaves it without one, with the reason."""
    try:
        parts = task.score(problem, completion)
        reward = task.reward(parts)
    except Exception as error:  # whatever a task's own code raises costs one completion, not the run
        return Score(math.nan, fault=f"{task.name} could not score {problem.id}: {type(error).__name__}: {error}")
    if not math.isfinite(reward):
        return Score(math.nan, dict(parts), f"{task.name} gave {problem.id} the reward {reward}, not a finite number")
    return Score(reward, dict(parts))
