"""The legend that all charts share: each entry shows and hides one group of trials everywhere."""

from dataclasses import dataclass

from reports.study_data import Study
from reports.theme import STYLES, LineStyle
from reports.trial_groups import group


@dataclass(frozen=True)
class LegendEntry:
    """One group of trials with how it is drawn."""

    style: LineStyle
    text: str

    @property
    def dash_array(self) -> str:
        """The line's pattern in the words of SVG."""
        return {"solid": "none", "dot": "2 3"}.get(self.style.dash, "5 3")


def legend_entries(study: Study) -> list[LegendEntry]:
    """Groups that the study has, the most important first."""
    entries = []
    for name in reversed(STYLES):
        members = [trial for trial in study.trials if group(study, trial) == name]
        if not members:
            continue
        text = {
            "best": f"best (trial {members[0].number})",
            "defaults": f"defaults (trial {members[0].number})",
            "pruned": f"pruned, ✕ where stopped ({len(members)})",
            "failed": f"failed ({len(members)})",
            "running": f"{members[0].state} ({len(members)})",
            "complete": f"complete ({len(members)})",
        }[name]
        entries.append(LegendEntry(STYLES[name], text))
    return entries
