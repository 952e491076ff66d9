"""Who hears of a study: HTTP endpoint and webhook on loopback, alerts at their thresholds, nothing unasked."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sweeps.alerts import Alerts
from sweeps.config import ConfigError, load_sweep
from sweeps.continuation import Refused
from sweeps.health import EndedTrials, Health, RunningTrial
from sweeps.health_server import HealthServer
from sweeps.monitor import Monitor
from sweeps.sections import MonitoringConfig
from sweeps.study_folder import StudyFolder
from sweeps.webhook import Webhook

from .study_runs import RATES, make_config

# MLflow's own models use what SQLAlchemy is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def health_of(**given: Any) -> Health:
    now = time.time()
    return Health(**{"study": "s", "n_trials": 8, "progress_at": now, "at": now, **given})


@pytest.fixture
def inbox() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Address of a server that keeps what is posted to it."""
    letters: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            letters.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/hook", letters
    server.shutdown()
    server.server_close()
    thread.join()


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_endpoint_tells_how_the_study_stands() -> None:
    running = (RunningTrial(3, step=7, num_steps=60, silent_s=1.5),)
    health = health_of(running=running, ended={"complete": 1, "pruned": 2}, num_breaches=2, best=0.5)
    server = HealthServer("127.0.0.1", 0, lambda: health)
    try:
        code, text = get(server.port, "/healthz")
        record = json.loads(text)
        assert (code, record["status"], record["running"][0]["step"]) == (200, "ok", 7)
        code, text = get(server.port, "/metrics")
        samples = {
            (sample.name, sample.labels.get("state") or sample.labels.get("trial")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert code == 200
        assert samples["grpo_sweeps_trials", "pruned"] == 2 and samples["grpo_sweeps_trials", "running"] == 1
        assert samples["grpo_sweeps_best_objective", None] == 0.5 and samples["grpo_sweeps_tracking_up", None] == 1
        assert samples["grpo_sweeps_trial_step", "3"] == 7
        assert samples["grpo_sweeps_trial_silent_seconds", "3"] == 1.5
        assert get(server.port, "/else")[0] == 404
    finally:
        server.close()


@pytest.mark.parametrize("health", [None, health_of(at=time.time() - 600)])
def test_a_controller_that_does_not_look_is_not_healthy(health: Health | None) -> None:
    server = HealthServer("127.0.0.1", 0, lambda: health)
    try:
        code, text = get(server.port, "/healthz")
        assert (code, json.loads(text)["status"]) == (503, "stale")
        assert get(server.port, "/metrics")[0] == 200
    finally:
        server.close()


def test_a_breach_rate_is_told_once_until_it_falls() -> None:
    alerts = Alerts(MonitoringConfig(breach_rate=0.5))
    assert alerts.check(health_of(ended={"pruned": 3}, num_breaches=3)) == []
    [alert] = alerts.check(health_of(ended={"pruned": 3, "complete": 1}, num_breaches=3))
    assert alert.rule == "breach_rate"
    assert alert.message.startswith("3 of 4 ended trials breached stability, more than monitoring.breach_rate 0.5")
    assert alerts.check(health_of(ended={"pruned": 4, "complete": 1}, num_breaches=4)) == []
    assert alerts.check(health_of(ended={"pruned": 4, "complete": 4}, num_breaches=4)) == []
    assert len(alerts.check(health_of(ended={"pruned": 5, "complete": 4}, num_breaches=5))) == 1


def test_no_progress_is_told_after_its_time() -> None:
    alerts = Alerts(MonitoringConfig(no_progress="10m"))
    now = time.time()
    assert alerts.check(health_of(at=now, progress_at=now - 599)) == []
    [alert] = alerts.check(health_of(at=now, progress_at=now - 601))
    assert alert.message == "no trial has made a step for 601 s; see the logs of the trials"


def test_nothing_is_told_unless_it_is_asked_for() -> None:
    said: list[str] = []
    monitor = Monitor(MonitoringConfig(), "s", said.append)
    monitor.look(health_of(ended={"pruned": 9}, num_breaches=9, progress_at=0.0))
    assert monitor.end("done", "fine") is None
    assert said == []


def test_outcomes_are_counted_as_they_come() -> None:
    ended = EndedTrials("minimize")
    ended.add({"state": "complete", "objective": 0.5, "constraint": 0.0, "num_retries": 2})
    ended.add({"state": "complete", "objective": 0.4, "constraint": 0.0, "num_retries": 0})
    ended.add({"state": "pruned", "objective": None, "constraint": 0.3})
    ended.add({"state": "pruned", "objective": None, "constraint": 0.0})
    assert (dict(ended.states), ended.num_breaches, ended.num_retries, ended.best) == (
        {"complete": 2, "pruned": 2},
        1,
        2,
        0.4,
    )


def test_a_study_posts_its_alerts_and_its_end(
    launch: Callable, inbox: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, runs_dir: Path
) -> None:
    address, letters = inbox
    monkeypatch.setenv("ALERTS", address)
    config = make_config(RATES, n_trials=4, monitoring={"webhook": "$ALERTS", "breach_rate": 0.1, "port": 0})
    result, lines = launch(config)
    assert result.exit_code == 0
    assert "health: http://127.0.0.1:" in lines
    assert letters[-1] == {"study": "s", "rule": "study_end", "message": "done: 3 complete, 1 pruned"}
    health = StudyFolder(runs_dir / "s").controller()["health"]
    assert health["n_trials"] == 4 and health["study"] == "s"


def test_a_webhook_that_is_away_delays_nothing_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeps.webhook._PAUSES_S", (0.01, 0.01))
    webhook = Webhook("http://127.0.0.1:1/k3y")
    webhook.post({"rule": "study_end"})
    problem = webhook.close(5.0)
    assert problem is not None and problem.startswith("the webhook took no study_end") and "k3y" not in problem


def test_what_cannot_be_had_is_refused_before_anything_starts(launch: Callable, runs_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=f"monitoring.port={port}: cannot be had on 127.0.0.1"):
            launch(make_config(RATES, n_trials=1, monitoring={"port": port}))
    with pytest.raises(Refused, match=r"monitoring.webhook=\$NOT_SET: the variable holds no"):
        launch(make_config(RATES, n_trials=1, monitoring={"webhook": "$NOT_SET"}))
    assert not (runs_dir / "s").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("monitoring.webhook=ftp://x", "not an address; write https://host/path, or $NAME"),
        ("monitoring.port=70000", "monitoring.port"),
        ("monitoring.breach_rate=2", "monitoring.breach_rate"),
        ("monitoring.no_progress=soon", "not a length of time"),
    ],
)
def test_a_wrong_setting_is_named(given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("$", r"\$")):
        load_sweep(Path(__file__).parents[2] / "search_spaces" / "smoke.yaml", [given])
