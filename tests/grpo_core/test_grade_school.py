import random
import re
from collections import Counter

import pytest

from grpo_core.config import TaskConfig
from grpo_core.tasks import Completion, Problem, load_task
from grpo_core.tasks.grade_school import split_capacity
from grpo_core.tasks.stories import EVENTS, LARGEST_NUMBER, OPENINGS, PLOTS, num_places, tell

TASK = load_task(TaskConfig())
SPLITS = {"train": TASK.train, "validation": TASK.validation, "test": TASK.test}
OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b}


def equations(text: str) -> list[tuple[int, str, int, int]]:
    found = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", text)
    return [(int(left), symbol, int(right), int(result)) for left, symbol, right, result in found]


def test_sizes() -> None:
    assert {name: len(split) for name, split in SPLITS.items()} == {"train": 20_000, "validation": 512, "test": 1_000}
    small = load_task(TaskConfig(num_train=5, num_validation=3, num_test=4))
    assert (len(small.train), len(small.validation), len(small.test)) == (5, 3, 4)


def test_no_question_occurs_twice_in_all_splits_together() -> None:
    questions = [problem.question for split in SPLITS.values() for problem in split]
    assert len(set(questions)) == len(questions) == 21_512


def test_full_splits_stay_disjoint_under_any_seed() -> None:
    num = split_capacity()
    task = load_task(TaskConfig(seed=11, num_train=num, num_validation=num, num_test=num))
    questions = {problem.question for split in (task.train, task.validation, task.test) for problem in split}
    assert len(questions) == 3 * num


def test_every_place_of_a_plot_is_another_question() -> None:
    plot = ("has", "gives")
    assert len({tell(plot, place, "").question for place in range(num_places(plot))}) == num_places(plot) == 181_104


def test_problems_depend_on_the_seed_and_on_nothing_else() -> None:
    again, other = load_task(TaskConfig(num_train=300)), load_task(TaskConfig(seed=1))
    assert list(again.train) == list(TASK.train[:300])
    assert list(again.validation) == list(TASK.validation)
    assert not {p.question for p in other.validation} & {p.question for p in TASK.validation[:20]}


def test_a_split_is_a_sequence() -> None:
    assert TASK.train[-1] == TASK.train[19_999]
    assert [p.id for p in TASK.test[2:6:2]] == ["test/2", "test/4"]
    with pytest.raises(IndexError, match="validation has 512 problems, index 512 is outside"):
        TASK.validation[512]


def test_a_told_problem() -> None:
    problem = tell(("packs", "fills", "gives"), 5, "x")
    assert problem.question == (
        "Finn packs 2 apples into each box . He fills 2 boxes in this way . He gives 2 apples to Gina . "
        "How many apples does he have now ?"
    )
    assert problem.solution == "2 * 2 = 4 . 4 - 2 = 2 . #### 2"
    assert problem.answer == "2"


def test_every_problem_is_solved_by_its_solution() -> None:
    for split in SPLITS.values():
        for problem in split[:1000]:
            steps = equations(problem.solution)
            numbers = [int(word) for word in problem.question.split() if word.isdecimal()]
            assert 1 <= len(steps) <= 3
            assert numbers == [steps[0][0], *(right for _, _, right, _ in steps)]
            for left, symbol, right, result in steps:
                assert OPERATIONS[symbol](left, right) == result
                assert 0 <= result <= LARGEST_NUMBER
            assert [left for left, *_ in steps[1:]] == [result for *_, result in steps[:-1]]
            assert problem.solution.endswith(f"#### {problem.answer}")
            assert steps[-1][-1] == int(problem.answer)


def test_each_plot_is_used_and_known() -> None:
    assert {len(plot) for plot in PLOTS} == {2, 3, 4}
    assert {plot[0] for plot in PLOTS} == set(OPENINGS)
    assert {event for plot in PLOTS for event in plot[1:]} == set(EVENTS)


def test_the_vocabulary_is_closed_and_small() -> None:
    assert TASK.words is not None
    words = set(TASK.words)
    assert list(TASK.words) == sorted(words)
    assert len(words) == 166
    rng = random.Random(0)
    for split in SPLITS.values():
        for i in range(2000):
            problem = split[i % len(split)]
            assert set(TASK.prompt(problem).split(" ")) <= words
            assert set(TASK.warm_start_completion(problem, rng).split(" ")) <= words
    assert words - {str(n) for n in range(61)} <= {
        word
        for problem in TASK.train[:2000]
        for word in f"{problem.question} {TASK.warm_start_completion(problem, rng)}".split()
    }


def test_worked_solutions_are_right_however_they_are_phrased() -> None:
    rng = random.Random(1)
    texts, lengths = set(), []
    for i in range(4000):
        problem = TASK.train[i]
        text = TASK.warm_start_completion(problem, rng)
        steps = equations(text)
        assert len(steps) == len(problem.metadata["steps"])
        for left, symbol, right, result in steps:
            assert OPERATIONS[symbol](left, right) == result
        assert str(steps[-1][-1]) == problem.answer
        assert problem.answer in text.split()[-6:]
        texts.add(re.sub(r"\d+", "n", text))
        lengths.append(len(text.split()))
    assert len(texts) > 3000  # hardly any two are phrased alike
    assert min(lengths) >= 10
    assert max(lengths) <= 56  # with its EOS each fits rollout.max_new_tokens, 64 by default


def test_shares_of_the_closings() -> None:
    rng = random.Random(2)
    shares = Counter(
        re.sub(r"\d+", "n", re.split(r"(?<=\.) ", TASK.warm_start_completion(TASK.train[i], rng))[-1])
        for i in range(4000)
    )
    expected = {
        "#### n": 0.25,
        "So the answer is n .": 0.40,
        "Answer : n .": 0.12,
        "That is n in the end .": 0.12,
        "We end with n .": 0.11,
    }
    assert set(shares) == set(expected)
    for closing, share in expected.items():
        assert shares[closing] / 4000 == pytest.approx(share, abs=0.03)  # over four standard errors


def test_phrasing_is_drawn_by_the_generator_given() -> None:
    problem = TASK.train[30]
    first = TASK.warm_start_completion(problem, random.Random(5))
    assert first == TASK.warm_start_completion(problem, random.Random(5))
    assert first != TASK.warm_start_completion(problem, random.Random(6))


@pytest.mark.parametrize(
    ("text", "ended", "correct", "formatted"),
    [
        ("7 + 12 = 19 . #### 19", True, 1.0, 1.0),
        ("#### 19", True, 1.0, 1.0),
        ("#### 19 ", True, 1.0, 1.0),
        ("7 + 12 = 19 . #### 19", False, 0.0, 0.0),
        ("#### 19 .", True, 0.0, 0.0),
        ("#### 19 apples", True, 0.0, 0.0),
        ("#### 18", True, 0.0, 1.0),
        ("#### 19 #### 18", True, 0.0, 1.0),
        ("#### 019", True, 0.0, 1.0),
        ("#### nineteen", True, 0.0, 0.0),
        ("So the answer is 19 .", True, 0.0, 0.0),
        ("19", True, 0.0, 0.0),
        ("####", True, 0.0, 0.0),
        ("", True, 0.0, 0.0),
        ("", False, 0.0, 0.0),
    ],
)
def test_only_the_exact_closing_counts(text: str, ended: bool, correct: float, formatted: float) -> None:
    problem = Problem(id="x", question="", answer="19")
    parts = TASK.score(problem, Completion(text=text, ended=ended, num_tokens=len(text.split())))
    assert parts == {"correct": correct, "format": formatted}
    assert TASK.reward(parts) == correct


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "data.jsonl"}, "task.path='data.jsonl': grade_school makes its own problems"),
        ({"num_train": 24_697}, "task.num_train=24697: grade_school has 24696 problems for a split at most"),
        ({"num_test": 10**9}, "task.num_test=1000000000: grade_school has 24696 problems"),
    ],
)
def test_what_it_cannot_do_it_says(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load_task(TaskConfig(**given))
