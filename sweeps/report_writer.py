"""Has the report of a study written, by a process of its own that takes no time from the trials."""

import os
import subprocess
import sys
import tempfile
import time
from typing import IO

from sweeps.study_folder import StudyFolder

MIN_INTERVAL_S = 30.0
#: While trials run, reports are spaced so that writing them takes no more than this share of one core.
MAX_BUSY_FRAC = 0.02
_FINAL_TIMEOUT_S = 120.0


class ReportWriter:
    """Runs `python -m reports` for one study; `reports` imports us, so it is called from outside."""

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._due = time.monotonic() + MIN_INTERVAL_S
        self._is_stale = False

    def trial_ended(self) -> None:
        """Says that there is something new to show."""
        self._is_stale = True

    def poll(self) -> None:
        """Starts a new report when one is due, and notes when it is done; never waits."""
        now = time.monotonic()
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._process = None
            self._due = self._started + max(MIN_INTERVAL_S, (now - self._started) / MAX_BUSY_FRAC)
        elif self._is_stale and now >= self._due:
            self._start(subprocess.DEVNULL, nice=19)
            self._is_stale = False

    def finish(self) -> str | None:
        """Writes the last report and waits for it; what went wrong, in words, or None."""
        self.cancel()
        try:
            return self._write_last()
        except OSError as error:
            return f"the report could not be written: {error.strerror}"

    def _write_last(self) -> str | None:
        with tempfile.TemporaryFile() as output:
            process = self._start(output, nice=0)
            try:
                code = process.wait(_FINAL_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.cancel()
                return f"the report was not ready after {_FINAL_TIMEOUT_S:.0f} s"
            self._process = None
            if code == 0:
                return None
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
            return f"the report failed: {lines[-1] if lines else f'exit code {code}'}"

    def cancel(self) -> None:
        """Ends a report that is being written."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self, output: int | IO[bytes], nice: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "reports", self._folder.name, "--runs-dir", str(self._folder.path.parent)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._started = time.monotonic()
        # In a session of its own: Ctrl-C on the terminal is the controller's to handle.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        if nice:
            os.setpriority(os.PRIO_PROCESS, self._process.pid, nice)
        return self._process
