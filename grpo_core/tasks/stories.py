"""The space of all stories that `grade_school` tells: plots, people, items and numbers, each place in it a problem.

All that sets one place apart from another shows in the question, so different places are different questions.
"""

from dataclasses import dataclass
from functools import cache

from grpo_core.tasks.problem import Problem

LARGEST_NUMBER = 40

PEOPLE = (  # name and the two forms of the pronoun
    ("Ana", "She", "she"),
    ("Ben", "He", "he"),
    ("Cara", "She", "she"),
    ("Dan", "He", "he"),
    ("Eva", "She", "she"),
    ("Finn", "He", "he"),
    ("Gina", "She", "she"),
    ("Hugo", "He", "he"),
    ("Ida", "She", "she"),
    ("Jon", "He", "he"),
    ("Kim", "She", "she"),
    ("Leo", "He", "he"),
)
ITEMS = (
    "apples",
    "beads",
    "books",
    "cards",
    "coins",
    "cookies",
    "eggs",
    "marbles",
    "nuts",
    "pens",
    "rocks",
    "shells",
    "stamps",
    "toys",
)


@dataclass(frozen=True)
class Event:
    """One sentence of a story that changes the quantity by one operation with one number."""

    sentence: str
    symbol: str
    numbers: range
    question: str = "How many {items} does {she} have now ?"
    unit: str = "{items}"


OPENINGS = {  # sentence, numbers
    "has": ("{name} has {n} {items} .", range(4, 21)),
    "packs": ("{name} packs {n} {items} into each box .", range(2, 9)),
    "makes": ("{name} makes {n} {items} every day .", range(2, 9)),
}
EVENTS = {
    "buys": Event("{She} buys {n} more {items} at the market .", "+", range(2, 9)),
    "finds": Event("Then {she} finds {n} more {items} at home .", "+", range(2, 9)),
    "gets": Event("{other} gives {name} {n} more {items} .", "+", range(2, 9)),
    "gives": Event("{She} gives {n} {items} to {other} .", "-", range(2, 9)),
    "loses": Event("{She} loses {n} of them on the way home .", "-", range(2, 9)),
    "fills": Event("{She} fills {n} boxes in this way .", "*", range(2, 6)),
    "repeats": Event("{She} does this for {n} days .", "*", range(2, 6)),
    "shares": Event(
        "{She} shares them equally among {n} friends .", "/", range(2, 6), "How many {items} does each friend get ?"
    ),
    "bags": Event("{She} puts them equally into {n} bags .", "/", range(2, 6), "How many {items} are in each bag ?"),
    "times": Event("{other} has {n} times as many {items} .", "*", range(2, 5), "How many {items} does {other} have ?"),
    "sells": Event(
        "{She} sells all of them for {n} dollars each .",
        "*",
        range(2, 5),
        "How many dollars does {she} get ?",
        "dollars",
    ),
}
PLOTS = (  # an opening and one to three events
    ("has", "buys"),
    ("has", "gives"),
    ("has", "loses"),
    ("has", "times"),
    ("has", "bags"),
    ("packs", "fills"),
    ("makes", "repeats"),
    ("has", "buys", "gives"),
    ("has", "gets", "loses"),
    ("has", "gives", "finds"),
    ("has", "buys", "shares"),
    ("has", "gives", "bags"),
    ("has", "loses", "times"),
    ("has", "loses", "sells"),
    ("packs", "fills", "gives"),
    ("packs", "fills", "shares"),
    ("makes", "repeats", "buys"),
    ("has", "buys", "gives", "shares"),
    ("has", "gets", "loses", "sells"),
    ("packs", "fills", "loses", "finds"),
    ("makes", "repeats", "gives", "bags"),
)


@cache
def num_places(plot: tuple[str, ...]) -> int:
    """Different questions that a plot has."""
    return len(PEOPLE) * _num_others(plot) * len(ITEMS) * len(_number_choices(plot))


def _num_others(plot: tuple[str, ...]) -> int:
    """Choices of a second person: all but the first, or one where the plot names no second."""
    return len(PEOPLE) - 1 if any("{other}" in EVENTS[key].sentence for key in plot[1:]) else 1


@cache
def _number_choices(plot: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """All numbers with which the plot's quantity stays a whole number from 2 to LARGEST_NUMBER."""
    choices: list[tuple[tuple[int, ...], int]] = [((n,), n) for n in OPENINGS[plot[0]][1]]
    for name in plot[1:]:
        event = EVENTS[name]
        choices = [
            ((*numbers, n), result)
            for numbers, quantity in choices
            for n in event.numbers
            if (result := _apply(quantity, event.symbol, n)) and 2 <= result <= LARGEST_NUMBER
        ]
    return tuple(numbers for numbers, _ in choices)


def _apply(quantity: int, symbol: str, n: int) -> int | None:
    """The quantity after one operation; None where a division leaves a rest."""
    if symbol == "/":
        return None if quantity % n else quantity // n
    return {"+": quantity + n, "-": quantity - n, "*": quantity * n}[symbol]


def tell(plot: tuple[str, ...], place: int, problem_id: str) -> Problem:
    """The problem at `place` of a plot, 0 to num_places - 1: a step is (left, symbol, right, result, unit)."""
    place, person = divmod(place, len(PEOPLE))
    place, distance = divmod(place, _num_others(plot))
    numbers_place, item = divmod(place, len(ITEMS))
    quantity, *rest = _number_choices(plot)[numbers_place]
    name, She, she = PEOPLE[person]
    words = {
        "name": name,
        "She": She,
        "she": she,
        "other": PEOPLE[(person + 1 + distance) % len(PEOPLE)][0],
        "items": ITEMS[item],
    }
    story = [OPENINGS[plot[0]][0].format(n=quantity, **words)]
    facts = {"name": name, "items": ITEMS[item], "n": quantity}
    steps = []
    for event, n in zip((EVENTS[key] for key in plot[1:]), rest, strict=True):
        story.append(event.sentence.format(n=n, **words))
        result = _apply(quantity, event.symbol, n)
        assert result is not None
        steps.append((quantity, event.symbol, n, result, event.unit.format(**words)))
        quantity = result
    story.append(EVENTS[plot[-1]].question.format(**words))
    solution = " ".join(f"{left} {symbol} {right} = {result} ." for left, symbol, right, result, _ in steps)
    return Problem(
        id=problem_id,
        question=" ".join(story),
        answer=str(quantity),
        solution=f"{solution} #### {quantity}",
        metadata={**facts, "steps": steps},
    )


def story_words() -> set[str]:
    """Every word that a question can hold, numbers included."""
    sentences = [sentence for sentence, _ in OPENINGS.values()]
    for event in EVENTS.values():
        sentences += [event.sentence, event.question, event.unit]
    sentences += [" ".join(person) for person in PEOPLE] + [*ITEMS]
    words = {word for sentence in sentences for word in sentence.split() if not word.startswith("{")}
    return words | {str(n) for n in range(LARGEST_NUMBER + 1)}
