"""What an exception in a rank says about its cause, which decides whether trying again makes sense."""

import errno
import traceback
from typing import Any, Literal

Cause = Literal["out_of_memory", "config", "machine", "code"]

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


def cause_of(error: BaseException) -> Cause:
    """Why `error` was raised: memory, the person's settings, the machine, or a fault in the code."""
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
    if isinstance(error, ValueError | FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return "config"
    if isinstance(error, OSError | EOFError):
        return "machine"
    if isinstance(error, RuntimeError) and any(word in message for word in _MACHINE_WORDS):
        return "machine"
    return "code"


def describe(error: BaseException, rank: int) -> dict[str, Any]:
    """Data of the `error` event of a rank that raised `error`."""
    return {
        "rank": rank,
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
        "cause": cause_of(error),
    }


def blame_order(data: dict[str, Any]) -> tuple[bool, int, int]:
    """Sorts the error data of several ranks: the one that explains the others first, a lost peer last."""
    causes: tuple[Cause, ...] = ("out_of_memory", "config", "code", "machine")
    return data["type"] == "PeerFailed", causes.index(data["cause"]), data["rank"]


def is_port_in_use(error: BaseException) -> bool:
    """Whether `error` says that the rendezvous port belongs to somebody else."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return True
    words = str(error).lower()
    return isinstance(error, RuntimeError) and ("eaddrinuse" in words or "address already in use" in words)
