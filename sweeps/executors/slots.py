"""How a machine is divided among the trials that run at once.

CUDA devices are found without touching CUDA, which the fork server must never do: from the person's own
CUDA_VISIBLE_DEVICES, else from `nvidia-smi`.
"""

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sweeps.profiles import count_gpus

_LISTING_TIMEOUT_S = 20.0
_GPU_LINE = re.compile(r"^GPU (?P<index>\d+):.*?(?:\(UUID: (?P<uuid>GPU-[^)]+)\))?$")
_MIG_LINE = re.compile(r"^\s+MIG .*\(UUID: (?P<uuid>MIG-[^)]+)\)$")


@dataclass(frozen=True)
class Slot:
    """The place of one trial at a time."""

    devices: tuple[str, ...] = ()
    """CUDA devices of its ranks, one a rank, as CUDA_VISIBLE_DEVICES names them; empty on CPU."""


def plan_slots(
    *,
    device: Literal["auto", "cpu", "cuda"],
    num_ranks: int,
    num_threads: int,
    max_concurrent_trials: int | Literal["auto"],
    devices: Sequence[str],
    num_cores: int,
) -> list[Slot]:
    """Slots for trials of `num_ranks` processes with `num_threads` CPU threads each, on these CUDA devices and cores.

    `auto` trials at once are as many as have cores (CPU) or devices (CUDA) to themselves, at least one. A number is
    taken at its word: more trials than that share cores or devices evenly.

    Raises:
        ValueError: there are fewer CUDA devices than ranks, or `max_concurrent_trials` is below 1.
    """
    wanted = max_concurrent_trials
    if wanted != "auto" and wanted < 1:
        raise ValueError(f"resources.max_concurrent_trials={wanted}: no trial could run; use auto or 1 or more")
    if device == "cpu" or (device == "auto" and not devices):
        num_slots = max(1, num_cores // (num_ranks * num_threads)) if wanted == "auto" else wanted
        return [Slot()] * num_slots
    if len(devices) < num_ranks:
        raise ValueError(
            f"resources.processes_per_trial={num_ranks}: each process needs a GPU of its own and "
            f"{_found(devices)}; lower it, or widen CUDA_VISIBLE_DEVICES"
        )
    num_groups = len(devices) // num_ranks
    groups = [tuple(devices[i * num_ranks : (i + 1) * num_ranks]) for i in range(num_groups)]
    return [Slot(groups[i % num_groups]) for i in range(num_groups if wanted == "auto" else wanted)]


def usable_cores() -> int:
    """CPU cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def list_gpus() -> str | None:
    """What `nvidia-smi -L` prints; without that program what the driver counts, in the same form; None for no GPU."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_LISTING_TIMEOUT_S)
        if done.returncode == 0:
            return done.stdout
    except (OSError, subprocess.TimeoutExpired):
        pass
    return "".join(f"GPU {index}: unnamed\n" for index in range(count_gpus())) or None


def cuda_devices(environ: Mapping[str, str], listing: Callable[[], str | None] = list_gpus) -> list[str]:
    """Names of the CUDA devices to divide: the person's own set where CUDA_VISIBLE_DEVICES is set, else all.

    Indices, UUIDs (`GPU-…`) and MIG instances (`MIG-…`) stay as they were written. As for CUDA itself, the list ends
    at the first entry that names no device, so that an empty value or -1 hides all of them.
    """
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return _parse_listing(listing() or "")
    devices: list[str] = []
    for entry in (part.strip() for part in chosen.split(",")):
        if not re.fullmatch(r"\d+|(GPU|MIG)-\S+", entry):
            break
        if entry not in devices:
            devices.append(entry)
    return devices if devices and listing() is not None else []


def _parse_listing(listing: str) -> list[str]:
    # CUDA numbers GPUs by speed and nvidia-smi by bus, so UUIDs. A GPU cut into MIG instances is used through them.
    devices: list[str] = []
    whole_gpu: str | None = None
    for line in listing.splitlines():
        if gpu := _GPU_LINE.match(line):
            whole_gpu = gpu["uuid"] or gpu["index"]
            devices.append(whole_gpu)
        elif instance := _MIG_LINE.match(line):
            if devices and devices[-1] == whole_gpu:
                devices.pop()
            devices.append(instance["uuid"])
    return devices


def _found(devices: Sequence[str]) -> str:
    return f"found {len(devices)} ({', '.join(devices)})" if devices else "found none"
