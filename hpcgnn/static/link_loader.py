"""Mini-batches of edges with sampled neighbours of their ends, and negatives, for a training loop of one's own.

s seeds of this rank, k negatives a seed, U nodes of a type in a batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hpcgnn.graph.splits import SPLITS
from hpcgnn.native import Stream
from hpcgnn.static import pyg
from hpcgnn.static.batches import LinkBatch
from hpcgnn.static.config import OUT
from hpcgnn.static.graph import Nodes, StaticGraph
from hpcgnn.static.loader import PlannedLoader, own_rows
from hpcgnn.static.negatives import EDGE, End, LinkNegatives
from hpcgnn.static.neighbors import Exclusion
from hpcgnn.static.plan import GraphPlan
from hpcgnn.static.replica import Replica
from hpcgnn.static.seeds import (
    TRAIN,
    edges_of_seeds,
    make_link_seeds,
    make_pool,
    seed_columns,
    split_relation,
    type_directory,
)

NEGATIVES = ("", "binary", "triplet")
ENDS = (("src", "dst", "negative"), ("dst", "src", "negative_src"))  # columns: the end that stays, the other, negatives


class LinkNeighborLoader(PlannedLoader):
    """Collective to create and to iterate. Mini-batches of edges, sampled neighbours of their ends and of negatives; as
    PlannedLoader says."""

    def __init__(
        self, graph: StaticGraph, edges: str | tuple[str, str | Nodes], fanouts: list[int], batch_size: int, *,
        neg_sampling: str = "", negatives: int = 1, reverse: str = "", exclude_seeds: bool = True, **options: Any,
    ):  # fmt: skip
        """edges: a split ("train", "val", "test") of the only relation with a column ``split``, or (relation, split),
        or (relation, edges of this rank): a mask over ``graph.edges(relation)``, or rows among these. With a split
        messages follow the edges of "train" alone. neg_sampling: "binary" draws so many ``negatives`` a seed, with both
        ends new, "triplet" destinations alone; uniform over the nodes of the type. exclude_seeds: the seeds of a
        step and their reverses are left out before neighbours are sampled; reverse: the relation that holds these, as
        ``task.reverse`` in the run file. The rest as in PlannedLoader.

        Raises DistributedError.
        """
        self._given, self._reverse, self._excludes = edges, reverse, exclude_seeds
        self._neg_sampling, self._negatives = neg_sampling, negatives
        super().__init__(graph, fanouts, batch_size, **options)

    def _read(self) -> str:
        graph, given = self._graph, self._given
        if graph.direction == OUT:
            raise ValueError("links are sampled along in-edges: open the graph with direction in")
        if self._neg_sampling not in NEGATIVES:
            raise ValueError(f"neg_sampling must be '', 'binary' or 'triplet', got {self._neg_sampling!r}")
        if self._negatives < 1:
            raise ValueError(f"negatives must be at least 1, got {self._negatives}")
        name, chosen = ("", given) if isinstance(given, str) else given
        self._rows: Any = None
        if isinstance(chosen, str):
            if chosen not in SPLITS:
                raise ValueError(f"edges: a split is one of {', '.join(SPLITS)}, got {chosen!r}")
            self.relation = split_relation(graph.partition, name, "edges")
            return chosen
        self.relation = graph.partition.relation_of(name)
        known = f"graph.edges({name!r}) lists its edges"
        self._rows = own_rows(graph.edges(name), np.asarray(chosen), "edges", name, known)
        return ""

    def _prepare(self) -> None:
        graph, kind = self._graph, self._graph.partition.relations[self.relation]
        edges = self._use_rows() if self._rows is not None else self._use_split()
        name = SPLITS[TRAIN] if self.shuffle else "edges"
        self._pool = replace(self._pool, name=name, columns=self._pool.columns | {"input_id": self._pool.place})
        if self._excludes and edges:
            stream = Stream.NEIGHBOR if self.shuffle else Stream.EVAL_NEIGHBOR
            self._excluded = Exclusion(edges, self._pool.total, self.batch_size, stream)
        self._roots = ((kind.src_type, "src"), (kind.dst_type, "dst"))
        ends = {"": (), "triplet": ENDS[:1], "binary": ENDS}[self._neg_sampling]
        if ends:
            drawn = tuple(self._end(number, *names) for number, names in enumerate(ends))
            self._roots += tuple(((kind.dst_type, kind.src_type)[end.number], end.column) for end in drawn)
            counts = self._negatives, self._negatives
            self._completion = LinkNegatives(drawn, EDGE, *counts, self.batch_size, self._seed, graph.channel)

    def _end(self, number: int, query: str, answer: str, column: str) -> End:
        """Collective."""
        graph, kind = self._graph, self._graph.partition.relations[self.relation]
        node_type = (kind.dst_type, kind.src_type)[number]
        nodes = type_directory(graph.partition, node_type, graph.world, graph.channel)
        return End(query, answer, column, number, nodes, graph.partition.book.of_type(node_type), None)

    def _use_split(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Collective. Returns the edges to leave out."""
        graph = self._graph
        split: Any = self._given if isinstance(self._given, str) else self._given[1]
        seeds = make_link_seeds(graph.partition, self.relation, self._reverse, graph.world, graph.channel)
        self._pool, self._partition = seeds.pools[split], seeds.partition
        self._tables = graph.tables.over(seeds.partition)
        return seeds.edges if split == SPLITS[TRAIN] else {}

    def _use_rows(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """Collective. Take the edges that the user chose as seeds; returns the edges to leave out."""
        graph, partition = self._graph, self._graph.partition
        edges, shared = partition.edges[self.relation], (graph.world, graph.channel)
        order = np.argsort(edges.row)
        at = order[np.searchsorted(edges.row, self._rows, sorter=order)]
        columns = {name: column[at] for name, column in seed_columns(partition, self.relation).items()}
        self._pool = make_pool("edges", self._rows, partition.relations[self.relation].num_edges, columns, *shared)
        place = np.full(len(edges.row), -1, np.int64)
        place[at] = self._pool.place
        return edges_of_seeds(partition, self.relation, self._reverse, place, *shared) if self._excludes else {}

    def _make_replica(self) -> Replica | None:
        if self._excluded is None and self._partition is self._graph.partition:
            return super()._make_replica()
        config = self._config
        found = self._graph.own_replica(config.topology, self._partition, config.mode, self._excluded)
        self._excluded = self._excluded if found is None else found.excluded
        return found

    def _finish(self, plan: GraphPlan, x, n_id) -> Any:
        columns, (src, dst, *drawn) = plan.columns, plan.roots
        negative_dst, negative_src = (*drawn, None, None)[:2]
        batch = LinkBatch(
            plan.batch, x, n_id, src, dst, negative_src, negative_dst, columns["row"], columns["input_id"],
            columns.get("rel"), self.relation, plan.batch_size,
        )  # fmt: skip
        return pyg.to_link_data(batch, self._graph) if self._as_data else batch
