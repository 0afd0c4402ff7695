"""Opens text files as clean streams: decompressed, without comments, blank lines and carriage returns."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import glob
import gzip
import io
import lzma
import pathlib
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

import pyarrow as pa

from hpcgnn.graph.files import FileFormatError

UTF8 = "utf-8"
BLOCK_BYTES = 2 << 20
LONGEST_LINE = 64 << 20  # whole lines are in memory, several times


@contextlib.contextmanager
def open_binary(path: pathlib.Path, suffix: str | None = None, member: str | None = None) -> Iterator[IO[bytes]]:
    """Open the decompressed bytes of a file: a suffix of UNPACK, .zip with a single member, or not compressed
    (``suffix`` overrides the name's suffix).

    With ``member`` the file is an archive, .tar (compressed or not) or .zip, and the path of one member ends so.
    Raises FileFormatError for a missing or damaged file, also while the caller reads.
    """
    try:
        with contextlib.ExitStack() as stack:
            yield _open(stack, path, path.suffix if suffix is None or member is not None else suffix, member)
    except FileNotFoundError:
        raise FileFormatError(f"{path}: no such file") from None
    except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, not of a damaged stream
            raise
        reason = " ".join(str(error).split())
        raise FileFormatError(f"{path}: damaged or truncated ({reason}); fetch it again") from error


def _open(stack: contextlib.ExitStack, path: pathlib.Path, suffix: str, member: str | None) -> IO[bytes]:
    """Open a stream that ``stack`` closes."""
    if suffix == ".zip":
        archive = stack.enter_context(zipfile.ZipFile(path))
        file = stack.enter_context(archive.open(find_member(path, member, archive.namelist())))
    elif member is not None:
        tar = stack.enter_context(tarfile.open(path))
        names = [item.name for item in tar.getmembers() if item.isfile()]
        file = cast(IO[bytes], tar.extractfile(find_member(path, member, names)))
    else:
        file = stack.enter_context(open(path, "rb"))
        return stack.enter_context(UNPACK[suffix](file)) if suffix in UNPACK else file
    inner = pathlib.Path(member or "").suffix
    return stack.enter_context(UNPACK[inner](file)) if inner in UNPACK else file


# Streams of the decompressed bytes of a file, by the suffix of its name.
UNPACK: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    ".gz": lambda file: cast(IO[bytes], gzip.open(file)),
    ".bz2": lambda file: cast(IO[bytes], bz2.open(file)),
    ".xz": lambda file: cast(IO[bytes], lzma.open(file)),
    ".zst": lambda file: cast(IO[bytes], io.BufferedReader(pa.CompressedInputStream(file, "zstd"))),
}


def find_member(path: pathlib.Path, member: str | None, names: list[str]) -> str:
    """Find the one name in an archive that is, or ends with, the path ``member``; None: the name of its only file."""
    if member is None:
        names = [name for name in names if not name.endswith("/")]
        if len(names) != 1:
            raise FileFormatError(f"{path}: holds {len(names)} files {names[:5]}; unpack it and name one of them")
        return names[0]
    matching = [name for name in names if name == member or name.endswith("/" + member)]
    if len(matching) != 1:
        raise FileFormatError(f"{path}: {len(matching) or 'no'} members are named {member!r}; it has {names[:10]}")
    return matching[0]


@dataclass(frozen=True, slots=True)
class TextSource:
    """A file, or a member of an archive, and the encoding of its text."""

    path: pathlib.Path
    member: str | None = None
    encoding: str = UTF8

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.path.name if self.member is None else f"{self.path.name}: {self.member}"

    @property
    def suffix(self) -> str:
        """The suffix by which the format is chosen, without suffixes of compression."""
        name = pathlib.Path(self.member or self.path.name)
        return (name.with_suffix("") if name.suffix in (*UNPACK, ".zip") else name).suffix

    def check(self) -> None:
        """Raise FileFormatError where there is no such file; it names one that is compressed."""
        if not self.path.is_file():
            packed = [path.name for path in self.path.parent.glob(f"{glob.escape(self.path.name)}.*") if path.is_file()]
            there = f"; {packed[0]} is there, which can be named instead" if packed else ""
            raise FileFormatError(f"{self.path}: no such file{there}")

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the decompressed bytes, as `open_binary` gives them, in UTF-8 whatever the encoding of the file."""
        with open_binary(self.path, member=self.member) as file:
            is_utf8 = codecs.lookup(self.encoding).name == UTF8
            yield file if is_utf8 else io.BufferedReader(Recoded(file, self.name, self.encoding))


class Recoded(io.RawIOBase):
    """Text of another encoding as a stream of UTF-8. Raises FileFormatError for bytes that are none of it."""

    def __init__(self, raw: IO[bytes], name: str, encoding: str):
        self._raw, self._name, self._encoding = raw, name, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; returns the number of bytes, 0 at the end."""
        block = b"\n"
        while block and not self._rest:
            block = self._raw.read(BLOCK_BYTES)
            try:
                self._rest = self._decoder.decode(block, final=not block).encode()
            except UnicodeDecodeError as error:
                raise FileFormatError(f"{self._name}: not {self._encoding} text ({error}); check encoding") from None
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


class CleanText(io.RawIOBase):
    """Lines of data as a stream of bytes ending in one newline each.

    Left out: a byte order mark, carriage returns, blank lines and lines that start with one of the ``comment``
    characters. With ``whitespace`` every run of spaces and tabs becomes one space and both ends of a line are
    trimmed, which leaves a format with a one-character delimiter.
    """

    def __init__(self, raw: IO[bytes], comment: str = "", whitespace: bool = False):
        self._name = getattr(raw, "name", None) or "text"
        self._blocks = self._clean_blocks(raw)
        self.num_lines = 0  # that `read` has given
        self._buffer: Any = b""
        self._offset = 0
        self._whitespace = whitespace
        self._marks = comment.encode()
        self._comment: Any = (
            re.compile(rb"^[" + re.escape(self._marks) + rb"][^\n]*\n", re.MULTILINE) if comment else None
        )

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Read at most ``size`` bytes (all that is left when negative); empty at the end."""
        if size is None or size < 0:
            return b"".join(iter(lambda: self.read(BLOCK_BYTES), b""))
        while self._offset == len(self._buffer):
            self._buffer, self._offset = next(self._blocks, None), 0
            if self._buffer is None:
                self._buffer = b""
                return b""
        piece = self._buffer[self._offset : self._offset + size]
        self._offset += len(piece)
        self.num_lines += piece.count(b"\n")
        return piece

    def peek_line(self) -> bytes:
        """Return the next line without its newline, left in the stream; empty at the end."""
        line = self.next_line()
        if line:
            self._offset -= len(line) + 1
        return line

    def next_line(self) -> bytes:
        """Take the next line, without its newline; empty at the end."""
        first = self.read(1)
        if not first:
            return b""
        # Blocks hold whole lines, so the newline is in the buffer.
        end = self._buffer.index(b"\n", self._offset - 1)
        line = self._buffer[self._offset - 1 : end]
        self._offset = end + 1
        return line

    def blocks(self) -> Iterator[bytes]:
        """Yield all that is left, in blocks of whole lines, each line ending in a newline."""
        if self._offset < len(self._buffer):
            yield self._buffer[self._offset :]
        self._buffer, self._offset = b"", 0
        yield from self._blocks

    def _clean_blocks(self, raw: IO[bytes]) -> Iterator[bytes]:
        """Yield non-empty cleaned blocks of whole lines."""
        rest = b""
        first = True
        while block := raw.read(BLOCK_BYTES):
            if first:
                block, first = block.removeprefix(b"\xef\xbb\xbf"), False
            whole, newline, tail = block.rpartition(b"\n")
            if not newline:
                rest += block
                if len(rest) > LONGEST_LINE:
                    raise too_long(self._name)
                continue
            if cleaned := self._clean(rest + whole + newline):
                yield cleaned
            rest = tail
        if rest and (cleaned := self._clean(rest + b"\n")):
            yield cleaned

    def _clean(self, block: bytes) -> bytes:
        block = block.replace(b"\r\n", b"\n")
        if self._whitespace:
            block = squeeze(block.replace(b"\t", b" "), b" ").replace(b" \n", b"\n").replace(b"\n ", b"\n").lstrip(b" ")
        if any(mark in block for mark in self._marks):
            block = self._comment.sub(b"", block)
        return squeeze(block, b"\n").lstrip(b"\n")


def too_long(name: str) -> FileFormatError:
    """Make the error for a text with a line that is not taken into memory."""
    return FileFormatError(f"{name}: a line is longer than {LONGEST_LINE >> 20} MiB; is it text with a row a line?")


def squeeze(block: bytes, char: bytes) -> bytes:
    """Replace every run of ``char`` by one."""
    while char + char in block:
        block = block.replace(char + char, char)
    return block


def natural(name: str) -> list:
    """Make a key that sorts part-2 before part-10."""
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in re.split(r"(\d+)", name)]
