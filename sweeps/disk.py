"""Disks that take nothing any more: told from other errors, and what a person can do about them."""

import errno
import os
import shutil
from pathlib import Path

#: Full, over the quota, read-only, or broken.
_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def is_disk_error(error: BaseException) -> bool:
    """Whether `error` says that a disk does not take what is written to it."""
    return isinstance(error, OSError) and error.errno in _ERRORS


def disk_advice(folder: Path) -> str:
    """What keeps the disk under `folder` from being written to, and the way out."""
    there = next((each for each in (folder, *folder.parents) if each.exists()), Path("/"))
    try:
        free_mb = shutil.disk_usage(there).free / 1e6
        writable = os.access(there, os.W_OK)
    except OSError as error:
        return f"{folder} cannot be reached ({error.strerror}); bring the disk back, then go on"
    if not writable:
        return f"{folder} is read-only; make it writable, then go on"
    return (
        f"{free_mb:,.0f} MB are free under {folder}; make room, for example with `python -m sweeps delete`, then go on"
    )
