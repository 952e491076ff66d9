"""Groups of similar prompts: bounds kept for any texts, clusters found, equal texts together."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_core.config import legal_group_sizes
from grpo_core.similarity import best_cuts, similar_groups

from .conftest import small_config

EGGS = "Ann has {} eggs and buys {} more eggs. How many eggs does she have?"
TRAIN = "A train drives {} km in {} hours. What is its speed?"
SQUARE = "Find the area of the square whose sides measure {} by {} metres."


@st.composite
def texts_and_bounds(draw):
    words = st.sampled_from(["", "a", "b c", "b d", "7", "8", "?", "Ä ö", "e f g", "e f h"])
    texts = draw(st.lists(words, min_size=1, max_size=40))
    completions = draw(st.integers(1, 9))
    fewest = draw(st.integers(1, len(texts)))
    most = draw(st.integers(2 * fewest - 1, 2 * fewest + 10))
    # Any bounds in completions that mean these bounds in texts.
    smallest = fewest * completions - draw(st.integers(0, completions - 1))
    largest = most * completions + draw(st.integers(0, completions - 1))
    return texts, completions, smallest, largest


@settings(deadline=None, max_examples=100)
@given(texts_and_bounds())
def test_every_text_is_in_one_group_within_the_bounds(case):
    texts, completions, smallest, largest = case
    groups = similar_groups(*case)
    assert sorted(index for group in groups for index in group) == list(range(len(texts)))
    assert all(smallest <= len(group) * completions <= largest for group in groups)
    assert groups == similar_groups(*case)
    assert groups == sorted(map(sorted, groups))


@pytest.mark.parametrize("order", [1, -1])
def test_texts_of_one_template_are_one_group(order):
    texts = [template.format(3 + number, 40 * number + 2) for number in range(4) for template in (EGGS, TRAIN, SQUARE)][
        ::order
    ]
    groups = similar_groups(texts, 8, 16, 64)
    assert groups == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_texts_more_alike_than_most_stay_together():
    """However small the groups may be: each of these texts differs from every other."""
    templates = (
        "{} has {} eggs and buys more eggs",
        "A train drives from {} to {} in one hour",
        "Find the area of {} square in {} park",
    )
    fillings = [("Ann", "red"), ("Bob", "blue"), ("Cid", "small"), ("Dora", "old")]
    texts = [template.format(*filling) for filling in fillings for template in templates]
    assert similar_groups(texts, 8, 8, 64) == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_texts_all_unlike_make_as_few_groups_as_the_bounds_allow():
    assert similar_groups(["a", "b", "c", "d"], 1, 1, 4) == [[0, 1, 2, 3]]


def test_a_chain_of_texts_is_cut_where_its_ends_have_nothing_in_common():
    """Each is like the next one; only with average linkage are the clusters at both ends far apart."""
    chain = ["a b c", "b c d", "c d e", "d e f", "e f g", "f g h"]
    assert similar_groups(chain, 1, 1, 6) == [[0, 1], [2, 3], [4, 5]]


def test_a_text_unlike_all_others_joins_a_group_where_it_would_be_too_few():
    texts = [EGGS.format(1, 2), EGGS.format(3, 4), TRAIN.format(5, 6), TRAIN.format(7, 8), "Zebras?"]
    alone = similar_groups(texts, 4, 4, 16)
    assert [4] in alone
    joined = similar_groups(texts, 4, 8, 16)
    assert sorted(map(len, joined)) == [2, 3]
    assert {0, 1} <= set(joined[0]) and any({2, 3} <= set(group) for group in joined)


def test_equal_texts_stay_together_where_the_bounds_allow():
    texts = [EGGS.format(1, 2), TRAIN.format(3, 4)] * 4
    assert similar_groups(texts, 2, 2, 8) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert sorted(map(len, similar_groups(texts, 2, 2, 4))) == [2, 2, 2, 2]


def test_equal_texts_are_not_parted_for_the_sake_of_an_unlike_one():
    """Groups of two or three: the pink text is more like the blue ones than like the last, but goes with that."""
    texts = ["red green pink", *["red green blue"] * 3, "tall"]
    assert similar_groups(texts, 1, 2, 3) == [[0, 4], [1, 2, 3]]


@pytest.mark.parametrize("text", ["", "!!!", "the same question"])
def test_texts_all_equal_make_as_few_groups_as_the_bounds_allow(text):
    assert similar_groups([text] * 4, 2, 2, 8) == [[0, 1, 2, 3]]
    assert len(similar_groups([text] * 9, 2, 4, 8)) == 3


def test_a_single_text_is_a_group():
    assert similar_groups(["alone"], 8, 8, 16) == [[0]]


def test_case_and_numbers_make_no_difference():
    texts = ["Add 3 and 4", "Name a bird", "ADD 50 AND 611", "name a BIRD"]
    assert similar_groups(texts, 1, 1, 4) == [[0, 2], [1, 3]]


def best_gain(gains, fewest, most):
    """The largest gain of any cuts, by trying all."""
    size = len(gains)
    totals = []
    for count in range(size):
        for inner in combinations(range(1, size), count):
            starts = [0, *inner]
            lengths = [end - start for start, end in zip(starts, [*inner, size], strict=True)]
            if all(fewest <= length <= most for length in lengths):
                totals.append(sum(gains[start] for start in starts))
    return max(totals)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_the_cuts_are_the_best_there_are(data):
    gains = data.draw(st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=9))
    fewest = data.draw(st.integers(1, len(gains)))
    most = data.draw(st.integers(2 * fewest - 1, 2 * fewest + 5))
    starts = best_cuts(gains, fewest, most)
    lengths = [end - start for start, end in zip(starts, [*starts[1:], len(gains)], strict=True)]
    assert starts[0] == 0 and all(fewest <= length <= most for length in lengths)
    assert sum(gains[start] for start in starts) == best_gain(gains, fewest, most)


@pytest.mark.parametrize(("smallest", "largest"), [(2, 2), (4, 7), (5, 12), (8, 64), (16, 16), (16, 31)])
def test_bounds_that_a_config_allows_can_be_kept(smallest, largest):
    num_kept = 0
    for group_size in legal_group_sizes(48, 1):
        bounds = {"min_similar_group": smallest, "max_similar_group": largest, "group_size": group_size}
        try:
            small_config(algorithm={**bounds, "grouping": "similarity"}, rollout={"completions_per_step": 48})
        except ValueError as error:
            assert "can't be cut into groups" in str(error)
            continue
        texts = [f"{'abc'[number % 3]} {'vw'[number % 2]}" for number in range(48 // group_size)]
        groups = similar_groups(texts, group_size, smallest, largest)
        assert all(smallest <= len(group) * group_size <= largest for group in groups)
        num_kept += 1
    assert num_kept > 0
