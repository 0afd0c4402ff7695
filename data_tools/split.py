"""Split nodes, or the edges of a relation, into training, validation and test: a column ``split`` (0, 1, 2; -1 none).

    hpcgnn split graph.h5 out.h5 --nodes paper --fractions 0.6,0.2,0.2 --stratify
    hpcgnn split graph.h5 out.h5 --relation user.likes.item --seed 1
    hpcgnn split graph.h5 out.h5 --nodes paper --by time --column year

Every node or edge gets a key, and the keys that come first are for training. By time the key is the time (equal times
stay together, in the later set). At random it is a hash of the seed and the row of the node, or of the two ends of the
edge in any direction. So an edge, its repetitions and its reverse are always in the same set. Reverse relations that
hold the same rows the other way are found and split alike. Nodes without a label are in no set: their label is negative
or NaN, or a row of such values where a node has several. Edges are split without regard to their label, since links are
learned. Memory is bounded by slabs, and by the number of different labels where the split is stratified. The sizes are
exact, except for equal keys.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import h5py
import numpy as np

from data_tools.cli import ToolParser, add_overwrite, refuse_existing, run_alone, with_exit_code
from data_tools.partition.blocks import splitmix64
from data_tools.source.rewrite import find_table, integer_column, rewriting
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError
from hpcgnn.graph.splits import SPLITS

SLAB_ROWS = 1 << 20
SIGN = np.uint64(1 << 63)
SPLIT_STREAM = 1 << 32  # keeps the hashes apart from those that deal nodes to random parts
MOST_CLASSES = 1 << 16  # of training (hpcgnn.task.labels)
# One pass over the keys counts this many of their bits, fewer where there are many groups.
BITS, CELLS = 16, 1 << 22
Slabs = Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """The table to split, and the rule. ``column`` holds the times of ``by: time``."""

    nodes: str | None = None
    relation: str | None = None
    by: Literal["random", "time"] = "random"
    column: str = "time"
    fractions: tuple[float, ...] = (0.8, 0.1, 0.1)
    seed: int = 0
    stratify: bool = False
    replace: bool = False

    def __post_init__(self):
        if (self.nodes is None) == (self.relation is None):
            raise ValueError("say what to split: --nodes TYPE or --relation SRC.REL.DST")
        if len(self.fractions) != 3 or min(self.fractions) < 0 or not 0 < sum(self.fractions) <= 1 + 1e-9:
            raise ValueError(f"--fractions {self.fractions}: expected three numbers from 0 on that add up to at most 1")
        if self.seed < 0:
            raise ValueError(f"--seed {self.seed}: must not be negative")
        if self.stratify and (self.nodes is None or self.by == "time"):
            raise ValueError("--stratify: only for nodes and at random")


class Rows:
    """The rows of one table to split: their keys, whose order decides, and their groups, in each of which the fractions
    hold. The edges of a reverse relation have the keys of the relation ``forward``.

    Raises FileFormatError when a column that is needed is missing.
    """

    def __init__(self, group: h5py.Group, options: SplitOptions, forward: h5py.Group | None = None):
        origin = group if forward is None else forward
        is_nodes = options.nodes is not None
        self.num_rows = int(group.attrs["num_nodes"]) if is_nodes else len(group["src"])
        self.num_groups = 1
        number = 2 * int(origin.attrs["type_id"]) if is_nodes else 2 * int(origin.attrs["relation_id"]) + 1
        seed = splitmix64(np.array([options.seed], np.uint64))
        self._mix = splitmix64(seed + np.uint64(SPLIT_STREAM + number))[0]
        self._ends = None if is_nodes else (origin["src"], origin["dst"])
        self._directed = True
        if not is_nodes:
            source, _, destination = files.split_relation(origin.name.rpartition("/")[2])
            self._directed = source != destination
        self._time = None
        if options.by == "time":
            remedy = "name the column of times with --column, or split at random"
            self._time = integer_column(origin, options.column, remedy)
        self._label: h5py.Dataset | None = None
        self._strata: np.ndarray | None = None  # the different labels, in order
        if options.stratify:
            self._label, self._strata = read_strata(group)
            self.num_groups = max(1, len(self._strata))
        elif is_nodes and "label" in group:
            self._label = group["label"]

    def notes(self) -> Iterator[str]:
        """Yield a note on stratified labels that training will refuse."""
        if self._strata is not None and len(self._strata) and self._strata[-1] >= MOST_CLASSES:
            yield (
                f"the highest label is {int(self._strata[-1])}, training takes classes below {MOST_CLASSES}: number "
                "them 0, 1, ..., such as with classes: true in the spec of hpcgnn convert"
            )

    def keys(self, start: int, stop: int) -> np.ndarray:
        """Compute the keys [n] uint64 of the rows start .. stop-1: their times, or hashes."""
        if self._time is not None:
            return self._time[start:stop].astype(np.int64).view(np.uint64) ^ SIGN
        if self._ends is None:
            return splitmix64(self._mix ^ splitmix64(np.arange(start, stop, dtype=np.uint64)))
        ends = [end[start:stop].astype(np.uint64) for end in self._ends]
        if not self._directed:
            ends = [np.minimum(*ends), np.maximum(*ends)]
        return splitmix64(splitmix64(self._mix ^ splitmix64(ends[0])) + ends[1])

    def groups(self, start: int, stop: int) -> np.ndarray:
        """Compute the groups [n] int64 of the rows start .. stop-1: positions of their labels among all that are
        different where they are stratified, else 0; -1: in no set."""
        if self._label is None:
            return np.zeros(stop - start, np.int64)
        labels = self._label[start:stop]
        if self._strata is None:
            return np.where(has_label(labels), 0, -1)
        return np.where(labels >= 0, np.searchsorted(self._strata, labels), -1)

    def slabs(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield keys and groups of the rows that go into a set, slab by slab."""
        for start, stop in files.slabs(self.num_rows, 1, SLAB_ROWS):
            groups = self.groups(start, stop)
            yield self.keys(start, stop)[groups >= 0], groups[groups >= 0]


def has_label(labels: np.ndarray) -> np.ndarray:
    """Say which rows of labels [n, ...] have one that is known, [n] bool: classes from 0 on, numbers but NaN."""
    known: np.ndarray = ~np.isnan(labels) if labels.dtype.kind == "f" else labels >= 0
    return np.asarray(files.as_matrix(known).any(axis=1))


def read_strata(group: h5py.Group) -> tuple[h5py.Dataset, np.ndarray]:
    """Open the labels [N] of a table, and list the different ones that are not negative, in order. Raises
    FileFormatError for labels that are no integers; they may be floats, as integers with gaps are stored."""
    is_float = "label" in group and group["label"].ndim == 1 and group["label"].dtype.kind == "f"
    remedy = "leave out --stratify"
    label = group["label"] if is_float else integer_column(group, "label", remedy)
    labels = np.empty(0, label.dtype)
    for start, stop in files.slabs(len(label), 1, SLAB_ROWS):
        piece = label[start:stop]
        piece = piece[piece >= 0]  # not so for NaN
        if is_float and (piece != np.floor(piece)).any():
            raise FileFormatError(f"{group.name[1:]}/label has fractions, which are no classes; {remedy}")
        labels = np.union1d(labels, piece)
    return label, labels


def split_graph(
    path: str | os.PathLike,
    output: str | os.PathLike,
    options: SplitOptions,
    report: Callable[[str], object] = str,
) -> dict[str, np.ndarray]:
    """Write the graph file with a column ``split``; returns how many rows are in train, val, test and none, by table.
    ``report`` is called with a note on labels that training will refuse.

    Raises FileFormatError when the table or a column it needs is missing, or when it has a split already and
    ``replace`` is off.
    """
    with files.reading(path, files.GRAPH, "write it anew with hpcgnn convert") as source:
        tables = tables_to_split(source, options)
        for table in tables:
            if "split" in source[table] and not options.replace:
                raise FileFormatError(f"{path}: {table} has a split already; pass --replace to make another")
    with rewriting(path, output, [f"{table}/split" for table in tables]) as (source, target):
        first = Rows(source[tables[0]], options)
        for note in first.notes():
            report(f"{tables[0].partition('/')[2]}: {note}")
        bounds = find_bounds(first, options.fractions)
        sizes = {}
        for table in tables:
            rows = first if table == tables[0] else Rows(source[table], options, source[tables[0]])
            sizes[table.partition("/")[2]] = write_split(target[table], rows, bounds, options)
        return sizes


def tables_to_split(file: h5py.File, options: SplitOptions) -> list[str]:
    """List the paths of the groups that get a split: the node type; or the relation, and its reverse relations."""
    if options.nodes is not None:
        return [find_table(file, "nodes", options.nodes).name[1:]]
    assert options.relation is not None
    forward = find_table(file, "edges", options.relation)
    source, _, destination = files.split_relation(options.relation)
    tables = [forward.name[1:]]
    for name in files.relations(file):
        if name != options.relation and files.split_relation(name)[::2] == (destination, source):
            tables += [f"edges/{name}"] if is_reverse(forward, file["edges"][name]) else []
    return tables


def is_reverse(forward: h5py.Group, backward: h5py.Group) -> bool:
    """Say whether two relations have the same edges, row by row, in opposite directions."""
    if len(forward["src"]) != len(backward["src"]) or len(forward["src"]) == 0:
        return False
    return all(
        np.array_equal(forward["src"][start:stop], backward["dst"][start:stop])
        and np.array_equal(forward["dst"][start:stop], backward["src"][start:stop])
        for start, stop in files.slabs(len(forward["src"]), 1, SLAB_ROWS)
    )


def find_bounds(rows: Rows, fractions: tuple[float, ...]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Find the ends of train, val and test: the first key of each group beyond the set [G] uint64, and whether all keys
    of the group come before its end [G] bool."""
    sizes = np.zeros(rows.num_groups, np.int64)
    for _, groups in rows.slabs():
        sizes += np.bincount(groups, minlength=rows.num_groups)
    bounds = []
    for fraction in np.cumsum(fractions):
        ranks = np.minimum(np.floor(fraction * sizes + 0.5), sizes).astype(np.int64)
        keys = select_keys(rows.slabs, np.minimum(ranks, np.maximum(sizes - 1, 0)))
        bounds.append((keys, ranks == sizes))
    return bounds


def select_keys(slabs: Slabs, ranks: np.ndarray) -> np.ndarray:
    """Select for every group g the key that has ``ranks[g]`` keys of its group below it when all are sorted, [G]
    uint64. It is a radix select in several passes, as there are too many keys to sort them in memory.

    ``slabs()`` starts a pass through pieces (keys [n] uint64, groups [n] int64 in [0, G)); the pieces must be the same
    in every pass. A rank must be below the number of keys of its group, or the result for that group means nothing.
    """
    rest = np.array(ranks, np.int64)
    prefix = np.zeros(len(rest), np.uint64)
    most_bits = max(1, min(BITS, (CELLS // max(1, len(rest))).bit_length() - 1))
    done = 0
    while done < 64:
        bits = min(most_bits, 64 - done)
        below = np.cumsum(count_digits(slabs, prefix, done, bits), axis=1)
        digit = np.minimum((below <= rest[:, None]).sum(axis=1), (1 << bits) - 1)
        rest -= np.where(digit > 0, below[np.arange(len(rest)), np.maximum(digit, 1) - 1], 0)
        prefix = (prefix << np.uint64(bits)) | digit.astype(np.uint64)
        done += bits
    return prefix


def count_digits(slabs: Slabs, prefix: np.ndarray, done: int, bits: int) -> np.ndarray:
    """Count how many keys of each group start with its prefix (``done`` bits) and continue with each digit: [G,
    2**bits]."""
    counts = np.zeros((len(prefix), 1 << bits), np.int64)
    for keys, groups in slabs():
        if done:
            match = keys >> np.uint64(64 - done) == prefix[groups]
            keys, groups = keys[match], groups[match]
        digit = (keys >> np.uint64(64 - done - bits)).astype(np.int64) & ((1 << bits) - 1)
        counts += np.bincount((groups << bits) + digit, minlength=counts.size).reshape(counts.shape)
    return counts


def write_split(
    group: h5py.Group, rows: Rows, bounds: list[tuple[np.ndarray, np.ndarray]], options: SplitOptions
) -> np.ndarray:
    """Write the column; returns how many rows are in train, val, test and none."""
    dataset = files.create_column(group, "split", rows.num_rows, (), np.int8)
    how = {"by": options.by, "fractions": options.fractions, "seed": options.seed, "stratify": options.stratify}
    dataset.attrs["made_by"] = json.dumps(how | ({"column": options.column} if options.by == "time" else {}))
    sizes = np.zeros(4, np.int64)
    for start, stop in files.slabs(rows.num_rows, 1, SLAB_ROWS):
        keys, groups = rows.keys(start, stop), rows.groups(start, stop)
        split = np.zeros(stop - start, np.int8)
        for first_beyond, all_before in bounds:
            split += (keys >= first_beyond[groups]) & ~all_before[groups]
        split[(groups < 0) | (split == len(SPLITS))] = -1
        dataset[start:stop] = split
        sizes += np.bincount(split % 4, minlength=4)
    return sizes


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = ToolParser("split", description=__doc__.splitlines()[0])
    parser.add_argument("graph", help="graph file to read")
    parser.add_argument("output", help="graph file to write; may be the same file")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--nodes", metavar="TYPE", help="split the nodes of this type")
    what.add_argument("--relation", metavar="SRC.REL.DST", help="split the edges of this relation")
    parser.add_argument(
        "--by", choices=("random", "time"), default="random", help="order of the split (default: random)"
    )
    parser.add_argument("--column", default="time", help="column of times for --by time, integers (default: time)")
    parser.add_argument(
        "--fractions", default="0.8,0.1,0.1", help="shares of train, val and test (default: 0.8,0.1,0.1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of random numbers (default: 0)")
    parser.add_argument("--stratify", action="store_true", help="split the nodes of each label by the fractions")
    parser.add_argument("--replace", action="store_true", help="replace the split if the graph has one")
    add_overwrite(parser)
    return parser


@with_exit_code
def main(argv: list[str] | None = None) -> int:
    """Command line: ``hpcgnn split graph.h5 out.h5 --nodes paper``."""
    args = vars(make_parser().parse_args(argv))
    graph, output = args.pop("graph"), args.pop("output")
    refuse_existing(output, args.pop("overwrite"), graph)
    try:
        args["fractions"] = tuple(map(float, args["fractions"].split(",")))
    except ValueError:
        raise ValueError(f"--fractions {args['fractions']}: expected three numbers, such as 0.8,0.1,0.1") from None
    options = SplitOptions(**args)
    for name, (train, val, test, none) in split_graph(graph, output, options, print).items():
        print(f"{output}: {name}: train {train:,}, val {val:,}, test {test:,}, none {none:,}")
    return 0


if __name__ == "__main__":
    sys.exit(run_alone(main))
