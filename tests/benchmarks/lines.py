"""What a benchmark has to reach: one line of the table for each figure with a limit."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """A measured figure beside its limit."""

    what: str
    value: float
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "x"
    """Unit of the value; x for a ratio."""

    @property
    def is_met(self) -> bool:
        """Whether the value is within the limit; a NaN never is."""
        above = self.at_least is None or self.value >= self.at_least
        return above and (self.at_most is None or self.value <= self.at_most)

    def text(self) -> str:
        """The line as it is printed."""
        limit = f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"
        verdict = "met" if self.is_met else "NOT MET"
        return f"{self.what:<64}{self.value:>10.3f} {self.unit:<4}{limit:>16}  {verdict}"
