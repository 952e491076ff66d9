"""A measured mean with its standard error, and what may be said from it."""

import math
from dataclasses import dataclass

Z95 = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error; `se` is None where none was recorded, and then there is no interval."""

    mean: float
    se: float | None = None

    @property
    def half_width(self) -> float:
        """Half of the 95% interval (normal approximation), 0 without a standard error."""
        return Z95 * self.se if self.se is not None else 0.0

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    def overlaps(self, other: "Estimate") -> bool:
        """True when the two 95% intervals share a value, so that neither can be called the better one."""
        return self.low <= other.high and other.low <= self.high

    def minus(self, other: "Estimate") -> "Estimate":
        """The difference of two estimates taken as independent; without an interval unless both have one."""
        se = math.hypot(self.se, other.se) if self.se is not None and other.se is not None else None
        return Estimate(self.mean - other.mean, se)

    @property
    def excludes_zero(self) -> bool:
        """True when the 95% interval lies on one side of 0."""
        return self.se is not None and (self.low > 0 or self.high < 0)

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.half_width:.2f}" if self.se is not None else f"{self.mean:.2f}"

    @property
    def with_interval(self) -> str:
        """`0.35 [0.29, 0.41]`, the form for differences."""
        return f"{self.mean:+.2f} [{self.low:.2f}, {self.high:.2f}]" if self.se is not None else f"{self.mean:+.2f}"


def measured(mean: float | None, se: float | None = None) -> Estimate | None:
    """The estimate that a record tells, None without a finite mean; a standard error that is not finite is none."""
    if mean is None or not math.isfinite(mean):
        return None
    return Estimate(mean, se if se is not None and math.isfinite(se) else None)
