"""Takes graphs apart into tables: graphs of PyTorch Geometric, DGL and networkx, sparse matrices, and arrays.

Objects are recognized by their attributes, so none of these packages is needed. n nodes of a type, E edges of a
relation.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from data_tools.source.object_columns import array_of, checked_column
from data_tools.source.object_spec import GraphTables, ObjectTable
from hpcgnn.graph.files import split_relation
from hpcgnn.graph.splits import NO_SPLIT, SPLITS, add_to_split

NODE, RELATION = "node", "node.to.node"
BIPARTITE = "row.to.column"  # of a matrix that is not square
RENAMED = {"x": "feat", "y": "label", "edge_attr": "feat", "edge_weight": "weight", "msg": "feat", "t": "time"}
MASKS = {f"{name}_mask": name for name in SPLITS}
EVENTS = {"src": "src", "dst": "dst", "time": "t"}  # attributes of TemporalData
STRUCTURE = {"edge_index", "num_nodes"}  # of which the tables are made
LEFT_OUT = {"adj_t", "n_id", "e_id", "batch", "ptr", "_ID"}  # of samplers and batches
GAPS = ("label", "split")  # columns in which a missing value has a meaning
MOST_NAMED = 20  # attributes in a note


def is_table_of_tables(tables: Any) -> bool:
    """Whether this is a mapping of names to tables, and not to columns."""
    return isinstance(tables, Mapping) and bool(tables) and all(
        isinstance(table, Mapping) or hasattr(table, "columns") or hasattr(table, "column_names")
        for table in tables.values()
    )  # fmt: skip


def tables_of(graph: Any, fold: int = 0, relation: str = "") -> GraphTables:
    """Take a graph apart into tables, by its attributes. fold: of masks [n, folds]; relation: name of the edges of a
    sparse matrix. Raises ValueError for an object that is no known graph."""
    entries = coordinates(graph)
    if entries is not None:
        return _of_matrix(entries, relation)
    if relation:
        raise ValueError(f"relation={relation!r} is for sparse matrices; other graphs name their node types and edges")
    if (pair := _pair_of(graph)) is not None:
        return of_store({"edge_index": pair}, None, fold)
    if hasattr(graph, "canonical_etypes"):
        return _of_dgl(graph, fold)
    if hasattr(graph, "node_types") and hasattr(graph, "edge_types"):
        nodes = {kind: _mapping(graph[kind]) for kind in graph.node_types}
        edges = {tuple(kind): _mapping(graph[kind]) for kind in graph.edge_types}
        return of_stores(nodes, edges, fold, _mapping(getattr(graph, "_global_store", {})))
    if hasattr(graph, "adjacency") and hasattr(graph, "is_directed"):
        return _of_networkx(graph)
    if hasattr(graph, "to_dict") and (hasattr(graph, "edge_index") or hasattr(graph, "adj_t") or hasattr(graph, "msg")):
        return of_store(_mapping(graph), getattr(graph, "num_nodes", None), fold)
    raise ValueError(f"{type(graph).__name__} is no known graph: {_remedy(graph)}")


def _pair_of(graph: Any) -> np.ndarray | None:
    """Return an array, tensor or list of row numbers [2, E] as an array; None for another object."""
    if not (isinstance(graph, np.ndarray | list) or (hasattr(graph, "numpy") and hasattr(graph, "shape"))):
        return None
    try:
        pair = array_of(graph)
    except (TypeError, ValueError):
        return None
    return pair if pair.dtype.kind in "iu" and pair.ndim == 2 and len(pair) == 2 else None


def _remedy(graph: Any) -> str:
    """Name the call that takes an object which is no graph in memory."""
    if isinstance(graph, str | pathlib.Path):
        if pathlib.Path(graph).suffix in (".pt", ".pth"):
            return (
                f"it names a file: give torch.load({str(graph)!r}, weights_only=False), or run hpcgnn convert --preset "
                f"pyg --set data={graph} graph.h5"
            )
        return "it names a file: hpcgnn convert reads files, those of dgl.save_graphs with --preset dgl"
    if hasattr(graph, "columns") or hasattr(graph, "column_names"):
        return "tables of edges are for from_edges"
    return (
        "give Data, HeteroData or TemporalData (one graph of a data set: dataset[0]), a graph of DGL or networkx, a "
        "sparse matrix, or an array [2, E]; tables of edges are for from_edges"
    )


def is_undirected(graph: Any) -> bool:
    """Whether this is a graph of networkx without directions."""
    return hasattr(graph, "adjacency") and hasattr(graph, "is_directed") and not graph.is_directed()


def _mapping(store: Any) -> dict[str, Any]:
    return dict(store.to_dict() if hasattr(store, "to_dict") else store)


def coordinates(matrix: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]] | None:
    """List the entries of a sparse matrix of SciPy, torch or torch_sparse: row, column and value [E, ...], and the
    shape. None for another object."""
    if hasattr(matrix, "tocoo") and hasattr(matrix, "shape"):
        entries = matrix.tocoo()
        return entries.row, entries.col, np.asarray(entries.data), tuple(matrix.shape)
    if hasattr(matrix, "coo") and hasattr(matrix, "sparse_sizes"):  # torch_sparse.SparseTensor
        row, col, value = matrix.coo()
        row, col = array_of(row), array_of(col)
        return row, col, np.ones(len(row)) if value is None else array_of(value), tuple(matrix.sparse_sizes())
    if "sparse" in str(getattr(matrix, "layout", "")):
        entries = matrix.detach().cpu().to_sparse_coo()
        row, col = array_of(entries._indices())  # indices() needs repeated entries to be added up
        return row, col, array_of(entries._values()), tuple(matrix.shape[:2])
    return None


def _arrays(store: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Choose the attributes that may be columns: numbers, words, vectors; sparse ones become dense."""
    found = {}
    for name, value in store.items():
        entries = coordinates(value)
        if entries is not None and name != "adj_t":
            row, col, data, shape = entries
            found[name] = np.zeros(shape, data.dtype)
            np.add.at(found[name], (row, col), data)
        elif entries is None and (hasattr(value, "shape") or isinstance(value, list | tuple)):
            with contextlib.suppress(TypeError, ValueError):  # named as not kept by `_note_rest`
                found[name] = checked_column(array_of(value), name)
    return {name: values for name, values in found.items() if values.ndim}


def _with_rows(arrays: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Choose the arrays with a row per node or edge. The usual ones stay, so that their wrong length is refused."""
    usual = {*RENAMED, *MASKS}
    return {name: values for name, values in arrays.items() if len(values) == count or name in usual}


def _note_rest(tables: GraphTables, title: str, store: Mapping[str, Any], used: Iterable[str]) -> None:
    """Add a note that names the attributes of a store of which nothing is made."""
    left = {name: value for name, value in store.items() if value is not None and name not in {*used, *STRUCTURE}}
    if left:
        more = f" and {len(left) - MOST_NAMED:,} more" if len(left) > MOST_NAMED else ""
        shown = ", ".join(f"{name} ({_form(value)})" for name, value in list(left.items())[:MOST_NAMED])
        tables.notes.append(f"{title}: not kept: {shown}{more}")


def _form(value: Any) -> str:
    """Name the type of a value, with its shape or length if it has one."""
    shape = getattr(value, "shape", None)
    if shape is None and isinstance(value, list | tuple | dict):
        shape = [len(value)]
    return type(value).__name__ if shape is None else f"{type(value).__name__} {list(shape)}"


def of_store(store: Mapping[str, Any], num_nodes: int | None = None, fold: int = 0) -> GraphTables:
    """Make tables of the attributes of a homogeneous graph as PyTorch Geometric names them. Raises ValueError."""
    arrays = _arrays(store)
    if arrays.keys() >= set(EVENTS.values()):
        tables = GraphTables({NODE: ObjectTable()})
        tables.edges[RELATION] = _edge_table(_with_rows(arrays, len(arrays["t"])), EVENTS)
        _note_rest(tables, "events", store, tables.edges[RELATION].columns)
        return tables
    ends, shape = _ends(store, arrays, "the graph")
    if num_nodes is None:
        named = 1 + max(int(ends.columns[key].max(initial=-1)) for key in ends.keys.values())
        num_nodes = next((len(arrays[name]) for name in ("x", "y") if name in arrays), shape[0] if shape else named)
    of_edges = {n: v for n, v in arrays.items() if n.startswith("edge_") and not n.endswith("_index")}
    of_edges = _with_rows(of_edges, len(ends.columns[ends.keys["src"]]))
    of_nodes = _with_rows({n: v for n, v in arrays.items() if n not in of_edges}, int(num_nodes))
    edges = _edge_table({**ends.columns, **of_edges}, ends.keys, ends.names)
    tables = GraphTables({NODE: _node_table(of_nodes, int(num_nodes), fold)}, {RELATION: edges})
    _note_rest(tables, "the graph", store, _used(tables.nodes[NODE], edges))
    return tables


def _used(*tables: ObjectTable) -> set[str]:
    """Name the attributes of a store that are in tables."""
    used = {name for table in tables for name in table.columns}
    return used | {"adj_t" for name in used if name.startswith("adj_t ")} | ({*MASKS} if "split" in used else set())


def _ends(store: Mapping[str, Any], arrays: dict[str, np.ndarray], what: str) -> tuple[ObjectTable, tuple | None]:
    """Take the ends of edges out of ``edge_index``, or out of ``adj_t``, whose rows are destinations; returns them with
    the numbers of sources and destinations, if these are known. Raises ValueError."""
    entries = coordinates(store.get("adj_t"))
    if "edge_index" in arrays:
        pair = arrays.pop("edge_index")
        if pair.ndim != 2 or len(pair) != 2:
            raise ValueError(f"edge_index of {what} has shape {pair.shape}, expected [2, E]")
        keys = {"src": "edge_index[0]", "dst": "edge_index[1]"}
        return ObjectTable(dict(zip(keys.values(), pair, strict=True)), {}, keys), None
    if entries is None:
        there = ", ".join(store) or "no attributes"
        raise ValueError(f"{what} has no edge_index and no sparse adj_t; there are {there}")
    row, col, data, (height, width) = entries
    keys = {"src": "adj_t columns", "dst": "adj_t rows"}
    return _with_values({keys["src"]: col, keys["dst"]: row}, keys, "adj_t values", data), (width, height)


def _with_values(columns: dict[str, np.ndarray], keys: dict[str, str], name: str, data: np.ndarray) -> ObjectTable:
    """Make the edges of a sparse matrix: its values [E] are weights, unless all are 1, and [E, F] features."""
    if data.ndim == 1 and (data == 1).all():
        return ObjectTable(columns, {}, keys)
    return ObjectTable({**columns, name: data}, {name: "weight" if data.ndim == 1 else "feat"}, keys)


def of_stores(
    nodes: Mapping[str, Mapping], edges: Mapping[tuple[str, str, str], Mapping], fold: int = 0,
    further: Mapping[str, Any] | None = None,
) -> GraphTables:  # fmt: skip
    """Make tables of the attributes of a heterogeneous graph, by node type and by (source type, name, destination
    type). further: attributes of the whole graph, which are not kept. Raises ValueError."""
    tables = GraphTables()
    for kind, store in nodes.items():
        arrays = {name: values for name, values in _arrays(store).items() if name not in LEFT_OUT}
        count = int(store.get("num_nodes") or next(map(len, arrays.values()), 0))
        tables.nodes[kind] = _node_table(_with_rows(arrays, count), count, fold)
        _note_rest(tables, f"nodes of {kind}", store, _used(tables.nodes[kind]))
    for (src, name, dst), store in edges.items():
        relation, arrays = f"{src}.{name}.{dst}", _arrays(store)
        ends, shape = _ends(store, arrays, f"relation {relation}")
        arrays = {name: values for name, values in arrays.items() if not name.endswith("_index")}
        of_edges = _with_rows(arrays, len(ends.columns[ends.keys["src"]]))
        tables.edges[relation] = _edge_table({**ends.columns, **of_edges}, ends.keys, ends.names)
        _note_rest(tables, f"edges of {relation}", store, _used(tables.edges[relation]))
        for place, (kind, key) in enumerate(((src, "src"), (dst, "dst"))):
            table = tables.nodes.setdefault(kind, ObjectTable(count=0))
            if not table.columns and "num_nodes" not in nodes.get(kind, {}):
                named = int(ends.columns[ends.keys[key]].max(initial=-1)) + 1
                table.count = max(table.count or 0, shape[place] if shape else named)
    _note_rest(tables, "the graph", further or {}, ())
    return tables


def _of_dgl(graph: Any, fold: int) -> GraphTables:
    nodes = {kind: (int(graph.num_nodes(kind)), dict(graph.nodes[kind].data)) for kind in graph.ntypes}
    edges = {}
    for key in graph.canonical_etypes:
        src, dst = (array_of(end) for end in graph.edges(etype=key, order="eid"))
        edges[key] = src, dst, dict(graph.edges[key].data)
    return of_typed(nodes, edges, fold)


def of_typed(
    nodes: Mapping[str, tuple[int, Mapping]],
    edges: Mapping[tuple[str, str, str], tuple[np.ndarray, np.ndarray, Mapping]], fold: int = 0,
) -> GraphTables:  # fmt: skip
    """Make tables of a graph as DGL has it. nodes: number and attributes, by type; edges: ends [E] and attributes, by
    (source type, name, destination type). Raises ValueError."""
    tables = GraphTables()
    for kind, (count, store) in nodes.items():
        tables.nodes[kind] = _node_table(_arrays(store), count, fold)
        _note_rest(tables, f"nodes of {kind}", store, _used(tables.nodes[kind]))
    for key, (src, dst, store) in edges.items():
        relation, columns = ".".join(key), {"edges()[0]": src, "edges()[1]": dst, **_arrays(store)}
        tables.edges[relation] = _edge_table(columns, {"src": "edges()[0]", "dst": "edges()[1]"})
        _note_rest(tables, f"edges of {relation}", store, _used(tables.edges[relation]))
    return tables


def _of_networkx(graph: Any) -> GraphTables:
    """Nodes keep their names; attributes that all nodes, or all edges, have become columns."""
    names, edges = list(graph.nodes), list(graph.edges(data=True))
    kind = str if any(isinstance(name, str) for name in names) else np.int64
    if kind is not str and not all(isinstance(name, int | np.integer) for name in names):
        raise ValueError("nodes of networkx must be named by integers or words: relabel them")
    tables = GraphTables()
    ends = {f"{place} of edges": np.array([edge[i] for edge in edges], kind) for i, place in enumerate(("u", "v"))}
    of_nodes = _attributes([data for _, data in graph.nodes(data=True)], "nodes", tables)
    of_edges = _attributes([edge[-1] for edge in edges], "edges", tables)
    ids = {"names of nodes": np.array(names, kind)}
    tables.nodes[NODE] = ObjectTable({**ids, **of_nodes}, {}, {"id": "names of nodes"})
    tables.edges[RELATION] = _edge_table({**ends, **of_edges}, dict(zip(("src", "dst"), ends, strict=True)))
    if graph.is_multigraph() and any(not isinstance(key, int) for *_, key in graph.edges(keys=True)):
        tables.notes.append("edges: not kept: keys of parallel edges")
    return tables


def _attributes(rows: list[dict], what: str, tables: GraphTables) -> dict[str, np.ndarray]:
    """Make columns of the attributes that all rows have, or that may be missing, and note the others."""
    columns, left = {}, []
    for name in sorted({key for row in rows for key in row}, key=str):
        values = np.empty(len(rows), object)
        for place, row in enumerate(rows):
            values[place] = row.get(name)
        missing = sum(value is None for value in values)
        if missing and name not in GAPS:
            left.append(f"{name} (missing in {missing:,} of {len(rows):,})")
            continue
        try:
            columns[str(name)] = checked_column(values, "", keeps_dates=what == "edges" and name == "time")
        except ValueError:
            left.append(f"{name} ({_form(next(value for value in values if value is not None))})")
    if left:
        tables.notes.append(f"{what}: not kept: {', '.join(left)}")
    return columns


def _of_matrix(entries: tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]], relation: str) -> GraphTables:
    """Entry [u, v] is the edge from u to v; entries other than 1 are weights. Rows and columns of a matrix that is not
    square are nodes of two types."""
    row, col, data, shape = entries
    relation = relation or (RELATION if shape[0] == shape[1] else BIPARTITE)
    source, _, destination = split_relation(relation)
    if source == destination and shape[0] != shape[1]:
        raise ValueError(
            f"a matrix of shape {shape} has edges between two types of nodes; name them: relation='user.buys.item'"
        )
    table = _with_values({"rows": row, "columns": col}, {"src": "rows", "dst": "columns"}, "values", data)
    tables = GraphTables({source: ObjectTable(count=shape[0])}, {relation: table})
    tables.nodes[destination] = ObjectTable(count=shape[1])
    if relation == BIPARTITE:
        tables.notes.append(
            f"a matrix of shape {shape}: rows are nodes of type row, columns are nodes of type column; "
            "relation='user.buys.item' names them"
        )
    return tables


def _node_table(arrays: Mapping[str, np.ndarray], count: int, fold: int = 0) -> ObjectTable:
    """Make the table of nodes that are numbered by rows, with a split made of masks."""
    columns, masks = {}, {}
    for name, values in arrays.items():
        if name in MASKS:
            if values.ndim > 1 and not 0 <= fold < values.shape[1]:
                raise ValueError(f"fold {fold}: {name} has {values.shape[1]} folds, counted from 0")
            masks[MASKS[name]] = (values if values.ndim == 1 else values[:, fold]).astype(bool)
        elif name not in LEFT_OUT:
            is_flat = name in ("y", "label") and values.shape[1:] == (1,)
            columns[name] = values[:, 0] if is_flat else values
    if masks:
        split = np.full(len(next(iter(masks.values()))), NO_SPLIT, np.int8)
        for name, mask in masks.items():
            add_to_split(split, mask, name, "masks of nodes")
        columns["split"] = split
    return ObjectTable(columns, {name: RENAMED[name] for name in columns if name in RENAMED}, count=count)


def _edge_table(
    columns: Mapping[str, np.ndarray], keys: Mapping[str, str], names: Mapping[str, str] | None = None
) -> ObjectTable:
    """Make the table of a relation, with a time if a column is called so. Raises ValueError for two of them."""
    kept = {name: values for name, values in columns.items() if name not in LEFT_OUT}
    stored = {name: RENAMED.get(name, name.removeprefix("edge_")) for name in kept} | dict(names or {})
    times = [name for name in kept if stored[name] == "time"]
    if len(times) > 1:
        raise ValueError(f"{' and '.join(times)} would both be the time of edges; rename or remove one")
    return ObjectTable(kept, stored, {**keys, **({"time": times[0]} if times else {})})
