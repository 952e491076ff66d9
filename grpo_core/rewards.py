"""The numeric answer checker: finds the number a text gives as its answer, and compares two of them exactly.

Both functions take any text in time linear in its length and never raise.
"""

import re
from decimal import Decimal
from fractions import Fraction

Number = str | int | float | Decimal | Fraction | None

MAX_NUMBER_CHARS = 500  # longer digit strings are a policy that got stuck, not an answer
MAX_EXPONENT = 500  # 1e999999999 is a few characters, but does not fit in memory as an exact number

_PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_NUMBER = re.compile(
    rf"(?:(?P<whole>[0-9]{{1,9}})[ ](?=[0-9]{{1,9}}/[0-9]))?"
    rf"(?P<value>{_PLAIN})(?:[eE](?P<exponent>[+-]?[0-9]+)\b)?(?:[ ]?/[ ]?(?P<divisor>{_PLAIN}))?"
)
_PHRASE = re.compile(r"^[ \t*]*(?-i:A)[ \t*]*:|\banswer[*\s]{0,3}(?:is\b|[:=])", re.IGNORECASE | re.MULTILINE)
_FRACTION = re.compile(r"\\[dt]?frac[ ]?\{[ ]?([0-9]{1,20})[ ]?\}[ ]?\{[ ]?([0-9]{1,20})[ ]?\}")
_SIGNS = "-\u2212\u2013\uff0d"  # hyphen, minus, en dash, full-width hyphen
_CURRENCIES = "$€£¥\\"
_OPERATION = re.compile(rf"[0-9)A-Za-z%][ ]*[+*/\u00d7\u00f7{re.escape(_SIGNS)}]")


def extract_number(text: str) -> Fraction | None:
    r"""The number that `text` gives as its final answer, exact; None where it gives none.

    Looked for in this order: after the last `####`, and nowhere else if there is one; likewise in the last `\boxed{}`;
    after the last `answer is`, `Answer:` or `A:` if a number follows; the last number of the text. Currency and percent
    signs, thousands separators, units and closing punctuation are passed over; `1/2` and `2 1/2` are fractions.
    """
    if "####" in text:
        return _first_number(text.rpartition("####")[2])
    if "\\boxed" in text:
        return _first_number(_braced(text.rpartition("\\boxed")[2]))
    phrases = list(_PHRASE.finditer(text))
    if phrases and (number := _first_number(text[phrases[-1].end() :])) is not None:
        return number
    *_, last = [None, *_NUMBER.finditer(text)]
    return None if last is None else _value(text, last)


def numbers_match(a: Number, b: Number) -> bool:
    """Whether both are the same number; texts are read by `extract_number`, and None matches nothing."""
    left, right = _as_number(a), _as_number(b)
    return left is not None and left == right


def _as_number(given: Number) -> Fraction | None:
    if given is None or isinstance(given, Fraction):
        return given
    return extract_number(str(given))


def _first_number(answer: str) -> Fraction | None:
    """The number that the first line of `answer` gives; of a calculation `3 * 6 = 18` it is the result."""
    line = answer.lstrip().partition("\n")[0]
    line = line.replace("{,}", ",").replace("\\,", "").replace("\\!", "")
    line = _FRACTION.sub(r" \1/\2", line)
    claim = line.partition(". ")[0].partition(" (")[0]
    calculation, equals, result = claim.rpartition("=")
    if equals and _OPERATION.search(calculation) and _NUMBER.search(result):
        line = result
    line = line.lstrip(" *$")
    if line[:1] and line[0] in _SIGNS:
        line = "-" + line[1:].lstrip()
    found = _NUMBER.search(line)
    return None if found is None else _value(line, found)


def _braced(text: str) -> str:
    """What stands in the braces that open `text`, nested ones included; all of `text` where none open or close."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0 and not character.isspace():
            return text[:place].lstrip()[1:] if character == "}" else text
    return text


def _value(text: str, found: re.Match[str]) -> Fraction | None:
    """The signed value of a match of `_NUMBER` in `text`; None where it is too large to be meant, or divides by 0."""
    if len(found.group()) > MAX_NUMBER_CHARS or abs(int(found["exponent"] or 0)) > MAX_EXPONENT:
        return None
    value = Fraction(found["value"].replace(",", "")) * Fraction(10) ** int(found["exponent"] or 0)
    if found["divisor"] is not None:
        divisor = Fraction(found["divisor"].replace(",", ""))
        if divisor == 0:
            return None
        value /= divisor
    value += int(found["whole"] or 0)
    return -value if _is_negative(text[max(0, found.start() - 8) : found.start()]) else value


def _is_negative(before: str) -> bool:
    """Whether the characters before a number end in a sign, and not in the minus of a subtraction or a range."""
    before = before.rstrip(_CURRENCIES)
    if not before or before[-1] not in _SIGNS:
        return False
    minuend = before[:-1].rstrip(" ")
    touches = minuend == before[:-1]  # `is -5` is negative, `pre-5` and `8 -5` are not
    return not (minuend and (minuend[-1] in "0123456789)]}%" or (touches and minuend[-1].isalpha())))
