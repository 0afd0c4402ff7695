"""Write a seeded synthetic graph that is worth learning from: a bipartite event graph (user, interacts, item).

The events look like the JODIE sets: few users and items make most of the events, and a user mostly repeats one of the
items it touched last. New items come from the user's latent group, and both tastes and popularity drift. Memory is
bounded by one block of events and the tables per node; the result depends on the arguments alone. With ``--static`` it
is a static graph instead, see `data_tools.synthetic.static`, with ``--igbh`` one of several node types, see
`data_tools.synthetic.igbh`, with ``--snapshots`` one of snapshots, see `data_tools.synthetic.snapshots`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import h5py
import numpy as np

from data_tools.cli import ToolParser, add_overwrite, refuse_existing, run_alone
from data_tools.graph.narrow import add_feature_dtype, check_kind, narrow_features
from data_tools.source.rewrite import create_table
from data_tools.synthetic.igbh import CLASSES, TINY_NODES, WIDTH, synthesize_igbh
from data_tools.synthetic.rmat import QUARTERS, synthesize_rmat
from data_tools.synthetic.snapshots import synthesize_snapshots
from data_tools.synthetic.static import synthesize_static
from data_tools.synthetic.tables import draw_from, random_stream, write_nodes, zipf_cdf
from hpcgnn.graph import files

# Events are drawn in blocks of this size, each with its own random stream: part of the definition of the graph.
BLOCK = 1 << 17
RECENT = 4  # items a user may come back to
GROUPS = 16
DRIFT_STEPS = 8  # times a user's taste moves on to the next group over the whole graph
MEAN_GAP = 12.0  # time units between events; about 8 % of the gaps are 0, so there are ties


@dataclass(slots=True)
class LatentTables:
    """The hidden tables behind the events (U users, M items, G groups)."""

    user_group: np.ndarray  # [U] int64
    user_phase: np.ndarray  # [U] float64 in [0, 1): when the user's taste moves on
    user_repeat: np.ndarray  # [U] float64, probability of repeating
    user_cdf: np.ndarray  # [U] float64, activity
    item_order: np.ndarray  # [M] int64, items by group
    item_group: np.ndarray  # [M] int64
    group_start: np.ndarray  # [G + 1] int64 into item_order
    vectors: np.ndarray  # [2, G, F] float32, behind the edge features
    recent: np.ndarray  # [U, RECENT] int64, the newest last, -1 for none; the only state carried from block to block


def draw_tables(num_users: int, num_items: int, seed: int, feature_dim: int) -> LatentTables:
    """Draw the hidden tables of a graph."""
    rng = random_stream(seed, 0)
    groups = min(GROUPS, num_items)
    item_group = rng.permutation(np.arange(num_items) % groups)
    return LatentTables(
        user_group=rng.integers(0, groups, num_users),
        user_phase=rng.random(num_users),
        user_repeat=rng.uniform(0.6, 0.8, num_users),
        user_cdf=zipf_cdf(num_users, 0.9, 2.0, rng),
        item_order=np.argsort(item_group, kind="stable"),
        item_group=item_group,
        group_start=np.searchsorted(np.sort(item_group), np.arange(groups + 1)),
        vectors=rng.standard_normal((2, groups, feature_dim), dtype=np.float32),
        recent=np.full((num_users, RECENT), -1, np.int64),
    )


def draw_new_items(
    tables: LatentTables, users: np.ndarray, progress: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draw new items [n] for users: mostly of their group at that time (progress [n] in [0, 1)), popular ones first."""
    groups = len(tables.group_start) - 1
    step = np.floor(progress * DRIFT_STEPS + tables.user_phase[users]).astype(np.int64)
    wander = rng.random(len(users)) < 0.15
    group = np.where(wander, rng.integers(0, groups, len(users)), (tables.user_group[users] + step) % groups)
    start, size = tables.group_start[group], np.diff(tables.group_start)[group]
    # A log-uniform rank is a Zipf law with exponent 1. Some items stay popular; fashions move through the group once.
    rank = np.floor((size + 1.0) ** rng.random(len(users))).astype(np.int64) - 1
    moved = np.floor(progress * size).astype(np.int64) * (rng.random(len(users)) < 0.4)
    return tables.item_order[start + (rank + moved) % size]


def resolve_repeats(tables: LatentTables, users: np.ndarray, items: np.ndarray, lag: np.ndarray) -> np.ndarray:
    """Replace items [n] by the one of the same user ``lag`` [n] events ago (0: keep), and update ``tables.recent``.

    A repeat may point to another repeat: pointers are doubled until all end at a new item or before the block.
    """
    n = len(users)
    order = np.argsort(users, kind="stable")
    user, lag, items = users[order], lag[order], items[order]
    first = np.flatnonzero(np.r_[True, user[1:] != user[:-1]])
    position = np.arange(n) - np.repeat(first, np.diff(np.r_[first, n]))
    before = position < lag
    slot = np.where(before, RECENT + position - lag, 0)
    old = np.where(before & (slot >= 0), tables.recent[user, np.maximum(slot, 0)], -1)
    values = np.where(old >= 0, old, items)
    pointer = np.where(before, np.arange(n), np.arange(n) - lag)
    while True:
        further = pointer[pointer]
        if np.array_equal(further, pointer):
            break
        pointer = further
    values = values[pointer]
    remember(tables, user, values, first)
    result = np.empty_like(values)
    result[order] = values
    return result


def remember(tables: LatentTables, user: np.ndarray, values: np.ndarray, first: np.ndarray) -> None:
    """Shift the last items of every user of a block into ``tables.recent``; user, values [n] by user, then time."""
    last = np.r_[first[1:], len(user)] - 1
    who, count = user[first], last - first + 1
    old = tables.recent[who]
    back = np.arange(RECENT)[::-1]  # slot j holds the item back[j] events before the last
    inside = back[None, :] < count[:, None]
    new = values[np.where(inside, last[:, None] - back[None, :], 0)]
    shifted = np.take_along_axis(old, np.minimum(np.arange(RECENT)[None, :] + count[:, None], RECENT - 1), axis=1)
    tables.recent[who] = np.where(inside, new, shifted)


def draw_block(tables: LatentTables, start: int, stop: int, num_events: int, seed: int) -> tuple[np.ndarray, ...]:
    """Draw the events start .. stop-1, one block: users [n], items [n], time gaps [n] and edge features [n, F]."""
    rng = random_stream(seed, 1 + start // BLOCK)
    n = stop - start
    progress = np.arange(start, stop) / num_events
    users = draw_from(tables.user_cdf, rng.random(n))
    fresh = draw_new_items(tables, users, progress, rng)
    lag = np.minimum(rng.geometric(0.7, n), RECENT)
    lag[rng.random(n) >= tables.user_repeat[users]] = 0
    items = resolve_repeats(tables, users, fresh, lag)
    gaps = np.floor(rng.exponential(MEAN_GAP, n)).astype(np.int64)
    noise = rng.standard_normal((n, tables.vectors.shape[2]), dtype=np.float32)
    feat = tables.vectors[0, tables.user_group[users]] + tables.vectors[1, tables.item_group[items]] + noise
    return users, items, gaps, feat


def write_events(group: h5py.Group, tables: LatentTables, num_events: int, seed: int, labels: bool) -> None:
    """Draw and write all events."""
    width = tables.vectors.shape[2]
    src, dst, time = (files.create_column(group, name, num_events, (), np.int64) for name in ("src", "dst", "time"))
    feat = files.create_column(group, "feat", num_events, (width,), np.float32) if width else None
    label = files.create_column(group, "label", num_events, (), np.int64) if labels else None
    activity = np.diff(tables.user_cdf, prepend=0.0)
    by_activity = np.argsort(-activity, kind="stable")
    is_busy = np.zeros(len(activity), np.int64)  # the busiest users, who make half of the events
    is_busy[by_activity[: 1 + np.searchsorted(np.cumsum(activity[by_activity]), 0.5)]] = 1
    now = None
    for start in range(0, num_events, BLOCK):
        stop = min(start + BLOCK, num_events)
        users, items, gaps, values = draw_block(tables, start, stop, num_events, seed)
        times = np.cumsum(gaps) + (-gaps[0] if now is None else now)
        now = times[-1]
        src[start:stop], dst[start:stop], time[start:stop] = users, items, times
        if feat is not None:
            feat[start:stop] = values
        if label is not None:
            label[start:stop] = is_busy[users]


def synthesize_events(
    path: str | os.PathLike, num_events: int, num_users: int, num_items: int, seed: int, feature_dim: int = 0,
    labels: bool = False,
) -> None:  # fmt: skip
    """Write a temporal graph file: node types user and item, relation user.interacts.item, times from 0 on.

    ``id`` of row r is 1000 + 3 r in both types. With ``feature_dim`` > 0 the events have float32 features,
    with ``labels`` a label: 1 for the busiest users, who make half of the events, else 0.
    Raises ValueError for a negative or missing size.
    """
    if num_events < 0 or num_users < 1 or num_items < 1 or feature_dim < 0 or seed < 0:
        raise ValueError(
            f"events={num_events}, users={num_users}, items={num_items}, features={feature_dim}, seed={seed}: "
            "users and items must be at least 1, the others at least 0"
        )
    tables = draw_tables(num_users, num_items, seed, feature_dim)
    arguments = f"events={num_events} users={num_users} items={num_items} seed={seed} features={feature_dim}"
    sources = [f"synthetic {arguments}" + " labels" * labels]
    with files.writing(path, files.GRAPH, kind="temporal", sources=json.dumps(sources)) as file:
        write_nodes(file, "user", 0, num_users)
        write_nodes(file, "item", 1, num_items)
        group = create_table(file, "edges", files.relation_name("user", "interacts", "item"), num_events, 0)
        group.attrs["time_scale"] = 1
        write_events(group, tables, num_events, seed, labels)


def make_parser() -> argparse.ArgumentParser:
    """Declare the command line."""
    parser = ToolParser("synthesize", description=__doc__.splitlines()[0])
    parser.add_argument("output", help="graph file to write")
    add_overwrite(parser)
    add_feature_dtype(parser)
    parser.add_argument(
        "--features", type=int, help="width of the features (default: events none, nodes 100, IGBH 1,024)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of random numbers (default: 1)")
    events = parser.add_argument_group("events")
    events.add_argument("--events", type=int, help="number of events (default: 100,000)")
    events.add_argument("--users", type=int, help="number of users (default: events / 20)")
    events.add_argument("--items", type=int, help="number of items (default: events / 100)")
    events.add_argument("--labels", action="store_true", help="write a label, 0 or 1, for each event")
    static = parser.add_argument_group("static graph")
    static.add_argument("--static", action="store_true", help="write a static graph instead of events")
    static.add_argument(
        "--rmat", type=quarters, nargs="?", const=QUARTERS, metavar="A,B,C,D",
        help=f"write a static graph of the R-MAT model instead (default: {','.join(map(str, QUARTERS))})",
    )  # fmt: skip
    static.add_argument(
        "--igbh", type=int, nargs="?", const=TINY_NODES["paper"], metavar="PAPERS",
        help="write a static graph with the types and relations of IGB-Heterogeneous instead (default: 100,000 papers)",
    )  # fmt: skip
    static.add_argument(
        "--num_nodes", type=int, help="number of nodes (default: 100,000; R-MAT 131,072; snapshots 1,000)"
    )
    static.add_argument(
        "--num_edges", type=int, help="number of edges, counting both directions (default: 20 for each node)"
    )
    static.add_argument("--classes", type=int, help="number of classes of the nodes (default: 47, IGBH 2,983)")
    static.add_argument("--edge_features", type=int, help="width of the features of edges, with --static")
    static.add_argument("--weights", action="store_true", help="write a weight for each edge, with --static")
    snapshots = parser.add_argument_group("snapshot graph")
    snapshots.add_argument(
        "--snapshots", type=int, help="write a graph with this number of snapshots instead of events"
    )
    return parser


def run_events(args: argparse.Namespace) -> str:
    """Write events with the options of the command line; returns a text about them."""
    num_events = 100_000 if args.events is None else args.events
    num_users = max(1, num_events // 20) if args.users is None else args.users
    num_items = max(1, num_events // 100) if args.items is None else args.items
    synthesize_events(args.output, num_events, num_users, num_items, args.seed, args.features or 0, args.labels)
    return f"{args.output}: {num_events} events, {num_users} users, {num_items} items"


def quarters(text: str) -> tuple[float, ...]:
    """Parse a comma-separated list of numbers."""
    return tuple(float(item) for item in text.split(","))


def run_static(args: argparse.Namespace) -> str:
    """Write a static graph with the options of the command line; returns a text about it."""
    usual_width, usual_classes = (100, 47) if args.igbh is None else (WIDTH, CLASSES)
    width = usual_width if args.features is None else args.features
    classes = usual_classes if args.classes is None else args.classes
    if args.igbh is not None:
        return synthesize_igbh(args.output, args.igbh, args.seed, width, classes)
    num_nodes = (1 << 17 if args.rmat else 100_000) if args.num_nodes is None else args.num_nodes
    num_edges = 20 * num_nodes if args.num_edges is None else args.num_edges
    if args.rmat:
        synthesize_rmat(args.output, num_nodes, num_edges, args.seed, width, classes, args.rmat)
    else:
        synthesize_static(
            args.output, num_nodes, num_edges, args.seed, width, classes, args.edge_features or 0, args.weights
        )
    return f"{args.output}: {num_nodes} nodes, {num_edges} edges, {width} features, {classes} classes"


def run_snapshots(args: argparse.Namespace) -> str:
    """Write a snapshot graph with the options of the command line; returns a text about it."""
    num_nodes = 1_000 if args.num_nodes is None else args.num_nodes
    return synthesize_snapshots(args.output, num_nodes, args.snapshots, args.seed)


# By the option that chooses a graph: the kind of graph file, what writes it, and its own options.
KINDS: dict[str, tuple[str, Callable[[argparse.Namespace], str], set[str]]] = {
    "events": ("temporal", run_events, {"events", "users", "items", "labels", "features"}),
    "static": (
        "static", run_static,
        {"static", "num_nodes", "num_edges", "classes", "features", "edge_features", "weights"},
    ),
    "rmat": ("static", run_static, {"rmat", "num_nodes", "num_edges", "classes", "features"}),
    "igbh": ("static", run_static, {"igbh", "classes", "features"}),
    "snapshots": ("snapshots", run_snapshots, {"snapshots", "num_nodes"}),
}  # fmt: skip
COMMON = {"output", "overwrite", "feature_dtype", "seed"}


def refuse_others(parser: argparse.ArgumentParser, args: argparse.Namespace, made: str) -> None:
    """End the program if an option is given that the graph in question has no use for."""
    for name, value in vars(args).items():
        if name in COMMON | KINDS[made][2] or not is_given(value):
            continue
        users = [f"--{other}" for other, (_, _, options) in KINDS.items() if name in options]
        parser.error(f"--{name} is for {', '.join(users)}; this graph is --{made}: leave it out")


def is_given(value: object) -> bool:
    """Whether the command line has an option of this value."""
    return value is not None and value is not False


def main(argv: list[str] | None = None) -> int:
    """Command line: ``hpcgnn synthesize --events 10000 out.h5``."""
    parser = make_parser()
    args = parser.parse_args(argv)
    chosen = [name for name in KINDS if name != "events" and is_given(getattr(args, name))]
    if len(chosen) > 1:
        parser.error(f"--{chosen[0]} and --{chosen[1]} are different graphs: leave one out")
    made = chosen[0] if chosen else "events"
    refuse_others(parser, args, made)
    refuse_existing(args.output, args.overwrite)
    kind, run, _ = KINDS[made]
    if args.feature_dtype:
        check_kind(args.output, kind)
    text = run(args)
    if args.feature_dtype:
        narrow_features(args.output, args.output, args.feature_dtype)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(run_alone(main))
