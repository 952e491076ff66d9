"""Where a study keeps its records on disk, and how they are written and read.

These files are the truth: Optuna's storage and MLflow are rebuilt from them. A record appears whole or not at all.
"""

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from grpo_core.run_record import parse_step

# Several times faster than those in pure Python, and not built on every machine.
_YamlLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_YamlDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
#: How far a process's start time may seem off, since /proc counts clock ticks from a boot time that drifts.
_START_TIME_TOLERANCE_S = 2.0


class StudyBusy(RuntimeError):
    """Another controller holds the study folder."""


class DamagedRecord(ValueError):
    """A record is there and cannot be read: the disk lost part of it, or somebody changed it."""


def write_text(path: Path, text: str) -> None:
    """Replaces the file `path` by `text` in one step: a reader sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    with draft.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def write_json(path: Path, record: Any) -> None:
    """Replaces the file `path` by `record` as JSON in one step."""
    write_text(path, json.dumps(record, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """The record in the file `path`, or None when there is no such file.

    Raises:
        DamagedRecord: what is in it is no record.
    """
    try:
        record = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise DamagedRecord(f"{path} is not readable ({error})") from error
    if not isinstance(record, dict):
        raise DamagedRecord(f"{path} is not readable (no mapping)")
    return record


def write_yaml(path: Path, data: Any) -> None:
    """Replaces the file `path` by `data` as YAML in one step."""
    write_text(path, yaml.dump(data, Dumper=_YamlDumper, sort_keys=False))


def read_yaml(path: Path) -> Any:
    """The content of a YAML file of ours; raises FileNotFoundError."""
    return yaml.load(path.read_text(), Loader=_YamlLoader)


def read_lines(path: Path, offset: int = 0, max_bytes: int | None = None) -> tuple[list[dict[str, Any]], int]:
    """Steps of a metrics file from byte `offset` on, and the offset after the last whole line.

    A damaged line is left out. A last line that its writer has not finished (or never will, having died) is left for
    the next call.
    `max_bytes` bounds what is read at once; a line longer than it is still read whole.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(-1 if max_bytes is None else max_bytes)
            if max_bytes is not None and b"\n" not in data:
                data += file.readline()
    except FileNotFoundError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    steps = (parse_step(line) for line in whole.splitlines())
    return [step for step in steps if step is not None], offset + len(whole)


@dataclass(frozen=True)
class TrialFolder:
    """Files of one trial, `runs/<study>/trials/0007`."""

    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def params_file(self) -> Path:
        return self.path / "params.json"

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def outcome_file(self) -> Path:
        return self.path / "outcome.json"

    @property
    def log_file(self) -> Path:
        return self.path / "trial.log"

    def params(self) -> dict[str, Any] | None:
        """The record of what the trial drew, or None before it was written."""
        return read_json(self.params_file)

    def outcome(self) -> dict[str, Any] | None:
        """The record of how the trial ended, or None while it runs or waits to be resumed."""
        return read_json(self.outcome_file)

    def steps(self) -> list[dict[str, Any]]:
        """Recorded steps `{"step", "time", "metrics"}` in order."""
        return read_lines(self.metrics_file)[0]

    def log_tail(self, num_lines: int = 20) -> str:
        """The last lines of the trial's log, at most 4,000 characters."""
        try:
            with self.log_file.open("rb") as file:
                file.seek(max(0, self.log_file.stat().st_size - 16_000))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-num_lines:])[-4_000:]


@dataclass(frozen=True)
class StudyFolder:
    """Files of one study, `runs/<study>`."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def sweep_file(self) -> Path:
        return self.path / "sweep.yaml"

    @property
    def study_db(self) -> Path:
        return self.path / "study.db"

    @property
    def preflight_file(self) -> Path:
        return self.path / "preflight.json"

    @property
    def final_file(self) -> Path:
        return self.path / "final.json"

    @property
    def controller_file(self) -> Path:
        return self.path / "controller.json"

    @property
    def tracking_file(self) -> Path:
        return self.path / "tracking.json"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    @property
    def exists(self) -> bool:
        return self.sweep_file.is_file()

    def trial(self, number: int) -> TrialFolder:
        """Folder of trial `number`, which need not exist yet."""
        return TrialFolder(self.path / "trials" / f"{number:04d}")

    def trials(self) -> list[TrialFolder]:
        """Folders of all trials that have drawn their params, by number."""
        folders = [TrialFolder(path) for path in (self.path / "trials").glob("[0-9]*") if path.name.isdigit()]
        return sorted((f for f in folders if f.params_file.is_file()), key=lambda f: f.number)

    def controller(self) -> dict[str, Any]:
        """The controller's record (`pid`, `started_at`, `state`, …), empty before the first launch or where damaged."""
        try:
            return read_json(self.controller_file) or {}
        except DamagedRecord:
            return {}

    def identity(self) -> str:
        """What tells this study from any other of its name, for the runs in MLflow; made at the first asking."""
        file = self.path / "identity"
        with contextlib.suppress(FileNotFoundError):
            if known := file.read_text().strip():
                return known
        write_text(file, uuid.uuid4().hex + "\n")
        return file.read_text().strip()

    def live_controller(self) -> psutil.Process | None:
        """The process that controls the study now, told from a later one with the same pid by its start time."""
        record = self.controller()
        return live_process(record.get("pid"), record.get("pid_start_time"))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the study for this process.

        Raises:
            StudyBusy: another process holds it; the kernel frees the lock when that process ends, however it ends.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Beside the folder, so that a folder that is moved aside does not take the lock with it.
        with (self.path.parent / f".{self.name}.lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = self.controller().get("pid")
                raise StudyBusy(
                    f"study {self.name} is being run by another process{f' (pid {pid})' if pid else ''}; "
                    f"wait for it, or stop it with: python -m sweeps stop {self.name}"
                ) from None
            yield


def live_process(pid: int | None, start_time: float | None) -> psutil.Process | None:
    """The process with this pid and start time (seconds since the epoch), or None when it is gone."""
    if pid is None or start_time is None:
        return None
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - start_time) < _START_TIME_TOLERANCE_S
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def list_studies(runs_dir: Path) -> list[str]:
    """Names of the studies under `runs_dir`, sorted."""
    return sorted(path.parent.name for path in runs_dir.glob("*/sweep.yaml"))


def best_trial(folder: StudyFolder, direction: str) -> dict[str, Any] | None:
    """Outcome of the complete trial with the best objective, the earlier one of equals; None when none completed."""
    outcomes = [outcome for trial in folder.trials() if (outcome := trial.outcome()) is not None]
    complete = [outcome for outcome in outcomes if outcome["state"] == "complete"]
    sign = -1 if direction == "maximize" else 1
    return min(complete, key=lambda outcome: (sign * outcome["objective"], outcome["number"]), default=None)
