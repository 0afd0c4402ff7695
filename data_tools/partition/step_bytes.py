"""Rows and bytes that a training step of R ranks is expected to fetch from other ranks, by a partition set.

P parts, T node types, N nodes of all types by global id.
"""

from __future__ import annotations

import pathlib

import numpy as np

from data_tools.graph.book import REMEDY, SetBook, open_book
from data_tools.memory import mebibytes
from data_tools.partition.options import DEFAULT_BATCH_SIZE, DEFAULT_FANOUTS
from data_tools.partition.quality import rank_of_parts
from data_tools.partition.traffic import expected_rows
from data_tools.reports import Report
from hpcgnn.comm.memory import free_bytes
from hpcgnn.graph import files
from hpcgnn.native import sample_recent

WIDTH = 100  # float32 numbers of a row without features: a learnable vector, the memory of a node, hidden values
TRAIN, FANOUT = 0.7, 10  # of temporal graphs: the share of events that train, neighbors of a root
EVENT_BYTES = 160  # of memory for an event, while all are sorted into histories
STEPS = 200  # of a temporal epoch, evenly spread, that are counted


def predict(
    folder: pathlib.Path, num_ranks: int, fanouts: tuple[int, ...] | None = None, batch_size: int | None = None
) -> Report:
    """Predict the rows of other ranks that a step needs, as a mean over the ranks, and their bytes; ``busiest``: of the
    rank that needs most. ValueError for more ranks than parts."""
    book = open_book(folder)
    if not 1 <= num_ranks <= book.num_parts:
        raise ValueError(f"--ranks {num_ranks}: the set has {book.num_parts} parts, so 1 to {book.num_parts} ranks")
    check_memory(book, num_ranks)
    batch_size = batch_size or int(book.options.get("batch_size", DEFAULT_BATCH_SIZE))
    if book.kind == "temporal":
        rows = temporal_rows(book, num_ranks, (fanouts or (FANOUT,))[0], batch_size)[:, None]
        width = np.array([4 * WIDTH])
    elif book.kind == "static":
        fanouts = fanouts or tuple(book.options.get("fanouts", DEFAULT_FANOUTS))
        rows, width = expected_rows(book, num_ranks, fanouts, batch_size), row_widths(book)
    else:
        return snapshot_step(book, num_ranks)
    sent = rows @ width
    return {
        "ranks": num_ranks, "batch_size": batch_size, "rows": round(float(rows.sum(axis=1).mean()), 1),
        "bytes": round(float(sent.mean())), "busiest_bytes": round(float(sent.max())),
    }  # fmt: skip


def check_memory(book: SetBook, num_ranks: int) -> None:
    """Raise ValueError where the events of a temporal set, or the probabilities of a static one, do not fit into the
    memory that is free."""
    num_nodes, num_edges = book.num_nodes, book.num_edges
    needed = {"temporal": EVENT_BYTES * num_edges, "static": 24 * num_ranks * num_nodes}.get(book.kind, 0)
    if needed > free_bytes():
        raise ValueError(
            f"--ranks {num_ranks}: counting the rows of a step takes about {mebibytes(needed)}, and "
            f"{mebibytes(free_bytes())} are free; inspect the set without --ranks, or on a larger machine"
        )


def snapshot_step(book: SetBook, num_ranks: int) -> Report:
    """Predict the rows and bytes of one exchange in the mean snapshot."""
    halo_counts = [run["halo_rows"] for run in book.quality["runs"] if run["ranks"] == num_ranks]
    if not halo_counts:
        raise ValueError(f"--ranks {num_ranks}: the book of a snapshot graph has this for 1, 2, 4, ... ranks only")
    rows = halo_counts[0] / int(book.facts["num_snapshots"]) / num_ranks
    return {"ranks": num_ranks, "rows": round(rows, 1), "bytes": round(rows * 4 * WIDTH)}


def row_widths(book: SetBook) -> np.ndarray:
    """Read the bytes of a row of each node type [T]: its features, else WIDTH float32 numbers."""
    with files.reading(book.part_path(0), files.PART, REMEDY) as file:
        columns = [file["nodes"][node_type.name].get("feat") for node_type in book.types]
        return np.array([4 * WIDTH if column is None else files.row_bytes(column) for column in columns])


def temporal_rows(book: SetBook, num_ranks: int, fanout: int, batch_size: int) -> np.ndarray:
    """Count the rows of node memory [R] that ranks fetch in a mean step. An event needs rows of source, destination,
    one random node and their newest neighbors; the rank of its source works on it."""
    src, dst, time = read_events(book)
    num_nodes = book.num_nodes
    rank = rank_of_parts(book.num_parts, num_ranks)[book.part_of_nodes()]
    graph, other = histories(src, dst, time, num_nodes)
    low, high = int(dst.min(initial=0)), int(dst.max(initial=0)) + 1
    batches = max(1, int(TRAIN * len(src)) // batch_size)
    chosen = np.unique(np.linspace(0, batches - 1, min(STEPS, batches)).astype(np.int64))
    total = np.zeros(num_ranks)
    for batch in chosen.tolist():
        events = slice(batch * batch_size, min((batch + 1) * batch_size, len(src)))
        random = np.random.default_rng(batch).integers(low, high, len(src[events]))
        roots, business = np.concatenate([src[events], dst[events], random]), np.tile(rank[src[events]], 3)
        place, _ = sample_recent(graph, roots, np.tile(time[events], 3), fanout)
        neighbors = np.where(place >= 0, other[np.maximum(place, 0)], roots[:, None])
        needed = np.unique(business[:, None] * num_nodes + np.c_[roots, neighbors])
        user, node = np.divmod(needed, num_nodes)
        total += np.bincount(user[rank[node] != user], minlength=num_ranks)
    return total / max(1, len(chosen))


def read_events(book: SetBook) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read global ids of source and destination, and times, of all events [E] in order of time. Raises
    FileFormatError."""
    columns = [
        (src, dst, time, np.full(len(row), index), row)
        for index, relation in enumerate(book.relations)
        for _, src, dst, time, row in book.ends(relation, names=("time", "row"))
    ]
    src, dst, time, relation, row = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((row, relation, time))
    return src[order], dst[order], time[order].astype(np.int64)


def histories(src: np.ndarray, dst: np.ndarray, time: np.ndarray, num_nodes: int) -> tuple[tuple, np.ndarray]:
    """Make the T-CSR (indptr, time, event) of all nodes, and the other end of every entry."""
    apart = src != dst
    event = np.r_[np.arange(len(src)), np.flatnonzero(apart)]
    node, other = np.r_[src, dst[apart]], np.r_[dst, src[apart]]
    order = np.lexsort((event, node))
    indptr = np.r_[0, np.cumsum(np.bincount(node, minlength=num_nodes))].astype(np.int64)
    return (indptr, time[event[order]], event[order]), other[order]


def render_step(step: Report) -> list[str]:
    """Render the prediction, for people."""
    batch = f" with a batch of {step['batch_size']}" if "batch_size" in step else ""
    busiest = f", {step['busiest_bytes']:,} by the busiest" if "busiest_bytes" in step else ""
    return [
        f"a training step on {step['ranks']} ranks{batch}: expected {step['rows']:,} rows of other ranks a rank, "
        f"{step['bytes']:,} bytes{busiest}"
    ]
