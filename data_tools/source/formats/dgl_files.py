"""Reads DGL's binary files: named tensors (node_feat.dgl) and graphs (graph.dgl, version 2), mapped into memory.

Integers are little-endian; a vector is its length (uint64) and its items, a text its length and bytes. A tensor is

    magic, 0 (uint64), device type and id, dimensions (int32), dtype: code, bits (uint8), lanes (uint16),
    shape (int64 each), bytes (int64), data

A file of tensors is a magic, their number, and a vector of (name, tensor). A file of graphs has a header of 4 KiB, the
position of the first graph, named labels, and graphs. A graph is a meta graph, a vector of relations (each in the saved
ones of COO, CSR and CSC), the number of nodes by type, named tensors of nodes and of edges, by type, and the names of
the node types and of the relations. An edge of the meta graph joins the types of a relation.
"""

from __future__ import annotations

import pathlib
import struct
from dataclasses import dataclass

import numpy as np

from hpcgnn.graph.files import FileFormatError

TENSORS, GRAPHS, TENSOR = 0xDD5A9FBE3FA2443F, 0xDD2E4FF046B4A13F, 0xDD5E40F096B4A13F
HETERO, META, UNIT = 0xDD589FBE35224ABF, 0xDD3C5FFE20046ABF, 0xDD2E60F0F6B4A127
COO, CSR = 0xDD61FFD305DFF127, 0xDD6CD31205DFF127
HEADER_BYTES = 4096
DTYPES = {  # by code and bits; code 6 is bool
    (code, 8 * size): f"<{kind}{size}"
    for code, kind, sizes in ((0, "i", (1, 2, 4, 8)), (1, "u", (1, 2, 4, 8)), (2, "f", (2, 4, 8)), (6, "u", (1,)))
    for size in sizes
}
HAS_COO, HAS_CSR, HAS_CSC = 1, 2, 4


@dataclass(frozen=True, slots=True)
class SavedEdges:
    """The edges of a relation: ends [E], in the order of their ids, and columns."""

    src: np.ndarray
    dst: np.ndarray
    columns: dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class SavedGraph:
    """A graph of a file. counts, nodes: number of nodes and their columns, by type; edges: by (source type, name,
    destination type)."""

    counts: dict[str, int]
    nodes: dict[str, dict[str, np.ndarray]]
    edges: dict[tuple[str, str, str], SavedEdges]


def read_tensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Read the tensors of a file by name. Raises FileFormatError for a file of another kind, or a damaged one."""
    reader = Reader(path)
    reader.expect(TENSORS, "a file of tensors")
    reader.number()
    return reader.named()


def read_graphs(path: pathlib.Path) -> tuple[list[SavedGraph], dict[str, np.ndarray]]:
    """Read the graphs of a file that save_graphs wrote, and their labels by name. Raises FileFormatError for a file of
    another kind, or a damaged one."""
    reader = Reader(path)
    reader.expect(GRAPHS, "a file of graphs")
    version, kind, count = reader.number(), reader.number(), reader.number()
    if (version, kind) != (2, 2):
        raise FileFormatError(f"{path}: version {version}, kind {kind}; read is version 2: write it with a newer DGL")
    reader.position = HEADER_BYTES
    first, labels = reader.number(), reader.named()
    reader.position = first
    return [reader.graph() for _ in range(count)], labels


def read_part(path: pathlib.Path) -> tuple[SavedEdges, dict[str, np.ndarray]]:
    """Read the graph of a part, whose types are columns: its edges, and the columns of its nodes. Raises
    FileFormatError, also for several graphs or relations."""
    graphs, _ = read_graphs(path)
    if len(graphs) != 1 or len(graphs[0].edges) != 1:
        raise FileFormatError(f"{path}: several graphs or relations; a part of DGL is one graph with a column of types")
    (edges,), (nodes,) = graphs[0].edges.values(), graphs[0].nodes.values()
    return edges, nodes


class Reader:
    """Reads a file from its begin to its end."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        if not path.is_file():
            raise FileFormatError(f"{path}: no such file")
        self._data = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        self.position = 0

    def take(self, layout: str) -> tuple:
        """Take the next values, in a layout of struct."""
        return struct.unpack(f"<{layout}", self.take_bytes(struct.calcsize(f"<{layout}")).tobytes())

    def take_bytes(self, count: int) -> np.ndarray:
        """Take the next bytes, mapped."""
        if not 0 <= count <= len(self._data) - self.position:
            raise FileFormatError(f"{self._path}: damaged or truncated: {count} bytes are missing at {self.position}")
        self.position += count
        return self._data[self.position - count : self.position]

    def number(self) -> int:
        """Take an uint64."""
        return self.take("Q")[0]

    def expect(self, magic: int, what: str) -> None:
        """Raise FileFormatError unless a magic number follows."""
        if (number := self.number()) != magic:
            raise FileFormatError(f"{self._path}: not {what} of DGL (0x{number:016X} at byte {self.position - 8})")

    def tensor(self) -> np.ndarray:
        """Take a tensor, mapped."""
        self.expect(TENSOR, "a tensor")
        _, _, _, dimensions, code, bits, lanes = self.take("QiiiBBH")
        if (code, bits) not in DTYPES or lanes != 1 or not 0 <= dimensions <= 32:
            raise FileFormatError(f"{self._path}: a tensor of dtype code {code}, {bits} bits, which is none of numbers")
        shape, dtype = self.take(f"{dimensions}q"), np.dtype(DTYPES[code, bits])
        data = self.take_bytes(self.take("q")[0])
        if len(data) != dtype.itemsize * int(np.prod(shape)):
            raise FileFormatError(f"{self._path}: damaged: a tensor of shape {list(shape)} has {len(data)} bytes")
        return np.frombuffer(data, dtype).reshape(shape)

    def text(self) -> str:
        """Take a text."""
        return self.take_bytes(self.number()).tobytes().decode()

    def named(self) -> dict[str, np.ndarray]:
        """Take a vector of named tensors."""
        return {self.text(): self.tensor() for _ in range(self.number())}

    def graph(self) -> SavedGraph:
        """Take a graph."""
        self.expect(HETERO, "a graph")
        ends = self.meta()
        pairs = [self.unit() for _ in range(self.number())]
        counts = self.take(f"{self.number()}Q")
        nodes, edges = ([self.named() for _ in range(self.number())] for _ in range(2))
        types, names = ([self.text() for _ in range(self.number())] for _ in range(2))
        if not len(types) == len(counts) == len(nodes) or not len(names) == len(pairs) == len(edges) == len(ends[0]):
            raise FileFormatError(f"{self._path}: damaged: {len(types)} node types, {len(names)} relations")
        keys = [(types[src], name, types[dst]) for name, src, dst in zip(names, *ends, strict=True)]
        relations = (SavedEdges(*pair, columns) for pair, columns in zip(pairs, edges, strict=True))
        by_type = dict(zip(types, counts, strict=True)), dict(zip(types, nodes, strict=True))
        return SavedGraph(*by_type, dict(zip(keys, relations, strict=True)))

    def meta(self) -> tuple[np.ndarray, np.ndarray]:
        """Take a meta graph: the types that its edges join."""
        self.expect(META, "a meta graph")
        return self.matrix(HAS_CSR)

    def unit(self) -> tuple[np.ndarray, np.ndarray]:
        """Take the ends of the edges of a relation [E], in the order of their ids."""
        self.expect(UNIT, "a relation")
        saved, _ = self.number(), self.number()
        ends = []
        for form in (HAS_COO, HAS_CSR, HAS_CSC):
            if saved & form:
                self.meta()
                ends.append(self.matrix(form))
        if not ends:
            raise FileFormatError(f"{self._path}: a relation in none of the forms COO, CSR and CSC")
        return ends[0]

    def matrix(self, form: int) -> tuple[np.ndarray, np.ndarray]:
        """Take a matrix: ends [E] of the edges in the order of their ids, its rows and columns (CSC: columns and
        rows)."""
        self.expect(COO if form == HAS_COO else CSR, "a COO matrix" if form == HAS_COO else "a CSR matrix")
        self.take("QQ")
        row, col, order = self.tensor(), self.tensor(), self.tensor()
        self.take("BB" if form == HAS_COO else "B")
        if form == HAS_COO:
            fits = len(row) == len(col)
        else:
            counts = np.diff(row)
            fits = len(row) > 0 and row[0] == 0 and row[-1] == len(col) and bool((counts >= 0).all())
        if not fits or len(order) not in (0, len(col)):
            raise FileFormatError(f"{self._path}: damaged: a matrix whose rows do not fit its {len(col)} entries")
        if form != HAS_COO:
            row = np.repeat(np.arange(len(counts)), counts)
        if len(order):  # ids of the edges; empty where they are in order
            by_id = np.argsort(order, kind="stable")
            row, col = row[by_id], col[by_id]
        return (col, row) if form == HAS_CSC else (row, col)
