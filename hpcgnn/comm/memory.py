"""Says how much memory is free: on the machine, and in the control groups in which a batch system holds a job. Gives
back what a process holds and does not use."""

from __future__ import annotations

import contextlib
import ctypes
import re
from pathlib import Path

MACHINE, GROUPS, OWN_GROUPS = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def free_bytes() -> int:
    """Count the bytes that are free on the machine and in the control groups of this process."""
    available = _number(r"^MemAvailable:\s+(\d+) kB$", MACHINE)
    return min([available << 10, *_group_bytes()])


def give_back() -> None:
    """Give the free pages of the C library's heap back to the system, where it can (glibc). Opening a graph leaves tens
    of MB there on every rank."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _group_bytes() -> list[int]:
    """List the bytes left in the control groups of this process that have a limit (version 1 or 2). Pages of files that
    nobody reads any more are left over too."""
    left = []
    for line in _read(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        old = "memory" in controllers.split(",")
        if controllers and not old:
            continue
        root = GROUPS / "memory" if old else GROUPS
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
        folder = root / path.lstrip("/")
        for place in (folder, *folder.parents):
            limit, used = (_read(place / name).strip() for name in names)
            if limit.isdigit() and used.isdigit():
                unread = _number(rf"^{'total_' if old else ''}inactive_file (\d+)$", place / "memory.stat")
                left.append(max(0, int(limit) - max(0, int(used) - unread)))
            if place == root:
                break
    return left


def _number(pattern: str, path: Path) -> int:
    """Find a number in a file, 0 where there is none."""
    match = re.search(pattern, _read(path), re.MULTILINE)
    return int(match[1]) if match else 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
