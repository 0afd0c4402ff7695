"""Reads the labels of nodes at times of the Temporal Graph Benchmark, and writes them beside a graph file.

NAME_node_labels.csv has rows of time, node, class and weight, as load_label_dict and load_trade_label_dict of
tgb/utils/pre_process.py (github.com/shenyangHuang/TGB, 3b83e5c) read them: the rows of a time and a node make a vector
of weights, and of rows with the same class the last one counts. Nodes and classes are named as in the edge list.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from data_tools.source.formats.values import Place, Raw, parse_names, parse_numbers, parse_times
from data_tools.source.objects import NODE, RELATION
from data_tools.source.systems.content import path_beside
from data_tools.source.systems.csv_tables import batches
from hpcgnn.graph.files import GRAPH, LABELS, create_column, open_checked, writing

COLUMNS = {"time": 0, "node": 1, "class": 2, "weight": 3}
TYPES = {"time": np.int64, "node": np.int64, "indptr": np.int64, "class": np.int32, "weight": np.float32}


def write_labels(
    path: pathlib.Path, nodes: Mapping[str, int], classes: Mapping[str, int], num_classes: int, graph: pathlib.Path
) -> str:  # fmt: skip
    """Write the labels of a file beside a graph file; returns a line about them. nodes, classes: numbers by name.
    Raises FileFormatError naming the file, the row and the remedy."""
    time, node, kind, weight = read_rows(path, nodes, classes)
    order = np.lexsort((kind, node, time))  # stable: of equal rows the last one stays last
    time, node, kind, weight = (column[order] for column in (time, node, kind, weight))
    is_new = np.ones(len(time), bool)
    is_new[1:] = (time[1:] != time[:-1]) | (node[1:] != node[:-1])
    counts = is_new.copy()
    counts[1:] |= kind[1:] != kind[:-1]
    last = np.append(counts[1:], True)
    repeated = int((~last).sum())
    label = (np.cumsum(is_new) - 1)[last]
    first = np.flatnonzero(is_new)
    columns = {
        "time": time[first], "node": node[first], "class": kind[last], "weight": weight[last],
        "indptr": np.searchsorted(label, np.arange(len(first) + 1)),
    }  # fmt: skip
    output = path_beside(graph, "labels")
    with open_checked(graph, GRAPH) as file, writing(output, LABELS, source_name=graph.name) as stored:
        sizes = [int(file[f"nodes/{NODE}"].attrs["num_nodes"]), len(file[f"edges/{RELATION}/src"])]
        group = stored.create_group(f"nodes/{NODE}")
        group.attrs["num_classes"], group.attrs["sizes"] = num_classes, sizes
        for name, values in columns.items():
            create_column(group, name, len(values), (), TYPES[name])[:] = values
    more = f"; of {repeated:,} repeated rows the last one counts" if repeated else ""
    times = len(np.unique(columns["time"]))
    return f"{output}: {len(first):,} labels of nodes at {times:,} times, {num_classes} classes{more}"


def read_rows(
    path: pathlib.Path, nodes: Mapping[str, int], classes: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Read time, number of the node, number of the class and weight [z] of all rows."""
    pieces = []
    for row, batch in batches(path, COLUMNS):
        weight = parse_numbers(batch["weight"], path.name, row, np.dtype(np.float32), None, {})
        if len(bad := np.flatnonzero(weight < 0)):
            place = Place(path.name, "weight", row)
            raise place.error(int(bad[0]), f"the weight {weight[bad[0]]} is negative; a label has weights of 0 or more")
        named = (("node", nodes), ("class", classes))
        numbers = (find(batch[role], of, path.name, row, role) for role, of in named)
        pieces.append((parse_times(batch["time"], path.name, row, 1), *numbers, weight))
    time, node, kind, weight = map(np.concatenate, zip(*pieces, strict=True))
    return time, node, kind, weight


def find(raw: Raw, of: Mapping[str, int], file: str, row: int, role: str) -> np.ndarray:
    """Find the numbers [n] of names. Raises FileFormatError for a name that the edge list has not."""
    words: pa.Array = parse_names(raw, file, row).dictionary_encode()
    numbers = np.array([of.get(word, -1) for word in words.dictionary.to_pylist()], np.int64)
    found = numbers[words.indices.to_numpy(zero_copy_only=False)]
    if len(bad := np.flatnonzero(found < 0)):
        word = words[int(bad[0])].as_py()
        raise Place(file, role, row).error(
            int(bad[0]), f"the {role} {word!r} is not in the edge list; are both files of one data set?"
        )
    return found
