"""What an exception in a rank says about its cause, which decides whether trying again makes sense."""

import errno
import traceback
from pathlib import Path
from typing import Any, Literal

from sweeps.credentials import mask_credentials
from sweeps.disk import is_disk_error

Cause = Literal["out_of_memory", "config", "disk", "machine", "code"]

_MEMORY_WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
#: Words of the runtime errors that torch raises for lost ranks, broken devices and full machines.
_MACHINE_WORDS = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "timed out",
    "timeout",
    "nccl",
    "gloo",
    "cuda error",
)
#: By name, so that this module needs no torch.
_MEMORY_TYPES = ("MemoryError", "OutOfMemoryError")
_MACHINE_TYPES = ("DistError", "AcceleratorError", "PeerFailed")


def cause_of(error: BaseException, run_dir: Path | None = None) -> Cause:
    """Why `error` was raised: memory, the person's settings, the disk, the machine, or a fault in the code.

    A file that is missing or forbidden is the person's mistake, but not below `run_dir`, which we made ourselves.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    message = str(error).lower()
    if names & set(_MEMORY_TYPES):
        return "out_of_memory"
    if isinstance(error, RuntimeError | OSError) and (
        getattr(error, "errno", None) == errno.ENOMEM or any(word in message for word in _MEMORY_WORDS)
    ):
        return "out_of_memory"
    if names & set(_MACHINE_TYPES):
        return "machine"
    if is_disk_error(error):
        return "disk"
    if isinstance(error, FileNotFoundError | PermissionError) and _is_below(error.filename, run_dir):
        return "disk" if isinstance(error, PermissionError) else "machine"
    if isinstance(error, ValueError | FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return "config"
    if isinstance(error, OSError | EOFError):
        return "machine"
    if isinstance(error, RuntimeError) and any(word in message for word in _MACHINE_WORDS):
        return "machine"
    return "code"


def _is_below(file: Any, folder: Path | None) -> bool:
    return folder is not None and isinstance(file, str) and Path(file).is_relative_to(folder)


def describe(error: BaseException, rank: int, run_dir: Path | None = None) -> dict[str, Any]:
    """Data of the `error` event of a rank that raised `error` while it wrote to `run_dir`."""
    return {
        "rank": rank,
        "type": type(error).__name__,
        "message": mask_credentials(str(error)),
        "traceback": mask_credentials("".join(traceback.format_exception(error))),
        "cause": cause_of(error, run_dir),
    }


def blame_order(data: dict[str, Any]) -> tuple[bool, int, int]:
    """Sorts the error data of several ranks: the one that explains the others first, a lost peer last."""
    causes: tuple[Cause, ...] = ("out_of_memory", "disk", "config", "code", "machine")
    return data["type"] == "PeerFailed", causes.index(data["cause"]), data["rank"]


def is_port_in_use(error: BaseException) -> bool:
    """Whether `error` says that the rendezvous port belongs to somebody else."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and ("eaddrinuse" in words or "address already in use" in words)
