"""Join two items that many users have in common: a new relation between items, with the number of users as weight.

    hpcgnn derive graph.h5 out.h5 --relation user.likes.item --threshold 3

The relation ``item.with.item`` is stored in both directions, in order of source and destination; ``weight`` [E] int32
counts the users that have both. Only edges for training count (split 0), each pair of user and item once. Users with
very many items cost the square of their number and carry little information: ``--max_degree`` leaves them out, and
prints their number.

Memory: a few arrays as long as the training edges, and one slab of items at a time, small enough for its products.
Chosen pairs go to disk at once.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import h5py
import numpy as np

from data_tools.cli import ToolParser, add_overwrite, refuse_existing, run_alone, with_exit_code
from data_tools.graph.narrow import add_feature_dtype, narrowing
from data_tools.source.rewrite import create_table, find_table, integer_column, rewriting, write_column
from data_tools.source.spool import Spool
from hpcgnn.graph import durable, files
from hpcgnn.graph.files import FileFormatError
from hpcgnn.graph.splits import SPLITS

SLAB_ROWS = 1 << 20
PRODUCTS = 1 << 22  # pairs of items, over all users, that one slab of items may make


@dataclass(frozen=True, slots=True)
class DeriveOptions:
    """Options to join nodes of the ``side`` of a relation that have nodes of its other side in common. A node of the
    other side with more than ``max_degree`` neighbors is left out (None: no limit)."""

    relation: str
    threshold: int = 3
    side: Literal["dst", "src"] = "dst"
    name: str = "with"
    max_degree: int | None = None
    all_edges: bool = False

    def __post_init__(self):
        if self.threshold < 1:
            raise ValueError(f"--threshold {self.threshold}: must be at least 1")
        if self.max_degree is not None and self.max_degree < 2:
            raise ValueError(f"--max_degree {self.max_degree}: must be at least 2; fewer items make no pair")


@dataclass(frozen=True, slots=True)
class UserItems:
    """Different pairs of a user and an item, int64 each, in order of user, then item: user [p] in [0, num_users) and
    item [p] in [0, num_items). Items are the nodes of the side that is joined, users the nodes of the other side."""

    user: np.ndarray
    item: np.ndarray
    num_users: int
    num_items: int


@dataclass(frozen=True, slots=True)
class Derived:
    """The result of `derive`: the relation and its edges; the training pairs used; the nodes that ``max_degree`` left
    out, and their pairs."""

    relation: str
    num_edges: int
    pairs: int
    left_out: int
    pairs_left_out: int


def derive(path: str | os.PathLike, output: str | os.PathLike, options: DeriveOptions) -> Derived:
    """Write the graph file with the new relation. Raises FileFormatError for a missing relation or split, and for a
    relation that exists already."""
    ends = files.split_relation(options.relation)[::2]
    joined = ends[1] if options.side == "dst" else ends[0]
    relation = files.relation_name(joined, options.name, joined)
    with files.reading(path, files.GRAPH, "write it anew with hpcgnn convert") as source:
        if relation in source["edges"]:
            raise FileFormatError(f"{path}: has a relation {relation} already; choose another --name")
        pairs = training_pairs(source, options)
    folder = pathlib.Path(output).parent
    folder.mkdir(parents=True, exist_ok=True)
    used, left_out = pairs, 0
    if options.max_degree is not None:
        is_hub = np.bincount(pairs.user, minlength=pairs.num_users) > options.max_degree
        chosen, left_out = ~is_hub[pairs.user], int(is_hub.sum())
        used = replace(pairs, user=pairs.user[chosen], item=pairs.item[chosen])
    with durable.naming_disk(folder), tempfile.TemporaryDirectory(prefix=".derive-", dir=folder) as scratch:
        spools = {name: Spool(pathlib.Path(scratch)) for name in ("src", "dst", "weight")}
        for slab in common_neighbors(used, options.threshold, PRODUCTS):
            for name, values in zip(spools, slab, strict=True):
                spools[name].append(values)
        columns = {name: spool.column() for name, spool in spools.items()}
        with rewriting(path, output) as (_, target):
            group = create_table(target, "edges", relation, len(columns["src"]), len(target["edges"]))
            for name, column in columns.items():
                write_column(group, name, column)
        return Derived(relation, len(columns["src"]), len(used.item), left_out, len(pairs.item) - len(used.item))


def training_pairs(file: h5py.File, options: DeriveOptions) -> UserItems:
    """Read the different pairs of the training edges. Raises FileFormatError for a missing relation or split."""
    group = find_table(file, "edges", options.relation)
    ends = files.split_relation(options.relation)[::2]
    sizes = [int(file["nodes"][name].attrs["num_nodes"]) for name in ends]
    split = None
    if not options.all_edges:
        split = integer_column(group, "split", "make one with hpcgnn split, or pass --all_edges")
    pieces: list[list[np.ndarray]] = [[], []]
    for start, stop in files.slabs(len(group["src"]), 1, SLAB_ROWS):
        chosen = slice(None) if split is None else split[start:stop] == SPLITS.index("train")
        for piece, name, size in zip(pieces, ("src", "dst"), sizes, strict=True):
            rows = group[name][start:stop]
            if len(bad := np.flatnonzero((rows < 0) | (rows >= size))):
                raise FileFormatError(
                    f"{file.filename}: {group[name].name[1:]}, row {start + bad[0]}: {rows[bad[0]]} is not one of the "
                    f"{size} nodes; write the file anew"
                )
            piece.append(rows[chosen])
    src, dst = (np.concatenate([np.empty(0, np.int64), *piece]) for piece in pieces)
    (user, item), (num_users, num_items) = ((src, dst), sizes) if options.side == "dst" else ((dst, src), sizes[::-1])
    user, item = np.divmod(np.unique(user * num_items + item), num_items)
    return UserItems(user, item, num_users, num_items)


def common_neighbors(
    pairs: UserItems, threshold: int, products: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Find the pairs of items with at least ``threshold`` users in common: src, dst (int64) and count (int32), in
    order.

    Works in slabs of items that make at most ``products`` pairs over all users (or in single items).
    """
    degree = np.bincount(pairs.user, minlength=pairs.num_users)
    first = np.cumsum(degree) - degree  # of a user's pairs
    order = np.argsort(pairs.item, kind="stable")
    users, owner = pairs.user[order], pairs.item[order]
    ends = np.concatenate([[0], np.cumsum(degree[users])])[np.searchsorted(owner, np.arange(pairs.num_items + 1))]
    for start, stop in cut(np.diff(ends), products):
        low, high = np.searchsorted(owner, (start, stop))
        count = degree[users[low:high]]
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        other = pairs.item[np.repeat(first[users[low:high]], count) + within]
        key, counts = np.unique(np.repeat(owner[low:high], count) * pairs.num_items + other, return_counts=True)
        src, dst = np.divmod(key, pairs.num_items)
        chosen = (counts >= threshold) & (src != dst)
        yield src[chosen], dst[chosen], counts[chosen].astype(np.int32)


def cut(work: np.ndarray, limit: int) -> Iterator[tuple[int, int]]:
    """Cut ``work`` [n] into ranges, each with a sum of at most ``limit`` or of one entry."""
    total = np.cumsum(work)
    start = 0
    while start < len(work):
        done = total[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(total, done + limit, side="right")))
        yield start, stop
        start = stop


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = ToolParser("derive", description=__doc__.splitlines()[0])
    parser.add_argument("graph", help="graph file to read")
    parser.add_argument("output", help="graph file to write; may be the same file")
    parser.add_argument(
        "--relation", required=True, metavar="SRC.REL.DST", help="relation to join with itself, such as user.likes.item"
    )
    parser.add_argument(
        "--threshold", type=int, default=3, help="number of users that two items must have in common (default: 3)"
    )
    parser.add_argument(
        "--side", choices=("dst", "src"), default="dst", help="side whose nodes are joined (default: dst)"
    )
    parser.add_argument("--name", default="with", help="name of the new relation (default: with, as in item.with.item)")
    parser.add_argument("--max_degree", type=int, help="leave out users with more items than this (default: no limit)")
    parser.add_argument("--all_edges", action="store_true", help="count all edges, not only training edges")
    add_feature_dtype(parser)
    add_overwrite(parser)
    return parser


@with_exit_code
def main(argv: list[str] | None = None) -> int:
    """Command line: ``hpcgnn derive graph.h5 out.h5 --relation user.likes.item``."""
    args = vars(make_parser().parse_args(argv))
    graph, output = args.pop("graph"), args.pop("output")
    refuse_existing(output, args.pop("overwrite"), graph)
    with narrowing(output, args.pop("feature_dtype")) as place:
        made = derive(graph, place, DeriveOptions(**args))
    print(f"{output}: {made.relation} {made.num_edges:,} edges from {made.pairs:,} training pairs")
    if args["max_degree"] is not None:
        what = f"{made.left_out:,} nodes with more than {args['max_degree']} neighbors"
        print(f"{output}: left out {what} ({made.pairs_left_out:,} pairs)")
    return 0


if __name__ == "__main__":
    sys.exit(run_alone(main))
