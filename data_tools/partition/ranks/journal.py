"""The journal of a partition set (`data_tools.partition.journal`) that several ranks write: rank 0 keeps it for all.

Parts are noted one by one, so that another number of ranks, which has other parts, takes over those that are finished.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from data_tools.partition.journal import ASSIGNMENT, NAME, Journal, read_notes
from data_tools.team import Team
from hpcgnn.graph import files
from hpcgnn.graph.book import BlockOwnership


class SharedJournal(Journal):
    """Collective to create. As `Journal`; what rank 0 reads is what all ranks know."""

    def __init__(self, team: Team, folder: pathlib.Path, set_id: str, source_hash: str):
        found = team.broadcast(read_notes(folder / NAME) if team.rank == 0 else None)
        super().__init__(folder, set_id, source_hash, found)
        self.team = team

    def note(self, stage: str, value: Any = True) -> None:
        """Collective. See `Journal`; the value is the same on all ranks."""
        with self.team.together("note a finished stage"):
            if self.team.rank == 0:
                super().note(stage, value)
        self._notes[stage] = value

    def block(self, blocks: BlockOwnership) -> np.ndarray | None:
        """Collective. The assignment [n] int32 of this rank's block, None where there is none or another one than was
        noted."""
        path, right = self.folder / ASSIGNMENT, False
        if self.team.rank == 0:
            right = path.is_file() and files.file_hash(path) == self.get("assignment")
        if not self.team.broadcast(right):
            return None
        first, last = (int(blocks.starts[self.team.rank + side]) for side in (0, 1))
        part = np.empty(0, np.int32)
        with self.team.together("read the assignment"):
            part = np.load(path, mmap_mode="r")[first:last].astype(np.int32)
        return part

    def keep_block(self, blocks: BlockOwnership, part: np.ndarray) -> None:
        """Collective. Keep an assignment; part [n] int32 of this rank's block. Rank 0 writes one block after the
        other."""
        path, digest = self.folder / ASSIGNMENT, None
        temporary = path.with_name("partition.tmp.npy")
        for rank in range(self.team.size):
            counts = np.zeros(self.team.size, np.int64)
            counts[0] = len(part) * (self.team.rank == rank)
            rows = self.team.exchange(part[: counts[0]], counts)[0]
            with self.team.together("keep the assignment"):
                if self.team.rank == 0:
                    with open(temporary, "ab" if rank else "wb") as file:
                        if rank == 0:
                            write_header(file, int(blocks.starts[-1]))
                        rows.tofile(file)
        with self.team.together("keep the assignment"):
            if self.team.rank == 0:
                files.commit(temporary, path)
                digest = files.file_hash(path)
        self.note("assignment", self.team.broadcast(digest))

    def finished(self, parts: range) -> dict[int, str]:
        """The hashes of those of some parts that were noted and are still what they were."""
        found = {}
        for part in parts:
            if self.group(range(part, part + 1)) is not None:
                (found[part],) = self._notes["groups"][str(part)]["hashes"]
        return found

    def note_parts(self, hashes: dict[int, str]) -> None:
        """Collective. Note that parts of this rank are finished."""
        told = {str(part): {"hashes": [digest], "value": True} for part, digest in hashes.items()}
        for others in self.team.everyone(told):
            told |= others
        self.note("groups", self._notes["groups"] | told)

    def finish(self) -> None:
        """Collective. See `Journal`."""
        with self.team.together("remove the journal"):
            if self.team.rank == 0:
                super().finish()


def write_header(file, count: int) -> None:
    """What an npy file of int32 [count] begins with."""
    like = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.int32)), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, like)
