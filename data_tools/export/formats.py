"""Writes the files of an export: parquet and npz, slab by slab; PyTorch Geometric's Data or HeteroData as a whole."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import yaml

from data_tools.export.tables import Column, ExportTable, Tables
from data_tools.source.file_spec import FINITE_COLUMNS, Dtype
from hpcgnn.choices import Part
from hpcgnn.graph.durable import OutputFile
from hpcgnn.graph.files import EVENT, row_bytes, slabs, split_relation

SLAB_ROWS = 1 << 18
PYG_NAMES = {"feat": "x", "label": "y"}
PYG_EDGE_NAMES = {"feat": "edge_attr", "weight": "edge_weight", "label": "y"}
MASKS = ("train_mask", "val_mask", "test_mask")


def write_parquet(tables: Tables, output: pathlib.Path) -> None:
    """Write a file per type, nodes-<type>.parquet, and relation, edges-<src>.<rel>.<dst>.parquet; of a whole graph also
    metadata.yaml, from which `data_tools.convert --chunks` makes the graph again."""
    for kind, kind_tables in (("nodes", tables.nodes), ("edges", tables.edges)):
        for table in kind_tables:
            write_table(table, output / f"{kind}-{table.name}.parquet")
    if tables.part is None and tables.kind != "snapshots":
        (output / "metadata.yaml").write_text(yaml.safe_dump(metadata(tables), sort_keys=False))


def write_table(table: ExportTable, path: pathlib.Path) -> None:
    """Write one parquet file; attributes are kept in its metadata (key ``attributes``, JSON)."""
    fields = [pa.field(name, arrow_type(column)) for name, column in table.columns.items()]
    schema = pa.schema(fields, {"attributes": json.dumps(table.attributes, default=str)})
    width = sum(row_bytes(column) for column in table.columns.values())
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for start, stop in slabs(table.num_rows, width, min(64 << 20, SLAB_ROWS * width)):
            arrays = [to_arrow(column[start:stop], arrow_type(column)) for column in table.columns.values()]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def arrow_type(column: Column) -> pa.DataType:
    """Choose the type of a column: text for bytes, a vector for more than one value a row."""
    if column.dtype.kind == "S":
        return pa.string()
    kind = pa.from_numpy_dtype(column.dtype)
    return pa.list_(kind, int(np.prod(column.shape[1:]))) if len(column.shape) > 1 else kind


def to_arrow(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Make an Arrow array of rows [n, ...]."""
    if values.dtype.kind == "S":
        return pa.array(values.tolist(), pa.binary()).cast(pa.string())
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).ravel()), kind.list_size)
    return pa.array(values)


def metadata(tables: Tables) -> dict[str, object]:
    """Make the metadata by which `data_tools.source.formats.chunk_folder` reads the files; nodes go by their ids if
    any."""
    nodes, edges = {}, {}
    by_id = {table.name: table.columns["id"].dtype.kind for table in tables.nodes if "id" in table.columns}
    for table in tables.nodes:
        ids = {"ids": "row", "count": table.num_rows}
        if table.name in by_id:
            ids = {"ids": "string" if by_id[table.name] == "S" else "int", "id": "id"}
        columns = described(table, ("row", "id"))
        nodes[table.name] = {"files": f"nodes-{table.name}.parquet", **ids, "columns": columns}
    numbered = (EVENT,) if tables.kind == "temporal" and len(tables.edges) > 1 else ()  # convert numbers them anew
    for table in tables.edges:
        source, _, destination = split_relation(table.name)
        ends = {
            end: f"{end}_id" if node_type in by_id else end
            for end, node_type in (("src", source), ("dst", destination))
        }
        if "time" in table.columns:
            ends["time"] = "time"
        skipped = ("src", "dst", "src_id", "dst_id", "time", *numbered)
        edges[table.name] = {"files": f"edges-{table.name}.parquet", **ends, "columns": described(table, skipped)}
    return {"kind": tables.kind, "nodes": nodes, "edges": edges}


def described(table: ExportTable, skipped: tuple[str, ...]) -> dict[str, dict[str, object]]:
    """List the columns of numbers that a graph file can hold, with their dtypes; where NaN means "not known", it stays
    so."""
    return {
        name: {"column": name, "dtype": column.dtype.name}
        | ({"fill": math.nan} if column.dtype.kind == "f" and name not in FINITE_COLUMNS else {})
        for name, column in table.columns.items()
        if name not in skipped and column.dtype.name in get_args(Dtype)
    }


def write_npz(tables: Tables, output: pathlib.Path) -> None:
    """Write one file graph.npz with arrays nodes/<type>/<column> and edges/<relation>/<column>."""
    with zipfile.ZipFile(output / "graph.npz", "w", zipfile.ZIP_STORED) as archive:
        for kind, kind_tables in (("nodes", tables.nodes), ("edges", tables.edges)):
            for table in kind_tables:
                for name, column in table.columns.items():
                    with archive.open(f"{kind}/{table.name}/{name}.npy", "w", force_zip64=True) as file:
                        descr = np.lib.format.dtype_to_descr(np.dtype(column.dtype.str))
                        header = {"descr": descr, "fortran_order": False, "shape": column.shape}
                        np.lib.format.write_array_header_1_0(file, header)
                        for start, stop in slabs(column.shape[0], row_bytes(column)):
                            file.write(np.ascontiguousarray(column[start:stop]).tobytes())


def write_pyg(tables: Tables, output: pathlib.Path) -> None:
    """Write graph.pt: Data, or HeteroData where there are several types or relations; without torch_geometric a
    dictionary {"nodes": {type: {...}}, "edges": {(src, rel, dst): {...}}} of the same tensors."""
    import torch

    nodes = {}
    for table in tables.nodes:
        node = {PYG_NAMES.get(name, name): to_tensor(column) for name, column in table.columns.items()}
        if "split" in node:
            node |= {mask: node["split"] == number for number, mask in enumerate(MASKS)}
        nodes[table.name] = {"num_nodes": table.num_rows, "n_id": node.pop("row"), **node}
    edges = {}
    for table in tables.edges:
        columns = {name: column for name, column in table.columns.items() if name not in ("src_id", "dst_id")}
        edge = {PYG_EDGE_NAMES.get(name, name): to_tensor(column) for name, column in columns.items()}
        ends = torch.stack([edge.pop("src"), edge.pop("dst")])
        row = edge.pop("row") if "row" in edge else torch.arange(table.num_rows)
        edges[split_relation(table.name)] = {"edge_index": ends, "e_id": row, **edge}
    file: Any
    with contextlib.closing(OutputFile(output / "graph.pt")) as file:
        torch.save(make_data(nodes, edges), file)
        file.flush()


def make_data(nodes: dict[str, dict], edges: dict[tuple[str, str, str], dict]) -> object:
    """Make a Data or HeteroData if PyTorch Geometric is installed, else a dictionary of the tensors."""
    try:
        from torch_geometric.data import Data, HeteroData
    except ImportError:
        return {"nodes": nodes, "edges": edges}
    if len(nodes) == len(edges) == 1:
        (node,), (edge,) = nodes.values(), edges.values()
        return Data(**node, **{f"edge_{key}" if key in node else key: value for key, value in edge.items()})
    data = HeteroData()
    for key, tensors in [*nodes.items(), *edges.items()]:
        for name, value in tensors.items():
            data[key][name] = value
    return data


def to_tensor(column: Column) -> Any:
    """Read a column as a tensor, text as a list."""
    import torch

    values = column[:]
    return [text.decode() for text in values.tolist()] if values.dtype.kind == "S" else torch.from_numpy(values)


@dataclass(frozen=True)
class ExportFormat(Part):
    """A row of FORMATS. make: writes tables into a folder."""

    make: Callable[[Tables, pathlib.Path], None]


FORMATS = {
    "parquet": ExportFormat(write_parquet, "a file for each node type and relation"),
    "npz": ExportFormat(write_npz, "one file of arrays"),
    "pyg": ExportFormat(write_pyg, "Data or HeteroData object of PyTorch Geometric"),
}
