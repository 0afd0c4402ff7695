"""Reads the arrays of an npz file by name; large arrays that are not compressed are mapped into memory."""

from __future__ import annotations

import math
import os
import pathlib
import struct
import tokenize
import zipfile
from collections.abc import Iterator, Mapping

import numpy as np

from hpcgnn.graph.files import MOST_PACKED

MAPPED_BYTES = 16 << 20
BLOCK_BYTES = 4 << 20
MOST_HEADER_BYTES = 10_000  # that NumPy takes apart
LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip file: ends with the lengths of the name and of the extra field


class NpzArrays(Mapping):
    """The arrays of an npz file, read when they are asked for. Loading runs no code."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        with zipfile.ZipFile(path) as archive:
            self._members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, name: str) -> np.ndarray:
        info = self._members[name]
        shape, dtype = self.header(name)
        # Checked before memory is taken for it: the header may tell of another size than the archive.
        most = MOST_PACKED * os.path.getsize(self._path)
        if math.prod(shape) * dtype.itemsize > info.file_size or info.file_size > most:
            raise ValueError(f"shape {shape} of {dtype} does not fit {info.file_size:,} bytes")
        with zipfile.ZipFile(self._path) as archive, archive.open(info) as file:
            if not is_mapped(info):
                return np.lib.format.read_array(file, allow_pickle=False)
            while file.read(BLOCK_BYTES):  # to its end, where zipfile compares the checksum
                pass
        with open(self._path, "rb") as file:
            file.seek(info.header_offset)
            file.seek(info.header_offset + LOCAL_HEADER.size + sum(LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))))
            shape, fortran, dtype = read_header(file)
            return np.memmap(self._path, dtype, "r", file.tell(), shape, "F" if fortran else "C")

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Read shape and dtype of an array, not the array."""
        with zipfile.ZipFile(self._path) as archive, archive.open(self._members[name]) as file:
            shape, _, dtype = read_header(file)
        return shape, dtype


def open_npy(path: str | os.PathLike) -> np.ndarray:
    """Map the array of an npy file into memory. Raises ValueError for another file."""
    with open(path, "rb") as file:
        shape, _, dtype = read_header(file)
        if math.prod(shape) * dtype.itemsize > os.path.getsize(path):
            raise ValueError(f"shape {shape} of {dtype} does not fit {os.path.getsize(path):,} bytes")
    return np.lib.format.open_memmap(path, mode="r")


def is_mapped(info: zipfile.ZipInfo) -> bool:
    """Say whether an array is large and not compressed."""
    return info.compress_type == zipfile.ZIP_STORED and info.file_size >= MAPPED_BYTES


def loaded_bytes(path: pathlib.Path) -> int:
    """Count the bytes of the arrays of an npz file that are read as a whole."""
    with zipfile.ZipFile(path) as archive:
        return sum(info.file_size for info in archive.infolist() if not is_mapped(info))


def read_header(file) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read shape, whether in Fortran's order, and dtype from the begin of an npy file. Raises ValueError for
    objects."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        length = int.from_bytes(file.read(4), "little")
        if length > MOST_HEADER_BYTES:
            raise ValueError(f"its header claims to have {length:,} bytes")
        file.seek(-4, os.SEEK_CUR)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = read(file)
    except tokenize.TokenError as error:  # NumPy takes the header apart as Python does
        raise ValueError(f"its header cannot be read ({error})") from None
    if dtype.hasobject:
        raise ValueError("arrays of objects are not read: that could run code")
    if dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise ValueError(f"{dtype} of shape {shape} is no array")
    return shape, fortran, dtype
