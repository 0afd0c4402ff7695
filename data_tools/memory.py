"""Sizes of memory: as people write them, of this process, and what is free."""

from __future__ import annotations

import contextlib
import ctypes
import pathlib
import re

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def mebibytes(size: int) -> str:
    """Format a size for people."""
    return f"{size / (1 << 20):,.0f} MiB"


def parse_bytes(text: str) -> int:
    """Parse a size such as 8GiB, 500M or 1.5g as bytes; ValueError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?\s*", text.lower())
    if not match:
        raise ValueError(f"{text!r} is not a size; expected a number of bytes, such as 8GiB or 500M")
    return int(float(match[1]) * UNITS[match[2]])


def status_bytes(name: str) -> int:
    """Read a size of this process from /proc/self/status."""
    match = re.search(rf"^{name}:\s+(\d+) kB$", pathlib.Path("/proc/self/status").read_text(), re.MULTILINE)
    assert match, name
    return int(match[1]) << 10


def free_memory() -> int:
    """Count the bytes that are free on the machine and in the control group of this process."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert match
    return min([int(match[1]) << 10, *group_limits()])


def group_limits() -> list[int]:
    """List the bytes left in the control groups of this process that have a limit (version 1 or 2)."""
    left = []
    for line in read_text(pathlib.Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        old = "memory" in controllers.split(",")
        if controllers and not old:
            continue
        root = pathlib.Path("/sys/fs/cgroup/memory" if old else "/sys/fs/cgroup")
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
        folder = root / path.lstrip("/")
        for place in (folder, *folder.parents):
            limit, used = (read_text(place / name).strip() for name in names)
            if limit.isdigit() and used.isdigit():
                left.append(max(0, int(limit) - int(used)))
            if place == root:
                break
    return left


def read_text(path: pathlib.Path) -> str:
    """Read a file's text, empty where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def give_back_freed_memory() -> None:
    """Let the system have what a library has freed, where the C library can (glibc), before more is asked for."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
