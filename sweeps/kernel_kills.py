"""Whether the kernel has ended processes for want of memory; they die by signal 9 like any that is killed."""

from pathlib import Path

_FILES = (Path("/sys/fs/cgroup/memory.events"), Path("/proc/vmstat"))


def num_memory_kills(files: tuple[Path, ...] = _FILES) -> int:
    """Processes that the kernel has ended so far, in this control group and on the machine; 0 where it does not say."""
    total = 0
    for file in files:
        try:
            words = [line.split() for line in file.read_text().splitlines()]
        except OSError:
            continue
        total += sum(int(line[1]) for line in words if len(line) == 2 and line[0] == "oom_kill" and line[1].isdigit())
    return total
