"""Cut a graph file into a partition set on several ranks, none of which ever holds the whole graph.

Nodes lie in blocks on the ranks until it is known which part they belong to; then rows and columns go to the ranks that
write their parts: rank r of R the parts r P // R .. (r + 1) P // R - 1. The files are those that one process writes for
the same assignment, byte for byte.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
from dataclasses import replace

from data_tools import part_static, part_writer
from data_tools.journal import Journal
from data_tools.partition import KINDS
from data_tools.partition_options import GIVEN, Options, check_choice
from data_tools.partition_set import book_attributes, clear_folder, make_set_id, part_records, write_book
from data_tools.partition_source import Source, endpoint_slabs, open_source
from data_tools.ranks_assignment import METHODS, Job
from data_tools.ranks_layout import SharedLayout, shared_layout
from data_tools.ranks_quality import block_loads, measure_shared
from data_tools.ranks_shuffle import KeptSource, shuffle
from data_tools.source_checks import validate
from data_tools.team import Team
from hpcgnn.store import files

WORK_BYTES = 128 << 20  # of memory for tables whose size can be chosen


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
    **static,
) -> dict:
    """Collective. As `partition`, on several ranks; returns the quality on all of them.

    method: parmetis, ldg, fennel or random; assignment: instead, a file with the part of every node; parmetis: path of
    the library.
    Raises, on all ranks alike, what `partition` does, and ValueError for what several ranks cannot do yet.
    """
    folder = pathlib.Path(folder)
    with contextlib.ExitStack() as stack:
        source = options = None
        with team.together("open the graph file"):
            if memory is not None:
                raise ValueError("memory: what ranks use is not predicted; leave it out, or partition on one rank")
            if files.book_path(folder).exists() and not overwrite:
                raise ValueError(f"{folder}: holds a partition set already; choose another folder or pass --overwrite")
            source = open_source(path)
            stack.enter_context(source.file)
            common = {"parts": parts, "method": method, "seed": seed, "objective": objective, "passes": passes}
            if assignment is not None:
                common |= {"method": GIVEN, "assignment": files.file_hash(assignment)}
            common["balance"] = None if balance is None else tuple(balance)
            options = shared_options(source, common, static)
        with team.together("check the graph file"):
            validate(source, (team.rank, team.size))
        job = Job(team, source, options, team.blocks(source.num_nodes), WORK_BYTES, parmetis, assignment)
        part = METHODS[options.method](job)
        loads = block_loads(team, source, job.weights(), part, options)
        shared = shared_layout(team, source, job.blocks, part, parts)
        del job, part
        both_ends = source.kind == "temporal" or options.out_edges
        kept = shuffle(source, shared, both_ends, stack)
        quality = measure_shared(team, kept, shared, loads)
        write_shared(team, kept, shared, folder, options, quality)
    return quality


def shared_options(source: Source, common: dict, static: dict) -> Options:
    """The options of a kind of graph, from those that all kinds share and those of static graphs, checked. Raises
    ValueError."""
    method, objective = common["method"], common["objective"]
    check_choice("method", method, METHODS)
    if method == "parmetis" and objective != "cut":
        raise ValueError(f"objective={objective}: method parmetis minimises the cut; use --method metis on one rank")
    # Methods of one process and of several differ, all other options are the same.
    known = "random" if method == "parmetis" else method
    options = KINDS[source.kind].options(source, {**common, "method": known}, static)
    if getattr(options, "cache_ranking", 0):
        raise ValueError("cache_ranking: its probabilities need the whole graph; partition on one rank")
    return replace(options, method=method)


def write_shared(
    team: Team, kept: KeptSource, shared: SharedLayout, folder: pathlib.Path, options: Options, quality: dict
) -> None:
    """Collective. Replace what is in ``folder`` by a new set: every rank writes its parts, rank 0 the book."""
    source_hash = None
    with team.together("make room for the set"):
        if team.rank == 0:
            source_hash = files.file_hash(kept.file.filename)
            clear_folder(folder)
            Journal(folder, "", source_hash).finish()  # of an interrupted run of one process
    source_hash = team.everyone(source_hash)[0]
    set_id = make_set_id(source_hash, options)
    records = []
    with team.together("write the parts"):
        write_own(kept, shared, folder, set_id, options)
        records = part_records(folder, shared.parts)
    records = [record for some in team.everyone(records) for record in some]
    with team.together("write the book"):
        if team.rank == 0:
            attributes = book_attributes(kept, set_id, source_hash, options, quality)
            write_book(files.book_path(folder), kept, shared.layout, options, attributes, records)


def write_own(kept: KeptSource, shared: SharedLayout, folder: pathlib.Path, set_id: str, options: Options) -> None:
    """Write the parts of this rank."""
    counts = None
    if kept.kind == "temporal":
        counts = [part_writer.count_events(shared.layout, endpoint_slabs(kept, found)) for found in kept.relations]
    for parts in part_writer.part_groups(shared.parts):
        with part_writer.open_group(shared.layout, folder, set_id, parts) as opened:
            if counts is None:
                part_static.write_group(kept, shared.layout, opened, options)
            else:
                part_writer.write_group(kept, shared.layout, opened, counts, WORK_BYTES)
