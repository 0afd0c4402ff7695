"""Write a partition set in stages: the assignment, the measures, the parts, and the book last.

Nodes lie in blocks on the ranks until their parts are assigned; then rows and columns go to the ranks that write their
parts. Rank r of R writes the parts r P // R .. (r + 1) P // R - 1. The files are the same on any number of ranks, byte
for byte, where the assignment is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pathlib
import tempfile
from collections.abc import Container, Iterator
from dataclasses import replace
from typing import Any

import h5py
import numpy as np

from data_tools.graph.checks import validate
from data_tools.graph.narrow import read_narrow
from data_tools.graph.source import Source
from data_tools.partition import memory, static, temporal
from data_tools.partition.assignment import Job, method_of
from data_tools.partition.journal import Journal
from data_tools.partition.layout import Numbering, PartLayout, number_nodes
from data_tools.partition.memory import shuffle_window
from data_tools.partition.options import Options
from data_tools.partition.quality import Loads, Measured, measure, measure_loads
from data_tools.partition.shuffle import shuffle
from data_tools.partition.weights import columns_of
from hpcgnn.graph import durable, files


def make_inputs_id(source_hash: str, options: Options, surroundings: dict[str, Any]) -> str:
    """Compute the identity of what a set is made from, hex; surroundings: `Method.depends` of the
    method."""
    inputs = {"source": source_hash, "version": files.VERSION, "surroundings": surroundings, **options.described()}
    text = json.dumps(inputs, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_set(journal: Journal, job: Job) -> dict:
    """Collective. Replace the content of the journal's folder by a new set, from the first stage on that is not
    finished; every rank writes its parts, rank 0 the book. Returns the quality, which the book stores."""
    team, source, options = job.team, job.source, job.options
    if not journal.get("valid"):
        with team.together("check the graph file"):
            validate(source, (team.rank, team.size))
        journal.note("valid")
    part = journal.assignment(job.blocks)
    if part is None:
        part = method_of(options.method).make(job)
        journal.keep_assignment(job.blocks, part)
    loads = load_parts(job, part) if journal.get("quality") is None else None
    numbering = number_nodes(source, job.blocks, part, options.parts)
    del part
    own = numbering.own_parts
    hashes = journal.finished(own) if journal.get("cleared") else {}
    if loads is not None or team.sum(np.array([len(hashes)]))[0] < options.parts:
        narrow = replace(source, file=read_narrow(source.file, options.feature_dtype, team))
        with contextlib.ExitStack() as stack:
            both_ends = source.kind == "temporal" or bool(getattr(options, "out_edges", False))
            with durable.naming_disk(tempfile.gettempdir()):
                rows, layout = shuffle(narrow, numbering, both_ends, shuffle_window(team.size, job.memory), stack)
            if loads is not None:
                journal.note("quality", measure(Measured(team, rows, layout, own), loads))
            if not journal.get("cleared"):
                with team.together("make room for the set"):
                    if team.rank == 0:
                        clear_folder(journal.folder)
                journal.note("cleared")
            write_own(journal, job, rows, layout, numbering, hashes)
    return finish(journal, job, numbering, hashes)


def load_parts(job: Job, part: np.ndarray) -> Loads:
    """Collective. Measure the loads of the parts by the constraints asked for, by nodes, and by events or edges; part
    [n] of this rank's block."""
    balance, always = job.options.balance, ("nodes", "events" if job.source.kind == "temporal" else "edges")
    weights = job.weights(tuple(dict.fromkeys((*balance, *always))), job.blocks)
    return measure_loads(job.team, weights, part, job.options.parts, columns_of(job.source, balance))


def clear_folder(folder: pathlib.Path) -> None:
    """Remove an older set, the book first: a set without a book is none."""
    folder.mkdir(parents=True, exist_ok=True)
    files.book_path(folder).unlink(missing_ok=True)
    for path in (*folder.glob("part-*.h5"), *folder.glob("part-*.h5.tmp")):
        path.unlink()


def write_own(
    journal: Journal, job: Job, rows: Source, layout: PartLayout, numbering: Numbering, hashes: dict[int, str]
) -> None:
    """Collective. Write those parts of this rank that are not in ``hashes``, and add their hashes; all ranks note a
    group of their parts together. rows, layout: the rows that
    this rank keeps, and the layout of their nodes (`shuffle`)."""
    options: Any = job.options
    counts, by_node = [], None
    if rows.kind == "temporal":
        counts = [temporal.count_events(layout, rows.ends(relation)) for relation in rows.relations]
    elif options.cache_ranking:
        by_node = numbering.by_node()
    groups = list(missing_groups(numbering.own_parts, hashes))
    for index in range(int(job.team.largest(np.array([len(groups)]))[0])):
        written, accesses = {}, {}
        with job.team.together("write the parts"):
            for parts in groups[index : index + 1]:
                with temporal.open_group(layout, journal.folder, journal.set_id(), parts) as group:
                    if rows.kind == "temporal":
                        temporal.write_group(rows, layout, group, counts, job.memory)
                    else:
                        static.write_group(rows, layout, group, options)
                    if by_node is not None:
                        accesses = static.write_caches(job.source, by_node, group, options)
                written = {part: files.file_hash(files.part_path(journal.folder, part)) for part in parts}
        journal.note_parts(written, accesses)
        hashes |= written


def missing_groups(parts: range, finished: Container[int]) -> Iterator[range]:
    """Yield blocks of at most `memory.PARTS_AT_ONCE` consecutive parts that are not finished."""
    first = None
    for part in range(parts.start, parts.stop + 1):
        missing = part < parts.stop and part not in finished
        if first is not None and (not missing or part - first == memory.PARTS_AT_ONCE):
            yield range(first, part)
            first = None
        if missing and first is None:
            first = part


def finish(journal: Journal, job: Job, numbering: Numbering, hashes: dict[int, str]) -> dict:
    """Collective. Write the book of parts with hashes, and remove the journal; returns the quality."""
    team, source, options = job.team, job.source, job.options
    quality = journal.get("quality")
    if getattr(options, "cache_ranking", 0):
        accesses = [journal.part_value(part) for part in range(options.parts)]
        total, *shares = np.sum(accesses, axis=0).tolist()
        values = [round(value / total, 6) if total else 0.0 for value in shares]
        quality = {**quality, "cache": dict(zip(("local", "ranked"), values, strict=True))}
    own = [(hashes[part], files.part_path(journal.folder, part).stat().st_size) for part in numbering.own_parts]
    records = [record for of_rank in team.everyone(own) for record in of_rank]
    attributes = {
        "set_id": journal.set_id(),
        "options": json.dumps(options.described(), sort_keys=True),
        "source_name": pathlib.Path(source.path).name,
        "source_hash": journal.source_hash,
        "quality": json.dumps(quality, sort_keys=True),
    }
    attributes |= {name: str(source.file.attrs[name]) for name in files.ORIGIN if name in source.file.attrs}
    with team.together("write the book"):
        if team.rank == 0:
            write_book(files.book_path(journal.folder), source, numbering.by_id, options, attributes, records)
    journal.finish()
    return quality


def write_book(
    path: pathlib.Path,
    source: Source,
    layout: PartLayout,
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
        **source.facts,
    ) as book:
        write_outline(book, source, layout)
        group = book.create_group("parts")
        group["hash"] = np.array([digest.encode() for digest, _ in records], "S64")
        group["bytes"] = np.array([size for _, size in records], np.int64)


def write_outline(book: h5py.File, source: Source, layout: PartLayout) -> None:
    """Write types with their offsets and relations with their columns."""
    book.create_group("nodes")
    book.create_group("edges")
    for node_type in source.types:
        group = book["nodes"].create_group(node_type.name)
        group.attrs["num_nodes"], group.attrs["type_id"] = node_type.num_nodes, node_type.index
        group["offsets"] = layout.offsets[node_type.index]
    for relation_id, relation in enumerate(source.relations):
        group = book["edges"].create_group(relation.name)
        group.attrs["num_edges"], group.attrs["relation_id"] = relation.num_edges, relation_id
        if relation.time_scale is not None:
            group.attrs["time_scale"] = relation.time_scale
        if relation.zone is not None:
            group.attrs["zone"] = relation.zone
        group["columns"] = np.array([name.encode() for name in relation.columns], "S")
