"""Copies the parts that a rank reads to a disk of its machine, checked by the book's hashes.

A staged set lies in ``<stage_to>/<first digits of its id>``, so that several can lie side by side. Every file is copied
once a machine: ranks that want the same one wait for each other, and find it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.comm.group import Group
from hpcgnn.comm.together import together
from hpcgnn.graph import files
from hpcgnn.graph.book import Book, read_offsets

DIGITS = 16


@dataclass(slots=True)
class Staged:
    """Where a staged set lies, and how many files and bytes were copied for this rank; the others were there."""

    folder: Path
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file to be staged: where it is and where it goes, its hash and its size."""

    source: Path
    target: Path
    hash: str
    bytes: int

    def is_there(self, working: Callable[..., None] | None = None) -> bool:
        """Whether the copy exists and has the right contents."""
        has_size = self.target.is_file() and self.target.stat().st_size == self.bytes
        return has_size and files.file_hash(self.target, working=working) == self.hash


def stage(path: str | os.PathLike, stage_to: str, world: Group) -> Staged:
    """Collective. Stage the parts of the world's rank, and the book. Raises DistributedError where a machine has no
    room, and for a set that is damaged or cannot be read."""
    with together(world, "stage the partition set"):
        folder, staged_files = plan_stage(path, stage_to, world.rank, world.size)
        folder.mkdir(parents=True, exist_ok=True)
        missing = sum(file.bytes for file in staged_files if not file.target.is_file())
    needed = sum(size for host, size in world.allgather((world.host, missing)) if host == world.host)
    with together(world, "stage the partition set"):
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise ValueError(
                f"{folder}: staging needs {needed} bytes on {world.host}, and {free} are free; name another folder, or "
                "leave data.stage_to empty and read the set where it is"
            )
    staged = Staged(folder)
    with together(world, "stage the partition set"):
        for file in staged_files:
            if copy_checked(file, world.working):
                staged.files, staged.bytes = staged.files + 1, staged.bytes + file.bytes
    return staged


def stage_path(path: str | os.PathLike, stage_to: str, world: Group) -> str | os.PathLike:
    """Collective. Return the folder to read a set from: the staged one, or ``path`` where ``stage_to`` is empty. An
    environment variable in it, such as $TMPDIR, is that of the rank."""
    with together(world, "stage the partition set"):
        folder = expand(stage_to)
    return stage(path, folder, world).folder if stage_to else path


def expand(stage_to: str) -> str:
    """Put in the environment variables that a folder to stage to names. Raises ValueError for one that is not set."""
    folder = os.path.expandvars(stage_to)
    if "$" in folder:
        raise ValueError(
            f"data.stage_to {stage_to}: the environment has no such variable; leave it empty, or name a folder"
        )
    return folder


def unusable(stage_to: str, world: Group) -> str:
    """Collective. Say on which host, and why, the folder to stage to cannot be made or written; empty: it can."""
    problem = ""
    try:
        folder = Path(expand(stage_to))
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            problem = f"{world.host}: {folder} cannot be written"
    except (OSError, ValueError) as error:
        problem = f"{world.host}: {error}"
    return next((text for text in world.allgather(problem) if text), "")


def plan_stage(path: str | os.PathLike, stage_to: str, rank: int, size: int) -> tuple[Path, list[StagedFile]]:
    """List what goes into the folder of a staged set for a rank: the book and its parts. Raises FileFormatError."""
    book = files.book_path(path)
    with files.reading(book, files.BOOK, "partition again") as file:
        offsets, types = read_offsets(file)
        folder = Path(stage_to) / str(file.attrs["set_id"])[:DIGITS]
        hashes, sizes = (file["parts"][name][()] for name in ("hash", "bytes"))
        edition = int(file.attrs.get("edition", 0))
    parts = Book(offsets, size, types).parts_of(rank)
    staged_files = [StagedFile(book, files.book_path(folder), files.file_hash(book), book.stat().st_size)]
    for part in parts:
        source, target = (files.part_path(place, part, edition) for place in (path, folder))
        staged_files.append(StagedFile(source, target, hashes[part].decode(), int(sizes[part])))
    return folder, staged_files


def copy_checked(staged: StagedFile, working: Callable[..., None] | None = None) -> bool:
    """Copy a file, unless a right copy is there; say whether it was copied. Raises FileFormatError for a file that is
    not the one that the book describes. working: called with every block."""
    with open(staged.target.with_name(f".{staged.target.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # for the processes of a machine that want the same file; closing it lets go
        if staged.is_there(working):
            return False
        temporary = staged.target.with_name(f".{staged.target.name}.tmp")
        try:
            files.copy(staged.source, temporary, working)
            if files.file_hash(temporary, working=working) != staged.hash:
                raise files.FileFormatError(
                    f"{staged.source}: contents do not match the hash in the book: damaged, or of another set; run "
                    "data_tools.verify, or partition again"
                )
            os.replace(temporary, staged.target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    return True
