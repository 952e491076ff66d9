"""How values, durations and names are written for a reader."""

import html
import math
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

#: Stands where there is no value.
NONE = "\N{EN DASH}"


def value(item: Any) -> str:
    """A setting or a measured value in at most four significant digits; an en dash for none."""
    if item is None:
        return NONE
    if isinstance(item, bool) or not isinstance(item, int | float):
        return str(item)
    if isinstance(item, int):
        return str(item)
    if not math.isfinite(item):
        return "NaN" if math.isnan(item) else ("∞" if item > 0 else "-∞")
    if item == 0:
        return "0"
    if 1e-2 <= abs(item) < 1e5:
        return f"{item:.4g}"
    mantissa, exponent = f"{item:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def duration(seconds: float | None) -> str:
    """`42 s`, `6 min 12 s`, `3 h 05 min`; an en dash for none."""
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def moment(epoch_s: float) -> str:
    """Date and time in UTC, to the minute."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def metric(name: str) -> str:
    """A metric's name in words: `eval/accuracy` is `eval accuracy`."""
    return name.replace("/", " ").replace("_", " ")


def listed(items: Sequence[Any], word: str = "and") -> str:
    """`1, 2 and 3`."""
    texts = [str(item) for item in items]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {word} {texts[-1]}" if texts else ""


def counted(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def chart_text(text: Any, width: int | None = None) -> str:
    """Text from outside for a chart, whose labels Plotly reads as HTML: escaped, and wrapped at `width` characters."""
    lines = textwrap.wrap(str(text), width) if width else [str(text)]
    return "<br>".join(html.escape(line, quote=False) for line in lines)
