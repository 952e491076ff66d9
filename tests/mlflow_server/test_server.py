import socket
import sys
from pathlib import Path

import pytest

from mlflow_server.__main__ import main
from mlflow_server.server import ServerOptions, access_note, free_port, host_rules, server_command, server_environment
from mlflow_server.store import Store

STORE = Store("postgresql://ann:s3cret@db/mlflow", Path("/runs/mlartifacts"))


def test_a_port_in_use_is_passed_over():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port("127.0.0.1", port) not in (port, 0)
    assert free_port("127.0.0.1", port) == port


def test_a_foreign_address_is_refused():
    with pytest.raises(ValueError, match=r"--host 192.0.2.1: .*; use 127.0.0.1 or 0.0.0.0"):
        free_port("192.0.2.1", 5000)


def test_the_command_has_one_worker_and_no_password():
    command = server_command(STORE, ServerOptions(), 5001)
    assert command[:4] == [sys.executable, "-m", "mlflow", "server"]
    assert command[4:8] == ["--host", "127.0.0.1", "--port", "5001"]
    assert command[8:] == ["--workers", "1", "--artifacts-destination", "/runs/mlartifacts"]


def test_the_store_goes_into_the_environment():
    environment = server_environment(STORE, {"PATH": "/bin", "MLFLOW_TRACKING_URI": "sqlite:///x.db"})
    assert environment["MLFLOW_BACKEND_STORE_URI"] == "postgresql://ann:s3cret@db/mlflow"
    assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert environment["PATH"] == "/bin"
    assert "MLFLOW_TRACKING_URI" not in environment


def test_s20_an_allowed_name_does_not_shut_out_the_machine_itself():
    hosts, origins = host_rules(["tracking.example.org"])
    assert hosts[-2:] == ["tracking.example.org", "tracking.example.org:*"]
    assert {"localhost", "localhost:*", "127.0.0.1:*"} <= set(hosts)
    assert origins[-4:] == [
        "http://tracking.example.org",
        "http://tracking.example.org:*",
        "https://tracking.example.org",
        "https://tracking.example.org:*",
    ]
    assert host_rules(["a.org:5000"])[0][-1] == "a.org:5000"
    assert host_rules(["*"]) == (["*"], ["*"])


def test_s20_the_message_says_how_to_allow_a_name():
    assert access_note(ServerOptions()).endswith("under any other name with 403, allow one by --allowed-hosts NAME.")
    assert "localhost, a.org;" in access_note(ServerOptions(allowed_hosts=("a.org",)))


def test_check_and_stop_without_a_server(tmp_path: Path, capsys: pytest.CaptureFixture):
    assert main(["check", "--runs-dir", str(tmp_path)]) == 1
    assert "is not running" in capsys.readouterr().out
    assert main(["stop", "--runs-dir", str(tmp_path)]) == 1


def test_wrong_options_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as refused:
        main(["--port", "70000"])
    assert refused.value.code == 2
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    assert main(["--runs-dir", str(tmp_path)]) == 2
    assert "this is a server already" in capsys.readouterr().err
    assert not (tmp_path / "mlflow_server.json").exists()
