"""The rules that look for symptoms in the records of a study.

Thresholds are where a person should look, not where something is broken.
"""

from collections.abc import Callable

from reports import learning_findings, rollback_marks, stop_findings
from reports.finding import Finding
from reports.study_data import Study

#: Each gives a finding or None; the most serious first. A new rule is a function and a line here.
RULES: tuple[Callable[[Study], Finding | None], ...] = (
    stop_findings.failed_trials,
    rollback_marks.shrunk,
    learning_findings.truncation,
    learning_findings.entropy_near_limit,
    stop_findings.not_finite,
    stop_findings.entropy_stops,
    stop_findings.reward_collapse,
    stop_findings.gradient_norm,
    stop_findings.other_rules,
    learning_findings.no_learning,
    learning_findings.dead_groups,
    learning_findings.best_at_edge,
    learning_findings.still_rising,
    learning_findings.past_its_peak,
    rollback_marks.rolled_back,
    learning_findings.selection_luck,
    learning_findings.clip_never_used,
)


def diagnose(study: Study) -> list[Finding]:
    """Findings in the order of `RULES`, the most serious first."""
    return [finding for rule in RULES if (finding := rule(study)) is not None]
