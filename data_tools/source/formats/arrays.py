"""Reads npz, npy, mat, pt and JSON files as tables: arrays with an optional NumPy index, and sparse matrices stored as
SciPy does."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import pathlib
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from data_tools.source.formats.npz_arrays import NpzArrays, loaded_bytes, open_npy
from data_tools.source.formats.table import NUMBER_BYTES, Size, Table, naming
from data_tools.source.formats.text_stream import BLOCK_BYTES, TextSource
from data_tools.source.formats.values import Raw
from data_tools.source.spool import forget
from hpcgnn.graph.decode import decode_json
from hpcgnn.graph.files import FileFormatError, row_bytes, slabs
from hpcgnn.graph.unpickle import load_pickled_bytes, load_torch, plain

REFERENCE = re.compile(r"(?P<name>[^\[\]]+?)(\[(?P<index>[-\d:,\s]+)\])?")
SLAB_BYTES = 16 << 20
MOST_EMPTY_ROWS = 1 << 20  # of a sparse matrix, for each entry
MOST = 1 << 62  # that a number of a row or column of lists may be
TORCH_BYTES = 224 << 20  # of torch, which reads pt files
SCIPY_BYTES, MATLAB_COPIES = 128 << 20, 5  # of the process that reads a mat file, and of its arrays in both processes
SPARSE_COPIES = 3  # of a matrix that has to be sorted by rows
ENTRY_BYTES, LIST_BYTES = 180, 320  # of an entry of lists in JSON, and of a list
PACKED = 15  # type of the elements of a MATLAB file that are compressed


@dataclass(frozen=True, slots=True)
class Sparse:
    """A sparse matrix as SciPy stores it: <prefix>data and shape with indices and indptr (CSR) or row and col (COO)."""

    prefix: str


class ArraysTable(Table):
    """A table whose columns are arrays, by name. A format is a subclass that loads them."""

    kind: ClassVar[str]  # what messages call the format

    def __init__(self, source: TextSource, spec: Any = None, number: int = 1):
        super().__init__(source, spec, number)
        self._cache: dict[str, np.ndarray] = {}

    def load(self) -> Mapping[str, np.ndarray]:
        """Open the arrays by name, and run no code for it. May raise anything."""
        raise NotImplementedError

    def loaded_bytes(self) -> int:
        """Count the bytes that `load`, and the arrays that it does not map into memory, take at most."""
        return 0

    @cached_property
    def arrays(self) -> Mapping[str, np.ndarray]:
        """The arrays by name. Raises FileFormatError for a file that cannot be read."""
        try:
            return self.load()
        except FileFormatError:
            raise
        except Exception as error:  # what NumPy, SciPy and zipfile raise about damaged files has no common class
            raise FileFormatError(f"{self.name}: not a readable {self.kind} file ({error})") from None

    @property
    def _names(self) -> list[str]:
        return list(self.arrays)  # not "in arrays", which would read the array

    @property
    def _listed(self) -> str:
        return ", ".join(self._names) or "none at its top level"

    def memory(self) -> int:
        """Count the bytes that reading takes at most."""
        with naming(self.name, self.kind):
            return self.loaded_bytes()

    def size(self, reference: Any) -> Size:
        """Measure the file, whose rows are the rows of an array."""
        array = type(self)(self.source, self.spec).array(listed(reference)[0])  # which is dropped with that table
        largest = max(array.nbytes, os.path.getsize(self.source.path), self.memory())
        return Size(len(array) if array.ndim else 0, array.nbytes, 1 + largest // BLOCK_BYTES)

    def column_bytes(self, reference: Any, sparse: str | None, row: Any) -> int:
        """Count the bytes that a column of nodes takes when it is stored, at most."""
        fresh = type(self)(self.source, self.spec)
        if sparse is not None:
            return super(ArraysTable, fresh).column_bytes(reference, sparse, row)
        return NUMBER_BYTES * sum(fresh.array(item).size for item in listed(reference))

    def batches(self, references: Mapping[str, str | Sparse | list]) -> Iterator[dict[str, Raw]]:
        """Yield pieces of the requested arrays; of a list, side by side. Raises FileFormatError where arrays differ in
        their number of rows."""
        found = {key: [self._column(item) for item in listed(ref)] for key, ref in references.items()}
        labels = {key: [str(item) for item in listed(ref)] for key, ref in references.items()}
        columns = [column for parts in found.values() for column in parts]
        lengths = {name: column.shape[0] for key in found for name, column in zip(labels[key], found[key], strict=True)}
        if len(set(lengths.values())) > 1:
            raise FileFormatError(f"{self.name}: the selected arrays differ in their number of rows: {lengths}")
        num_rows = next(iter(lengths.values()), 0)
        for start, stop in slabs(num_rows, max(map(row_bytes, columns)), SLAB_BYTES):
            batch = {}
            for key, reference in references.items():
                parts = [column[start:stop] for column in found[key]]
                is_scalar = not isinstance(reference, list) and parts[0].ndim == 1
                batch[key] = Raw(parts, labels[key], is_scalar, stop - start, True)
            yield batch
            for column in columns:
                for array in (column.indices, column.data) if isinstance(column, SparseRows) else (column,):
                    forget(array)

    def array(self, reference: str) -> np.ndarray:
        """Read one array, its index applied. Raises FileFormatError naming the arrays of the file when it is
        missing."""
        if reference in self._names:  # also a name with brackets
            return self._load(reference)
        match = REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
        if match is None:
            raise FileFormatError(f"{self.name}: {reference!r} is not an array of it; it has {self._listed}")
        array = self._load(match["name"])
        if match["index"] is None:
            return array
        try:
            return array[tuple(parse_index(item) for item in match["index"].split(","))]
        except (IndexError, ValueError) as error:
            raise FileFormatError(f"{self.name}: {reference!r} of an array of shape {array.shape}: {error}") from None

    def _load(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise FileFormatError(f"{self.name}: no array {name!r}; it has {self._listed}")
        if name not in self._cache:
            try:
                self._cache[name] = self.arrays[name]
            except Exception as error:  # as for `arrays`
                raise FileFormatError(f"{self.name}: array {name!r} cannot be read ({error})") from None
        return self._cache[name]

    def _column(self, reference: str | Sparse) -> np.ndarray | SparseRows:
        if not isinstance(reference, Sparse):
            array = self.array(reference)
            if array.ndim == 0:
                raise FileFormatError(f"{self.name}: {reference!r} is a single number, not a column")
            return array
        prefix = reference.prefix
        data, shape = self._load(prefix + "data"), tuple(map(int, self._load(prefix + "shape")))
        if prefix + "row" not in self._names:
            return SparseRows(self.name, data, self._load(prefix + "indices"), self._load(prefix + "indptr"), shape)
        row, col = self._load(prefix + "row"), self._load(prefix + "col")
        if shape[0] > max(MOST_EMPTY_ROWS, MOST_EMPTY_ROWS * len(row)):
            raise FileFormatError(f"{self.name}: {shape[0]:,} rows for {len(row):,} entries: shape is damaged")
        order = np.argsort(row, kind="stable")
        indptr = np.searchsorted(row[order], np.arange(shape[0] + 1))
        return SparseRows(self.name, data[order], col[order], indptr, shape)


class NpzTable(ArraysTable):
    """An npz file; large arrays that are not compressed are mapped into memory."""

    kind = "npz"

    def load(self) -> Mapping[str, np.ndarray]:
        """Open the arrays."""
        return NpzArrays(self.source.path)

    def loaded_bytes(self) -> int:
        """Count the bytes of the arrays that are not mapped."""
        is_sorted = any(name.endswith("row") for name in NpzArrays(self.source.path))
        return loaded_bytes(self.source.path) * (SPARSE_COPIES if is_sorted else 1)


class NpyTable(ArraysTable):
    """An npy file: one array, named ``array``, mapped into memory."""

    kind = "npy"

    def load(self) -> Mapping[str, np.ndarray]:
        """Map the array."""
        return {"array": open_npy(self.source.path)}


class RawTable(ArraysTable):
    """Numbers without a header, as np.memmap and ndarray.tofile write them: one array, named ``array``, mapped into
    memory. The layout says the type of the numbers and, where rows are no single numbers, how many a row has."""

    kind = "raw"

    def load(self) -> Mapping[str, np.ndarray]:
        """Map the array."""
        dtype, width, size = (
            np.dtype(self.spec.dtype).newbyteorder("<"),
            self.spec.width,
            self.source.path.stat().st_size,
        )
        num_rows, rest = divmod(size, dtype.itemsize * max(1, width))
        if rest:
            raise ValueError(
                f"{size:,} bytes are no rows of {max(1, width)} {dtype.name}: it is cut short, or has others"
            )
        shape = (num_rows, width) if width else (num_rows,)
        return {"array": np.memmap(self.source.path, dtype, "r", shape=shape) if size else np.empty(shape, dtype)}


class MatlabTable(ArraysTable):
    """A MATLAB file; a sparse matrix X is the arrays X_data, X_row, X_col and X_shape."""

    kind = "mat"

    def load(self) -> Mapping[str, np.ndarray]:
        """Read the arrays in another process: SciPy's reader crashes on some files that are damaged."""
        if importlib.util.find_spec("scipy") is None:
            raise FileFormatError(f"{self.name}: MATLAB files need SciPy: pip install scipy")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            try:
                return pool.submit(read_matlab, self.source.path).result()
            except BrokenProcessPool:
                raise ValueError("its reader crashed") from None

    def loaded_bytes(self) -> int:
        """Count the bytes of the arrays, whose elements may be compressed, in both processes."""
        total = os.path.getsize(self.source.path)
        with open(self.source.path, "rb") as file:
            order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:])
            while order and len(head := file.read(8)) == 8:
                kind, length = struct.unpack(f"{order}II", head)
                if kind != PACKED:
                    file.seek(length, os.SEEK_CUR)
                    continue
                packed, unpack = file.read(length), zlib.decompressobj()
                while packed and (piece := unpack.decompress(packed, BLOCK_BYTES)):
                    total, packed = total + len(piece), unpack.unconsumed_tail
        return total * MATLAB_COPIES + SCIPY_BYTES


class TensorsTable(ArraysTable):
    """A dictionary of tensors and NumPy arrays that torch.save wrote."""

    kind = "pt"

    def load(self) -> Mapping[str, np.ndarray]:
        """Read the dictionary."""
        loaded = load_tensors(self.source.path, self.name)
        if not isinstance(loaded, dict):
            raise ValueError(f"it holds a {type(loaded).__name__}, not a dictionary of tensors")
        arrays = {key: value.numpy() if hasattr(value, "numpy") else value for key, value in loaded.items()}
        return {key: value for key, value in arrays.items() if isinstance(value, np.ndarray)}

    def loaded_bytes(self) -> int:
        """Count the bytes of torch and of the arrays."""
        size = os.path.getsize(self.source.path)
        if zipfile.is_zipfile(self.source.path):
            with zipfile.ZipFile(self.source.path) as archive:
                size = sum(info.file_size for info in archive.infolist())
        return SPARSE_COPIES * size + TORCH_BYTES


def listed(reference: Any) -> list:
    """Return a list of references as it is, and one as a list."""
    return reference if isinstance(reference, list) else [reference]


def load_tensors(path: str | os.PathLike, title: str = "") -> Any:
    """Read tensors, NumPy arrays and built-in containers that torch.save wrote. Raises FileFormatError for other
    objects, which are not read, and ValueError for a file that is none of torch.save."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about protocols of pickle, which `pickle_of` is for
            return plain(load_torch(path))
    except Exception as error:  # a damaged pickle raises nearly anything
        if "Weights only load failed" in str(error):
            with contextlib.suppress(Exception):
                return load_pickled_bytes(pickle_of(path))
            raise FileFormatError(
                f"{title or path}: holds objects other than tensors, such as PyTorch Geometric's Data, which are not "
                "read, as that would run code; write its tensors: torch.save({name: value for name, value in "
                "data.to_dict().items() if torch.is_tensor(value)}, path); of HeteroData those of each type and "
                "relation, such as {'paper_x': data['paper'].x}"
            ) from None
        raise ValueError(" ".join(str(error).split())[:200]) from None


def open_tensors(path: pathlib.Path) -> Any:
    """Read a file as `load_tensors` does. Raises FileFormatError naming it where it is missing or damaged, too."""
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    try:
        return load_tensors(path)
    except FileFormatError:
        raise
    except ValueError as error:
        raise FileFormatError(f"{path}: not a readable pt file ({error})") from None


def pickle_of(path: str | os.PathLike) -> bytes:
    """Read the pickle of a file of torch.save. torch reads protocol 2 of pickle alone where it runs no code; NumPy
    arrays are also saved by others. Raises ValueError for an archive that torch does not write."""
    with zipfile.ZipFile(path) as archive:
        (info,) = [info for info in archive.infolist() if info.filename.endswith("/data.pkl")]
        if info.compress_type != zipfile.ZIP_STORED or info.file_size > os.path.getsize(path):
            raise ValueError(f"{path}: not an archive of torch.save")
        return archive.read(info)


class IdListsTable(ArraysTable):
    """A JSON object ``{"row": [column, ...], ...}`` as the 0-1 matrix of the arrays data, row, col and shape.

    Its shape goes up to the largest row and column; a column named twice in a row counts once.
    """

    kind, newline, marks = "JSON", b"[", b",["

    def load(self) -> Mapping[str, np.ndarray]:
        """Read the matrix. Raises FileFormatError for other JSON and for ids that are not 0, 1, ..."""
        try:
            with self.source.open() as file:
                lists = decode_json(file.read())
        except ValueError as error:
            raise FileFormatError(f"{self.name}: not JSON ({error}); is it truncated?") from None
        if not isinstance(lists, dict):
            raise FileFormatError(f"{self.name}: expected an object of lists, {{row: [column, ...]}}")
        rows = []
        for key, columns in lists.items():
            are_ids = isinstance(columns, list) and all(type(item) is int and 0 <= item < MOST for item in columns)
            if not (key.isdecimal() and int(key) < MOST and are_ids):
                shown = str(columns)[:60]
                raise FileFormatError(f"{self.name}: row {key!r}: expected a list of numbers 0, 1, ..., got {shown}")
            rows += [(int(key), column) for column in set(columns)]
        row, col = np.array(sorted(rows), np.int64).reshape(-1, 2).T
        height = 1 + max(map(int, lists), default=-1)
        shape = np.array([height, 1 + col.max(initial=-1)])
        return {"data": np.ones(len(row), np.float32), "row": row, "col": col, "shape": shape}

    def memory(self) -> int:
        """Count the bytes of the text and of the lists that it becomes; its "lines" are lists."""
        counted = self.counted
        return 2 * counted.num_bytes + ENTRY_BYTES * counted.num_marks + LIST_BYTES * counted.num_lines


def read_matlab(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Read the arrays of a mat file in this process; a sparse matrix X becomes X_data, X_row, X_col and X_shape."""
    import scipy.io  # only here: nothing else needs SciPy
    import scipy.sparse

    arrays: dict[str, np.ndarray] = {}
    for name, value in scipy.io.loadmat(path).items():
        if scipy.sparse.issparse(value):
            value = value.tocoo()
            parts = {"data": value.data, "row": value.row, "col": value.col, "shape": np.array(value.shape)}
            arrays |= {f"{name}_{part}": array for part, array in parts.items()}
        elif isinstance(value, np.ndarray):
            arrays[name] = value
    return arrays


def parse_index(text: str) -> int | slice:
    """Make an index of ``3``, ``:``, ``1:`` or ``1:5``."""
    if ":" not in text:
        return int(text)
    return slice(*(int(bound) if bound.strip() else None for bound in text.split(":")))


class SparseRows:
    """Dense rows of a CSR matrix, made when they are asked for. Raises FileFormatError for arrays that make none."""

    def __init__(self, file: str, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, ...]):
        self.shape, self.dtype = shape, data.dtype
        self.data, self.indices, self._indptr = data, indices, indptr
        num_rows, width = shape
        inside = len(indices) == 0 or (indices.min() >= 0 and indices.max() < width)
        if len(indptr) != num_rows + 1 or indptr[-1] != len(indices) or len(data) != len(indices) or not inside:
            raise FileFormatError(f"{file}: data, indices, indptr and shape do not make a CSR matrix of shape {shape}")

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Make some rows a dense matrix; entries stored twice are added, as in SciPy."""
        indptr = self._indptr[rows.start : rows.stop + 1]
        dense = np.zeros((len(indptr) - 1, self.shape[1]), self.dtype)
        low, high = indptr[0], indptr[-1]
        row = np.repeat(np.arange(len(dense)), np.diff(indptr))
        np.add.at(dense, (row, self.indices[low:high]), self.data[low:high])
        return dense
