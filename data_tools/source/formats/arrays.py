"""Reads npz, npy, mat and pt files as tables: arrays with an optional NumPy index, and sparse matrices stored as SciPy
does."""

from __future__ import annotations

import importlib.util
import multiprocessing
import pathlib
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_tools.source.formats.npz_arrays import NpzArrays, open_npy
from data_tools.source.formats.values import Raw
from data_tools.source.spool import forget
from hpcgnn.graph.files import FileFormatError, row_bytes, slabs

REFERENCE = re.compile(r"(?P<name>[^\[\]]+?)(\[(?P<index>[-\d:,\s]+)\])?")
SLAB_BYTES = 16 << 20
CORES = ("core", "_core")  # what NumPy 1 and 2 call the module that pickles of arrays name
MOST_EMPTY_ROWS = 1 << 20  # of a sparse matrix, for each entry


@dataclass(frozen=True, slots=True)
class Sparse:
    """A sparse matrix as SciPy stores it: <prefix>data and shape with indices and indptr (CSR) or row and col (COO)."""

    prefix: str


def load_arrays(path: pathlib.Path, kind: str) -> Mapping[str, np.ndarray]:
    """Open the arrays of an npz, mat or pt file by name, or of an npy file (one, named ``array``, mapped into memory).

    Raises ValueError for a mat file where SciPy is missing, FileFormatError for a file that cannot be read."""
    if kind == "mat" and importlib.util.find_spec("scipy") is None:
        raise ValueError(f"{path.name}: MATLAB files need SciPy: pip install scipy")
    try:
        if kind == "mat":
            return load_matlab(path)
        if kind == "pt":
            return load_tensors(path)
        if kind == "npz":
            return NpzArrays(path)
        # allow_pickle stays off: loading data must not run code.
        return {"array": open_npy(path)}
    except Exception as error:  # what NumPy, SciPy and zipfile raise about damaged files has no common class
        if kind == "pt" and "Weights only load failed" in str(error):
            raise FileFormatError(
                f"{path.name}: holds objects other than tensors, such as PyTorch Geometric's Data, which are not read, "
                "as that would run code; write its tensors: torch.save({name: value for name, value in "
                "data.to_dict().items() if torch.is_tensor(value)}, path); of HeteroData those of each type and "
                "relation, such as {'paper_x': data['paper'].x}"
            ) from None
        raise FileFormatError(f"{path.name}: not a readable {kind} file ({error})") from None


def load_matlab(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Read the arrays of a mat file in another process: SciPy's reader crashes on some that are damaged."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(read_matlab, path).result()
        except BrokenProcessPool:
            raise ValueError("its reader crashed") from None


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


def load_tensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Read the tensors and NumPy arrays of a dictionary that torch.save wrote."""
    import torch  # only here: it takes more memory than all the rest

    rebuild = np._core.multiarray._reconstruct  # type: ignore[attr-defined]
    allowed: list[Any] = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in CORES]
    allowed += [np.ndarray, np.dtype, *(type(np.dtype(code)) for code in "?bBhHiIlLefd")]
    try:
        with torch.serialization.safe_globals(allowed):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises nearly anything
        raise ValueError(" ".join(str(error).split())[:200]) from None
    if not isinstance(loaded, dict):
        raise ValueError(f"it holds a {type(loaded).__name__}, not a dictionary of tensors")
    arrays = {key: value.numpy() if isinstance(value, torch.Tensor) else value for key, value in loaded.items()}
    return {key: value for key, value in arrays.items() if isinstance(value, np.ndarray)}


class ArraysTable:
    """A table whose columns are arrays, by name."""

    def __init__(self, name: str, arrays: Mapping[str, np.ndarray]):
        self.name = name
        self._arrays = arrays
        self._names = list(arrays)
        self._listed = ", ".join(self._names) or "none at its top level"
        self._cache: dict[str, np.ndarray] = {}

    def batches(self, references: Mapping[str, str | Sparse]) -> Iterator[dict[str, Raw]]:
        """Yield pieces of the requested arrays. Raises FileFormatError where they differ in their number of rows."""
        columns = {key: self._column(reference) for key, reference in references.items()}
        lengths = {str(references[key]): column.shape[0] for key, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise FileFormatError(f"{self.name}: the selected arrays differ in their number of rows: {lengths}")
        num_rows = next(iter(lengths.values()), 0)
        for start, stop in slabs(num_rows, max(map(row_bytes, columns.values())), SLAB_BYTES):
            yield {
                key: Raw([part := column[start:stop]], [str(references[key])], part.ndim == 1, stop - start, True)
                for key, column in columns.items()
            }
            for column in columns.values():
                for array in (column.indices, column.data) if isinstance(column, SparseRows) else (column,):
                    forget(array)

    def array(self, reference: str) -> np.ndarray:
        """Read one array, its index applied. Raises FileFormatError naming the arrays of the file when it is
        missing."""
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
                self._cache[name] = self._arrays[name]
            except Exception as error:  # as in load_arrays
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
