"""What every section of a config is made of: its base class, the types of its numbers."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """Base of every section: frozen, unknown keys forbidden, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def divisors(number: int) -> str:
    """The whole numbers that divide `number`, as text for an error."""
    return ", ".join(str(part) for part in range(1, number + 1) if number % part == 0)
