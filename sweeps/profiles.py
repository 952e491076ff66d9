"""Profiles: overlays of a whole sweep file, and which of them this machine takes."""

import ctypes
import os
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any


def machine_profile(environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """`gpu` where torch can use CUDA here, else `cpu`, with the reason in words; loads no torch."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.split(",")[0].strip() in ("", "-1", "NoDevFiles"):
        return "cpu", f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU"
    try:
        if "+cpu" in metadata.version("torch"):
            return "cpu", "the installed torch is built for CPU only"
    except metadata.PackageNotFoundError:
        return "cpu", "torch is not installed"
    num_gpus = count_gpus()
    if num_gpus == 0:
        return "cpu", "this machine has no CUDA device"
    return "gpu", f"this machine has {num_gpus} CUDA device{'' if num_gpus == 1 else 's'}"


def count_gpus() -> int:
    """NVIDIA GPUs that the driver reports, 0 without a driver."""
    try:
        nvml = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return 0
    count = ctypes.c_uint(0)
    if nvml.nvmlInit_v2() != 0:
        return 0
    try:
        return count.value if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 else 0
    finally:
        nvml.nvmlShutdown()


def choose_profile(profiles: list[str], wanted: str | None) -> tuple[str | None, str]:
    """The overlay to apply out of those a file has, and why; raises ValueError for one that it has not."""
    if wanted is not None:
        if wanted not in profiles:
            known = f"use one of {', '.join(profiles)}" if profiles else "the file has no profiles; drop --profile"
            raise ValueError(f"not a profile of this file; {known}")
        return wanted, "named with --profile"
    if not profiles:
        return None, "the file has no profiles"
    name, reason = machine_profile()
    if name in profiles:
        return name, reason
    return None, f"{reason}, and the file has no profile {name}"


def overlay(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """`base` with `top` laid over it: mappings merge, all else is replaced.

    An entry of the search space is replaced as a whole, since a `max` means nothing beside another entry's `values`;
    null takes the entry out.
    """
    merged = _merge(base, top)
    space, space_top = base.get("search_space"), top.get("search_space")
    if isinstance(space, dict) and isinstance(space_top, dict):
        entries = {**space, **space_top}
        merged["search_space"] = {
            key: entry for key, entry in entries.items() if entry is not None or key not in space_top
        }
    return merged


def _merge(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
