"""Runs of one rank of a job that pretends its size: what a rank of many ranks needs, measured on one.

The communicator (hpcgnn/comm/pretended.py) takes other ranks to do what this one does. The graph is one part of a set
that looks the same from all parts (data_tools/synthetic/slice.py). Where an answer names nodes, those of rank p are
this rank's own nodes p parts on; the answers that do are turned here: drawn neighbours, edges that arrive at the owners
of their sources, places in lists of all ranks' nodes, and the nodes at such places.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from hpcgnn import kinds
from hpcgnn.bench.emulated import WHOLE_MESSAGES, Emulated, clock_of, in_place, train_steps
from hpcgnn.comm.emulated import Trace
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.pretended import Recorder, pretended_world
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph.directory import NodeDirectory
from hpcgnn.snapshots import neighborhood
from hpcgnn.static.sampling import seeds
from hpcgnn.static.sampling.neighbors import NeighborSampler, Sampled
from hpcgnn.temporal import batches
from hpcgnn.temporal.features import EventFeatures
from hpcgnn.temporal.neighbors import Answer, NeighborSource, Queries


@contextlib.contextmanager
def pretend(size: int, num_nodes: int, config: CommConfig, recorder: Recorder | None = None) -> Iterator[World]:
    """Yield a world of ``size`` ranks, of which this process is rank 0. In the block, sessions can be opened in it, of
    a slice with ``num_nodes`` nodes in each of so many parts. recorder: keeps a record of what the rank does."""
    recorder = recorder or Recorder(Trace(size))

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
        with recorder.pause():
            return replace(answer, other=turned(answer.other, queries.nodes[:, None] // num_nodes))

    def features(
        table: EventFeatures, event: np.ndarray, first: np.ndarray, second: np.ndarray, channel: Channel
    ) -> Any:
        with recorder.pause():
            second = turned(second, first[:, None] // num_nodes)
        return fetch_features(table, event, first, second, channel)

    def sample(sampler: NeighborSampler, frontier: list[np.ndarray], *further: Any) -> list[Sampled]:
        (drawn,) = ask_lists(sampler, frontier, *further)
        with recorder.pause():
            rank = np.repeat(frontier[0] // num_nodes, np.diff(drawn.indptr))
            return [replace(drawn, source=turned(drawn.source, rank))]

    def arrived(columns: list[np.ndarray], *further: Any) -> list[np.ndarray]:
        """Edges from rank p are those that this rank has sent to rank -p."""
        source, target, *others = exchange(columns, *further)
        with recorder.pause():
            rank = -(source // num_nodes) % size
            return [turned(source, rank), turned(target, rank), *others]

    fetch_features = EventFeatures.fetch
    ask_histories, ask_lists, exchange = NeighborSource.ask, NeighborSampler.ask, neighborhood.exchange_columns
    patches: list[tuple[Any, str, Any]] = [
        (NeighborSource, "ask", neighbors), (EventFeatures, "fetch", features), (NeighborSampler, "ask", sample),
        (NodeDirectory, "lookup", lookup), (seeds, "places_of", places_of), (seeds, "spill", spill),
        (batches, "spill", spill), (neighborhood, "exchange_columns", arrived),
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for where, name, answer in patches:
            stack.enter_context(mock.patch.object(where, name, answer))
        yield pretended_world(config, recorder)


def pretend_steps(config: Any, sizes: tuple[int, int, int, int], steps: int, skipped: int, folder: Path) -> Emulated:
    """Train ``skipped`` steps and then ``steps`` more on one rank of many. sizes: ranks, nodes and edges of each, width
    of features; folder: for its part of the graph and what the run writes."""
    config, (num_ranks, num_nodes, *_) = copy.deepcopy(config), sizes
    config.comm.watchdog_seconds, config.comm.max_message_bytes = 0, WHOLE_MESSAGES
    config.comm.node_ranks = 1
    if config.KIND == "static":
        config.sampling.topology = "sharded"
    kinds.kind_of(config).make_slice(str(folder / "part"), *sizes)
    recorder = Recorder(Trace(num_ranks, clock_of(config)))
    with in_place(), pretend(num_ranks, num_nodes, config.comm, recorder) as world:
        trained = config, str(folder / "part"), folder / "run", world
        losses, ahead = train_steps(*trained, recorder.at, steps, skipped)
    return Emulated(recorder.trace, steps, config.train.batch_size, losses, ahead)
