import json
import os
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.rewards import extract_number, numbers_match

SOLUTIONS = Path(__file__).parents[3] / "shared/data/gsm8k/example_model_solutions.jsonl"


@pytest.mark.parametrize(
    "text",
    [
        "#### 18",
        "#### $18",
        "#### 18.00",
        "#### 18 apples",
        "#### 18.",
        "#### **18**",
        "####18",
        "####\n18",
        "9 * 2 = 19\n#### 17 no, #### 18",
        "#### 3 * 6 = 18",
        "#### 18 = 3 * 6",
        "#### 18 (3 boxes of 6)",
        "The answer is 18.",
        "The answer is: $18. That is 2 more than 16.",
        "The final answer is 25 - 7 = 18.",
        "**Answer:** 18",
        "\\boxed{18}",
        "So \\(x = \\boxed{\\$18.0}\\), in 3 steps.",
        "\\boxed{18\\text{ eggs}}",
        "\\boxed{\\frac{36}{2}}",
        "\\boxed 18",
        "She makes 9 * 2 = $<<9*2=18>>18 every day.\nA: 18",
        "Q: 1 + 1?\nA: 2\nQ: 9 * 2?\nA: 18",
        "She sells 9 for 2 dollars each, that makes 18%.",
        "20-18",
        "20 - 18",
        "between 10\u201318",
        "- 18 apples",
        "the answer is clear now: we count 18",
    ],
)
def test_answer_forms_that_mean_18(text: str) -> None:
    assert extract_number(text) == 18


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 1,234", 1234),
        ("#### $1,234,567.50", Fraction(2469135, 2)),
        ("\\boxed{1{,}234}", 1234),
        ("1,2345", 2345),
        ("2, 3 and 4,5", 5),
        ("#### -3", -3),
        ("#### \u22123", -3),
        ("#### - 3", -3),
        ("#### -$3", -3),
        ("A: $-3", -3),
        ("It is -3 degrees", -3),
        ("x=-3", -3),
        (".50", Fraction(1, 2)),
        ("#### 1/2", Fraction(1, 2)),
        ("It takes 2 1/2 cups", Fraction(5, 2)),
        ("\\boxed{2\\frac{1}{2}}", Fraction(5, 2)),
        ("#### 1e3", 1000),
        ("1.5E-1", Fraction(3, 20)),
    ],
)
def test_values(text: str, number: Fraction) -> None:
    assert extract_number(text) == number


@pytest.mark.parametrize(
    "text",
    ["", "no number", "#### ", "18 #### none", "18 \\boxed{x}", "1/0", "1e999999999", "#### 1E-99999", "9" * 6000],
)
def test_texts_without_an_answer(text: str) -> None:
    assert extract_number(text) is None
    assert not numbers_match(text, text)


def test_numbers_match_compares_exactly_and_takes_any_kind_of_number() -> None:
    assert numbers_match("#### 18.00", 18)
    assert numbers_match("1/3", Fraction(1, 3))
    assert numbers_match(0.1, Decimal("0.1"))
    assert numbers_match(Decimal("1E+5"), "100,000")
    assert not numbers_match("0.333333333333333333", "1/3")
    assert not numbers_match("#### 18", "#### -18")
    assert not numbers_match(None, None)
    assert not numbers_match(float("nan"), float("nan"))
    assert not numbers_match(float("inf"), float("inf"))


def test_the_checker_agrees_with_all_labelled_solutions() -> None:
    if not SOLUTIONS.exists():
        assert "CI" not in os.environ, f"{SOLUTIONS} is missing"
        pytest.skip(f"{SOLUTIONS} is not on this machine")
    disagreements, num_labels = [], 0
    for line in SOLUTIONS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for model in ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification"):
            num_labels += 1
            if numbers_match(row[model]["solution"], row["ground_truth"]) != row[model]["is_correct"]:
                disagreements.append(row[model]["solution"])
    assert num_labels == 5276
    assert disagreements == []


PIECES = [
    "####",
    "\\boxed",
    "{",
    "}",
    "answer is",
    "A:",
    "\n",
    " ",
    "1",
    "234",
    ",",
    ".",
    "-",
    "/",
    "e",
    "=",
    "$",
    "*",
    "\\frac",
]


@settings(deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join)))
def test_any_text_gives_a_number_or_none(text: str) -> None:
    number = extract_number(text)
    assert number is None or isinstance(number, Fraction)
    assert numbers_match(text, text) == (number is not None)


@settings(deadline=None)
@given(st.fractions(max_denominator=10**6).filter(lambda number: abs(number) < 10**9))
def test_every_fraction_is_read_back(number: Fraction) -> None:
    assert extract_number(f"#### {number}") == number


@settings(deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9))
def test_every_amount_is_read_back(amount: Decimal) -> None:
    sign, size = "-" if amount < 0 else "", abs(amount)
    assert extract_number(f"So the answer is {sign}${size:,}.") == Fraction(amount)


@pytest.mark.parametrize(
    "piece", [*PIECES, "1 ", "1,234", "1/", "1e1", "x ", "answer", "\\boxed{", "####1", "A:\n", "=1+", "5 -"]
)
def test_time_is_linear_in_the_length(piece: str) -> None:
    text = piece * (200_000 // len(piece))
    start = time.process_time()
    extract_number(text)
    extract_number("#### 1" + text)
    assert time.process_time() - start < 1.5  # quadratic would be minutes
