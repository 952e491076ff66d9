"""`python -m mlflow_server`: the MLflow server on the store that studies write to."""

import argparse
import os
import sys
from pathlib import Path

from mlflow_server.health import is_healthy
from mlflow_server.server import ServerFailed, ServerOptions, serve
from mlflow_server.server_process import end_server, read_record, remove_record
from mlflow_server.store import find_store


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; gives the exit code: 0 well, 1 not running or failed, 2 wrong options."""
    parser = argparse.ArgumentParser(
        prog="python -m mlflow_server",
        description="Starts, checks or stops the MLflow server on the store that studies write to.",
    )
    parser.add_argument("command", nargs="?", choices=["start", "check", "stop"], default="start")
    parser.add_argument("--runs-dir", default="runs", type=Path, help="folder that holds the store (default: runs)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 is all of this machine")
    parser.add_argument("--port", default=5000, type=int, help="port to listen on; another is taken if it is in use")
    parser.add_argument(
        "--allowed-hosts",
        default="",
        metavar="NAME[,NAME…]",
        help="further host names to answer under, such as tracking.example.org; * allows all",
    )
    parser.add_argument("--timeout", default=120.0, type=float, help="seconds in which it must be up (default: 120)")
    given = parser.parse_args(arguments)
    if given.command == "check":
        return check(given.runs_dir)
    if given.command == "stop":
        return stop(given.runs_dir)
    if not 0 <= given.port <= 65535:
        parser.error(f"--port {given.port}: not a port; use 1 to 65535, or 0 for any free one")
    names = tuple(name.strip() for name in given.allowed_hosts.split(",") if name.strip())
    return start(given.runs_dir, ServerOptions(given.host, given.port, names, given.timeout))


def start(runs_dir: Path, options: ServerOptions) -> int:
    """Serves in the foreground until Ctrl-C."""
    record = read_record(runs_dir)
    if record is not None and record.process() is not None:
        print(f"MLflow is running already at {record.address}, on {record.store}")
        return 0
    try:
        store = find_store(runs_dir, os.environ)
        if store.is_missing:
            print(f"no study has written to {store.file} yet; starting on an empty store")
        print(f"starting MLflow on {store.shown} …", flush=True)
        serve(store, runs_dir, options, say=lambda text: print(text, flush=True))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except (ServerFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print("MLflow has stopped.")
    return 0


def check(runs_dir: Path) -> int:
    """Says whether the server runs and answers."""
    record = read_record(runs_dir)
    if record is None or record.process() is None:
        print(f"MLflow is not running on {runs_dir}; start it with python -m mlflow_server")
        return 1
    if not is_healthy(record.address):
        print(f"MLflow (pid {record.pid}) does not answer at {record.address}; see {runs_dir / 'mlflow_server.log'}")
        return 1
    print(f"MLflow is healthy at {record.address}, on {record.store}")
    return 0


def stop(runs_dir: Path) -> int:
    """Ends the server with all of its processes."""
    record = read_record(runs_dir)
    if record is None or record.process() is None:
        if record is not None:
            remove_record(runs_dir, record.pid)
        print(f"MLflow is not running on {runs_dir}")
        return 1
    # First the record, so that the one who waits for the server knows that it was meant.
    remove_record(runs_dir, record.pid)
    if not end_server(record.pid):
        print(f"MLflow (pid {record.pid}) could not be ended", file=sys.stderr)
        return 1
    print(f"MLflow at {record.address} has stopped.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
