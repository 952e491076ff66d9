"""What of a study a person wants to hear of at once: its end, too many breaches, no progress."""

from dataclasses import dataclass

from sweeps.health import Health
from sweeps.sections import MonitoringConfig

#: Ended trials before which a share of breaches says nothing.
MIN_ENDED = 4


@dataclass(frozen=True)
class Alert:
    """One thing to be told, once."""

    rule: str
    """study_end, breach_rate or no_progress."""
    message: str


class Alerts:
    """The rules that hold now; each is told when it begins to hold, and again only after it had ceased to."""

    def __init__(self, config: MonitoringConfig) -> None:
        self._config = config
        self._holding: set[str] = set()

    def check(self, health: Health) -> list[Alert]:
        """What there is to be told of a study that runs."""
        found = [alert for alert in (self._breach_rate(health), self._no_progress(health)) if alert is not None]
        news = [alert for alert in found if alert.rule not in self._holding]
        self._holding = {alert.rule for alert in found}
        return news

    def _breach_rate(self, health: Health) -> Alert | None:
        limit = self._config.breach_rate
        if limit is None or health.num_ended < MIN_ENDED or health.num_breaches / health.num_ended <= limit:
            return None
        share = f"{health.num_breaches} of {health.num_ended} ended trials breached stability"
        return Alert("breach_rate", f"{share}, more than monitoring.breach_rate {limit:g}; the report says which rules")

    def _no_progress(self, health: Health) -> Alert | None:
        limit, silent_s = self._config.no_progress_s, health.at - health.progress_at
        if limit is None or silent_s <= limit:
            return None
        return Alert("no_progress", f"no trial has made a step for {silent_s:.0f} s; see the logs of the trials")


def study_end(state: str, message: str) -> Alert:
    """What is told when a launch ends: `state` done, failed or interrupted."""
    return Alert("study_end", f"{state}: {message}")
