"""What a run leaves on disk while it goes: metrics.jsonl, one line a step, and rollouts.jsonl.zst, one frame a step.

A resumed run repeats the steps after its last checkpoint; a step that is on disk already is not written again. A line
that something else than a run wrote, or that the disk gave back wrongly, is left out by every reader.
"""

import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import zstandard

METRICS_FILE = "metrics.jsonl"
ROLLOUTS_FILE = "rollouts.jsonl.zst"


class RunRecord:
    """Appends steps to the files of `run_dir`; cuts off a line or frame that a killed process left unfinished."""

    def __init__(self, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self._metrics = run_dir / METRICS_FILE
        self._rollouts = run_dir / ROLLOUTS_FILE
        _cut_off_torn_line(self._metrics)
        recorded = list(read_metrics(self._metrics))
        self.last_step = max((line["step"] for line in recorded), default=0)
        self.last_values: dict[str, float] = {}
        for line in recorded:
            self.last_values |= line["metrics"]
        self._last_rollout_step = _cut_off_torn_frame(self._rollouts)
        self._compressor = zstandard.ZstdCompressor(level=3)

    def write(self, step: int, metrics: dict[str, float], rollouts: Iterable[dict[str, Any]]) -> bool:
        """Appends a step; False when it was on disk already."""
        if step > self._last_rollout_step:
            lines = "".join(json.dumps({"step": step, **rollout}) + "\n" for rollout in rollouts)
            if lines:
                with self._rollouts.open("ab") as file:
                    file.write(self._compressor.compress(lines.encode()))
            self._last_rollout_step = step
        if step <= self.last_step:
            return False
        line = json.dumps({"step": step, "time": time.time(), "metrics": metrics}) + "\n"
        with self._metrics.open("a") as file:
            file.write(line)
        self.last_step = step
        self.last_values |= metrics
        return True

    def force_to_disk(self) -> None:
        """Returns once what was written survives the loss of power."""
        for path in (self._metrics, self._rollouts):
            if path.exists():
                with path.open("rb") as file:
                    os.fsync(file.fileno())


def parse_step(line: str | bytes) -> dict[str, Any] | None:
    """One line of a metrics file: `step` (from 1), `time` (seconds since the epoch) and `metrics`; None for any other.

    A metric is a number, NaN and infinity included.
    """
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("metrics"), dict):
        return None
    step, moment = record.get("step"), record.get("time")
    if type(step) is not int or step < 1:
        return None
    if not isinstance(moment, int | float) or not _is_number(moment) or not math.isfinite(moment):
        return None
    return record if all(map(_is_number, record["metrics"].values())) else None


def _is_number(value: Any) -> bool:
    # A whole number of more digits than a float holds would raise in arithmetic.
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a metrics file, in order; none when there is no file. A damaged or unfinished line is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n") and (record := parse_step(line)) is not None:
                yield record


def read_rollouts(path: Path) -> Iterator[dict[str, Any]]:
    """Rollouts of a run, in order; none when there is no file. An unfinished last frame is left out."""
    for _, text in _frames(path):
        for line in text.decode().splitlines():
            yield json.loads(line)


def _frames(path: Path) -> Iterator[tuple[int, bytes]]:
    """Whole frames of a Zstandard file: the byte where each ends, and its content."""
    if not path.exists():
        return
    data = path.read_bytes()
    end = 0
    while end < len(data):
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        try:
            content = decompressor.decompress(data[end:])
        except zstandard.ZstdError:
            return
        if not decompressor.eof:
            return
        end = len(data) - len(decompressor.unused_data)
        yield end, content


def _cut_off_torn_line(path: Path) -> None:
    if path.exists():
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with path.open("r+b") as file:
                file.truncate(whole)


def _cut_off_torn_frame(path: Path) -> int:
    """Step of the last whole frame, 0 for none; frames from the first on that holds no rollouts are cut off too."""
    whole = last_step = 0
    for end, content in _frames(path):
        try:
            last_step = int(json.loads(content.splitlines()[-1])["step"])
        except (ValueError, TypeError, LookupError):
            break
        whole = end
    if path.exists() and whole < path.stat().st_size:
        with path.open("r+b") as file:
            file.truncate(whole)
    return last_step
