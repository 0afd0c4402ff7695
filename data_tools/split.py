"""Split nodes, or the edges of a relation, into training, validation and test: a column ``split`` (0, 1, 2; -1 none).

    python -m data_tools.split graph.h5 out.h5 --nodes paper --fractions 0.6,0.2,0.2 --stratify
    python -m data_tools.split graph.h5 out.h5 --relation user.likes.item --seed 1
    python -m data_tools.split graph.h5 out.h5 --nodes paper --by time --column year

Every node or edge gets a key, and the keys that come first are for training. By time the key is the time (equal times
stay together, in the later set). At random it is a hash of the seed and the row of the node, or of the two ends of the
edge whatever its direction: so an edge, its repetitions and its reverse are always in the same set. Reverse relations
that hold the same rows the other way are found and split alike. Nodes with a negative label are in no set. Memory is
bounded by slabs; the sizes are exact but for keys that are equal.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import h5py
import numpy as np

from data_tools.cli import with_exit_code
from data_tools.partition.assignment import splitmix64
from data_tools.source.file_spec import SPLITS
from data_tools.source.order_statistic import select_keys
from data_tools.source.rewrite import find_table, integer_column, rewriting
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError

SLAB_ROWS = 1 << 20
SIGN = np.uint64(1 << 63)
SPLIT_STREAM = 1 << 32  # keeps the hashes apart from those that deal nodes to random parts
Keys = Callable[[int, int], np.ndarray]


@dataclass(frozen=True, slots=True)
class Options:
    """What is split, and how. ``column`` is the time of ``by: time``."""

    nodes: str | None = None
    relation: str | None = None
    by: str = "random"
    column: str = "time"
    fractions: tuple[float, ...] = (0.8, 0.1, 0.1)
    seed: int = 0
    stratify: bool = False
    replace: bool = False

    def __post_init__(self):
        if (self.nodes is None) == (self.relation is None):
            raise ValueError("say what to split: --nodes TYPE or --relation SRC.REL.DST")
        if self.by not in ("random", "time"):
            raise ValueError(f"--by {self.by}: expected random or time")
        if len(self.fractions) != 3 or min(self.fractions) < 0 or not 0 < sum(self.fractions) <= 1 + 1e-9:
            raise ValueError(f"--fractions {self.fractions}: expected three numbers from 0 on that add up to at most 1")
        if self.seed < 0:
            raise ValueError(f"--seed {self.seed}: must not be negative")
        if self.stratify and (self.nodes is None or self.by == "time"):
            raise ValueError("--stratify: only for nodes and at random")


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows to split: their number, their keys and their groups (``groups`` [n] int64; -1: in no set)."""

    num_rows: int
    num_groups: int
    keys: Keys
    groups: Keys

    def slabs(self) -> Iterator[tuple[int, int]]:
        """Ranges of rows."""
        return files.slabs(self.num_rows, 1, SLAB_ROWS)


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a set ends: ``key`` [G] uint64 is the first key of each group beyond it; no key is where ``everything``."""

    key: np.ndarray
    everything: np.ndarray


def split_graph(path: str | os.PathLike, output: str | os.PathLike, options: Options) -> dict[str, np.ndarray]:
    """Write the graph file with a column ``split``; returns rows in train, val, test and none by table.

    Raises FileFormatError when the table or a column it needs is missing, or when it has a split already and
    ``replace`` is off.
    """
    with files.reading(path, files.GRAPH, "write it anew with data_tools.convert") as source:
        tables = tables_to_split(source, options)
        for table in tables:
            if "split" in source[table] and not options.replace:
                raise FileFormatError(f"{path}: {table} has a split already; pass --replace to make another")
    with rewriting(path, output, [f"{table}/split" for table in tables]) as (source, target):
        first = node_rows(source[tables[0]], options) if options.nodes else edge_rows(source[tables[0]], options)
        bounds = find_bounds(first, options.fractions)
        sizes = {}
        for table in tables:
            rows = first if table == tables[0] else edge_rows(source[table], options, source[tables[0]])
            sizes[table.partition("/")[2]] = write_split(target[table], rows, bounds, options)
        return sizes


def tables_to_split(file: h5py.File, options: Options) -> list[str]:
    """Paths of the groups that get a split: the node type; or the relation, and its reverse ones."""
    if options.nodes is not None:
        return [find_table(file, "nodes", options.nodes).name[1:]]
    assert options.relation is not None
    forward = find_table(file, "edges", options.relation)
    source, _, destination = files.split_relation(options.relation)
    found = [forward.name[1:]]
    for name in files.relations(file):
        if name != options.relation and files.split_relation(name)[::2] == (destination, source):
            found += [f"edges/{name}"] if is_reverse(forward, file["edges"][name]) else []
    return found


def is_reverse(forward: h5py.Group, backward: h5py.Group) -> bool:
    """Whether two relations have the same edges, row by row, in opposite directions."""
    if len(forward["src"]) != len(backward["src"]) or len(forward["src"]) == 0:
        return False
    return all(
        np.array_equal(forward["src"][start:stop], backward["dst"][start:stop])
        and np.array_equal(forward["dst"][start:stop], backward["src"][start:stop])
        for start, stop in files.slabs(len(forward["src"]), 1, SLAB_ROWS)
    )


def node_rows(group: h5py.Group, options: Options) -> Rows:
    """The nodes of a type: one group, or one per label; without a label they are in no set."""
    num_nodes = int(group.attrs["num_nodes"])
    mix = stream(options.seed, 2 * int(group.attrs["type_id"]))
    if options.by == "time":
        keys = time_keys(group, options)
    else:

        def keys(start: int, stop: int) -> np.ndarray:
            return splitmix64(mix ^ splitmix64(np.arange(start, stop, dtype=np.uint64)))

    if options.stratify:
        label = integer_column(group, "label", "leave out --stratify")
    else:
        label = group.get("label")
        label = label if label is not None and label.ndim == 1 and label.dtype.kind == "i" else None
    num_groups = 1
    if options.stratify:
        highest = (int(label[start:stop].max()) for start, stop in files.slabs(num_nodes, 1, SLAB_ROWS))
        num_groups = 1 + max(0, max(highest, default=0))

    def groups(start: int, stop: int) -> np.ndarray:
        if label is None:
            return np.zeros(stop - start, np.int64)
        found = label[start:stop].astype(np.int64)
        return np.maximum(found, -1) if options.stratify else np.where(found < 0, -1, 0)

    return Rows(num_nodes, num_groups, keys, groups)


def edge_rows(group: h5py.Group, options: Options, forward: h5py.Group | None = None) -> Rows:
    """The edges of a relation, all in one group; those of a reverse relation have the keys of ``forward``."""
    origin = group if forward is None else forward
    mix = stream(options.seed, 2 * int(origin.attrs["relation_id"]) + 1)
    source, _, destination = files.split_relation(origin.name.rpartition("/")[2])
    if options.by == "time":
        keys = time_keys(origin, options)
    else:

        def keys(start: int, stop: int) -> np.ndarray:
            ends = [origin[name][start:stop].astype(np.uint64) for name in ("src", "dst")]
            if source == destination:
                ends = [np.minimum(*ends), np.maximum(*ends)]
            return splitmix64(splitmix64(mix ^ splitmix64(ends[0])) + ends[1])

    return Rows(len(group["src"]), 1, keys, lambda start, stop: np.zeros(stop - start, np.int64))


def stream(seed: int, number: int) -> np.uint64:
    """What the hashes of one table start from."""
    return splitmix64(splitmix64(np.array([seed], np.uint64)) + np.uint64(SPLIT_STREAM + number))[0]


def time_keys(group: h5py.Group, options: Options) -> Keys:
    """Keys in the order of a column of integers."""
    column = integer_column(group, options.column, "name the column of times with --column, or split at random")

    def keys(start: int, stop: int) -> np.ndarray:
        return column[start:stop].astype(np.int64).view(np.uint64) ^ SIGN

    return keys


def find_bounds(rows: Rows, fractions: tuple[float, ...]) -> list[Bound]:
    """Where train, val and test end."""

    def slabs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start, stop in rows.slabs():
            groups = rows.groups(start, stop)
            kept = groups >= 0
            yield rows.keys(start, stop)[kept], groups[kept]

    sizes = np.zeros(rows.num_groups, np.int64)
    for _, groups in slabs():
        sizes += np.bincount(groups, minlength=rows.num_groups)
    bounds = []
    for fraction in np.cumsum(fractions):
        ranks = np.minimum(np.floor(fraction * sizes + 0.5), sizes).astype(np.int64)
        keys = select_keys(slabs, np.minimum(ranks, np.maximum(sizes - 1, 0)))
        bounds.append(Bound(keys, ranks == sizes))
    return bounds


def write_split(group: h5py.Group, rows: Rows, bounds: list[Bound], options: Options) -> np.ndarray:
    """Write the column; returns the rows in train, val, test and none."""
    dataset = files.create_column(group, "split", rows.num_rows, (), np.int8)
    how = {"by": options.by, "fractions": options.fractions, "seed": options.seed, "stratify": options.stratify}
    dataset.attrs["made_by"] = json.dumps(how | ({"column": options.column} if options.by == "time" else {}))
    sizes = np.zeros(4, np.int64)
    for start, stop in rows.slabs():
        keys, groups = rows.keys(start, stop), rows.groups(start, stop)
        split = np.zeros(stop - start, np.int8)
        for bound in bounds:
            split += (keys >= bound.key[groups]) & ~bound.everything[groups]
        split[(groups < 0) | (split == len(SPLITS))] = -1
        dataset[start:stop] = split
        sizes += np.bincount(split % 4, minlength=4)
    return sizes


@with_exit_code
def main(argv: list[str] | None = None) -> int:
    """Command line: ``python -m data_tools.split graph.h5 out.h5 --nodes paper``."""
    parser = argparse.ArgumentParser(prog="python -m data_tools.split", description=__doc__.splitlines()[0])
    parser.add_argument("graph", help="graph file to read")
    parser.add_argument("output", help="graph file to write; may be the same")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--nodes", metavar="TYPE", help="split the nodes of this type")
    what.add_argument("--relation", metavar="SRC.REL.DST", help="split the edges of this relation")
    parser.add_argument("--by", choices=("random", "time"), default="random")
    parser.add_argument("--column", default="time", help="column of times for --by time (integers), default time")
    parser.add_argument("--fractions", default="0.8,0.1,0.1", help="of train, val and test; default 0.8,0.1,0.1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stratify", action="store_true", help="the fractions hold within every label of the nodes")
    parser.add_argument("--replace", action="store_true", help="replace a split that is there")
    args = vars(parser.parse_args(argv))
    graph, output = args.pop("graph"), args.pop("output")
    options = Options(**args | {"fractions": parse_fractions(args["fractions"])})
    for name, (train, val, test, none) in split_graph(graph, output, options).items():
        print(f"{output}: {name}: train {train:,}, val {val:,}, test {test:,}, none {none:,}")
    return 0


def parse_fractions(text: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise ValueError(f"--fractions {text}: expected three numbers, such as 0.8,0.1,0.1") from None


if __name__ == "__main__":
    sys.exit(main())
