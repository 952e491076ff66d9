"""What every task is made of: problems, completions, and the task that joins them."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One question with its right answer."""

    id: str
    question: str
    answer: str
    solution: str = ""
    """A worked solution that ends in the answer, where the source has one."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    """What a policy wrote for one prompt."""

    text: str
    ended: bool
    """Whether an end-of-sequence token closed it; False means it was cut off."""
    num_tokens: int


@dataclass(frozen=True)
class Task:
    """Disjoint problems, how to ask them, and how to score what comes back."""

    name: str
    train: Sequence[Problem]
    validation: Sequence[Problem]
    test: Sequence[Problem]
    prompt: Callable[[Problem], str]
    """The content of the user's turn; the policy adds its chat template if it has one."""
    warm_start_completion: Callable[[Problem, random.Random], str]
    """A worked solution to imitate, without an end-of-sequence token; phrased by the generator given."""
    score: Callable[[Problem, Completion], dict[str, float]]
    """Named reward parts; `correct` is 1.0 or 0.0 and is what `eval/accuracy` averages."""
    reward_weights: Mapping[str, float]
    """The weight of every part that `score` gives, also of those that weigh 0."""
    words: tuple[str, ...] | None = None
    """Every word that prompts and worked solutions use, special tokens apart; None where there is no end of them."""

    def reward(self, parts: Mapping[str, float]) -> float:
        """The weighted sum of the parts of one completion; a part of weight 0 never enters, not even as NaN."""
        weighted = [weight * parts[name] for name, weight in self.reward_weights.items() if weight]
        return float(sum(weighted))
