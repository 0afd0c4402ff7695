"""Measures free memory and granted cores, on the machine and in the control groups in which a batch system or a
container holds a job. Gives back memory that a process holds and does not use."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterator
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
    for place, old in _own_groups("memory"):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
        limit, used = (_read(place / name).strip() for name in names)
        if limit.isdigit() and used.isdigit():
            unread = _number(rf"^{'total_' if old else ''}inactive_file (\d+)$", place / "memory.stat")
            left.append(max(0, int(limit) - max(0, int(used) - unread)))
    return left


def granted_cores() -> tuple[float, str]:
    """Find the tightest quota of processor time in the control groups of this process (version 1 or 2). Returns the
    number of cores (infinity without a quota) and the folder of the group, whose processes share the quota."""
    quotas = [(float("inf"), "")]
    for place, old in _own_groups("cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if old else ("cpu.max",)
        words = " ".join(_read(place / name) for name in names).split()
        if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
            quotas.append((int(words[0]) / int(words[1]), str(place.relative_to(GROUPS))))
    return min(quotas)


def _own_groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of the control groups of this process, from the innermost one on, and whether they are those of
    version 1."""
    for line in _read(OWN_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2)
        old = controller in controllers.split(",")
        if controllers and not old:
            continue
        root = GROUPS / controller if old else GROUPS
        folder = root / path.lstrip("/")
        for place in (folder, *folder.parents):
            yield place, old
            if place == root:
                break


def _number(pattern: str, path: Path) -> int:
    """Find a number in a file, 0 where there is none."""
    match = re.search(pattern, _read(path), re.MULTILINE)
    return int(match[1]) if match else 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
