"""Reads facts with times: folders with train, valid and test in the form of RE-Net's files (ICEWS14, YAGO).

N entities, R facts.
"""

from __future__ import annotations

import collections
import itertools
import json
import pathlib
from collections.abc import Callable

import numpy as np

from data_tools.snapshots.graph import SnapshotGraph
from data_tools.snapshots.text import count_snapshots, read_columns, text_layout
from data_tools.source.formats.text_stream import TextSource
from data_tools.source.formats.values import parse_ids
from data_tools.source.id_spaces import IntegerIds, RowIds
from hpcgnn.graph.files import FileFormatError

SETS = {"train": "train.txt", "val": "valid.txt", "test": "test.txt"}
FACT = ("subject", "relation", "object", "time")


def read_quadruples(folder: pathlib.Path, num_nodes: int | None = None, step: int | None = None) -> SnapshotGraph:
    """Read facts ``subject relation object time`` of a folder with train, valid and test (.txt, .txt.gz), numbered as
    in RE-Net's files: relations are the column ``rel``, the sets ranges of snapshots.

    num_nodes: by default the first number of stat.txt, else the number of names in entity2id.txt, else the largest
    number + 1; step: time from one snapshot to the next, by default the largest that fits all times. The names of
    entity2id.txt become the ids of nodes, and the names of relation2id.txt attribute ``names`` of the column, where
    there are such files. Raises FileFormatError.
    """
    paths = {}
    for name, file in SETS.items():
        path = _text_in(folder, file)
        if path is None:
            needed = ", ".join(SETS.values())
            raise FileFormatError(f"{folder / file}: no such file (nor {file}.gz); the folder needs {needed}")
        paths[name] = path
    stat = _text_in(folder, "stat.txt")
    if num_nodes is None and stat is not None:
        num_nodes = int(read_columns(text_layout(stat, ("entities",), range(1, 9))[0], [parse_ids])[0][0])
    entities = _names(_text_in(folder, "entity2id.txt"), "entities")
    num_nodes = len(entities) or None if num_nodes is None else num_nodes
    space = IntegerIds("entity") if num_nodes is None else RowIds("entity", num_nodes)
    parsers: list[Callable[..., np.ndarray]] = [space.column(), parse_ids, space.column(), parse_ids]
    sets = {name: read_columns(text_layout(path, FACT, range(4, 9))[0], parsers) for name, path in paths.items()}
    src, kind, dst, time = (np.concatenate(columns) for columns in zip(*sets.values(), strict=True))
    first, count = count_snapshots(time, folder.name, step)
    sizes = np.cumsum([0, *(len(columns[0]) for columns in sets.values())])
    splits = {
        name: (int(first[begin:end].min()), int(first[begin:end].max()))
        for name, begin, end in zip(sets, sizes[:-1], sizes[1:], strict=True)
        if end > begin
    }
    for before, after in itertools.pairwise(splits):
        if splits[after][0] <= splits[before][1]:
            raise FileFormatError(
                f"{folder}: {after} begins with snapshot {splits[after][0]}, {before} ends with {splits[before][1]}; "
                "sets must follow each other in time"
            )
    if num_nodes is None:
        num_nodes = int(max(src.max(initial=-1), dst.max(initial=-1))) + 1
    names = _names(_text_in(folder, "relation2id.txt"), "relations")
    attributes = {"rel": {"names": json.dumps(names)}} if names else {}
    ids, notes = _ids(entities, num_nodes, folder)
    return SnapshotGraph(
        num_nodes, count, src, dst, first, edges={"rel": kind}, id=ids, edge_attributes=attributes, splits=splits,
        notes=notes,
    )  # fmt: skip


def _ids(names: list[str], num_nodes: int, folder: pathlib.Path) -> tuple[np.ndarray | None, list[str]]:
    """Make the ids [N] of entities from their names; None, with a note for users, where two have the same. Raises
    FileFormatError where the number of names is not N."""
    if not names:
        return None, []
    if len(names) != num_nodes:
        raise FileFormatError(
            f"{folder}: entity2id.txt has {len(names)} names for {num_nodes} entities; mend it, or remove it to use "
            "numbers"
        )
    name, count = collections.Counter(names).most_common(1)[0]
    if count > 1:
        return None, [f"entity2id.txt has the name {name!r} {count} times: the ids of nodes are their numbers"]
    return np.char.encode(np.array(names), "utf-8"), []


def _names(path: pathlib.Path | None, kind: str) -> list[str]:
    """Read the names of things that are numbered 0, 1, ..., from lines ``name <tab> number``, after which further
    columns are skipped; empty without a file. kind: the word for the things."""
    if path is None:
        return []
    with TextSource(path).open() as raw:
        lines = raw.read().decode(errors="replace").split("\n")
    pairs = [line.split("\t")[:2] for line in lines if "\t" in line]
    numbered = {number.strip(): name for name, number in pairs}
    if len(numbered) != len(pairs) or set(numbered) != {str(number) for number in range(len(numbered))}:
        raise FileFormatError(f"{path}: {kind} are not numbered 0, 1, ... without gaps; mend or remove the file")
    return [numbered[str(number)] for number in range(len(numbered))]


def _text_in(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    """Find a file of a folder, or its .gz."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
