"""Reads facts with times: folders with train, valid and test in the form of RE-Net's files (ICEWS14, YAGO).

N entities, R facts.
"""

from __future__ import annotations

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

    num_nodes: by default the first number of stat.txt, else the largest id + 1; step: time from one snapshot to the
    next, by default the largest that fits all times. The names of relation2id.txt, where it is there, become attribute
    ``names`` of the column. Raises FileFormatError.
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
    names = _relation_names(_text_in(folder, "relation2id.txt"))
    attributes = {"rel": {"names": json.dumps(names)}} if names else {}
    return SnapshotGraph(
        num_nodes, count, src, dst, first, edges={"rel": kind}, edge_attributes=attributes, splits=splits
    )


def _relation_names(path: pathlib.Path | None) -> list[str]:
    """Read the names of relations 0, 1, ..., from lines ``name <tab> number``; empty without a file."""
    if path is None:
        return []
    with TextSource(path).open() as raw:
        lines = raw.read().decode(errors="replace").splitlines()
    pairs = [line.rsplit("\t", 1) for line in lines if "\t" in line]
    numbered = {number.strip(): name for name, number in pairs}
    if set(numbered) != {str(number) for number in range(len(numbered))}:
        raise FileFormatError(f"{path}: relations are not numbered 0, 1, ... without gaps; mend or remove the file")
    return [numbered[str(number)] for number in range(len(numbered))]


def _text_in(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    """Find a file of a folder, or its .gz."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
