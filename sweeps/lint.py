"""Settings that cannot work, or cannot matter, found before any model loads.

An `error` refuses the study; a `warning` is printed. A rule is a function from a `Sweep` to its findings, and an entry
of `KNOB_RULES`, `TRAINING_RULES` or `STUDY_RULES`.
"""

from sweeps.findings import Finding, Sweep
from sweeps.lint_knobs import KNOB_RULES
from sweeps.lint_study import STUDY_RULES
from sweeps.lint_training import TRAINING_RULES
from sweeps.mistakes import dotted
from sweeps.sections import SweepConfig
from sweeps.space_rules import space_mistakes

__all__ = ["Finding", "lint"]


def lint(config: SweepConfig) -> list[Finding]:
    """Everything worth knowing about a sweep before it starts, errors first."""
    mistakes = [Finding("error", dotted(mistake.path), mistake.message) for mistake in space_mistakes(config)]
    if mistakes:
        return mistakes
    sweep = Sweep(config)
    findings = [finding for rule in (*KNOB_RULES, *TRAINING_RULES, *STUDY_RULES) for finding in rule(sweep)]
    if {f"search_space.{key}" for key in config.search_space} <= {finding.key for finding in findings if finding.idle}:
        message = "no searched key can matter, so all trials are the same; change what the warnings say"
        findings.append(Finding("error", "search_space", message))
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.level)
