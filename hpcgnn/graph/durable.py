"""Writes files that are whole or not there: under a temporary name, synced, then renamed; a full disk is named."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import pathlib
import secrets
from collections.abc import Iterator

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a disk answers that takes no more


class OutputFile:
    """A file that HDF5 writes, through h5py's driver for file objects. A write that fails is kept as ``error`` and
    seems to succeed. Otherwise HDF5 would forget an error once the dataset is released, and crash for a file that
    cannot be closed."""

    def __init__(self, path: str | os.PathLike):
        self.path, self.is_quiet, self._place = os.fspath(path), False, 0
        self.error: OSError | None = None
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # where files cannot be locked, what a killed writer leaves stays
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place."""
        self._place = place + (os.fstat(self._descriptor).st_size if whence == os.SEEK_END else 0)
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place

    def write(self, content) -> int:
        """Write bytes, unless a write has failed."""
        if self.error is None:
            with self._keeping_errors():
                write_at(self._descriptor, content, self._place)
        self._place += memoryview(content).nbytes
        return memoryview(content).nbytes

    def readinto(self, buffer) -> int:
        """Read bytes; those behind the end are zeros."""
        view, count = memoryview(buffer).cast("B"), 0
        while count < len(view) and (read := os.preadv(self._descriptor, [view[count:]], self._place + count)):
            count += read
        view[count:] = bytes(len(view) - count)
        self._place += len(view)
        return len(view)

    def truncate(self, size: int) -> None:
        """Set the size."""
        with self._keeping_errors():
            os.ftruncate(self._descriptor, size)

    def flush(self) -> None:
        """Raise the error of a write, unless the file is being closed."""
        if self.error is not None and not self.is_quiet:
            raise self.error

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    @contextlib.contextmanager
    def _keeping_errors(self) -> Iterator[None]:
        try:
            with naming_disk(self.path):
                yield
        except OSError as error:
            self.error = self.error or error


def write_at(descriptor: int, content, place: int) -> None:
    """Write all the bytes of an object at a place of a file; a disk that is nearly full may take some of them only."""
    view = memoryview(content).cast("B")
    while view:
        count = os.pwrite(descriptor, view, place)
        view, place = view[count:], place + count


@contextlib.contextmanager
def naming_disk(path: str | os.PathLike) -> Iterator[None]:
    """Name a file or folder, and the remedy, in what the block raises about a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or error.filename is not None:
            raise
        message = f"{error.strerror}; make room there, or choose another place, and start again"
        raise OSError(error.errno, message, os.fspath(path)) from None


def temporary_name(name: str) -> str:
    """Make a name, another one each time, for a file or folder that is to be renamed to ``name``."""
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}.{secrets.token_hex(4)}{dot}{suffix}.tmp" if stem else f"{name}.{secrets.token_hex(4)}.tmp"


def remove_leftovers(path: pathlib.Path) -> None:
    """Remove the temporary files of ``path`` whose writers were killed: nobody locks them."""
    for leftover in path.parent.glob(f"{glob.escape(path.stem)}.{'[0-9a-f]' * 8}{glob.escape(path.suffix)}.tmp"):
        with contextlib.suppress(OSError), open(leftover, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()


@contextlib.contextmanager
def locked(path: pathlib.Path, busy: str) -> Iterator[None]:
    """Hold a lock file within the block, and remove it at the end. A kill leaves it behind, but free. Raises ValueError
    with the text ``busy`` where another process holds it. Where files cannot be locked, nobody is kept out."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ValueError(busy) from None
        except OSError:
            break
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                break
        os.close(descriptor)  # its holder removed the file after it was opened here: this lock keeps nobody out
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def commit(temporary: str | os.PathLike, path: str | os.PathLike) -> None:
    """fsync a finished temporary file and rename it to its final name, durably."""
    fsync(temporary)  # before the rename: a crash must not leave the final name with a part of the contents
    os.replace(temporary, path)
    fsync(pathlib.Path(path).parent)


def write_text(path: pathlib.Path, text: str) -> None:
    """Write a small file under a temporary name, and rename it to its final name, durably."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    commit(temporary, path)


def fsync(path: str | os.PathLike) -> None:
    """fsync one file or folder; without effect on file systems that cannot sync a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
