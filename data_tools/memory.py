"""Reads and writes sizes of memory as people do, and measures the memory of this process."""

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


def give_back_freed_memory() -> None:
    """Return freed memory to the system, where the C library can (glibc), before more is allocated."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
