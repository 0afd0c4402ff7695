"""Reads the metadata of DGL's chunked graph format as a spec.

Node ids are row numbers. Columns keep the dtype of their files; `label` is made of integers, NaN becoming -1, and
train_mask, val_mask and test_mask become `split`.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from data_tools.source.formats.npz_arrays import open_npy
from data_tools.source.schema import items, one_of
from data_tools.source.spec_file import RESERVED, RESERVED_OF_EDGES
from hpcgnn.graph.files import FileFormatError, relation_name

FORMATS = {"csv": "text", "numpy": "npy", "parquet": "parquet"}
MASKS = {"train_mask": "train", "val_mask": "val", "test_mask": "test"}
# Dtypes that a graph file does not have, and the next larger that it has.
WIDER = {"bool": "int8", "uint8": "int16", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
WIDER |= {"float16": "float32"}


def dgl_spec(data: dict[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    """Make a spec of the metadata. Raises ValueError naming the key."""
    files: dict[str, Any] = {}
    nodes = []
    for name, count in per_type(data, "node_type", "num_nodes"):
        columns = read_columns(f"node_data.{name}", table(data, "node_data", name), count, files, folder)
        nodes.append({"type": local_name(name), "ids": "row", "count": sum(count), "columns": with_split(columns)})
    edges = []
    for name, count in per_type(data, "edge_type", "num_edges"):
        if len(ends := name.split(":")) != 3:
            raise ValueError(f"edge_type: {name!r} is not of the form source:relation:destination")
        where = f"edges.{name}"
        kind, _ = read_file(where, table(data, "edges", name), count, files, folder)
        columns = read_columns(f"edge_data.{name}", table(data, "edge_data", name), count, files, folder)
        src, dst = ("array[:,0]", "array[:,1]") if kind == "npy" else (0, 1)
        relation = relation_name(*map(local_name, ends))
        edges.append({"relation": relation, "file": where, "src": src, "dst": dst, "columns": with_split(columns)})
    return {"kind": "static", "files": files, "nodes": nodes, "edges": edges}


def per_type(data: dict[str, Any], names: str, counts: str) -> list[tuple[str, list[int]]]:
    """List each type with its numbers of rows, by chunk or in all."""
    for key in (f"{counts}_per_chunk", f"{counts}_per_type"):
        if key in data:
            if len(data[key]) != len(data[names]):
                raise ValueError(f"{key}: {len(data[key])} entries for {len(data[names])} types")
            rows = [count if isinstance(count, list) else [count] for count in data[key]]
            return list(zip(data[names], rows, strict=True))
    raise ValueError(f"neither {counts}_per_chunk nor {counts}_per_type is there")


def table(data: dict[str, Any], key: str, name: str) -> dict[str, Any]:
    """Find the entry of a type under a key. Raises ValueError when there is none about edges."""
    entry = dict(items(key, data.get(key) or {})).get(name)
    if entry is None and key == "edges":
        raise ValueError(f"edges: nothing about {name!r}")
    return dict(items(f"{key}.{name}", entry or {}))


def read_columns(
    where: str, data: dict[str, Any], rows: list[int], files: dict[str, Any], folder: pathlib.Path
) -> dict[str, Any]:
    """Make the columns of a type, by the names that they get here."""
    columns: dict[str, Any] = {}
    reference: int | str
    for name, entry in data.items():
        kind, first = read_file(f"{where}.{name}", entry, rows, files, folder)
        if kind == "text":
            raise ValueError(f"{where}.{name}: format csv is for edges; write the data as numpy or parquet")
        if kind == "npy":
            reference, dtype = "array", open_npy(first).dtype
        else:  # one column, of vectors or not, or all columns make the values
            schema = pyarrow.parquet.read_schema(first)
            kind_of_values = schema.field(0).type
            while pa.types.is_nested(kind_of_values):
                kind_of_values = kind_of_values.value_type
            reference, dtype = 0 if len(schema) == 1 else ":", np.dtype(kind_of_values.to_pandas_dtype())
        columns |= stored_column(f"{where}.{name}", name, reference, dtype)
    return columns


def read_file(
    where: str, entry: Any, rows: list[int], files: dict[str, Any], folder: pathlib.Path
) -> tuple[str, pathlib.Path]:
    """Put one set of chunk files into ``files``; returns the format and the first file."""
    entry = dict(items(where, entry))
    layout = dict(items(f"{where}.format", entry.get("format")))
    one_of(f"{where}.format.name", layout.get("name"), tuple(FORMATS))
    chunks, kind = entry.get("data"), FORMATS[layout["name"]]
    if not isinstance(chunks, list) or not chunks or not all(isinstance(chunk, str) for chunk in chunks):
        raise ValueError(f"{where}.data: expected a list of files, got {chunks!r}")
    for chunk in chunks:
        if any(mark in chunk for mark in "*?["):  # it would be taken for a pattern
            raise ValueError(f"{chunk!r}: a name of a file with *, ? or [ cannot be read")
    if len(rows) != len(chunks):
        rows = [sum(rows)]
    files[where] = {"chunks": chunks, "rows": rows, "format": kind}
    if kind == "text":
        delimiter = layout.get("delimiter", ",")
        files[where] |= {"header": "none", "delimiter": "whitespace" if delimiter == " " else delimiter}
    first = folder / chunks[0]
    if not first.is_file():
        raise FileFormatError(f"{where}.data: {first}: no such file")
    return kind, first


def stored_column(file: str, name: str, reference: int | str, dtype: np.dtype) -> dict[str, dict[str, Any]]:
    """Make a column of a spec, by the name that it gets here. Raises ValueError for a dtype that is not one of
    numbers."""
    if dtype.kind not in "biuf":
        raise ValueError(f"{file}: its dtype {dtype} is not one of numbers")
    column = {"file": file, "column": reference, "dtype": WIDER.get(dtype.name, dtype.name)}
    if name == "label":
        column |= {"dtype": "int64", "fill": -1}
    stored = local_name(name)
    return {f"{stored}_" if stored in RESERVED | RESERVED_OF_EDGES else stored: column}


def with_split(columns: dict[str, Any]) -> dict[str, Any]:
    """Put ``split`` in place of the masks of training, validation and test."""
    if "split" in columns or "train_mask" not in columns:
        return columns
    sets = {
        MASKS[name]: {"file": column["file"], "column": column["column"], "mask": True}
        for name, column in columns.items()
        if name in MASKS
    }
    others = {name: column for name, column in columns.items() if name not in MASKS}
    return others | {"split": {"file": columns["train_mask"]["file"], "sets": sets}}


def local_name(name: str) -> str:
    """Replace the characters of a name that separate names here."""
    return re.sub(r"[./]", "_", name)
