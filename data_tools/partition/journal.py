"""Notes the finished stages of a partition set, so that an interrupted run resumes there, on any number of ranks.

While a set is written, its folder has ``partition.npy``, the assignment, and ``partition.json``. The latter has the
identity of the set's inputs, the finished stages and the hashes of their files. Both are removed when the book is
written. A file that does not fit its hash is made anew. Rank 0 keeps the journal for all ranks.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from data_tools.partition.blocks import NodeBlocks
from data_tools.team import Team
from hpcgnn.graph import durable, files

NAME, ASSIGNMENT = "partition.json", "partition.npy"


class Journal:
    """Collective to create. The finished stages of one set in a folder; all ranks know what rank 0 reads. Nothing is
    written before the first note."""

    def __init__(self, team: Team, folder: pathlib.Path, inputs_id: str, source_hash: str):
        self.team, self.folder, self.inputs_id, self.source_hash = team, folder, inputs_id, source_hash
        self._notes: dict[str, Any] = {"inputs_id": inputs_id, "parts": {}}
        notes = team.broadcast(read_notes(folder / NAME) if team.rank == 0 else None)
        if notes.get("inputs_id") == inputs_id:
            self._notes |= notes

    def set_id(self) -> str:
        """Compute the identity of the set, hex: of its inputs, and of the assignment that they led to."""
        return hashlib.sha256(f"{self.inputs_id} {self.get('assignment')}".encode()).hexdigest()

    def get(self, stage: str) -> Any:
        """Return the value that was noted of a stage, None where it is not finished."""
        return self._notes.get(stage)

    def note(self, stage: str, value: Any = True) -> None:
        """Collective. Note, durably, that a stage is finished; the value is the same on all ranks."""
        self._notes[stage] = value
        with self.team.together("note a finished stage"), durable.naming_disk(self.folder):
            if self.team.rank == 0:
                self.folder.mkdir(parents=True, exist_ok=True)
                write_file(self.folder / NAME, json.dumps(self._notes, sort_keys=True).encode())

    def assignment(self, blocks: NodeBlocks) -> np.ndarray | None:
        """Collective. Read the parts [n] int32 of this rank's block, None where there are none or others than were
        noted."""
        path, part = self.folder / ASSIGNMENT, np.empty(0, np.int32)
        right = self.get("assignment") is not None
        with self.team.together("read the assignment"):
            if self.team.rank == 0 and right:
                right = path.is_file() and files.file_hash(path) == self.get("assignment")
        if not self.team.broadcast(right):
            return None
        with self.team.together("read the assignment"):
            part = np.load(path, mmap_mode="r")[blocks.own.start : blocks.own.stop].astype(np.int32)
        return part

    def keep_assignment(self, blocks: NodeBlocks, part: np.ndarray) -> None:
        """Collective. Keep an assignment; part [n] int32 of this rank's block, which rank 0 appends in its turn. Stages
        that are finished for another assignment, of a method whose answer varies, are forgotten."""
        path, digest = self.folder / ASSIGNMENT, None
        header = {"descr": part.dtype.str, "fortran_order": False, "shape": (int(blocks.starts[-1]),)}
        temporary = path.with_name("partition.tmp.npy")
        for rank in range(self.team.size):
            counts = np.zeros(self.team.size, np.int64)
            counts[0] = len(part) * (self.team.rank == rank)
            rows = self.team.exchange(part[: counts[0]], counts)[0]
            with self.team.together("keep the assignment"), durable.naming_disk(self.folder):
                if self.team.rank == 0:
                    with open(temporary, "ab" if rank else "wb") as file:
                        if rank == 0:
                            np.lib.format.write_array_header_1_0(file, header)
                        file.write(rows.tobytes())
        with self.team.together("keep the assignment"), durable.naming_disk(self.folder):
            if self.team.rank == 0:
                durable.commit(temporary, path)
                digest = files.file_hash(path)
        digest = self.team.broadcast(digest)
        if self.get("assignment") not in (None, digest):
            self._notes = {"inputs_id": self.inputs_id, "valid": True, "parts": {}}
        self.note("assignment", digest)

    def finished(self, parts: range) -> dict[int, str]:
        """Return the hashes of the ``parts`` that were noted and whose files are still what they were."""
        hashes = {}
        for part in parts:
            note, path = self._notes["parts"].get(str(part)), files.part_path(self.folder, part)
            if note is not None and path.is_file() and files.file_hash(path) == note["hash"]:
                hashes[part] = note["hash"]
        return hashes

    def note_parts(self, hashes: dict[int, str], values: dict[int, Any]) -> None:
        """Collective. Note that parts of this rank are finished, and a value of each."""
        notes = dict(self._notes["parts"])
        for of_rank in self.team.everyone([(part, hashes[part], values.get(part)) for part in hashes]):
            notes |= {str(part): {"hash": digest, "value": value} for part, digest, value in of_rank}
        self.note("parts", notes)

    def part_value(self, part: int) -> Any:
        """Return the value that was noted of a part."""
        return self._notes["parts"][str(part)]["value"]

    def finish(self) -> None:
        """Collective. Remove the journal; the book is in place."""
        with self.team.together("remove the journal"):
            if self.team.rank == 0:
                for name in (ASSIGNMENT, "partition.tmp.npy", NAME + ".tmp", NAME):
                    (self.folder / name).unlink(missing_ok=True)


def read_notes(path: pathlib.Path) -> dict[str, Any]:
    """Read the notes of a journal; none where there is no readable one."""
    try:
        notes = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}


def write_file(path: pathlib.Path, content: bytes) -> None:
    """Replace a file durably."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    durable.commit(temporary, path)
