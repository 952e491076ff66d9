"""Feeds MLflow in a thread of its own, so that a slow or lost server delays no trial.

The thread compares what is on disk with what MLflow was given (`mlflow_feed`) and sends the difference in order. A
pass that fails is tried again from the same place, later and later, so nothing is lost while the files are there.
"""

import logging
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sweeps.credentials import mask_credentials
from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder

if TYPE_CHECKING:
    from sweeps.mlflow_feed import Feed

FLUSH_INTERVAL_S = 2.0
#: Passes are spaced so that they take no more than this share of the thread's time, at most MAX_INTERVAL_S apart.
MAX_BUSY_FRAC = 0.005
MAX_INTERVAL_S = 10.0
MAX_BACKOFF_S = 30.0
#: MLflow's own settings, unless the person chose theirs: a lost server must not hold the thread for minutes, and
#: nothing is sent to MLflow's makers.
MLFLOW_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}


def tracking_uri(config: SweepConfig, runs_dir: Path) -> str:
    """Where a study is tracked: the file's own URI, MLFLOW_TRACKING_URI, or the embedded store under `runs_dir`."""
    embedded = f"sqlite:///{runs_dir.resolve() / 'mlflow.db'}"
    return config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or embedded


class Tracker:
    """One study's line to MLflow. Its methods leave word for the thread; none of them waits, except `close`."""

    def __init__(self, config: SweepConfig, folder: StudyFolder, runs_dir: Path) -> None:
        self.uri = tracking_uri(config, runs_dir)
        self.problem: str | None = None
        """Why the last pass failed; None when it did not."""
        self.busy_cpu_s = 0.0
        """CPU seconds that the thread has spent on passes since the store was open."""
        self._config = config
        self._folder = folder
        self._runs_dir = runs_dir
        self._running: frozenset[int] = frozenset()
        self._study_state = "running"
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracking", daemon=True)

    def start(self) -> None:
        """Starts the thread, which imports MLflow and opens the store."""
        self._thread.start()

    def running(self, numbers: set[int]) -> None:
        """Says which trials run now; one that neither runs nor has an outcome is shown as KILLED until it goes on."""
        self._running = frozenset(numbers)

    def wake(self) -> None:
        """Asks for a pass now, for example because a trial has ended."""
        self._wake.set()

    def close(self, state: str, timeout_s: float = 30.0) -> str | None:
        """Sends what is left and ends the parent run as `state` (done, failed, interrupted).

        Returns what could not be sent within `timeout_s`, in words, or None when MLflow has everything.
        """
        self._running = frozenset()
        self._study_state = state
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return None
        why = self.problem or f"not done after {timeout_s:.0f} s"
        lacks = f"MLflow at {self.uri} lacks the latest records ({why}); they are safe in {self._folder.path}"
        return mask_credentials(f"{lacks}, to be sent with: python -m sweeps sync {self._folder.name}")

    def _run(self) -> None:
        for name, value in MLFLOW_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # Takes more than a second, which the study need not wait for.
        from sweeps.mlflow_feed import Feed

        feed = Feed(self._config, self._folder, self.uri, self._runs_dir)
        pause_s, num_failures = 0.0, 0
        while True:
            self._wake.wait(pause_s)
            self._wake.clear()
            closing = self._closing.is_set()
            started, started_cpu, was_open = time.monotonic(), time.thread_time(), feed.is_open
            self.problem = self._send(feed)
            if was_open:
                self.busy_cpu_s += time.thread_time() - started_cpu
            if self.problem is None:
                if closing:
                    return
                num_failures = 0
                spacing_s = (time.monotonic() - started) / MAX_BUSY_FRAC if was_open else 0.0
                pause_s = min(max(FLUSH_INTERVAL_S, spacing_s), MAX_INTERVAL_S)
            else:
                num_failures += 1
                pause_s = min(FLUSH_INTERVAL_S * 2 ** min(num_failures - 1, 10), 1.0 if closing else MAX_BACKOFF_S)

    def _send(self, feed: "Feed") -> str | None:
        """One pass; what went wrong, in words."""
        try:
            feed.send(self._running, self._study_state)
        except Exception as error:
            # Whatever the store or the network raises, the study goes on and the records wait on disk.
            logging.getLogger(__name__).debug("tracking pass failed", exc_info=True)
            words = str(error).strip().splitlines()
            return mask_credentials(f"{type(error).__name__}: {words[0][:300] if words else 'no message'}")
        return None
