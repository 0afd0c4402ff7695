"""What of a partition set is finished, so that an interrupted run continues where it was.

While a set is written its folder holds ``partition.json``, with the set's identity, the stages that are finished and
the hashes of what they left, and ``partition.npy``, the assignment. Both go when the book is written. What a hash does
not fit is made anew.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np

from hpcgnn.graph import files

NAME, ASSIGNMENT = "partition.json", "partition.npy"


class Journal:
    """The finished stages of one set in a folder, which are read unless they are given. Nothing is written before the
    first note."""

    def __init__(self, folder: pathlib.Path, set_id: str, source_hash: str, found: dict[str, Any] | None = None):
        self.folder, self.set_id, self.source_hash = folder, set_id, source_hash
        self._notes: dict[str, Any] = {"set_id": set_id, "groups": {}}
        self.hashes: dict[int, str] = {}  # of the part files that this run wrote, or took over
        found = read_notes(folder / NAME) if found is None else found
        if found.get("set_id") == set_id:
            self._notes |= found

    def get(self, stage: str) -> Any:
        """What was noted of a stage, None where it is not finished."""
        return self._notes.get(stage)

    def note(self, stage: str, value: Any = True) -> None:
        """Note, durably, that a stage is finished."""
        self._notes[stage] = value
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self.folder / NAME, json.dumps(self._notes, sort_keys=True).encode())

    def assignment(self) -> np.ndarray | None:
        """The assignment [N] int32, None where there is none or another one than was noted."""
        path = self.folder / ASSIGNMENT
        if self.get("assignment") is None or not path.is_file() or files.file_hash(path) != self.get("assignment"):
            return None
        return np.load(path)

    def keep_assignment(self, part: np.ndarray) -> None:
        """Keep an assignment [N]."""
        path = self.folder / ASSIGNMENT
        temporary = path.with_name("partition.tmp.npy")
        np.save(temporary, part)
        files.commit(temporary, path)
        self.note("assignment", files.file_hash(path))

    def group(self, parts: range) -> Any:
        """What was noted of a group of part files, None where one of them is missing or another file."""
        found = self._notes["groups"].get(str(parts.start))
        if found is None or len(found["hashes"]) != len(parts):
            return None
        paths = [files.part_path(self.folder, part) for part in parts]
        right = all(
            path.is_file() and files.file_hash(path) == digest
            for path, digest in zip(paths, found["hashes"], strict=True)
        )
        if not right:
            return None
        self.hashes.update(zip(parts, found["hashes"], strict=True))
        return found["value"]

    def note_group(self, parts: range, value: Any) -> None:
        """Note that a group of part files is finished."""
        hashes = [files.file_hash(files.part_path(self.folder, part)) for part in parts]
        self.hashes.update(zip(parts, hashes, strict=True))
        self.note("groups", self._notes["groups"] | {str(parts.start): {"hashes": hashes, "value": value}})

    def finish(self) -> None:
        """Remove the journal; the book is in place."""
        for name in (ASSIGNMENT, "partition.tmp.npy", NAME + ".tmp", NAME):
            (self.folder / name).unlink(missing_ok=True)


def read_notes(path: pathlib.Path) -> dict[str, Any]:
    """The notes of a journal; none where there is no readable one."""
    try:
        notes = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}


def write_file(path: pathlib.Path, content: bytes) -> None:
    """Replace a file durably."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    files.commit(temporary, path)
