"""Cut a graph file into a partition set on several ranks, none of which ever holds the whole graph.

Nodes lie in blocks on the ranks until it is known which part they belong to; then rows and columns go to the ranks that
write their parts: rank r of R the parts r P // R .. (r + 1) P // R - 1. The files are those that one process writes for
the same assignment, byte for byte.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

import numpy as np

from data_tools.partition import static as part_static
from data_tools.partition import temporal as part_writer
from data_tools.partition.kinds import KINDS
from data_tools.partition.layout import Layout
from data_tools.partition.options import GIVEN, Options
from data_tools.partition.partition_set import book_attributes, clear_folder, make_set_id, write_book
from data_tools.partition.ranks import memory as ranks_memory
from data_tools.partition.ranks.assignment import METHODS, Job, check_method
from data_tools.partition.ranks.journal import SharedJournal
from data_tools.partition.ranks.layout import SharedLayout, shared_layout
from data_tools.partition.ranks.memory import make_shared_plan, shuffle_window
from data_tools.partition.ranks.quality import block_loads, measure_shared
from data_tools.partition.ranks.shuffle import KeptSource, shuffle
from data_tools.partition.source import Source, endpoint_slabs, open_source
from data_tools.source.checks import validate
from data_tools.team import Team
from hpcgnn.graph import files


def partition_shared(
    team: Team,
    path: str | os.PathLike,
    folder: str | os.PathLike,
    parts: int = 64,
    method: str = "parmetis",
    balance: tuple[str, ...] | list[str] | None = None,
    seed: int = 0,
    objective: str = "cut",
    overwrite: bool = False,
    passes: int | None = None,
    memory: int | None = None,
    assignment: str | os.PathLike | None = None,
    parmetis: str | None = None,
    report: Callable[[str], None] | None = None,
    **static,
) -> dict:
    """Collective. As `partition`, on several ranks; returns the quality on all of them.

    method: parmetis, ldg, fennel or random; assignment: instead, a file with the part of every node; parmetis: path of
    the library; memory: bytes that a rank is allowed.
    Raises, on all ranks alike, what `partition` does, and ValueError for what several ranks cannot do yet.
    """
    folder = pathlib.Path(folder)
    with contextlib.ExitStack() as stack:
        source = options = source_hash = None
        with team.together("open the graph file"):
            source = open_source(path)
            stack.enter_context(source.file)
            common = {"parts": parts, "method": method, "seed": seed, "objective": objective, "passes": passes}
            if assignment is not None:
                common |= {"method": GIVEN, "assignment": files.file_hash(assignment)}
            common["balance"] = None if balance is None else tuple(balance)
            options = shared_options(source, common, static)
            source_hash = files.file_hash(path) if team.rank == 0 else None
        source_hash = team.broadcast(source_hash)
        journal = SharedJournal(team, folder, make_set_id(source_hash, options), source_hash)
        with team.together("look for an older set"):
            if files.book_path(folder).exists() and not overwrite and not journal.get("cleared"):
                raise ValueError(f"{folder}: holds a partition set already; choose another folder or pass --overwrite")
        plan = make_shared_plan(team, source, options, memory)
        if report and team.rank == 0:
            report("\n".join(plan.lines(" a rank")))
        job = Job(team, source, options, team.blocks(source.num_nodes), plan.work, parmetis, assignment)
        check_method(job)
        return write_shared(journal, job, stack)


def shared_options(source: Source, common: dict, static: dict) -> Any:
    """The options of a kind of graph, from those that all kinds share and those of static graphs, checked. Raises
    ValueError."""
    method, objective = common["method"], common["objective"]
    if method not in METHODS:
        known = ", ".join(name for name in METHODS if name != GIVEN)
        raise ValueError(
            f"method={method!r}: on several ranks one of {known}; others need the whole graph, so one process"
        )
    if method == "parmetis" and objective != "cut":
        raise ValueError(f"objective={objective}: method parmetis minimises the cut; use --method metis on one rank")
    # Methods of one process and of several differ, all other options are the same.
    known = "random" if method == "parmetis" else method
    options = KINDS[source.kind].options(source, {**common, "method": known}, static)
    if getattr(options, "cache_ranking", 0):
        raise ValueError("cache_ranking: its probabilities need the whole graph; partition on one rank")
    return replace(options, method=method)


def write_shared(journal: SharedJournal, job: Job, stack: contextlib.ExitStack) -> dict:
    """Collective. As `write_set`: replace what is in the journal's folder by a new set, from the first stage on that is
    not finished; every rank writes its parts, rank 0 the book."""
    team, source = job.team, job.source
    options: Any = job.options
    if not journal.get("valid"):
        with team.together("check the graph file"):
            validate(source, (team.rank, team.size))
        journal.note("valid")
    part = journal.block(job.blocks)
    if part is None:
        part = METHODS[options.method](job)
        journal.keep_block(job.blocks, part)
    measured = journal.get("quality") is not None
    loads: Any = None if measured else block_loads(team, source, job.weights(), part, options)
    shared = shared_layout(team, source, job.blocks, part, options.parts)
    job.forget()
    del part
    hashes = journal.finished(shared.parts) if journal.get("cleared") else {}
    if not measured or team.sum(np.array([len(hashes)]))[0] < options.parts:
        both_ends = source.kind == "temporal" or options.out_edges
        kept = shuffle(source, shared, both_ends, shuffle_window(team.size, job.memory), stack)
        if not measured:
            journal.note("quality", measure_shared(team, kept, shared, loads))
        if not journal.get("cleared"):
            with team.together("make room for the set"):
                if team.rank == 0:
                    clear_folder(journal.folder)
            journal.note("cleared")
        write_own(journal, kept, shared, options, hashes, job.memory)
    quality = journal.get("quality")
    own = [(hashes[part], files.part_path(journal.folder, part).stat().st_size) for part in shared.parts]
    records = [record for some in team.everyone(own) for record in some]
    with team.together("write the book"):
        if team.rank == 0:
            attributes = book_attributes(source, journal.set_id, journal.source_hash, options, quality)
            write_book(files.book_path(journal.folder), source, shared.layout, options, attributes, records)
    journal.finish()
    return quality


def write_own(
    journal: SharedJournal,
    kept: KeptSource,
    shared: SharedLayout,
    options: Options,
    hashes: dict[int, str],
    memory: int,
) -> None:
    """Collective. Write those parts of this rank that are not in ``hashes``, and add their hashes; all ranks note a
    group of theirs together."""
    counts = None
    if kept.kind == "temporal":
        counts = [part_writer.count_events(shared.layout, endpoint_slabs(kept, found)) for found in kept.relations]
    groups = missing_groups(shared.parts, hashes)
    for index in range(int(journal.team.largest(np.array([len(groups)]))[0])):
        written = {}
        with journal.team.together("write the parts"):
            for parts in groups[index : index + 1]:
                write_parts(journal, kept, shared.layout, options, counts, parts, memory)
                written = {part: files.file_hash(files.part_path(journal.folder, part)) for part in parts}
        journal.note_parts(written)
        hashes |= written


def missing_groups(parts: range, finished: Container[int]) -> list[range]:
    """Runs of at most `ranks_memory.PARTS_AT_ONCE` parts that are not finished."""
    groups: list[range] = []
    for part in parts:
        if part in finished:
            continue
        if groups and groups[-1].stop == part and len(groups[-1]) < ranks_memory.PARTS_AT_ONCE:
            groups[-1] = range(groups[-1].start, part + 1)
        else:
            groups.append(range(part, part + 1))
    return groups


def write_parts(
    journal: SharedJournal,
    kept: KeptSource,
    layout: Layout,
    options: Any,
    counts: list | None,
    parts: range,
    memory: int,
) -> None:
    """Write some parts of this rank; counts: of events a relation and part, of a temporal graph."""
    with part_writer.open_group(layout, journal.folder, journal.set_id, parts) as opened:
        if counts is None:
            part_static.write_group(kept, layout, opened, options)
        else:
            part_writer.write_group(kept, layout, opened, counts, memory)
