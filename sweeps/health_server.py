"""`/healthz` and `/metrics` of a running study over HTTP, where a port was asked for."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily

from sweeps.health import Health

#: A controller that has not looked for so long is no healthy one.
STALE_S = 60.0
_PREFIX = "grpo_sweeps"


class HealthServer:
    """Serves what `health` gives; binds at once, so that a port in use raises OSError before anything starts."""

    def __init__(self, host: str, port: int, health: Callable[[], Health | None]) -> None:
        registry = CollectorRegistry()
        registry.register(_Collector(health))

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/healthz":
                    code, kind, body = _healthz(health())
                elif self.path == "/metrics":
                    code, kind, body = 200, "text/plain; version=0.0.4", generate_latest(registry)
                else:
                    code, kind, body = 404, "text/plain", b"/healthz or /metrics\n"
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Scrapes are no news."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on, also where 0 asked for any."""
        return self._server.server_address[1]

    def close(self) -> None:
        """Stops serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _healthz(health: Health | None) -> tuple[int, str, bytes]:
    fresh = health is not None and time.time() - health.at < STALE_S
    record = {"status": "ok" if fresh else "stale", **({} if health is None else health.record())}
    return 200 if fresh else 503, "application/json", json.dumps(record).encode()


class _Collector:
    """The study's numbers at the moment of a scrape."""

    def __init__(self, health: Callable[[], Health | None]) -> None:
        self._health = health

    def collect(self) -> Iterator[GaugeMetricFamily]:
        health = self._health()
        if health is None:
            return
        trials = GaugeMetricFamily(f"{_PREFIX}_trials", "Trials of the study by state.", labels=["study", "state"])
        for state in ("complete", "pruned", "failed"):
            trials.add_metric([health.study, state], health.ended.get(state, 0))
        trials.add_metric([health.study, "running"], len(health.running))
        yield trials
        now = time.time()
        plain = {
            "trials_asked": ("Trials that the study may start in all.", health.n_trials),
            "breaches": ("Ended trials that breached a stability rule.", health.num_breaches),
            "retries": ("Times that trials were started again.", health.num_retries),
            "seconds_since_progress": (
                "Seconds since a trial made a step.",
                max(0.0, now - health.progress_at),
            ),
            "seconds_since_look": ("Seconds since the controller looked.", max(0.0, now - health.at)),
            "tracking_up": ("1 where MLflow takes what it is sent.", float(health.tracking_problem is None)),
        }
        if health.best is not None:
            plain["best_objective"] = ("Best objective so far.", health.best)
        for name, (words, value) in plain.items():
            family = GaugeMetricFamily(f"{_PREFIX}_{name}", words, labels=["study"])
            family.add_metric([health.study], value)
            yield family
        step = GaugeMetricFamily(f"{_PREFIX}_trial_step", "Last step of a running trial.", labels=["study", "trial"])
        silent = GaugeMetricFamily(
            f"{_PREFIX}_trial_silent_seconds", "Seconds since a running trial's last news.", labels=["study", "trial"]
        )
        for trial in health.running:
            step.add_metric([health.study, str(trial.number)], trial.step)
            silent.add_metric([health.study, str(trial.number)], trial.silent_s)
        yield step
        yield silent
