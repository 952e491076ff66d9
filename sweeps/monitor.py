"""Carries how a study stands to those who asked for it: an HTTP endpoint, a webhook, the terminal."""

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from sweeps.alerts import Alert, Alerts, study_end
from sweeps.health import Health
from sweeps.sections import MonitoringConfig
from sweeps.webhook import Webhook

if TYPE_CHECKING:
    from sweeps import health_server

_CLOSE_TIMEOUT_S = 3.0


class Monitor:
    """One study's; nothing listens and nothing is sent unless `monitoring` asks for it."""

    def __init__(self, config: MonitoringConfig, study: str, say: Callable[[str], None]) -> None:
        """Binds the port that was asked for.

        Raises:
            OSError: the port cannot be had.
            ValueError: the variable that names the webhook is not set.
        """
        self.health: Health | None = None
        """How the study stood at the last look."""
        self._study = study
        self._say = say
        self._alerts = Alerts(config)
        self._webhook = None if config.webhook is None else Webhook(config.webhook)
        self._server: health_server.HealthServer | None = None
        if config.port is not None:
            from sweeps.health_server import HealthServer

            self._server = HealthServer(config.host, config.port, lambda: self.health)
            say(f"health: http://{config.host}:{self._server.port}/healthz and /metrics")

    def look(self, health: Health) -> None:
        """Takes how the study stands now, and tells what there is to be told."""
        self.health = health
        for alert in self._alerts.check(health):
            self._say(f"warning: {alert.message}")
            self._tell(alert)

    def end(self, state: str, message: str) -> str | None:
        """Tells how the launch ended and stops serving; what could not be told, in words, or None."""
        self._tell(study_end(state, message))
        problem = None
        if self._webhook is not None:
            problem = self._webhook.close(_CLOSE_TIMEOUT_S)
        if self._server is not None:
            with contextlib.suppress(OSError):
                self._server.close()
        self._webhook = self._server = None
        return problem

    def _tell(self, alert: Alert) -> None:
        if self._webhook is not None:
            self._webhook.post({"study": self._study, "rule": alert.rule, "message": alert.message})
