"""Write a partition set in stages: the assignment, the parts, and the book last."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import h5py
import numpy as np

from data_tools.partition.assignment import Workplace
from data_tools.partition.journal import Journal
from data_tools.partition.layout import Layout, make_layout
from data_tools.partition.options import Options
from data_tools.partition.quality import measure_layout
from data_tools.partition.source import Source
from data_tools.source.checks import validate
from hpcgnn.graph import files


def make_set_id(source_hash: str, options: Options) -> str:
    """Identity of a partition set, hex: equal inputs give equal sets."""
    text = json.dumps({"source": source_hash, "version": files.VERSION, **asdict(options)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Stages:
    """How the sets of one kind of graph are made: part [N] from (source, options, workplace), part files and further
    measures from (source, layout, journal, options, workplace)."""

    assign: Callable[[Source, Any, Workplace], np.ndarray]
    write: Callable[[Source, Layout, Journal, Any, Workplace], dict]


def write_set(source: Source, journal: Journal, options: Options, stages: Stages, place: Workplace) -> dict:
    """Replace what is in the journal's folder by a new set, from the first stage on that is not finished; returns its
    quality, which the book stores."""
    if not journal.get("valid"):
        validate(source)
        journal.note("valid")
    part = journal.assignment()
    if part is None:
        part = stages.assign(source, options, place)
        journal.keep_assignment(part)
    layout = make_layout(source, part, options.parts)
    if journal.get("quality") is None:
        journal.note("quality", measure_layout(source, layout, options.balance, place.weights))
    if not journal.get("cleared"):
        clear_folder(journal.folder)
        journal.note("cleared")
    quality = {**journal.get("quality"), **stages.write(source, layout, journal, options, place)}
    attributes = book_attributes(source, journal.set_id, journal.source_hash, options, quality)
    records = [(digest, part_size(journal.folder, part)) for part, digest in sorted(journal.hashes.items())]
    write_book(files.book_path(journal.folder), source, layout, options, attributes, records)
    journal.finish()
    return quality


def book_attributes(source: Source, set_id: str, source_hash: str, options: Options, quality: dict) -> dict[str, str]:
    """What the book tells of a set as text."""
    return {
        "set_id": set_id,
        "options": json.dumps(asdict(options), sort_keys=True),
        "source_name": pathlib.Path(source.file.filename).name,
        "source_hash": source_hash,
        "quality": json.dumps(quality, sort_keys=True),
    }


def part_size(folder: pathlib.Path, part: int) -> int:
    """Bytes of a part file."""
    return files.part_path(folder, part).stat().st_size


def clear_folder(folder: pathlib.Path) -> None:
    """Remove an older set, the book first: a set without a book is none."""
    folder.mkdir(parents=True, exist_ok=True)
    files.book_path(folder).unlink(missing_ok=True)
    for path in (*folder.glob("part-*.h5"), *folder.glob("part-*.h5.tmp")):
        path.unlink()


def write_book(
    path: pathlib.Path,
    source: Source,
    layout: Layout,
    options: Options,
    attributes: dict[str, str],
    records: list[tuple[str, int]],
) -> None:
    """Write the book; records: hash and size of every part file."""
    with files.writing(
        path,
        files.BOOK,
        kind=source.kind,
        num_parts=options.parts,
        seed=options.seed,
        method=options.method,
        **attributes,
        **source.snapshots,
        **source.splits,
    ) as book:
        write_outline(book, source, layout)
        group = book.create_group("parts")
        group["hash"] = np.array([digest.encode() for digest, _ in records], "S64")
        group["bytes"] = np.array([size for _, size in records], np.int64)


def write_outline(book: h5py.File, source: Source, layout: Layout) -> None:
    """Types with their offsets and relations with their columns."""
    book.create_group("nodes")
    book.create_group("edges")
    for type_id, node_type in enumerate(source.types):
        group = book["nodes"].create_group(node_type.name)
        group.attrs["num_nodes"], group.attrs["type_id"] = node_type.num_nodes, type_id
        group["offsets"] = layout.offsets[type_id]
    for relation_id, relation in enumerate(source.relations):
        group = book["edges"].create_group(relation.name)
        group.attrs["num_edges"], group.attrs["relation_id"] = relation.num_edges, relation_id
        if relation.time_scale is not None:
            group.attrs["time_scale"] = relation.time_scale
        group["columns"] = np.array([name.encode() for name in relation.columns], "S")
