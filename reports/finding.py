"""What one row of the diagnosis says."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A symptom in the records, its likely cause, and what to change."""

    symptom: str
    cause: str
    change: str
