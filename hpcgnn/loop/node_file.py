"""Writes columns of nodes that are spread over the ranks into one CSV or npz file."""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph import durable

SLAB = 1 << 16


@dataclass(frozen=True, slots=True)
class NodeColumns:
    """Columns [n, ...] of this rank's nodes, by name, in order of the nodes' row [n]; total: nodes of all ranks, N."""

    row: np.ndarray
    total: int
    columns: dict[str, np.ndarray]

    def slab(self, name: str, first: int, world: World) -> np.ndarray | Any:
        """Collective. Gather a column of the nodes first .. first + SLAB - 1, in order of row, on rank 0 (None
        elsewhere)."""
        own = slice(*np.searchsorted(self.row, (first, first + SLAB)))
        rows, values = world.gather_rows(self.row[own]), world.gather_rows(self.columns[name][own])
        return None if rows is None else values[np.argsort(rows)]


def text(ids: np.ndarray) -> np.ndarray:
    """Decode bytes to text of a width that is the same on all ranks; other ids stay as they are."""
    return np.char.decode(ids, "utf-8").astype(f"U{ids.dtype.itemsize}") if ids.dtype.kind == "S" else ids


def write_nodes(path: str, nodes: NodeColumns, world: World) -> None:
    """Collective. Write the nodes of all ranks in order of row: arrays into a path that ends in .npz, else CSV with a
    column for each entry of a vector. Rank 0 writes, under a temporary name first, and never holds more than a slab."""
    temporary = Path(path + ".tmp")
    (_write_npz if path.endswith(".npz") else _write_csv)(temporary, nodes, world)
    with together(world, f"write {path}"):
        if world.rank == 0:
            durable.commit(temporary, Path(path))


def _write_csv(path: Path, nodes: NodeColumns, world: World) -> None:
    """Collective."""
    with _on_rank_0(world, lambda: open(path, "w", newline="")) as file:
        writer = csv.writer(file) if file else None
        for first in range(0, max(1, nodes.total), SLAB):
            world.working(f"write {path}", first)
            slabs = {name: nodes.slab(name, first, world) for name in nodes.columns}
            with together(world, f"write {path}"):
                if writer:
                    if first == 0:
                        writer.writerow(_headings(slabs))
                    writer.writerows(_lines(list(slabs.values())))


def _headings(columns: dict[str, np.ndarray]) -> list[str]:
    headings = []
    for name, column in columns.items():
        headings += [name] if column.ndim == 1 else [f"{name}_{place}" for place in range(column.shape[1])]
    return headings


def _lines(columns: list[np.ndarray]) -> Iterator[list[str]]:
    """Make the texts of a line for each node."""
    for values in zip(*columns, strict=True):
        yield [str(entry) for value in values for entry in np.atleast_1d(value)]


def _write_npz(path: Path, nodes: NodeColumns, world: World) -> None:
    """Collective. Write one array after the other, slab by slab."""
    with _on_rank_0(world, lambda: zipfile.ZipFile(path, "w")) as archive:
        for name, column in nodes.columns.items():
            opened = lambda name=name: archive.open(f"{name}.npy", "w", force_zip64=True)  # noqa: E731
            with _on_rank_0(world, opened) as file:
                with together(world, f"write {path}"):
                    if file:
                        np.lib.format.write_array_header_2_0(file, {
                            "descr": np.lib.format.dtype_to_descr(column.dtype), "fortran_order": False,
                            "shape": (nodes.total, *column.shape[1:]),
                        })  # fmt: skip
                for first in range(0, nodes.total, SLAB):
                    world.working(f"write {path}", first)
                    values = nodes.slab(name, first, world)
                    with together(world, f"write {path}"):
                        if file:
                            file.write(np.ascontiguousarray(values).tobytes())


@contextmanager
def _on_rank_0(world: World, make) -> Iterator:
    """Collective. Open with ``make()`` on rank 0 (None elsewhere) what is closed at the end of the block."""
    opened = None
    with together(world, "write the nodes"):
        opened = make() if world.rank == 0 else None
    try:
        yield opened
    finally:
        if opened is not None:
            opened.close()


def answer_with_nodes(path: str, nodes: NodeColumns, world: World) -> None:
    """Collective. Write the nodes into a file, whose folder is made if need be, and print how many there are."""
    with together(world, f"write {path}"):
        if world.rank == 0:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_nodes(path, nodes, world)
    if world.rank == 0:
        print(f"{path}: {nodes.total} nodes")
