"""Starts MLflow's own server on a store and keeps it in the foreground."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from mlflow_server.health import wait_until_healthy
from mlflow_server.server_process import ServerRecord, end_server, remove_record, write_record
from mlflow_server.store import Store

#: Hosts that the server answers by its own rule, which an explicit list would replace.
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}
_NUM_ATTEMPTS = 3


@dataclass(frozen=True)
class ServerOptions:
    """Where a server listens and whom it answers."""

    host: str = "127.0.0.1"
    port: int = 5000
    """The next free port is taken when this one is in use."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names, beside this machine's own, under which browsers may address the server; `*` allows all."""
    timeout_s: float = 120.0
    """Seconds within which it must be healthy."""


class ServerFailed(RuntimeError):
    """The server did not come up, or ended by itself; the message has the end of its log."""


def serve(
    store: Store,
    runs_dir: Path,
    options: ServerOptions,
    say: Callable[[str], None],
    stopped: threading.Event | None = None,
) -> None:
    """Runs a server until SIGINT, SIGTERM or SIGHUP comes, `stopped` is set, or `stop` ends it from outside.

    All of its processes are gone when this returns. Their output goes to mlflow_server.log under `runs_dir`.

    Raises:
        ServerFailed: it did not come up, or ended by itself.
    """
    stopped = stopped or threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: stopped.set())
    runs_dir.mkdir(parents=True, exist_ok=True)
    process, record = _start(store, runs_dir, options, say, stopped)
    try:
        if stopped.is_set():
            return
        say(f"MLflow is ready at {record.address}")
        say(access_note(options))
        say("Stop it with Ctrl-C.")
        while process.poll() is None and not stopped.wait(0.2):
            pass
        # One that `stop` ended has no record any more.
        if not stopped.is_set() and (runs_dir / "mlflow_server.json").exists():
            raise ServerFailed(
                f"the MLflow server ended by itself, exit code {process.returncode}\n{_log_tail(runs_dir)}"
            )
    finally:
        end_server(process.pid)
        process.wait()
        remove_record(runs_dir, process.pid)


def _start(
    store: Store, runs_dir: Path, options: ServerOptions, say: Callable[[str], None], stopped: threading.Event
) -> tuple[subprocess.Popen, ServerRecord]:
    """Starts a server that is healthy, or not yet when `stopped` was set meanwhile."""
    for _ in range(_NUM_ATTEMPTS):
        port = free_port(options.host, options.port)
        if port != options.port:
            say(f"port {options.port} is in use, taking {port}")
        address = f"http://{_ANY_ADDRESS.get(options.host, options.host)}:{port}"
        with (runs_dir / "mlflow_server.log").open("w") as log:
            process = subprocess.Popen(
                server_command(store, options, port),
                env=server_environment(store, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        record = ServerRecord(process.pid, psutil.Process(process.pid).create_time(), address, store.shown)
        write_record(runs_dir, record)

        def is_wanted(process: subprocess.Popen = process) -> bool:
            return process.poll() is None and not stopped.is_set()

        if wait_until_healthy(address, is_wanted, options.timeout_s) or stopped.is_set():
            return process, record
        ended = process.poll()
        end_server(process.pid)
        process.wait()
        remove_record(runs_dir, process.pid)
        # Someone else may have taken the port between the look and the start.
        if ended is None or free_port(options.host, port) == port:
            break
    why = f"not healthy within {options.timeout_s:g} s" if ended is None else f"exit code {ended}"
    raise ServerFailed(f"the MLflow server did not start: {why}\n{_log_tail(runs_dir)}")


def server_command(store: Store, options: ServerOptions, port: int) -> list[str]:
    """The command line of MLflow's server. One worker process: each more costs 250 MB and helps only many users."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", options.host, "--port", str(port), "--workers", "1"]
    command += ["--artifacts-destination", str(store.artifacts)]
    if options.allowed_hosts:
        hosts, origins = host_rules(options.allowed_hosts)
        command += ["--allowed-hosts", ",".join(hosts), "--cors-allowed-origins", ",".join(origins)]
    return command


def server_environment(store: Store, environ: "os._Environ[str] | dict[str, str]") -> dict[str, str]:
    """The server's environment. The store goes here and not on the command line, where all could read its password."""
    kept = {key: value for key, value in environ.items() if key != "MLFLOW_TRACKING_URI"}
    return kept | {
        "MLFLOW_BACKEND_STORE_URI": store.uri,
        # Jobs (judges, scorers) would start further processes that nothing here uses.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }


def host_rules(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Host headers and origins to allow, with and without a port, for these names and this machine's own.

    MLflow refuses a request under any other host name with 403, against DNS rebinding.
    """
    if "*" in names:
        return ["*"], ["*"]
    hosts, origins = [], []
    for name in dict.fromkeys((*LOCAL_HOSTS, *names)):
        # A bracket would open a character class in the pattern with the port.
        pattern = name.replace("[", "[[]", 1)
        has_port = ":" in name.rpartition("]")[2]
        hosts += [name] if has_port else [name, f"{pattern}:*"]
        for scheme in ("http", "https"):
            origins += [f"{scheme}://{name}"] if has_port else [f"{scheme}://{name}", f"{scheme}://{pattern}:*"]
    return hosts, origins


def access_note(options: ServerOptions) -> str:
    """Under which names the server can be opened, and how to allow one more."""
    if "*" in options.allowed_hosts:
        return "It answers under every host name."
    more = f", {', '.join(options.allowed_hosts)}" if options.allowed_hosts else " and private addresses"
    return f"It answers under localhost{more}; under any other name with 403, allow one by --allowed-hosts NAME."


def free_port(host: str, wanted: int) -> int:
    """`wanted` if it is free on `host`, else another port that is.

    Raises:
        ValueError: `host` is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in (wanted, 0):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if port == 0:
                    raise ValueError(f"--host {host}: {error.strerror}; use 127.0.0.1 or 0.0.0.0") from None
                continue
            return probe.getsockname()[1]
    raise AssertionError("port 0 is either bound or raises")


def _log_tail(runs_dir: Path, num_lines: int = 15) -> str:
    log = runs_dir / "mlflow_server.log"
    return "\n".join([*log.read_text(errors="replace").splitlines()[-num_lines:], f"(whole log: {log})"])
