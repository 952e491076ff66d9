import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from mlflow_server.__main__ import main
from mlflow_server.health import is_healthy
from mlflow_server.server_process import read_record

pytestmark = pytest.mark.slow

WRITE_STORE = """
import sys, warnings
from pathlib import Path
from mlflow import MlflowClient
runs = Path(sys.argv[1])
client = MlflowClient(f"sqlite:///{runs}/mlflow.db")
experiment = client.create_experiment("gsm8k", artifact_location=(runs / "mlartifacts").as_uri())
parent = client.create_run(experiment, run_name="gsm8k study")
for number in range(2):
    child = client.create_run(experiment, run_name=f"trial {number}", tags={"mlflow.parentRunId": parent.info.run_id})
    client.log_param(child.info.run_id, "lr", 1e-4 * (number + 1))
    for step in range(1, 4):
        client.log_metric(child.info.run_id, "reward/mean", 0.1 * step, step=step)
    client.set_terminated(child.info.run_id)
client.log_text(parent.info.run_id, "an artifact", "note.txt")
client.set_terminated(parent.info.run_id)
print(experiment, parent.info.run_id)
"""


@dataclass
class RunningServer:
    """A server in a process of its own, as a person starts it."""

    process: subprocess.Popen
    runs_dir: Path
    address: str
    said: list[str]
    experiment: str
    parent_run: str

    def get(self, path: str, host: str | None = None) -> tuple[int, str]:
        request = urllib.request.Request(f"{self.address}{path}", headers={"Host": host} if host else {})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


def start(runs_dir: Path, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-u", "-m", "mlflow_server", "--runs-dir", str(runs_dir), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server on a small store, asked for a port that is in use, with one further host name allowed."""
    runs_dir = tmp_path_factory.mktemp("runs")
    written = subprocess.run(
        [sys.executable, "-c", WRITE_STORE, str(runs_dir)], capture_output=True, text=True, check=True
    )
    experiment, parent_run = written.stdout.split()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wanted = str(taken.getsockname()[1])
        process = start(runs_dir, "--port", wanted, "--allowed-hosts", "tracking.example.org")
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line.strip())
            if line.startswith("Stop it"):
                break
    record = read_record(runs_dir)
    assert record is not None, said
    yield RunningServer(process, runs_dir, record.address, said, experiment, parent_run)
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.wait(20)
    process.stdout.close()


def test_says_where_it_is_and_why_not_at_the_port_asked_for(server: RunningServer):
    assert server.said[1].startswith("port ") and " is in use, taking " in server.said[1]
    assert server.said[2] == f"MLflow is ready at {server.address}"
    assert "--allowed-hosts NAME" in server.said[3]


def test_is_healthy_and_check_says_so(server: RunningServer, capsys: pytest.CaptureFixture):
    assert is_healthy(server.address)
    assert main(["check", "--runs-dir", str(server.runs_dir)]) == 0
    assert f"healthy at {server.address}" in capsys.readouterr().out


def test_a_second_start_points_to_the_first(server: RunningServer, capsys: pytest.CaptureFixture):
    assert main(["--runs-dir", str(server.runs_dir)]) == 0
    assert f"running already at {server.address}" in capsys.readouterr().out


def test_s20_answers_under_allowed_names_only(server: RunningServer):
    port = server.address.rpartition(":")[2]
    path = f"/api/2.0/mlflow/experiments/get?experiment_id={server.experiment}"
    for host in (None, f"tracking.example.org:{port}", "tracking.example.org", f"localhost:{port}"):
        status, text = server.get(path, host)
        assert status == 200
        assert json.loads(text)["experiment"]["name"] == "gsm8k"
    assert server.get(path, f"elsewhere.example.org:{port}")[0] == 403


def test_serves_runs_and_artifacts_of_the_store(server: RunningServer):
    path = f"/api/2.0/mlflow/runs/get?run_id={server.parent_run}"
    assert json.loads(server.get(path)[1])["run"]["info"]["run_name"] == "gsm8k study"
    assert server.get(f"/get-artifact?path=note.txt&run_uuid={server.parent_run}") == (200, "an artifact")


def test_runs_in_few_processes(server: RunningServer):
    record = read_record(server.runs_dir)
    assert record is not None
    assert len(psutil.Process(record.pid).children(recursive=True)) <= 1


@pytest.mark.browser
def test_the_page_shows_parent_and_child_runs_without_an_error(server: RunningServer, chromium: str):
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    arguments += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    errors: list[str] = []
    requests: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        # The page asks who is logged in, which only a server with log-in can say, and takes the 404 for nobody.
        who = f"{server.address}/ajax-api/2.0/mlflow/users/current"
        page.on(
            "console",
            lambda said: errors.append(said.text) if said.type == "error" and said.location["url"] != who else None,
        )
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{server.address}/#/experiments/{server.experiment}/runs")
        parent = page.get_by_role("gridcell").filter(has_text="gsm8k study")
        parent.get_by_role("button").click(timeout=30_000)
        for name in ("trial 0", "trial 1"):
            page.get_by_role("gridcell").filter(has_text=name).wait_for(timeout=10_000)
        browser.close()
    assert errors == []
    assert [url for url in requests if not url.startswith((server.address, "data:", "blob:"))] == []


def test_stop_ends_every_process_and_the_one_who_waits(server: RunningServer, capsys: pytest.CaptureFixture):
    record = read_record(server.runs_dir)
    assert record is not None
    tree = [psutil.Process(record.pid), *psutil.Process(record.pid).children(recursive=True)]
    assert main(["stop", "--runs-dir", str(server.runs_dir)]) == 0
    assert server.process.wait(10) == 0
    assert not any(process.is_running() for process in tree)
    assert not is_healthy(server.address)
    assert read_record(server.runs_dir) is None
    assert main(["check", "--runs-dir", str(server.runs_dir)]) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_starts_leaves_nothing(tmp_path: Path, number: signal.Signals):
    process = start(tmp_path, "--port", "0")
    assert process.stdout is not None
    assert "no study has written" in process.stdout.readline()
    while (record := read_record(tmp_path)) is None:
        assert process.poll() is None
    process.send_signal(number)
    assert process.wait(15) == 0
    process.stdout.close()
    assert record.process() is None
    assert read_record(tmp_path) is None


def test_a_server_that_does_not_come_up_in_time_is_ended_and_says_why(tmp_path: Path):
    process = start(tmp_path, "--port", "0", "--timeout", "0.5")
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "the MLflow server did not start: not healthy within 0.5 s" in said
    assert f"(whole log: {tmp_path}/mlflow_server.log)" in said
    assert read_record(tmp_path) is None
