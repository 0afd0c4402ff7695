"""Make graph files of objects in memory: data frames, arrays, and graphs of PyTorch Geometric, DGL, networkx, SciPy.

    from data_tools.objects import convert_object, from_edges

    convert_object(dataset[0], "graph.h5")                        # torch_geometric.data.Data, HeteroData, TemporalData
    from_edges(frame, "graph.h5", src="user", dst="item", time="when")

The tables are written to a folder beside the output and converted as files are.
"""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

from data_tools.convert import convert
from data_tools.source.graph_writer import Summary
from data_tools.source.object_columns import columns_of
from data_tools.source.objects import (
    RELATION,
    GraphTables,
    is_table_of_tables,
    is_undirected,
    renamed,
    save_tables,
    tables_of,
)
from data_tools.source.spec_file import build_spec
from hpcgnn.graph.files import split_relation


def convert_object(
    graph: Any, output: str | pathlib.Path, *, undirected: bool = False, sort: bool = False, fold: int = 0
) -> Summary:
    """Write the graph file of an object: Data, HeteroData or TemporalData of PyTorch Geometric, a DGL graph, a networkx
    graph, a square SciPy matrix, or an array [2, E] of row numbers.

    undirected: store each edge in both directions; networkx says itself. sort: sort events by time. fold: of masks
    [n, folds]. ``x``, ``edge_attr`` and ``msg`` become ``feat``, ``y`` becomes ``label``, masks a ``split``; further
    columns of numbers keep their names. Raises ValueError for another object, and as ``hpcgnn convert`` does.
    """
    return write_tables(tables_of(graph, fold), pathlib.Path(output), undirected or is_undirected(graph), sort)


def from_edges(
    edges: Any, output: str | pathlib.Path, nodes: Any = None, *, src: str = "src", dst: str = "dst", time: str = "",
    id: str = "id", relation: str = "", undirected: bool = False, sort: bool = False,
) -> Summary:  # fmt: skip
    """Write the graph file of tables of edges and nodes: pandas or Arrow tables, or mappings of columns to arrays.

    edges: a table, or a mapping of relations, such as user.buys.item, to tables; nodes: a table, or a mapping of types
    to tables; None: the nodes that edges name. src, dst, time, id: names of columns; without a column of ids, nodes are
    numbered by rows. relation: name of the only relation, by default node.to.node. Columns are stored under their
    names; training reads ``feat`` [., F], ``label``, ``split`` and ``weight``. Times may be dates of pandas or Arrow,
    stored as seconds since 1970. undirected, sort: as for ``convert_object``.

    Raises ValueError for a missing column, and as ``hpcgnn convert`` does.
    """
    by_relation = edges if is_table_of_tables(edges) else {relation or RELATION: edges}
    types = dict.fromkeys(kind for name in by_relation for kind in split_relation(name)[::2])
    by_type = nodes if is_table_of_tables(nodes) else {} if nodes is None else {next(iter(types)): nodes}
    tables = GraphTables()
    for name, table in by_relation.items():
        columns = columns_of(table, f"edges of {name}", dates=time or "time")
        tables.edges[name] = renamed(columns, {src: "src", dst: "dst", **({time: "time"} if time else {})}, name)
    for kind, table in by_type.items():
        columns = columns_of(table, f"nodes of {kind}")
        tables.nodes[kind] = {("id" if name == id else name): values for name, values in columns.items()}
        if "id" not in tables.nodes[kind]:
            tables.count[kind] = len(next(iter(columns.values())))
    return write_tables(tables, pathlib.Path(output), undirected, sort)


def write_tables(tables: GraphTables, output: pathlib.Path, undirected: bool = False, sort: bool = False) -> Summary:
    """Write the graph file of tables, as ``hpcgnn convert`` does of files. Raises FileFormatError and ValueError."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tables-", dir=output.parent.resolve()) as folder:
        place = pathlib.Path(folder)
        return convert(build_spec(save_tables(tables, place, undirected, sort), place, {}), output)
