"""Cut a graph file into a partition set: book.h5 and part-<i>.h5.

Consecutive parts are neighbours, so any number of ranks up to the number of parts can take contiguous runs of them.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass

from data_tools.assignment import METHODS
from data_tools.cli import run_command
from data_tools.node_weights import CONSTRAINTS, STATIC_CONSTRAINTS, default_balance, static_constraints
from data_tools.part_hotness import hotness_parts
from data_tools.part_layout import make_layout
from data_tools.part_static import write_static_parts
from data_tools.part_writer import write_parts
from data_tools.partition_options import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_FANOUTS,
    HOTNESS_CACHE,
    OBJECTIVES,
    Options,
    StaticOptions,
)
from data_tools.partition_set import write_set
from data_tools.partition_source import Source, open_source, validate
from data_tools.quality import measure, measure_static, summary, unmet
from data_tools.rebalance import TARGET
from data_tools.snapshot_quality import measure_snapshots
from hpcgnn.store import files

DEFAULT_BALANCE = ("events", "time")
HOTNESS = "hotness"
STATIC_METHODS = (*METHODS, HOTNESS)


def temporal_options(source: Source, parts: int, method: str, balance, seed: int, objective: str, **extra) -> Options:
    """Options for a temporal graph, checked."""
    if extra:
        raise ValueError(f"{', '.join(extra)}: for static graphs only, {source.file.filename} is temporal")
    options = Options(parts, method, DEFAULT_BALANCE if balance is None else balance, seed, objective)
    options.check(METHODS, CONSTRAINTS)
    return options


def static_options(source: Source, parts: int, method: str, balance, seed: int, objective: str, **extra) -> Options:
    """Options for a static graph, checked."""
    if method == HOTNESS:
        extra = {"cache_ranking": HOTNESS_CACHE, **extra}
    balance = default_balance(source) if balance is None else balance
    options = StaticOptions(parts, method, balance, seed, objective, **extra)
    options.check(STATIC_METHODS, static_constraints(source))
    return options


def partition_temporal(source: Source, folder: pathlib.Path, options: Options) -> dict:
    """Write the partition set of a temporal graph and return its quality."""
    assign = METHODS[options.method]
    part = assign(source, options.parts, options.balance, options.seed, options.objective)
    layout = make_layout(source, part, options.parts)
    quality = measure(source, layout, options.balance)

    def write(set_id: str) -> dict:
        write_parts(source, layout, folder, set_id)
        return {}

    return write_set(source, layout, folder, options, quality, write)


def partition_static(source: Source, folder: pathlib.Path, options: StaticOptions) -> dict:
    """Write the partition set of a static graph and return its quality."""
    # Hotness moves nodes of a METIS partition, whose training seeds stay where they are.
    assign = METHODS["metis" if options.method == HOTNESS else options.method]
    part = assign(source, options.parts, options.balance, options.seed, options.objective)
    if options.method == HOTNESS:
        part = hotness_parts(source, part, options)
    layout = make_layout(source, part, options.parts)
    quality = measure_static(source, layout, options.balance)
    if source.kind == "snapshots":
        measure_snapshots(source, layout, quality)
    write = lambda set_id: write_static_parts(source, layout, folder, set_id, options)  # noqa: E731
    return write_set(source, layout, folder, options, quality, write)


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of graph is partitioned."""

    options: Callable[..., Options]
    write: Callable[[Source, pathlib.Path, Options], dict]


WRITERS = {
    "temporal": Kind(temporal_options, partition_temporal),
    **dict.fromkeys(files.BY_DESTINATION, Kind(static_options, partition_static)),
}


def partition(
    path: str | os.PathLike,
    folder: str | os.PathLike,
    parts: int = 64,
    method: str = "metis",
    balance: tuple[str, ...] | list[str] | None = None,
    seed: int = 0,
    objective: str = "cut",
    overwrite: bool = False,
    **static,
) -> dict:
    """Partition a graph file into ``folder`` and return the quality measures that the book stores.

    method: metis, random or (static) hotness; balance: names of constraints (default: events and time of a temporal
    graph, nodes, edges and, with a split, train of a static one, nodes and time of snapshots); objective: cut or volume
    (metis only); static: the further options of StaticOptions. Raises ValueError for a bad option or an
    existing set, FileFormatError for a file that cannot be used.
    """
    if files.book_path(folder).exists() and not overwrite:
        raise ValueError(f"{folder}: holds a partition set already; choose another folder or pass --overwrite")
    source = open_source(path)
    with source.file:
        if source.kind not in WRITERS:
            raise ValueError(f"{path}: kind {source.kind} is not supported yet by partition")
        kind = WRITERS[source.kind]
        balance = None if balance is None else tuple(balance)
        options = kind.options(source, parts, method, balance, seed, objective, **static)
        validate(source)
        return kind.write(source, pathlib.Path(folder), options)


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m data_tools.partition", description=__doc__.splitlines()[0])
    parser.add_argument("graph", help="graph file")
    parser.add_argument("folder", help="folder of the partition set")
    parser.add_argument("--parts", type=int, default=64)
    parser.add_argument("--method", choices=STATIC_METHODS, default="metis", help="hotness is for static graphs")
    parser.add_argument(
        "--balance",
        type=names,
        help=f"constraints, comma separated: temporal: {', '.join(CONSTRAINTS)} (default "
        f"{','.join(DEFAULT_BALANCE)}); static: {', '.join(STATIC_CONSTRAINTS)}, type:<node type> (default nodes,edges "
        "and, with a split, train); snapshots: those and time (default nodes,time)",
    )
    parser.add_argument("--objective", choices=OBJECTIVES, default="cut")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overwrite", action="store_true", help="replace a set that is there")
    static = parser.add_argument_group("static graphs", argument_default=argparse.SUPPRESS)
    static.add_argument("--out-edges", action="store_true", help="store the out-edges of every node too")
    static.add_argument(
        "--cache-ranking", type=float, nargs="?", const=HOTNESS_CACHE, metavar="SHARE",
        help="store the remote nodes that a part's training seeds reach most likely, at most this share of a type's "
        f"nodes (default {HOTNESS_CACHE}); part of the method hotness",
    )  # fmt: skip
    static.add_argument(
        "--fanouts", type=fanouts,
        help=f"fanouts that access probabilities are for (default {','.join(map(str, DEFAULT_FANOUTS))})",
    )  # fmt: skip
    static.add_argument(
        "--batch-size", type=int, help=f"seeds of a global batch, likewise (default {DEFAULT_BATCH_SIZE})"
    )
    return parser


def names(text: str) -> tuple[str, ...]:
    """The items of a comma-separated list."""
    return tuple(name for name in text.split(",") if name)


def fanouts(text: str) -> tuple[int, ...]:
    """The integers of a comma-separated list."""
    return tuple(int(name) for name in names(text))


def main(argv: list[str] | None = None) -> int:
    """Command line: ``python -m data_tools.partition graph.h5 parts/ --parts 16``."""
    options = vars(make_parser().parse_args(argv))
    quality = partition(options.pop("graph"), **options)
    print(summary(quality))
    if options["method"] != "random":
        for line in unmet(quality, TARGET):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
