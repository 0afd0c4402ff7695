"""Make graph files of objects in memory: data frames, arrays, and graphs of PyTorch Geometric, DGL, networkx, SciPy.

    from data_tools.objects import convert_object, from_edges

    convert_object(dataset[0], "graph.h5")                        # torch_geometric.data.Data, HeteroData, TemporalData
    from_edges(frame, "graph.h5", src="user", dst="item", time="when", duplicates="drop")

The tables are written to a folder beside the output and converted as files are. Options are the keys of node types and
relations in graph specs. Content that is not kept is named on stderr, and in the notes of the summary.
"""

from __future__ import annotations

import pathlib
import re
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from data_tools.convert import convert
from data_tools.source.graph_writer import Summary
from data_tools.source.object_columns import columns_of
from data_tools.source.object_spec import GraphTables, ObjectTable, Options, save_tables
from data_tools.source.objects import RELATION, is_table_of_tables, is_undirected, tables_of
from data_tools.source.spec_file import build_spec
from hpcgnn.graph.files import split_relation

Names = str | Mapping[str, str]


def convert_object(
    graph: Any, output: str | pathlib.Path, *, fold: int = 0, relation: str = "", source: str = "", **options: Any
) -> Summary:
    """Write the graph file of an object: Data, HeteroData or TemporalData of PyTorch Geometric, a DGL graph, a networkx
    graph, a sparse matrix of SciPy, torch or torch_sparse, or an array [2, E] of row numbers.

    fold: of masks [n, folds]. relation: name of the edges of a matrix, such as user.buys.item; by default node.to.node,
    or row.to.column if the matrix is not square. source: where the data comes from, as the graph file and predictions
    keep it. options: as for ``from_edges``; graphs of networkx without directions and times are ``undirected`` anyway.

    ``x``, ``edge_attr`` and ``msg`` become ``feat``, ``y`` becomes ``label``, masks a ``split``, and ``edge_time`` the
    time of events; further columns of numbers or words keep their names. Raises ValueError for another object, and as
    ``hpcgnn convert`` does.
    """
    tables = tables_of(graph, fold, relation)
    if is_undirected(graph) and not any("time" in table.keys for table in tables.edges.values()):
        options = {"undirected": True, **options}
    return write_tables(tables, pathlib.Path(output), options, source)


def from_edges(
    edges: Any, output: str | pathlib.Path, nodes: Any = None, *, src: Names = "src", dst: Names = "dst",
    time: Names = "", id: Names = "", relation: str = "", source: str = "", **options: Any,
) -> Summary:  # fmt: skip
    """Write the graph file of tables of edges and nodes: pandas or Arrow tables, or mappings of columns to arrays.

    edges: a table, or a mapping of relations, such as user.buys.item, to tables; nodes: a table, or a mapping of types
    to tables; None: the nodes that edges name. src, dst, time, id: names of columns, or mappings of relations or types
    to names. By default a column ``time`` has the times, and a column ``id`` the ids; without one, nodes are numbered
    by rows. relation: name of the only relation, by default node.to.node. source: where the data comes from, as the
    graph file and predictions keep it.

    options: keys of node types and relations in graph specs, with the same meaning, such as ``missing_ids="drop"``,
    ``dangling="drop"``, ``duplicates="sum"``, ``dates="%d.%m.%Y"``, ``zone="Europe/Berlin"``, ``time_scale=1000``,
    ``undirected=True``, ``sort=True``, ``columns={"feat": ["price", "amount"], "label": "kind"}``. A value is for all
    tables, or a mapping of relations and types to values. Without ``columns``, all are stored under their names;
    training reads ``feat`` [., F], ``label``, ``split`` and ``weight``. Times may be dates of pandas or Arrow, stored
    as seconds since 1970, with their time zone for answers.

    Raises ValueError for a missing column, and as ``hpcgnn convert`` does.
    """
    by_relation = edges if is_table_of_tables(edges) else {relation or RELATION: edges}
    types = dict.fromkeys(kind for name in by_relation for kind in split_relation(name)[::2])
    by_type = nodes if is_table_of_tables(nodes) else {} if nodes is None else {next(iter(types)): nodes}
    tables = GraphTables()
    for key, names in (("src", src), ("dst", dst), ("time", time), ("id", id)):
        known = list(by_type if key == "id" else by_relation)
        if isinstance(names, Mapping) and (strange := names.keys() - known):
            raise ValueError(f"{key}: {min(strange)!r} is not one of {', '.join(known) or 'no table of nodes'}")
    for name, table in by_relation.items():
        columns = columns_of(table, f"edges of {name}")
        keys = {"src": _name(src, name), "dst": _name(dst, name), "time": _name(time, name)}
        keys["time"] = keys["time"] or ("time" if "time" in columns else "")
        tables.edges[name] = ObjectTable(columns, {}, {key: column for key, column in keys.items() if column})
    for kind, table in by_type.items():
        columns = columns_of(table, f"nodes of {kind}")
        column = _name(id, kind) or ("id" if "id" in columns else "")
        count = None if column else len(next(iter(columns.values())))
        tables.nodes[kind] = ObjectTable(columns, {}, {"id": column} if column else {}, count)
        if not column:
            tables.notes.append(f"nodes of {kind}: numbered by rows from 0, as id= names no column of ids")
    return write_tables(tables, pathlib.Path(output), options, source)


def _name(names: Names, table: str) -> str:
    return str(names.get(table, "")) if isinstance(names, Mapping) else str(names)


def write_tables(tables: GraphTables, output: pathlib.Path, options: Options, source: str = "") -> Summary:
    """Write the graph file of tables, as ``hpcgnn convert`` does of files, and print its notes on stderr. Raises
    FileFormatError and ValueError."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".tables-", dir=output.parent.resolve()) as folder:
        place = pathlib.Path(folder)
        data = save_tables(tables, place, options, source)
        try:
            spec = build_spec(data, place, {})
        except ValueError as error:
            raise ValueError(re.sub(r"(nodes|edges)\[(\d+)\]", lambda found: _title(data, found), str(error))) from None
        summary = convert(spec, output)
    summary.notes[:0] = tables.notes
    for note in summary.notes:
        print(f"note: {output}: {note}", file=sys.stderr)
    return summary


def _title(data: dict[str, Any], entry: re.Match) -> str:
    """Name a table in place of its number in the spec."""
    table = data[entry[1]][int(entry[2])]
    return f"{entry[1]} of {table.get('type') or table.get('relation')}"
