import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeps.disk import disk_advice, is_disk_error
from sweeps.kernel_kills import num_memory_kills


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (OSError(errno.EROFS, "Read-only file system"), True),
        (OSError(errno.EIO, "Input/output error"), True),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), False),
        (FileNotFoundError(errno.ENOENT, "No such file"), False),
        (ValueError("No space left on device"), False),
    ],
)
def test_a_disk_that_takes_nothing_is_told_from_other_errors(error: Exception, expected: bool) -> None:
    assert is_disk_error(error) is expected


def test_the_way_out_of_a_disk_with_room_names_what_is_free(tmp_path: Path) -> None:
    advice = disk_advice(tmp_path / "runs" / "not-there-yet")
    assert "MB are free under" in advice and "python -m sweeps delete" in advice


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, filled to the last byte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        with pytest.raises(OSError), (folder / "fill").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_really_full(full_disk: Path) -> None:
    with pytest.raises(OSError) as caught, (full_disk / "more").open("wb", buffering=0) as file:
        file.write(b"x")
    assert is_disk_error(caught.value)
    assert disk_advice(full_disk).startswith("0 MB are free under")


def test_kills_of_the_kernel_are_counted_where_it_tells_of_them(tmp_path: Path) -> None:
    events, stat = tmp_path / "memory.events", tmp_path / "vmstat"
    events.write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 2\n")
    stat.write_text("nr_free_pages 5\noom_kill 3\n")
    assert num_memory_kills((events, stat)) == 5
    assert num_memory_kills((tmp_path / "nowhere",)) == 0
    assert num_memory_kills() >= 0
