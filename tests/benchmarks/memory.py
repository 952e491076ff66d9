"""Peak resident memory of this process, by the kernel's own count."""

from pathlib import Path


def reset_peak() -> None:
    """Begins a new peak at the present size."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """Largest resident size since `reset_peak`, 10^6 bytes."""
    return _status("VmHWM")


def resident_mb() -> float:
    """Present resident size, 10^6 bytes."""
    return _status("VmRSS")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name))
