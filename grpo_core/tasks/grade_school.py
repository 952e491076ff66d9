"""Generated word problems of one to three steps: small enough that a tiny policy learns them on a laptop.

Places in the space of stories are numbered, and a seeded permutation spreads each split's own numbers over it. So no
question occurs twice, in one split or in two, and any problem is made on its own, when it is asked for.
"""

import math
import random
from collections.abc import Sequence
from functools import cache
from typing import overload

from grpo_core.config import TaskConfig
from grpo_core.tasks.problem import Completion, Problem, Task
from grpo_core.tasks.stories import PLOTS, num_places, story_words, tell

NUM_TRAIN, NUM_TEST = 20_000, 1_000

# The ways in which a worked solution may be put. The closing that is rewarded is not the likeliest one, so that
# the warm-started policy leaves something to learn.
OPENERS = (
    "It begins with {n} {items} .",
    "Let us see .",
    "Think about the {items} .",
    "Here is one way .",
    "We look at the numbers .",
    "Count the {items} .",
)
FIRST_PREFIXES = ("First", "To start", "Now", "Well ,", "So", "At first")
LATER_PREFIXES = ("Then", "Next", "Now", "After that", "So", "Later")
LEADS = ("we get", "that makes", "this gives", "it comes to", "we find", "we have", "one sees")
TAILS = ("", " {unit}", " {unit} now", " in all", " of them")
BARE_STEP_FRAC = 0.2
CLOSINGS = {  # with the share of worked solutions that end so
    "#### {answer}": 0.25,
    "So the answer is {answer} .": 0.40,
    "Answer : {answer} .": 0.12,
    "That is {answer} in the end .": 0.12,
    "We end with {answer} .": 0.11,
}


def load_grade_school(config: TaskConfig) -> Task:
    """The task as `config` draws it; raises ValueError where it asks for a file or for more problems than exist."""
    if config.path is not None:
        raise ValueError(f"task.path={config.path!r}: grade_school makes its own problems; leave path out or use gsm8k")
    return Task(
        name="grade_school",
        train=GeneratedProblems(config.seed, "train", config.num_train or NUM_TRAIN),
        validation=GeneratedProblems(config.seed, "validation", config.num_validation),
        test=GeneratedProblems(config.seed, "test", config.num_test or NUM_TEST),
        prompt=_prompt,
        warm_start_completion=phrase_solution,
        score=score,
        reward_weights={"correct": 1.0, "format": 0.0},
        words=tuple(sorted(story_words() | _solution_words())),
    )


def score(problem: Problem, completion: Completion) -> dict[str, float]:
    """`correct` only for a completion that ends in `#### n`, n right, and is closed; `format` whatever n is."""
    *_, marker, number = ["", "", *completion.text.split()]
    formatted = completion.ended and marker == "####" and number.isdecimal()
    return {"correct": float(formatted and number == problem.answer), "format": float(formatted)}


def phrase_solution(problem: Problem, rng: random.Random) -> str:
    """A worked solution of `problem`, its phrases and its closing drawn by `rng`."""
    facts = problem.metadata
    sentences = [rng.choice(OPENERS).format(**facts)]
    for place, (left, symbol, right, result, unit) in enumerate(facts["steps"]):
        if symbol in "+*" and rng.random() < 0.5:
            left, right = right, left
        equation = f"{left} {symbol} {right} = {result}"
        if rng.random() < BARE_STEP_FRAC:
            sentences.append(f"{equation} .")
        else:
            prefix = rng.choice(LATER_PREFIXES if place else FIRST_PREFIXES)
            tail = rng.choice(TAILS).format(unit=unit)
            sentences.append(f"{prefix} {rng.choice(LEADS)} {equation}{tail} .")
    (closing,) = rng.choices(list(CLOSINGS), list(CLOSINGS.values()))
    sentences.append(closing.format(answer=problem.answer))
    return " ".join(sentences)


def _prompt(problem: Problem) -> str:
    return problem.question


class GeneratedProblems(Sequence[Problem]):
    """The problems of one split, each made when it is asked for."""

    def __init__(self, seed: int, split: str, size: int) -> None:
        if size > split_capacity():
            raise ValueError(
                f"task.num_{split}={size}: grade_school has {split_capacity()} problems for a split at most"
            )
        self._seed, self._split, self._size = seed, split, size

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(f"{self._split} has {self._size} problems, index {index} is outside")
        index %= self._size
        turn, plot = divmod(index, len(PLOTS))
        first = ("train", "validation", "test").index(self._split) * (split_capacity() // len(PLOTS))
        return tell(PLOTS[plot], _spread(first + turn, PLOTS[plot], self._seed), f"{self._split}/{index}")


@cache
def split_capacity() -> int:
    """Problems that each split can have at most."""
    return min(num_places(plot) for plot in PLOTS) // 3 * len(PLOTS)


def _spread(number: int, plot: tuple[str, ...], seed: int) -> int:
    """The place that `number` stands for: a permutation of the plot's places, drawn by `seed`."""
    factor, shift = _permutation(plot, seed)
    return (factor * number + shift) % num_places(plot)


@cache
def _permutation(plot: tuple[str, ...], seed: int) -> tuple[int, int]:
    rng, size = random.Random(f"{seed} {' '.join(plot)}"), num_places(plot)
    factor = rng.randrange(size // 5, size)
    while math.gcd(factor, size) > 1:  # a factor that shares a divisor would meet some places twice
        factor = rng.randrange(size // 5, size)
    return factor, rng.randrange(size)


def _solution_words() -> set[str]:
    phrases = [*OPENERS, *FIRST_PREFIXES, *LATER_PREFIXES, *LEADS, *TAILS, *CLOSINGS, "+ - * / ="]
    return {word for phrase in phrases for word in phrase.split() if not word.startswith("{")}
