"""Write a partition set: its identity, the folder, the parts, and the book last."""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Callable
from dataclasses import asdict

import h5py
import numpy as np

from data_tools.part_layout import Layout
from data_tools.partition_options import Options
from data_tools.partition_source import Source
from hpcgnn.store import files


def make_set_id(source_hash: str, options: Options) -> str:
    """Identity of a partition set, hex: equal inputs give equal sets."""
    text = json.dumps({"source": source_hash, "version": files.VERSION, **asdict(options)}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_set(
    source: Source, layout: Layout, folder: pathlib.Path, options: Options, quality: dict, write: Callable[[str], dict]
) -> dict:
    """Replace what is in ``folder`` by a new set; returns its quality, which the book stores.

    write(set_id) writes the part files and returns measures that are known only then.
    """
    path = pathlib.Path(source.file.filename)
    source_hash = files.file_hash(path)
    set_id = make_set_id(source_hash, options)
    clear_folder(folder)
    quality = {**quality, **write(set_id)}
    attributes = {
        "set_id": set_id,
        "options": json.dumps(asdict(options), sort_keys=True),
        "source_name": path.name,
        "source_hash": source_hash,
        "quality": json.dumps(quality, sort_keys=True),
    }
    write_book(files.book_path(folder), source, layout, options, attributes)
    return quality


def clear_folder(folder: pathlib.Path) -> None:
    """Remove an older set, the book first: a set without a book is none."""
    folder.mkdir(parents=True, exist_ok=True)
    files.book_path(folder).unlink(missing_ok=True)
    for path in (*folder.glob("part-*.h5"), *folder.glob("part-*.h5.tmp")):
        path.unlink()


def write_book(
    path: pathlib.Path, source: Source, layout: Layout, options: Options, attributes: dict[str, str]
) -> None:
    """Write the book; the part files must be in place."""
    folder = path.parent
    parts = [files.part_path(folder, part) for part in range(options.parts)]
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
        group["hash"] = np.array([files.file_hash(part).encode() for part in parts], "S64")
        group["bytes"] = np.array([part.stat().st_size for part in parts], np.int64)


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
