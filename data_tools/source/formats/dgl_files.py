"""Reads DGL's binary files: named tensors (node_feat.dgl) and graphs (graph.dgl, version 2), mapped into memory.

Integers are little-endian; a vector is its length (uint64) and its items, a text its length and bytes. A tensor is

    magic, 0 (uint64), device type and id, dimensions (int32), dtype: code, bits (uint8), lanes (uint16),
    shape (int64 each), bytes (int64), data

A file of tensors is a magic, their number, and a vector of (name, tensor). A file of graphs has a header of 4 KiB, the
position of the first graph, named labels, and graphs. A graph is a meta graph, a vector of relations (each in the saved
ones of COO, CSR and CSC), the number of nodes by type, and named tensors of nodes and of edges, by type.
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
KINDS = {0: "i", 1: "u", 2: "f", 6: "u"}  # of dtype codes; 6 is bool
HAS_COO, HAS_CSR, HAS_CSC = 1, 2, 4


@dataclass(frozen=True, slots=True)
class PartGraph:
    """A graph with one type of nodes and edges, as parts are: ends [E] and columns of nodes [N] and edges [E]."""

    src: np.ndarray
    dst: np.ndarray
    nodes: dict[str, np.ndarray]
    edges: dict[str, np.ndarray]


def read_tensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Read the tensors of a file by name. Raises FileFormatError for a file of another kind, or a damaged one."""
    reader = Reader(path)
    reader.expect(TENSORS, "a file of tensors")
    reader.number()
    return reader.named()


def read_graph(path: pathlib.Path) -> PartGraph:
    """Read the graph of a file that holds one. Raises FileFormatError for a file of another kind, or a damaged one."""
    reader = Reader(path)
    reader.expect(GRAPHS, "a file of graphs")
    version, kind, count = reader.number(), reader.number(), reader.number()
    if (version, kind, count) != (2, 2, 1):
        raise FileFormatError(
            f"{path}: version {version}, kind {kind}, {count} graphs; read is version 2 with one graph"
        )
    reader.position = HEADER_BYTES
    reader.position = reader.number()
    reader.expect(HETERO, "a graph")
    reader.skip_meta()
    if reader.number() != 1:
        raise FileFormatError(f"{path}: several relations; a part of DGL is one graph with a column of types")
    src, dst = reader.unit()
    reader.take_bytes(8 * reader.number())  # the number of nodes by type
    nodes: dict[str, np.ndarray] = {}
    edges: dict[str, np.ndarray] = {}
    for columns in (nodes, edges):
        for _ in range(reader.number()):
            columns |= reader.named()
    return PartGraph(src, dst, nodes, edges)


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
        if code not in KINDS or lanes != 1 or not 0 <= dimensions <= 32:
            raise FileFormatError(f"{self._path}: a tensor of dtype code {code}, which is none of numbers")
        shape = self.take(f"{dimensions}q")
        dtype = np.dtype(f"<{KINDS[code]}{bits // 8}")
        data = self.take_bytes(self.take("q")[0])
        if len(data) != dtype.itemsize * int(np.prod(shape)):
            raise FileFormatError(f"{self._path}: damaged: a tensor of shape {list(shape)} has {len(data)} bytes")
        return np.frombuffer(data, dtype).reshape(shape)

    def named(self) -> dict[str, np.ndarray]:
        """Take a vector of named tensors."""
        return {self.take_bytes(self.number()).tobytes().decode(): self.tensor() for _ in range(self.number())}

    def skip_meta(self) -> None:
        """Skip a meta graph."""
        self.expect(META, "a meta graph")
        self.matrix(HAS_CSR)

    def unit(self) -> tuple[np.ndarray, np.ndarray]:
        """Take the ends of the edges of a relation [E], in the order of their ids."""
        self.expect(UNIT, "a relation")
        saved, _ = self.number(), self.number()
        ends = []
        for form in (HAS_COO, HAS_CSR, HAS_CSC):
            if saved & form:
                self.skip_meta()
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
        if form != HAS_COO:
            row = np.repeat(np.arange(len(row) - 1), np.diff(row))
        if len(order):  # ids of the edges; empty where they are in order
            by_id = np.argsort(order, kind="stable")
            row, col = row[by_id], col[by_id]
        return (col, row) if form == HAS_CSC else (row, col)
