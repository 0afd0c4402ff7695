"""Reads the text files of parts that pm_dglpart of ParMETIS writes for DGL, and joins them to one graph.

The layout is that of programs/dglpart.c (github.com/KarypisLab/ParMETIS, 8ee6a37) and of DGL's
docs/source/guide/distributed-partition.rst (github.com/dmlc/dgl, 3d16000). Fields are separated by white space::

    p<part>-<name>_nodes.txt     new id, type, weights, id within the type, attributes
    p<part>-<name>_edges.txt     new ids of both ends, old ids of source and destination, id within the relation,
                                 relation, attributes
    <name>_stats.txt             nodes, edges, weights of a node; without it there are no attributes
    <name>_removed_edges.txt     edges that pm_dglpart cannot take: old ids, id within the relation, relation
    <name>.json                  names of types and relations: nid and eid, name to the range of old ids

Nodes get their ids within the type as rows, and column ``part`` keeps their part. Edges are in order of their ids. Old
ids of the nodes of a type follow each other.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from data_tools.source.file_spec import FileSpec
from data_tools.source.formats.values import RowError, parse_numbers
from data_tools.source.object_spec import ENDS, GraphTables, ObjectTable, save_tables
from data_tools.source.objects import NODE
from hpcgnn.graph.decode import decode_json
from hpcgnn.graph.files import FileFormatError, relation_name

PART = re.compile(r"p(\d+)-(.+)_nodes\.txt")
NODE_FIELDS, EDGE_FIELDS = 3, 6  # besides weights and attributes


def is_parmetis(folder: pathlib.Path) -> bool:
    """Whether a folder has files of parts of ParMETIS."""
    return any(PART.fullmatch(path.name) for path in folder.glob("p*_nodes.txt"))


def unpack_parmetis(folder: pathlib.Path, unpacked: pathlib.Path) -> tuple[dict[str, Any], list[str]]:
    """Write the tables of the graph to a folder; returns the spec that reads them, and notes for users. Raises
    FileFormatError naming file, row and remedy."""
    found = [match for path in sorted(folder.glob("p*_nodes.txt")) if (match := PART.fullmatch(path.name))]
    names = sorted({match[2] for match in found})
    if len(names) > 1:
        raise FileFormatError(f"{folder}: parts of {len(names)} graphs, {', '.join(names)}: keep one in a folder")
    paths = {int(match[1]): folder / match[0] for match in found}
    missing = set(range(max(paths) + 1)) - set(paths)
    if missing:
        raise FileFormatError(
            f"{folder}: part {min(missing)} of {max(paths) + 1} is missing: collect the files of all ranks"
        )
    name = names[0]
    num_weights = read_weights(folder / f"{name}_stats.txt")
    read = [read_rows(path, NODE_FIELDS + (num_weights or 0), num_weights is None) for path in paths.values()]
    schema = read_schema(folder / f"{name}.json")
    check_nodes(dict(zip(paths.values(), read, strict=True)), schema)
    part = np.repeat(np.array(list(paths), np.int32), [len(numbers) for numbers, _ in read])
    nodes, attributes = (np.concatenate(arrays) for arrays in zip(*read, strict=True))
    new, kind, row = nodes[:, 0], nodes[:, 1], nodes[:, -1]
    tables = GraphTables()
    counts = np.bincount(kind)
    kinds = named(schema.get("nid"), len(counts), NODE)
    first = np.cumsum(counts) - counts
    old = first[kind] + row
    check_numbers(new, old, counts, row, kind, name)
    for number, (title, count) in enumerate(zip(kinds, counts, strict=True)):
        here = np.flatnonzero(kind == number)
        here = here[np.argsort(row[here])]
        columns = {"part": part[here]} | ({"feat": attributes[here]} if attributes.shape[1] else {})
        tables.nodes[title] = ObjectTable(columns, count=int(count))
    ends, of_edges, notes = read_edges(folder, name, list(paths.values()), old[np.argsort(new)], schema)
    put_edges(tables, ends, of_edges, kinds, first, schema, notes)
    return save_tables(tables, unpacked), notes


def read_weights(path: pathlib.Path) -> int | None:
    """Read the number of weights of a node, None where there is no such file."""
    if not path.is_file():
        return None
    fields = path.read_text().split()
    if len(fields) != 3 or not all(text.isdecimal() for text in fields):
        raise FileFormatError(
            f"{path}: expected three numbers, of nodes, edges and weights, got {' '.join(fields)[:60]}"
        )
    return int(fields[2])


def read_rows(path: pathlib.Path, num_fields: int, all_fields: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Read numbers [n, num_fields] int64, or of all fields, and the attributes behind them [n, A] float32. Raises
    FileFormatError naming file and row."""
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file")
    table = FileSpec(path=str(path), delimiter="whitespace", header="none").open()
    numbers, attributes, first_row = [], [], 0
    with open(path) as file:
        width = len(file.readline().split())
    if not width:
        return np.empty((0, num_fields), np.int64), np.empty((0, 0), np.float32)
    if width < num_fields:
        raise FileFormatError(f"{path}: row 1 has {width} fields, expected at least {num_fields}")
    split = width if all_fields else num_fields
    wanted = {"numbers": f"0:{split}"} | ({"attributes": f"{split}:"} if split < width else {})
    for batch in table.batches(wanted):
        try:
            numbers.append(parse_numbers(batch["numbers"], table.name, first_row, np.dtype(np.int64), None, {}))
            if split < width:
                raw = batch["attributes"]
                attributes.append(parse_numbers(raw, table.name, first_row, np.dtype(np.float32), None, {}))
        except RowError as error:
            raise FileFormatError(f"{error}{table.line(error.row)}") from None
        first_row += batch["numbers"].num_rows
    empty = np.empty((first_row, 0), np.float32)
    return np.concatenate(numbers), np.concatenate(attributes) if attributes else empty


def read_schema(path: pathlib.Path) -> Mapping[str, Any]:
    """Read the names of types and relations, empty where there is no such file."""
    if not path.is_file():
        return {}
    schema = decode_json(path.read_text())
    if not isinstance(schema, dict) or not all(isinstance(schema.get(key), dict) for key in ("nid", "eid")):
        raise FileFormatError(f"{path}: expected nid and eid, names with their ranges of ids")
    return schema


def named(ranges: Mapping[str, Any] | None, count: int, usual: str) -> list[str]:
    """Name types or relations by the order of their ranges of ids, or by numbers."""
    if ranges is None:
        return [usual] if count == 1 else [f"{usual}{number}" for number in range(count)]
    names = sorted(ranges, key=lambda name: np.ravel(ranges[name])[0])
    if len(names) < count:
        raise FileFormatError(f"{count} types or relations, but the json file names {', '.join(names)}")
    return names[:count]


def check_nodes(read: Mapping[pathlib.Path, tuple[np.ndarray, np.ndarray]], schema: Mapping[str, Any]) -> None:
    """Raise FileFormatError for the file of a part without nodes, or whose rows have another width, a type or an id
    that there is not. read: numbers [n, F] and attributes [n, A], by file."""
    num_types = len(schema["nid"]) if schema else sum(len(numbers) for numbers, _ in read.values())
    first, (usual, _) = next(iter(read.items()))
    for path, (numbers, _) in read.items():
        if not len(numbers):
            raise FileFormatError(f"{path}: no nodes: pm_dglpart leaves no part empty; copy the file again")
        if numbers.shape[1] != usual.shape[1]:
            raise FileFormatError(
                f"{path}: row 1 has {numbers.shape[1]} fields, but {first.name} has {usual.shape[1]}; without a file "
                "*_stats.txt there are no attributes"
            )
        refuse_outside(path, "type", numbers[:, 1], num_types)
        refuse_outside(path, "id within its type", numbers[:, -1], None)
    refuse_widths({path: attributes for path, (_, attributes) in read.items()})


def refuse_outside(path: pathlib.Path, what: str, values: np.ndarray, count: int | None) -> None:
    """Raise FileFormatError for the first value [n] that is negative, or not below ``count`` if there is one."""
    wrong = np.flatnonzero((values < 0) | (count is not None and values >= count))
    if len(wrong):
        expected = "at least 0" if count is None else f"0 to {count - 1}"
        raise FileFormatError(f"{path}: row {wrong[0] + 1}: {what} {values[wrong[0]]}, expected {expected}")


def refuse_widths(attributes: Mapping[pathlib.Path, np.ndarray]) -> None:
    """Raise FileFormatError unless the rows [n, A] of all files have attributes of one width A."""
    widths = {path: values.shape[1] for path, values in attributes.items() if len(values)}
    usual = max(widths.values(), key=list(widths.values()).count, default=0)
    for path, width in widths.items():
        if width != usual:
            raise FileFormatError(
                f"{path}: row 1 has {width} attribute{'s' * (width != 1)}, but the others have {usual}: all files must "
                "be of one run"
            )


def check_numbers(new, old, counts, row, kind, name: str) -> None:
    """Raise FileFormatError unless new ids, and ids within each type, are 0, 1, ... in some order."""
    if not np.array_equal(np.sort(new), np.arange(len(new))):
        raise FileFormatError(f"{name}: new ids of nodes are not 0 .. {len(new) - 1}: is the file of a part missing?")
    if (row >= counts[kind]).any() or len(np.unique(old)) < len(old):
        raise FileFormatError(f"{name}: ids within a type are not 0, 1, ...: is the file of a part missing?")


def read_edges(
    folder: pathlib.Path, name: str, node_files: list[pathlib.Path], old: np.ndarray, schema: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Read the edges of all parts, and the edges that were removed before: old ids of source and destination, id within
    the relation, relation, [E, 4] int64; attributes [E, A] float32; notes. old: old ids [N] in order of new ids."""
    pieces, attributes, notes = [], [], []
    paths = [path.with_name(path.name.replace("_nodes.txt", "_edges.txt")) for path in node_files]
    removed = folder / f"{name}_removed_edges.txt"
    apart = {removed: read_rows(removed, EDGE_FIELDS - 2)} if removed.is_file() else {}
    read = {path: read_rows(path, EDGE_FIELDS) for path in paths}
    num_relations = len(schema["eid"]) if schema else sum(len(numbers) for numbers, _ in (read | apart).values())
    for path, (numbers, _) in (read | apart).items():
        refuse_outside(path, "relation", numbers[:, -1], num_relations)
    refuse_widths({path: further for path, (_, further) in read.items()})
    for path, (numbers, further) in read.items():
        ends = numbers[:, :2]
        if len(ends) and not 0 <= ends.min() <= ends.max() < len(old):
            raise FileFormatError(f"{path}: an edge has the end {ends.max()}, but there are {len(old)} nodes")
        wrong = np.flatnonzero((np.sort(old[ends], axis=1) != np.sort(numbers[:, 2:4], axis=1)).any(axis=1))
        if len(wrong):
            raise FileFormatError(
                f"{path}: row {wrong[0] + 1}: new and old ids are of different nodes: old ids must number the types "
                "one after the other, and all files must be of one run"
            )
        pieces.append(numbers[:, 2:])
        attributes.append(further)
    width = max(piece.shape[1] for piece in attributes)
    for numbers, _ in apart.values():
        if len(numbers) and width:
            notes.append(f"{removed}: edges without attributes, for which 0 is stored")
        pieces.append(numbers)
        attributes.append(np.zeros((len(numbers), width), np.float32))
    attributes = [piece if piece.shape[1] else np.zeros((len(piece), width), np.float32) for piece in attributes]
    return np.concatenate(pieces), np.concatenate(attributes), notes


def put_edges(
    tables: GraphTables,
    edges: np.ndarray,
    attributes: np.ndarray,
    kinds: list[str],
    first: np.ndarray,
    schema: Mapping[str, Any],
    notes: list[str],
) -> None:
    """Put the edges into the tables, a relation for each number. Raises FileFormatError for a number whose edges are
    between several types."""
    src, dst, ids, relation = edges.T
    names = named(schema.get("eid"), int(relation.max(initial=-1)) + 1, "to")
    for number, title in enumerate(names):
        here = np.flatnonzero(relation == number)
        here = here[np.argsort(ids[here], kind="stable")]
        if not len(here):
            notes.append(f"relation {title}: no edges, so it is left out")
            continue
        ends = [np.searchsorted(first, end[here], side="right") - 1 for end in (src, dst)]
        if any((end != end[0]).any() for end in ends):
            raise FileFormatError(f"relation {title}: its edges have ends of several types")
        expected = int(ids[here].max()) + 1
        if expected > len(here):
            notes.append(
                f"relation {title}: {expected - len(here):,} of {expected:,} edges are in no part: pm_dglpart takes no "
                "self-loops and duplicates; DGL's scripts write them to a file *_removed_edges.txt, which is read here"
            )
        source, destination = (kinds[int(end[0])] for end in ends)
        columns = {"src": src[here] - first[ends[0]], "dst": dst[here] - first[ends[1]]}
        if attributes.shape[1]:
            columns["feat"] = attributes[here]
        middle = title.split(":")[1] if title.count(":") == 2 else title
        tables.edges[relation_name(source, middle, destination)] = ObjectTable(columns, keys=ENDS)
