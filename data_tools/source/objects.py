"""Takes graphs apart into tables: data frames, arrays, and graphs of PyTorch Geometric, DGL, networkx and SciPy.

Objects are recognized by their attributes, so none of these packages is needed. n nodes of a type, E edges of a
relation.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_tools.source.object_columns import NUMBERS, array_of
from data_tools.source.spec_file import DEFAULT_DTYPES
from hpcgnn.graph.files import split_relation
from hpcgnn.graph.splits import NO_SPLIT, SPLITS, add_to_split

NODE, RELATION = "node", "node.to.node"
RENAMED = {"x": "feat", "y": "label", "edge_attr": "feat", "edge_weight": "weight", "msg": "feat", "t": "time"}
MASKS = {f"{name}_mask": name for name in SPLITS}
LEFT_OUT = {"edge_index", "num_nodes", "src", "dst", "adj_t", "n_id", "e_id", "batch", "ptr", "_ID"}


@dataclass
class GraphTables:
    """A graph as columns. nodes: by type, columns [n, ...] by name; count: by type, the number of nodes, where ids are
    row numbers; edges: by relation, columns [E, ...] by name, src and dst among them. Types without a count have a
    column ``id``, or the ids that edges name."""

    nodes: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    edges: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)


def is_table_of_tables(tables: Any) -> bool:
    """Whether this is a mapping of names to tables, and not to columns."""
    return isinstance(tables, Mapping) and bool(tables) and all(
        isinstance(table, Mapping) or hasattr(table, "columns") or hasattr(table, "column_names")
        for table in tables.values()
    )  # fmt: skip


def renamed(columns: dict[str, np.ndarray], names: dict[str, str], relation: str) -> dict[str, np.ndarray]:
    missing = [name for name in names if name not in columns]
    if missing:
        raise ValueError(f"edges of {relation}: no column {', '.join(missing)}; there are {', '.join(columns)}")
    return {names.get(name, name): values for name, values in columns.items()}


def tables_of(graph: Any, fold: int = 0) -> GraphTables:
    """Take a graph apart into tables, by its attributes. Raises ValueError for an object that is no known graph."""
    if hasattr(graph, "canonical_etypes"):
        return _of_dgl(graph, fold)
    if hasattr(graph, "node_types") and hasattr(graph, "edge_types"):
        nodes = {kind: _mapping(graph[kind]) for kind in graph.node_types}
        return of_stores(nodes, {tuple(kind): _mapping(graph[kind]) for kind in graph.edge_types}, fold)
    if hasattr(graph, "tocoo") and hasattr(graph, "shape"):
        return _of_matrix(graph)
    if hasattr(graph, "adjacency") and hasattr(graph, "is_directed"):
        return _of_networkx(graph)
    if hasattr(graph, "to_dict") and (hasattr(graph, "edge_index") or hasattr(graph, "msg")):
        return of_store(_mapping(graph), getattr(graph, "num_nodes", None), fold)
    is_other = isinstance(graph, str | pathlib.Path) or hasattr(graph, "columns") or hasattr(graph, "column_names")
    pair = None if is_other else array_of(graph)
    if pair is not None and pair.dtype.kind in "iu" and pair.ndim == 2 and len(pair) == 2:
        return of_store({"edge_index": pair}, None, fold)
    raise ValueError(
        f"{type(graph).__name__} is no known graph: give Data, HeteroData or TemporalData, a graph of DGL or networkx, "
        "a SciPy matrix, or an array [2, E]; tables of edges are for from_edges"
    )


def is_undirected(graph: Any) -> bool:
    return hasattr(graph, "adjacency") and hasattr(graph, "is_directed") and not graph.is_directed()


def _mapping(store: Any) -> dict[str, Any]:
    return dict(store.to_dict() if hasattr(store, "to_dict") else store)


def of_store(store: Mapping[str, Any], num_nodes: int | None = None, fold: int = 0) -> GraphTables:
    """Make tables of the attributes of a homogeneous graph as PyTorch Geometric names them. Raises ValueError."""
    arrays = {name: array_of(value) for name, value in store.items() if _is_array(value)}
    if {"src", "dst", "t"} <= arrays.keys():
        return GraphTables({NODE: {}}, {}, {RELATION: _events(arrays)})
    if "edge_index" not in arrays:
        raise ValueError(f"no edge_index; there are {', '.join(store) or 'no attributes'} (adj_t is not read)")
    edge_index = arrays.pop("edge_index")
    num_edges = edge_index.shape[1]
    if num_nodes is None:
        named = int(edge_index.max(initial=-1)) + 1
        num_nodes = next((len(arrays[name]) for name in ("x", "y") if name in arrays), named)
    of_edges = {n: v for n, v in arrays.items() if n.startswith("edge_") and v.ndim and len(v) == num_edges}
    of_nodes = {n: v for n, v in arrays.items() if n not in of_edges and v.ndim and len(v) == num_nodes}
    edges = {"src": edge_index[0], "dst": edge_index[1], **_edge_columns(of_edges)}
    return GraphTables({NODE: node_columns(of_nodes, fold)}, {NODE: int(num_nodes)}, {RELATION: edges})


def of_stores(
    nodes: Mapping[str, Mapping], edges: Mapping[tuple[str, str, str], Mapping], fold: int = 0
) -> GraphTables:
    """Make tables of the attributes of a heterogeneous graph, by node type and by (source type, name, destination
    type)."""
    tables = GraphTables()
    for kind, store in nodes.items():
        arrays = {name: array_of(value) for name, value in store.items() if _is_array(value)}
        count = store.get("num_nodes") or next((len(values) for values in arrays.values() if values.ndim), 0)
        tables.nodes[kind], tables.count[kind] = node_columns(arrays, fold), int(count)
    for (src, name, dst), store in edges.items():
        arrays = {key: array_of(value) for key, value in store.items() if _is_array(value)}
        if "edge_index" not in arrays:
            raise ValueError(f"relation {src}.{name}.{dst} has no edge_index")
        ends = arrays["edge_index"]
        tables.edges[f"{src}.{name}.{dst}"] = {"src": ends[0], "dst": ends[1], **_edge_columns(arrays)}
        for kind, end in ((src, ends[0]), (dst, ends[1])):
            tables.nodes.setdefault(kind, {})
            known = nodes.get(kind, {})
            if not any(_is_array(value) for value in known.values()) and "num_nodes" not in known:
                tables.count[kind] = max(tables.count.get(kind, 0), int(end.max(initial=-1)) + 1)
    return tables


def _of_dgl(graph: Any, fold: int) -> GraphTables:
    tables = GraphTables()
    for kind in graph.ntypes:
        arrays = {name: array_of(value) for name, value in graph.nodes[kind].data.items()}
        renamed = {{"feat": "x", "label": "y"}.get(name, name): values for name, values in arrays.items()}
        tables.nodes[kind], tables.count[kind] = node_columns(renamed, fold), int(graph.num_nodes(kind))
    for relation in graph.canonical_etypes:
        src, dst = (array_of(end) for end in graph.edges(etype=relation, order="eid"))
        arrays = {name: array_of(value) for name, value in graph.edges[relation].data.items()}
        tables.edges[".".join(relation)] = {"src": src, "dst": dst, **_edge_columns(arrays)}
    return tables


def _of_networkx(graph: Any) -> GraphTables:
    """Nodes keep their names; attributes of edges and nodes that are numbers become columns."""
    names, ends = list(graph.nodes), [list(edge) for edge in graph.edges(data=True)]
    kind = str if any(isinstance(name, str) for name in names) else np.int64
    if kind is not str and not all(isinstance(name, int | np.integer) for name in names):
        raise ValueError("nodes of networkx must be named by integers or words: relabel them")
    columns = {key: np.array([edge[place] for edge in ends], kind) for place, key in enumerate(("src", "dst"))}
    attributes = _attributes([edge[-1] for edge in ends])
    nodes = {"id": np.array(names, kind), **_attributes([data for _, data in graph.nodes(data=True)])}
    return GraphTables({NODE: nodes}, {}, {RELATION: columns | attributes})


def _attributes(rows: list[dict]) -> dict[str, np.ndarray]:
    """Make columns of the attributes that all rows have."""
    names = set.intersection(*(set(row) for row in rows)) if rows else set()
    columns = {str(name): np.array([row[name] for row in rows]) for name in sorted(names, key=str)}
    return {name: values for name, values in columns.items() if values.dtype.kind in NUMBERS}


def _of_matrix(matrix: Any) -> GraphTables:
    """Entry [u, v] is the edge from u to v; entries other than 1 are weights."""
    entries = matrix.tocoo()
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"a matrix of shape {matrix.shape}: an adjacency matrix is square")
    weights = {} if (entries.data == 1).all() else {"weight": np.asarray(entries.data)}
    columns = {"src": entries.row.astype(np.int64), "dst": entries.col.astype(np.int64), **weights}
    return GraphTables({NODE: {}}, {NODE: matrix.shape[0]}, {RELATION: columns})


def _events(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    kept = {name: values for name, values in arrays.items() if name not in LEFT_OUT and len(values) == len(arrays["t"])}
    return {"src": arrays["src"], "dst": arrays["dst"], **{RENAMED.get(name, name): v for name, v in kept.items()}}


def node_columns(arrays: Mapping[str, np.ndarray], fold: int = 0) -> dict[str, np.ndarray]:
    """Name the columns of nodes as training does, with a split made of masks."""
    columns, masks = {}, {}
    for name, values in arrays.items():
        if name in MASKS:
            masks[MASKS[name]] = (values if values.ndim == 1 else values[:, fold]).astype(bool)
        elif name not in LEFT_OUT and values.ndim and values.dtype.kind in NUMBERS:
            columns[RENAMED.get(name, name)] = values[:, 0] if name == "y" and values.shape[1:] == (1,) else values
    if masks:
        split = np.full(len(next(iter(masks.values()))), NO_SPLIT, np.int8)
        for name, mask in masks.items():
            add_to_split(split, mask, name, "masks of nodes")
        columns["split"] = split
    return columns


def _edge_columns(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    kept = {name: values for name, values in arrays.items() if name not in LEFT_OUT and values.dtype.kind in NUMBERS}
    return {RENAMED.get(name, name.removeprefix("edge_")): values for name, values in kept.items()}


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and not hasattr(value, "tocoo")


def save_tables(
    tables: GraphTables, folder: pathlib.Path, undirected: bool = False, sort: bool = False
) -> dict[str, Any]:
    """Save each table as an npz file in a folder; returns the spec that reads them."""
    files: dict[str, Any] = {}
    types = dict.fromkeys([*tables.nodes, *(kind for name in tables.edges for kind in split_relation(name)[::2])])
    nodes, edges = [], []
    for number, kind in enumerate(types):
        columns = dict(tables.nodes.get(kind, {}))
        ids = columns.get("id", _ends(tables, kind))
        entry: dict[str, Any] = {"type": kind, "ids": "row" if kind in tables.count else _kind_of(ids)}
        if columns:
            name = entry["file"] = _save(files, folder, f"nodes{number}", columns)
            assert name
            if "id" in columns:
                entry["id"] = "id"
            entry["columns"] = _columns(columns, ("id",))
        elif kind in tables.count:
            entry["count"] = tables.count[kind]
        nodes.append(entry)
    for number, (relation, columns) in enumerate(tables.edges.items()):
        name = _save(files, folder, f"edges{number}", columns)
        entry = {"relation": relation, "file": name, "src": "src", "dst": "dst"}
        entry |= {"time": "time", "sort": sort} if "time" in columns else {"undirected": undirected}
        edges.append(entry | {"columns": _columns(columns, ("src", "dst", "time"))})
    return {"files": files, "nodes": nodes, "edges": edges}


def _save(files: dict[str, Any], folder: pathlib.Path, name: str, columns: Mapping[str, np.ndarray]) -> str:
    np.savez(folder / f"{name}.npz", **columns)  # type: ignore[arg-type]
    files[name] = {"path": f"{name}.npz"}
    return name


def _columns(columns: Mapping[str, np.ndarray], further: Iterable[str]) -> dict[str, Any]:
    """Declare the columns to store: words are classes, numbers keep their type, but for columns that training reads."""
    declared: dict[str, Any] = {}
    for name, values in columns.items():
        if name in further:
            continue
        declared[name] = {"column": name}
        if values.dtype.kind in "US" and name != "split":
            declared[name] |= {"classes": True, "dtype": "int64"}
        elif name not in DEFAULT_DTYPES or (name == "label" and values.dtype.kind == "f"):
            declared[name]["dtype"] = _stored(values.dtype)
    return declared


def _stored(dtype: np.dtype) -> str:
    """Name the type in which numbers are stored: their own, or the next signed one."""
    if dtype.kind == "f":
        return "float64" if dtype.itemsize > 4 else "float32"
    size = dtype.itemsize * (2 if dtype.kind == "u" else 1)
    return f"int{8 * min(8, size)}"


def _ends(tables: GraphTables, kind: str) -> np.ndarray:
    """Return some ids of a type, as edges have them."""
    for relation, columns in tables.edges.items():
        for end, name in zip(split_relation(relation)[::2], ("src", "dst"), strict=True):
            if end == kind:
                return columns[name]
    return np.empty(0, np.int64)


def _kind_of(ids: np.ndarray) -> str:
    return "string" if ids.dtype.kind in "US" else "int"
