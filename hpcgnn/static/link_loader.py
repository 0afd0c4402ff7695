"""Mini-batches of edges with sampled neighbors of their ends, and negatives, for a user's own training loop.

s seeds of this rank, k negatives a seed, U nodes of a type in a batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from hpcgnn.comm.same import same_everywhere
from hpcgnn.comm.together import together
from hpcgnn.graph.splits import SPLITS
from hpcgnn.native import Stream
from hpcgnn.static import pyg
from hpcgnn.static.batches import LinkBatch
from hpcgnn.static.config import EDGE
from hpcgnn.static.graph import Nodes, StaticGraph
from hpcgnn.static.loader import BatchLoader, LoaderOptions, Seeds, given_times, own_rows, pool_of_chosen
from hpcgnn.static.plan import GraphPlan
from hpcgnn.static.sampling.draw import Roots
from hpcgnn.static.sampling.negatives import End, LinkNegatives
from hpcgnn.static.sampling.neighbors import Exclusion, HiddenEdges
from hpcgnn.static.sampling.seeds import (
    TRAIN,
    SeedPool,
    edges_of_seeds,
    known_answers,
    make_link_seeds,
    make_pool,
    seed_columns,
    split_relation,
    take_edges,
    type_directory,
)
from hpcgnn.static.sampling.times import TIME, check_seed_time
from hpcgnn.task.negatives import UniformDraw

NEGATIVES = ("", "binary", "triplet")
ENDS = (("src", "dst", "negative"), ("dst", "src", "negative_src"))  # columns: the end that stays, the other, negatives


class LinkNeighborLoader(BatchLoader):
    """Collective to create and to iterate. Mini-batches of edges, sampled neighbors of their ends and of negatives.

    The seeds of a step, their negatives and the sampled neighbors depend on the random seed and the graph, not on the
    number of ranks. Every rank gets its share of every step, which may be empty. Every iteration is a new epoch, with
    its own order and its own neighbors; it ends an earlier, unfinished iteration.
    """

    def __init__(
        self, graph: StaticGraph, edges: str | tuple[str, str | Nodes], fanouts: list[int], batch_size: int, *,
        neg_sampling: str = "", negatives: int = 1, reverse: str = "", exclude_seeds: bool = True, strict: bool = False,
        edge_label: Nodes | None = None, edge_label_time: Nodes | None = None, **options: Any,
    ):  # fmt: skip
        """edges: a split ("train", "val", "test") of the only relation with a column ``split``, or (relation, split),
        or (relation, mask): of all its edges in the graph file, by row, or (relation, rows): of this rank's edges,
        among ``graph.edges(relation)``, or (relation, pairs): rows [2, k] of source and destination nodes in the graph
        file, the same on all ranks, of pairs that need not be edges. With a split messages follow the edges of "train"
        alone. neg_sampling: "binary" draws ``negatives`` pairs per seed, with both ends new, "triplet" destinations
        alone; uniform over the nodes of the type except the seed's. Without shuffling a list keeps its order, rank
        after rank; all else is in order of row. exclude_seeds: the seeds of a step, their copies (of the same column
        ``rel``, where there is one) and their reverses are left out before neighbors are sampled; reverse: the relation
        that holds these, as ``task.reverse`` in the run file. Edges between the nodes of given pairs are not left out:
        name them by rows for this. strict: negatives "triplet" are no edges of the relation (with a split, no training
        edges). edge_label [k]: labels of given pairs. edge_label_time [k]: with time_column, times of edges given as
        rows or pairs, in place of their column; negatives have the time of their edge. options:
        ``hpcgnn.static.loader.LoaderOptions``.

        Raises DistributedError.
        """
        chosen = LoaderOptions(fanouts, batch_size, **options)
        with together(graph.world, "make a loader"):
            sampling = chosen.check(graph)
            _check(neg_sampling, negatives, strict)
            self.relation, rows, split = _input_edges(graph, edges)
            _check_label(edges, edge_label, neg_sampling)
            times = {}
            if edge_label_time is not None:
                times = given_times(graph, chosen, edge_label_time, edges, "edge_label_time")
            elif _are_pairs(edges) and chosen.time_column:
                raise ValueError("time_column: given pairs have no times: give edge_label_time")
            else:
                columns, name = graph.partition.edges[self.relation].columns, graph.relations[self.relation]
                check_seed_time(columns, chosen.time_column, f"relation {name}", "; or give edge_label_time")
        graph = graph.timed(chosen.time_column)
        shuffle = split == SPLITS[TRAIN] if chosen.shuffle is None else chosen.shuffle
        if split:
            seeds = make_link_seeds(graph.partition, self.relation, reverse, True, graph.world, graph.channel)
            messages = take_edges(graph.partition, seeds.stays)
            graph = graph.over(messages, (self.relation, reverse, chosen.time_column))
            pool = seeds.pools[split]
            left_out = seeds.edges if split == SPLITS[TRAIN] else {}
        elif _are_pairs(edges):
            _check_same(graph, np.asarray(edges[1]), edge_label, times.get(TIME))
            pool, left_out = _given_pairs(graph, self.relation, np.asarray(edges[1]), edge_label, times), {}
        else:
            pool, left_out = _chosen_edges(graph, self.relation, rows, np.asarray(edges[1]), reverse, exclude_seeds)
            pool = replace(pool, columns=pool.columns | times)
        pool = replace(
            pool, name=SPLITS[TRAIN] if shuffle else "edges", columns={"input_id": pool.place} | pool.columns
        )
        excluded = None
        if exclude_seeds and left_out:
            stream = Stream.NEIGHBOR if shuffle else Stream.EVAL_NEIGHBOR
            excluded = Exclusion(left_out, pool.total, batch_size, stream)
        roots, complete = _negatives(graph, self.relation, neg_sampling, negatives, chosen, strict)
        convert = partial(pyg.to_link_data, graph=graph, options=chosen) if chosen.as_data else None
        make_batch = partial(_link_batch, convert, self.relation, chosen.disjoint)
        super().__init__(graph, Seeds(pool, roots, excluded, complete), sampling, chosen, shuffle, make_batch)


def _check(neg_sampling: str, negatives: int, strict: bool) -> None:
    """Raises ValueError."""
    if neg_sampling not in NEGATIVES:
        raise ValueError(f"neg_sampling must be '', 'binary' or 'triplet', got {neg_sampling!r}")
    if negatives < 1:
        raise ValueError(f"negatives must be at least 1, got {negatives}")
    if strict and neg_sampling != "triplet":
        raise ValueError(f"strict is for neg_sampling 'triplet', got {neg_sampling!r}")


def _are_pairs(edges: Any) -> bool:
    return not isinstance(edges, str) and not isinstance(edges[1], str) and np.ndim(edges[1]) == 2


def _check_label(edges: Any, label: Nodes | None, neg_sampling: str) -> None:
    """Raises ValueError."""
    if label is None:
        return
    if not _are_pairs(edges):
        raise ValueError("edge_label is for pairs [2, k]; edges have the columns of the graph file")
    if neg_sampling:
        raise ValueError("edge_label: negatives have no labels; leave neg_sampling empty, or edge_label out")
    if np.shape(label)[:1] != np.shape(edges[1])[1:]:
        raise ValueError(f"edge_label has shape {np.shape(label)} for {np.shape(edges[1])[1]} pairs")


def _input_edges(graph: StaticGraph, input_edges) -> tuple[int, np.ndarray, str]:
    """Return the relation of the input edges, this rank's rows of it (of a split: none), and the split that they are;
    empty: none. Raises ValueError."""
    name, chosen = ("", input_edges) if isinstance(input_edges, str) else input_edges
    if isinstance(chosen, str):
        if chosen not in SPLITS:
            raise ValueError(f"edges: a split is one of {', '.join(SPLITS)}, got {chosen!r}")
        return split_relation(graph.partition, name, "edges"), np.empty(0, np.int64), chosen
    if np.ndim(chosen) == 2:
        return _checked_pairs(graph, name, np.asarray(chosen)), np.empty(0, np.int64), ""
    relation, hint = graph.partition.relation_of(name), f"graph.edges({name!r}) lists the rows of a rank's edges"
    num_edges = graph.partition.relations[relation].num_edges
    return relation, own_rows(graph.edges(name), np.asarray(chosen), num_edges, "edges", name, hint), ""


def _check_same(graph: StaticGraph, pairs: Nodes, *of_pairs: Nodes | None) -> None:
    """Collective. Raise DistributedError unless all ranks give the same pairs, labels and times."""
    content = [np.ascontiguousarray(values).tobytes() for values in (pairs, *of_pairs) if values is not None]
    facts = {"given pairs": (np.shape(pairs)[1], hashlib.sha256(b"".join(content)).hexdigest()[:12])}
    same_everywhere(graph.world, facts, "give the same pairs and edge_label on every rank; the loader divides them")


def _checked_pairs(graph: StaticGraph, name: str, pairs: np.ndarray) -> int:
    """Return the number of a relation. Raises ValueError for pairs of its nodes that are none."""
    number = graph.partition.relation_of(name)
    relation = graph.partition.relation_in_graph(number)
    if len(pairs) != 2 or pairs.dtype.kind not in "iu":
        raise ValueError(f"edges: pairs are integers of shape [2, k], got {pairs.dtype} of shape {pairs.shape}")
    for rows, kind, end in zip(pairs, (relation.src_type, relation.dst_type), ("source", "destination"), strict=True):
        wrong = rows[(rows < 0) | (rows >= graph.num_nodes(kind))]
        if len(wrong):
            raise ValueError(
                f"edges: {end} {wrong[0]} is no row of {graph.types[kind]}, of which there are {graph.num_nodes(kind)}"
            )
    return number


def _given_pairs(
    graph: StaticGraph, relation: int, pairs: np.ndarray, label: Nodes | None, times: dict[str, np.ndarray]
) -> SeedPool:  # fmt: skip
    """Collective. Make the pool of pairs that need not be edges; every rank begins with an equal share of them."""
    world, kind, count = graph.world, graph.partition.relation_in_graph(relation), pairs.shape[1]
    share = np.arange(count * world.rank // world.size, count * (world.rank + 1) // world.size)
    directories = (
        type_directory(graph.partition, node_type, world, graph.channel) for node_type in (kind.src_type, kind.dst_type)
    )
    ends = [directory.lookup(rows[share].astype(np.int64)) for directory, rows in zip(directories, pairs, strict=True)]
    columns = {"src": ends[0], "dst": ends[1], "row": share, "input_id": share}
    columns |= {name: column[share] for name, column in times.items()}
    if label is not None:
        columns["label"] = np.asarray(label)[share]
    return make_pool("edges", share, count, columns, world, graph.channel)


def _chosen_edges(
    graph: StaticGraph, relation: int, rows: np.ndarray, chosen: str | Nodes, reverse: str, excludes: bool
) -> tuple[SeedPool, dict[int, HiddenEdges]]:
    """Collective. Make the pool of edges that the user chose, and those to leave out."""
    partition, shared = graph.partition, (graph.world, graph.channel)
    edges = partition.edges[relation]
    order = np.argsort(edges.row)
    at = order[np.searchsorted(edges.row, rows, sorter=order)]
    columns = {name: column[at] for name, column in seed_columns(partition, relation).items()}
    pool = pool_of_chosen("edges", rows, chosen, partition.relations[relation].num_edges, columns, graph)
    place = np.full(len(edges.row), -1, np.int64)
    place[at] = pool.place
    return pool, edges_of_seeds(partition, relation, reverse, True, place, *shared) if excludes else {}


def _negatives(
    graph: StaticGraph, relation: int, kind: str, count: int, options: LoaderOptions, strict: bool
) -> tuple[Roots, LinkNegatives | None]:
    """Collective. Return the groups of nodes that a seed needs, and what draws those that are negatives."""
    partition = graph.partition
    learned = partition.relation_in_graph(relation)
    types = learned.src_type, learned.dst_type
    roots: Roots = ((types[0], "src"), (types[1], "dst"))
    ends = []
    for number, (query, answer, column) in enumerate({"": (), "triplet": ENDS[:1], "binary": ENDS}[kind]):
        node_type = types[1 - number]
        draw = UniformDraw(type_directory(partition, node_type, graph.world, graph.channel))
        known = known_answers(partition, relation, False, slice(None), graph.channel) if strict else None
        ends.append(End(query, answer, column, number, draw, draw, partition.book.of_type(node_type), known))
        roots += ((node_type, column),)
    if not ends:
        return roots, None
    return roots, LinkNegatives(tuple(ends), EDGE, count, count, options.batch_size, options.seed, graph.channel)


def _link_batch(
    convert: Callable[[LinkBatch], Any] | None, relation: int, disjoint: bool, plan: GraphPlan, x, n_id, of_nodes
) -> Any:
    """Make a batch of edges; convert: to what another library has; disjoint: it tells the seeds of its nodes."""
    columns, (src, dst, *drawn) = plan.columns, plan.roots
    negative_dst, negative_src = (*drawn, None, None)[:2]
    batch = LinkBatch(
        plan.batch, x, n_id, src, dst, negative_src, negative_dst, columns["row"], columns["input_id"],
        columns.get("rel"), relation, plan.batch_size, of_nodes, columns.get("label"),
        plan.seed_number if disjoint else (),
    )  # fmt: skip
    return batch if convert is None else convert(batch)
