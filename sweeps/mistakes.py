"""A person's mistakes as data: where each stands, what it is, and how to put it right."""

from dataclasses import dataclass
from typing import Any

from sweeps.credentials import mask_credentials

#: Stands for the value of a key that is not in the file.
NOTHING: Any = type("Nothing", (), {"__repr__": lambda self: "NOTHING"})()

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One mistake: `key` (dotted path), `line` (1-based, None outside a file), `value`, and `message`, "rule; fix"."""

    key: str
    line: int | None
    value: Any
    message: str
    source: str = ""
    """The file, or the option (`--set`, `--profile`) that brought the value."""

    def __str__(self) -> str:
        subject = self.key if self.value is NOTHING else f"{self.key}={show(self.value)}"
        if self.source.startswith("--"):
            subject = show(self.value) if self.source == f"--{self.key}" else subject
            return mask_credentials(f"{self.source} {subject}: {self.message}")
        place = f"{self.source}:{self.line}" if self.line is not None else self.source
        return mask_credentials(": ".join(part for part in (place, subject, self.message) if part))


@dataclass(frozen=True)
class Mistake:
    """A problem whose place in the file is still to be looked up.

    `reads` are the other keys that its rule compares with; the first in the file gives the line where `path` has none.
    """

    path: Path
    value: Any
    message: str
    reads: tuple[Path, ...] = ()


class ConfigError(ValueError):
    """All that is wrong with a sweep file: `.problems` has a `Problem` for each mistake, the text a line for each."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


def dotted(path: Path) -> str:
    """`("train", "optim", "lr")` as `train.optim.lr`, list places as `values[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def show(value: Any, limit: int = 60) -> str:
    """A value as a person wrote it in YAML, cut to `limit` characters."""
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, str) and value.isprintable() and value and value == value.strip():
        text = value
    elif isinstance(value, list | tuple) and all(isinstance(item, str | int | float | None) for item in value):
        text = f"[{', '.join(show(item) for item in value[:16])}{', …' if len(value) > 16 else ''}]"
    elif isinstance(value, float):
        text = f"{value:.10g}"
    else:
        text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
