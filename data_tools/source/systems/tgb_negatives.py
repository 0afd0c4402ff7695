"""Reads the negatives of data sets of several edge types of the Temporal Graph Benchmark, and writes them beside a
graph file.

NAME_val_ns.pkl and NAME_test_ns.pkl hold a dict from (time, source, edge type) to destinations. For thgl- sets and
tkgl-wikidata these are the negatives; for other tkgl- sets they are the true destinations, and all others are
negatives (tgb/linkproppred/thg_negative_sampler.py, tkg_negative_sampler.py and tgb/utils/info.py of
github.com/shenyangHuang/TGB, 3b83e5c). Such true destinations are not written.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

import numpy as np

from data_tools.source.objects import NODE, RELATION
from data_tools.source.systems.content import path_beside
from hpcgnn.graph.files import GRAPH, NEGATIVES, FileFormatError, create_column, open_checked, slabs, writing
from hpcgnn.graph.negative_file import read_lists

KEY = ("time", "source", "edge type")
NONE = -1


def write_negatives(paths: Mapping[str, pathlib.Path], graph: pathlib.Path) -> str:
    """Write the negatives that the files of val and test list for events of a graph file; returns a line about them.
    Raises FileFormatError naming the file and what is wrong with it."""
    path, counts = path_beside(graph, "negatives"), []
    with open_checked(graph, GRAPH) as file, writing(path, NEGATIVES, source_name=graph.name) as output:
        edges, num_nodes = file[f"edges/{RELATION}"], int(file[f"nodes/{NODE}"].attrs["num_nodes"])
        events = {name: edges[name][()] for name in ("time", "src", "type")}
        for split, lists in paths.items():
            rows, number, lines = listed_events(lists, events, num_nodes)
            group = output.create_group(f"edges/{RELATION}/{split}")
            create_column(group, "row", len(rows), (), np.int64)[:] = rows
            width = max(map(len, lines))
            table = create_column(group, "negatives", len(rows), (width,), np.int64)
            for start, stop in slabs(len(rows), 8 * width):
                table[start:stop] = filled([lines[place] for place in number[start:stop]], width)
            counts.append(f"{split} {len(rows):,}")
        output[f"edges/{RELATION}"].attrs["sizes"] = [num_nodes, num_nodes, len(events["time"])]
    return f"{path}: negatives of events ({', '.join(counts)}): --eval tgb --eval.negatives_file {path}"


def listed_events(
    path: pathlib.Path, events: Mapping[str, np.ndarray], num_nodes: int
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:  # fmt: skip
    """Find the events that a file lists: their rows [m], the place of the list of each, and the lists. Raises
    FileFormatError for a list without an event, and for a node that there is not."""
    keys, lines = read_lists(str(path), KEY)
    for key, line in zip(keys, lines, strict=True):
        if line.dtype.kind not in "iuf" or (line != np.floor(line)).any() or line.min() < 0 or line.max() >= num_nodes:
            raise FileFormatError(
                f"{path}: {key}: lists what is none of the {num_nodes} nodes; is the file of this data set?"
            )
    place = {key: number for number, key in enumerate(keys)}
    bounds = [min(key[0] for key in keys), max(key[0] for key in keys)]
    first, stop = np.searchsorted(events["time"], bounds[0]), np.searchsorted(events["time"], bounds[1], side="right")
    at = slice(int(first), int(stop))
    columns = (events[name][at].tolist() for name in ("time", "src", "type"))
    number = np.array([place.get(key, NONE) for key in zip(*columns, strict=True)], np.int64)
    if len(missing := np.setdiff1d(np.arange(len(keys)), number)):
        raise FileFormatError(
            f"{path}: {keys[missing[0]]}: no such event in the edge list ({len(missing):,} such keys); are both files "
            "of one data set?"
        )
    rows = np.flatnonzero(number != NONE)
    return rows + int(first), number[rows], lines


def filled(lines: list[np.ndarray], width: int) -> np.ndarray:
    """Make a table [n, width] of lists, with NONE behind the last entry of each."""
    table = np.full((len(lines), width), NONE, np.int64)
    for row, line in enumerate(lines):
        table[row, : len(line)] = line
    return table
