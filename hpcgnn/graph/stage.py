"""Copy the parts that a rank reads to a disk of its node, checked by the book's hashes.

A staged set lies in ``<stage_to>/<first digits of its id>``, so that several can lie side by side. Every file is copied
once a node: ranks that want the same one wait for each other, and find it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpcgnn.comm.group import Group
from hpcgnn.comm.together import together
from hpcgnn.graph import files
from hpcgnn.graph.book import Book, read_offsets

DIGITS = 16
BLOCK_BYTES = 8 << 20


@dataclass(slots=True)
class Staged:
    """Where the set is, and how many files and bytes were copied for this rank; the others were there."""

    folder: Path
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to be staged: where it is and where it goes, its hash and its size."""

    source: Path
    target: Path
    hash: str
    bytes: int

    def is_there(self) -> bool:
        """Whether the copy is there and right."""
        found = self.target.is_file() and self.target.stat().st_size == self.bytes
        return found and files.file_hash(self.target) == self.hash


def stage(path: str | os.PathLike, stage_to: str, world: Group) -> Staged:
    """Collective. Stage the parts of the world's rank, and the book. Raises DistributedError where a node has no room,
    and for a set that is damaged or cannot be read."""
    with together(world, "stage the partition set"):
        folder, wanted = plan_stage(path, stage_to, world.rank, world.size)
        folder.mkdir(parents=True, exist_ok=True)
        missing = sum(one.bytes for one in wanted if not one.target.is_file())
    needed = sum(size for host, size in world.allgather((world.host, missing)) if host == world.host)
    with together(world, "stage the partition set"):
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise ValueError(
                f"{folder}: {needed} bytes are to be staged on {world.host}, {free} are free; name another folder, or "
                "leave data.stage_to empty and read the set where it is"
            )
    staged = Staged(folder)
    with together(world, "stage the partition set"):
        for one in wanted:
            if copy_checked(one):
                staged.files, staged.bytes = staged.files + 1, staged.bytes + one.bytes
    return staged


def stage_path(path: str | os.PathLike, stage_to: str, world: Group) -> str | os.PathLike:
    """Collective. The folder to read a set from: staged, or where it is when ``stage_to`` is empty."""
    return stage(path, stage_to, world).folder if stage_to else path


def plan_stage(path: str | os.PathLike, stage_to: str, rank: int, size: int) -> tuple[Path, list[Wanted]]:
    """The folder of a staged set, and what goes there for a rank: the book, and its parts. Raises FileFormatError."""
    parts = Book(*_outline(path, size)).parts_of(rank)
    book = files.book_path(path)
    with files.reading(book, files.BOOK, "partition again") as file:
        folder = Path(stage_to) / str(file.attrs["set_id"])[:DIGITS]
        records = [(file["parts/hash"][part].decode(), int(file["parts/bytes"][part])) for part in parts]
    wanted = [Wanted(book, files.book_path(folder), files.file_hash(book), book.stat().st_size)]
    for part, record in zip(parts, records, strict=True):
        wanted.append(Wanted(files.part_path(path, part), files.part_path(folder, part), *record))
    return folder, wanted


def _outline(path: str | os.PathLike, size: int) -> tuple:
    offsets, types = read_offsets(path)
    return offsets, size, types


def copy_checked(wanted: Wanted) -> bool:
    """Copy a file, unless a right copy is there; True when it was copied. Raises FileFormatError for a file that is not
    the one that the book describes."""
    with _locked(wanted.target):
        if wanted.is_there():
            return False
        temporary = wanted.target.with_name(f".{wanted.target.name}.tmp")
        try:
            found = _copy(wanted.source, temporary)
            if found != wanted.hash:
                raise files.FileFormatError(
                    f"{wanted.source}: contents do not match the hash in the book: damaged, or of another set; run "
                    "data_tools.verify, or partition again"
                )
            os.replace(temporary, wanted.target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    return True


def _copy(source: Path, target: Path) -> str:
    """Copy a file; the hash of what was read."""
    digest = hashlib.sha256()
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while block := reader.read(BLOCK_BYTES):
            digest.update(block)
            writer.write(block)
    return digest.hexdigest()


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Only one process of the node is in the block for a file; the lock goes with its holder."""
    with open(target.with_name(f".{target.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
