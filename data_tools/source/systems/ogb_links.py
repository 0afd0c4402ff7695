"""Reads splits of links of the Open Graph Benchmark: links of several types, and the negatives that a split gives.

{train,valid,test}.pt hold the ends of links, as `ogb_folder` describes. edge_neg [n, 2] are negative links of the whole
set; target_node_neg, tail_neg and head_neg [m, k] are nodes in place of an end of each link. Links of several types
(ogbl-biokg) have head_type, relation (a number) and tail_type; raw/relations/*/edge_reltype.csv.gz hold the numbers.
Forms: ogb/linkproppred/dataset.py and evaluate.py, examples/linkproppred/{biokg,citation2,collab} of
github.com/snap-stanford/ogb (61e9784).
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from data_tools.source.formats.arrays import open_tensors
from data_tools.source.formats.ogb_folder import SETS, read_rows
from data_tools.source.object_columns import array_of
from data_tools.source.systems.content import path_beside
from hpcgnn.graph.files import (
    GRAPH,
    NEGATIVES,
    FileFormatError,
    create_column,
    open_checked,
    row_bytes,
    slabs,
    split_relation,
    writing,
)
from hpcgnn.graph.splits import SPLITS

ENDS = (("source_node", "target_node"), ("head", "tail"))
PER_LINK = {"target_node_neg": "negatives", "tail_neg": "negatives", "head_neg": "source_negatives"}
Names = Mapping[tuple[str, int, str] | None, str]  # of relations; None: of links of one type


def typed_links(
    raw: pathlib.Path, spec: dict[str, Any], split: pathlib.Path, unpacked: pathlib.Path
) -> dict[tuple[str, int, str] | None, str]:
    """Put the links of several types into a spec in place of its edges, with a relation for each (head type, number,
    tail type); returns the names of the relations."""
    names: dict[tuple[str, int, str] | None, str] = {}
    for edge in spec["edges"]:
        column = edge["columns"].get("reltype")
        first = read_rows(pathlib.Path(spec["files"][column["file"]]["path"]), 1) if column else []
        if not first:
            raise FileFormatError(f"{raw}: relation {edge['relation']} has no edge_reltype.csv.gz, its number")
        source, _, destination = split_relation(edge["relation"])
        names[source, int(float(first[0][0])), destination] = edge["relation"]
    pieces: dict[str, list[np.ndarray]] = {name: [np.empty((0, 3), np.int64)] for name in names.values()}
    for name, role in SETS.items():
        links = load_links(path := split / f"{name}.pt")
        for key, rows in rows_by_type(path, links).items():
            if key not in names:
                raise FileFormatError(f"{path}: row {rows[0] + 1}: no relation {key} in {raw / 'relations'}")
            part = np.full(len(rows), SPLITS.index(role))
            pieces[names[key]].append(np.stack([links["head"][rows], links["tail"][rows], part], axis=1))
    spec["edges"] = []
    for number, (relation, parts) in enumerate(pieces.items()):
        np.save(path := unpacked / f"links{number}.npy", np.concatenate(parts))
        spec["files"][relation] = {"path": str(path)}
        ends = {"src": "array[:,0]", "dst": "array[:,1]", "columns": {"split": "array[:,2]"}}
        spec["edges"].append({"relation": relation, "file": relation, **ends})
    return names


def load_links(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Read the arrays of a file of links by name; lists of types become arrays of text. Raises FileFormatError."""
    content = open_tensors(path)
    if not isinstance(content, Mapping):
        raise FileFormatError(f"{path}: holds a {type(content).__name__}, not links by name")
    return {str(name): array_of(values) for name, values in content.items()}


def rows_by_type(path: pathlib.Path, links: Mapping[str, np.ndarray]) -> dict[tuple[str, int, str], np.ndarray]:
    """Find the rows of each (head type, number of the relation, tail type), in order."""
    columns = [links[name].ravel() for name in ("head_type", "relation", "tail_type") if name in links]
    if len(columns) < 3 or len({len(column) for column in columns}) > 1:
        raise FileFormatError(f"{path}: expected head_type, relation and tail_type of every link")
    kinds, codes = zip(*(np.unique(column, return_inverse=True) for column in columns), strict=True)
    order = np.lexsort(codes[::-1])
    keys = np.stack(codes)[:, order]
    found = {}
    for rows in np.split(order, np.flatnonzero((np.diff(keys) != 0).any(axis=0)) + 1):
        if len(rows):
            head, number, tail = (kind[code[rows[0]]] for kind, code in zip(kinds, codes, strict=True))
            found[str(head), int(number), str(tail)] = np.sort(rows)
    return found


def refuse_lists(split: pathlib.Path) -> None:
    """Raise FileFormatError for a split with negatives of each link: the reverse of a link would have none."""
    for name in SETS:
        path = split / f"{name}.pt"
        for given in PER_LINK:
            if given in load_links(path):
                raise FileFormatError(
                    f"{path}: {given} are negatives of each link in one direction: --set undirected=false stores links "
                    "in this direction"
                )


def write_negatives(split: pathlib.Path, names: Names, graph: pathlib.Path) -> str:
    """Write the negatives of a split beside a graph file of its links, if the split has any; returns a line about them,
    or nothing. Negatives of each link need a graph file in which every link is one row. Raises FileFormatError naming
    file, array and row."""
    arrays: dict[str, np.ndarray] = {}
    first = dict.fromkeys(names.values(), 0)
    for name, role in SETS.items():
        links = load_links(path := split / f"{name}.pt")
        num_links = count_links(path, links)
        per_link = {column: links[given] for given, column in PER_LINK.items() if given in links}
        for given, array in per_link.items():
            if array.ndim != 2 or len(array) != num_links:
                raise FileFormatError(f"{path}: {given} of shape {array.shape}, expected {num_links} lines, one a link")
        keys = {None: np.arange(num_links)} if None in names else rows_by_type(path, links)
        for key, chosen in keys.items():
            group = f"edges/{names[key]}/{role}"
            rows = first[names[key]] + np.arange(len(chosen))
            first[names[key]] += len(chosen)
            if per_link:
                arrays[f"{group}/row"] = rows
                arrays |= {f"{group}/{column}": array[chosen] for column, array in per_link.items()}
            if "edge_neg" in links:
                arrays[f"{group}/pairs"] = links["edge_neg"]
    if not arrays:
        return ""
    path = path_beside(graph, "negatives")
    with open_checked(graph, GRAPH) as file, writing(path, NEGATIVES, source_name=graph.name) as output:
        for name, array in arrays.items():
            check_nodes(name, array, file)
            write_array(output, name, array)
        for name, group in output["edges"].items():
            source, _, destination = split_relation(name)
            counts = [int(file[f"nodes/{kind}"].attrs["num_nodes"]) for kind in (source, destination)]
            group.attrs["sizes"] = [*counts, len(file[f"edges/{name}/src"])]
    sizes = ", ".join(f"{name.removeprefix('edges/')} {len(array):,}" for name, array in arrays.items())
    return f"{path}: the negatives of the split ({sizes}); static graphs read them by eval.negatives_file"


def count_links(path: pathlib.Path, links: Mapping[str, np.ndarray]) -> int:
    """Count the links of a file. Raises FileFormatError where it has none of the known arrays."""
    if "edge" in links and links["edge"].ndim == 2:
        return len(links["edge"])
    for src, dst in ENDS:
        if src in links and dst in links:
            return len(links[src])
    raise FileFormatError(f"{path}: no links in it; it has {', '.join(links)}")


def check_nodes(name: str, array: np.ndarray, graph: h5py.File) -> None:
    """Raise FileFormatError for negatives that are no rows of their type of nodes."""
    _, relation, role, column = name.split("/")
    if column == "row":
        return
    source, _, destination = split_relation(relation)
    kinds = {"pairs": (source, destination), "negatives": (destination,), "source_negatives": (source,)}[column]
    if array.ndim != 2 or array.dtype.kind not in "iu" or (column == "pairs" and array.shape[1] != 2):
        raise FileFormatError(f"negatives of {role}: {array.dtype} of shape {array.shape}, expected rows of nodes")
    for kind, values in zip(kinds, array.T if column == "pairs" else (array,), strict=True):
        count = int(graph[f"nodes/{kind}"].attrs["num_nodes"])
        wrong = np.argwhere((values < 0) | (values >= count))
        if len(wrong):
            row, node = wrong[0][0] + 1, values[tuple(wrong[0])]
            raise FileFormatError(f"negatives of {role}: row {row}: node {node} is none of the {count} of type {kind}")


def write_array(output: h5py.File, name: str, array: np.ndarray) -> None:
    """Write an array slab by slab, compressed."""
    group, _, column = name.rpartition("/")
    dataset = create_column(output.require_group(group), column, len(array), array.shape[1:], np.int64)
    for start, stop in slabs(len(array), row_bytes(dataset)):
        dataset[start:stop] = array[start:stop]
