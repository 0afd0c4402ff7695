"""Joins the parts of a graph to one: arrays on disk whose rows the parts fill, in any order.

N nodes of a type, E edges of a relation; n of them in a part.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from data_tools.source.formats.chunks_dgl import local_name, stored_column
from data_tools.source.object_columns import array_of
from data_tools.source.objects import RENAMED
from hpcgnn.graph.files import FileFormatError, relation_name

ENDS = "ends"


class JoinedParts:
    """The tables of a graph, as npy files in a folder.

    nodes: number of nodes by type; edges: number of edges by (source type, name, destination type).
    """

    def __init__(self, folder: pathlib.Path, nodes: Mapping[str, int], edges: Mapping[tuple[str, str, str], int]):
        self._folder = folder
        self._counts: dict[Any, int] = {**nodes, **edges}
        self._arrays: dict[Any, dict[str, np.ndarray]] = {key: {} for key in self._counts}
        self._filled: dict[Any, dict[str, np.ndarray]] = {key: {} for key in self._counts}

    def put(self, key: Any, column: str, rows: Any, values: Any, origin: pathlib.Path) -> None:
        """Fill rows [n] of a column of a type or relation with values [n, ...]. Raises FileFormatError naming the file
        ``origin`` for rows that there are not, rows that have a value already, and values of another width."""
        if key not in self._counts:
            raise FileFormatError(f"{origin}: {title(key)} is none of {', '.join(map(title, self._counts))}")
        rows, values, count = array_of(rows), array_of(values), self._counts[key]
        what = f"{origin}: {column} of {title(key)}"
        if rows.ndim != 1 or rows.dtype.kind not in "iu" or len(rows) != len(values):
            raise FileFormatError(f"{what}: {len(values)} values for ids of shape {rows.shape}: a part is damaged")
        if len(rows) and not 0 <= rows.min() <= rows.max() < count:
            raise FileFormatError(f"{what}: id {rows.max() if rows.min() >= 0 else rows.min()} is not one of {count}")
        array = self._arrays[key].get(column)
        if array is None:
            array = self._create(key, column, values)
        if values.shape[1:] != array.shape[1:]:
            raise FileFormatError(f"{what}: rows of shape {values.shape[1:]}, in other parts {array.shape[1:]}")
        filled = self._filled[key][column]
        if filled[rows].any() or len(np.unique(rows)) < len(rows):
            again = rows[filled[rows]][0] if filled[rows].any() else np.sort(rows)[:-1][np.diff(np.sort(rows)) == 0][0]
            raise FileFormatError(f"{what}: id {again} has two rows: parts hold each node and edge once")
        array[rows], filled[rows] = values, True

    def _create(self, key: Any, column: str, values: np.ndarray) -> np.ndarray:
        count, dtype = self._counts[key], values.dtype
        path = self._path(key, column)
        path.parent.mkdir(exist_ok=True)
        if count * int(np.prod(values.shape[1:])):
            array: np.ndarray = np.lib.format.open_memmap(path, "w+", dtype, (count, *values.shape[1:]))
        else:  # of which no map can be made
            np.save(path, array := np.empty((count, *values.shape[1:]), dtype))
        self._arrays[key][column], self._filled[key][column] = array, np.zeros(count, bool)
        return array

    def _path(self, key: Any, column: str) -> pathlib.Path:
        return self._folder / str(list(self._counts).index(key)) / f"{local_name(column)}.npy"

    def spec(self) -> dict[str, Any]:
        """Make the spec that reads the tables. Raises FileFormatError for a column that lacks a row."""
        files: dict[str, Any] = {}
        tables: dict[str, list[dict[str, Any]]] = {"nodes": [], "edges": []}
        for key, count in self._counts.items():
            columns: dict[str, Any] = {}
            if not isinstance(key, str) and ENDS not in self._arrays[key]:
                self._create(key, ENDS, np.empty((0, 2), np.int64))
            for column, array in self._arrays[key].items():
                if not (filled := self._filled[key][column]).all():
                    row, missing = int(np.argmin(filled)), int(count - filled.sum())
                    raise FileFormatError(
                        f"{column} of {title(key)}: no part has it for id {row} ({missing:,} such ids): is a folder of "
                        "a part missing?"
                    )
                if isinstance(array, np.memmap):
                    array.flush()
                files[name := f"{title(key)}.{column}"] = {"path": str(self._path(key, column))}
                if column != ENDS:
                    columns |= stored_column(name, RENAMED.get(column, column), "array", array.dtype)
            if isinstance(key, str):
                tables["nodes"].append({"type": local_name(key), "ids": "row", "count": count, "columns": columns})
                continue
            ends = {"file": f"{title(key)}.{ENDS}", "src": "array[:,0]", "dst": "array[:,1]"}
            relation = relation_name(*map(local_name, key))
            tables["edges"].append({"relation": relation, **ends, "columns": columns})
        return {"kind": "static", "files": files, **tables}


def title(key: str | tuple[str, str, str]) -> str:
    """Name a type or a relation in messages."""
    return key if isinstance(key, str) else ".".join(key)
