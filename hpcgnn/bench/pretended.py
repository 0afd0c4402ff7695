"""Runs of one rank of a job that pretends its size: what a rank of many ranks needs, measured on one.

The communicator (hpcgnn/comm/pretended.py) takes other ranks to do what this one does. The graph is one part of a set
that looks the same from all parts (data_tools/synthetic/slice.py). Where an answer names nodes, those of rank p are
this rank's own nodes p parts on; the answers that do are turned here: drawn neighbours, places in lists of all ranks'
nodes, and the nodes at such places.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.pretended import pretended_world
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph.directory import NodeDirectory
from hpcgnn.static import seeds
from hpcgnn.static.neighbors import NeighborSampler, Sampled
from hpcgnn.temporal import batches
from hpcgnn.temporal.neighbors import Answer, NeighborSource, Queries


@contextlib.contextmanager
def pretend(size: int, num_nodes: int, config: CommConfig) -> Iterator[World]:
    """Yield a world of ``size`` ranks, of which this process is rank 0. In the block, sessions can be opened in it, of
    a slice with ``num_nodes`` nodes in each of so many parts."""

    def places_of(keys: np.ndarray, num_keys: int, world: World, channel: Channel) -> tuple[np.ndarray, int]:
        """All ranks have as many keys, in turns."""
        places = np.empty(len(keys), np.int64)
        places[np.argsort(keys, kind="stable")] = np.arange(len(keys)) * size
        return places, len(keys) * size

    def lookup(directory: NodeDirectory, places: np.ndarray) -> np.ndarray:
        """A list has the nodes of all ranks in turns; what this rank has of it are its own."""
        number, rank = np.divmod(places, size)
        return directory.own_rows[number, 0] + rank * num_nodes

    def spill(step: np.ndarray, sizes: np.ndarray, channel: Channel) -> np.ndarray:
        """What one rank has too much in a step, another has too little."""
        return np.zeros(len(step), np.int64)

    def turned(ids: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """What rank p answers are these nodes, p parts on; -1 stays."""
        return np.where(ids < 0, ids, (ids + rank * num_nodes) % (size * num_nodes))

    def neighbors(source: NeighborSource, queries: Queries, *further: Any, **options: Any) -> Answer:
        answer = ask_histories(source, queries, *further, **options)
        return replace(answer, other=turned(answer.other, queries.nodes[:, None] // num_nodes))

    def sample(sampler: NeighborSampler, frontier: list[np.ndarray], *further: Any) -> list[Sampled]:
        (drawn,) = ask_lists(sampler, frontier, *further)
        rank = np.repeat(frontier[0] // num_nodes, np.diff(drawn.indptr))
        return [replace(drawn, source=turned(drawn.source, rank))]

    ask_histories, ask_lists = NeighborSource.ask, NeighborSampler.ask
    patches: list[tuple[Any, str, Any]] = [
        (NeighborSource, "ask", neighbors), (NeighborSampler, "ask", sample), (NodeDirectory, "lookup", lookup),
        (seeds, "places_of", places_of), (seeds, "spill", spill), (batches, "spill", spill),
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for where, name, answer in patches:
            stack.enter_context(mock.patch.object(where, name, answer))
        yield pretended_world(config, size)
