"""What many tests need alike is made once a session and kept by its content: partition sets, and results of one rank.

The folder is that of `tests/run.sh`, which all stages share, in memory where there is room; else one of this process.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from data_tools.partition.command import partition as make_set
from hpcgnn.graph.files import book_path, file_hash


@cache
def _folder() -> Path:
    shared = os.environ.get("HPCGNN_TESTS_KEEP")
    folder = Path(shared or tempfile.mkdtemp(prefix="hpcgnn-kept-"))
    if not shared:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _place(*key: Any) -> Path:
    return _folder() / hashlib.sha256(repr(key).encode()).hexdigest()


def _keep(place: Path, make: Callable[[Path], None]) -> None:
    """Make a file or folder under its name unless it is there; of several processes the first one's stays."""
    if place.exists():
        return
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        made = Path(scratch) / place.name
        make(made)
        try:
            made.rename(place)
        except OSError:  # another process was first
            if not place.exists():
                raise


def partition(graph: Path, folder: Path, parts: int, *options: Any, **named: Any) -> None:
    """Write the partition set of a graph file, as the command does."""
    place = _place("set", file_hash(graph), parts, options, sorted(named.items()))
    _keep(place, lambda made: make_set(graph, made, parts, *options, **named) and None)
    shutil.copytree(place, folder)


def result(make: Callable[[], Any], parts: Path, *key: Any) -> Any:
    """What ``make`` returns for a partition set and whatever else decides on it, with a repr that says all of it."""
    place = _place("result", file_hash(book_path(parts)), key)
    _keep(place, lambda made: made.write_bytes(pickle.dumps(make())) and None)
    return pickle.loads(place.read_bytes())
