"""controller.json: which process controls a study, how it stands, and what the controlling costs."""

import os
import socket
import time
from typing import Any

import psutil

from sweeps.sections import SweepConfig
from sweeps.study_folder import StudyFolder, write_json

HEARTBEAT_INTERVAL_S = 15.0


class ControllerRecord:
    """Keeps controller.json up to date; written at once when the state changes, else by heartbeat."""

    def __init__(self, folder: StudyFolder, config: SweepConfig, warnings: list[str]) -> None:
        self._folder = folder
        self._active_before_s = folder.controller().get("active_s", 0.0)
        self._started = time.monotonic()
        self._due = 0.0
        self._data: dict[str, Any] = {
            "pid": os.getpid(),
            "pid_start_time": psutil.Process().create_time(),
            "host": socket.gethostname(),
            "state": "running",
            "message": "",
            "profile": config.profile,
            "profile_reason": config.profile_reason,
            "warnings": warnings,
            "started_at": time.time(),
            "ended_at": None,
        }
        self.write()

    @property
    def active_s(self) -> float:
        """Seconds that the study has been run for, over all launches."""
        return self._active_before_s + time.monotonic() - self._started

    def beat(self, **changes: Any) -> None:
        """Shows that the controller lives, now and then, with these fields changed."""
        self.note(**changes)
        if time.monotonic() >= self._due:
            self.write()

    def note(self, **changes: Any) -> None:
        """Changes these fields with the next writing of the record."""
        self._data |= changes

    def write(self, **changes: Any) -> None:
        """Writes the record, with these fields changed."""
        self._data |= changes
        self._data |= {"heartbeat": time.time(), "active_s": self.active_s}
        self._due = time.monotonic() + HEARTBEAT_INTERVAL_S
        write_json(self._folder.controller_file, self._data)

    def add_warnings(self, warnings: list[str]) -> None:
        """Keeps what a person was warned of."""
        self.write(warnings=[*self._data["warnings"], *warnings])

    def end(self, state: str, message: str, exit_code: int) -> str | None:
        """Writes how the launch ended: state done, failed or interrupted; what kept it from the disk, or None."""
        try:
            self.write(state=state, message=message, exit_code=exit_code, ended_at=time.time())
        except OSError as error:
            return f"{self._folder.controller_file} could not be written: {error.strerror}"
        return None
