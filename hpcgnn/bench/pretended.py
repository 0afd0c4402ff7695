"""Training steps of one rank of a job that pretends its size: the needs of a rank of a large job, measured on one rank.

Of R ranks only rank 0 exists. Each other rank is taken to do what rank 0 does, as if the ranks stood in a circle and
all looked alike from their place. So what rank 0 sends to rank p, it receives from rank R - p. It receives the counts
of its own messages, requests for rows that it has, and its own answers in place of the other ranks' answers. A sum over
ranks is R times rank 0's number. Every rank has a machine to itself.

The graph is one part of a set that looks the same from all parts (data_tools/synthetic/slice.py): the k-th node of part
q is as the k-th one of part 0. Where an answer names nodes, they are moved to the part that would really answer. Such
nodes are in drawn neighbors, in edges that arrive at the owners of their sources, and in lists of all ranks' nodes.
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from hpcgnn import kinds
from hpcgnn.bench.steps import WHOLE_MESSAGES, SimulatedSteps, clock_of, in_place, train_steps
from hpcgnn.bench.trace import COUNTS, MEET, ROWS, SUM, Recorder, Trace
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.mpi import MPI
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph.directory import NodeDirectory
from hpcgnn.snapshots import neighborhood
from hpcgnn.static.sampling import seeds
from hpcgnn.static.sampling.neighbors import NeighborSampler, Sampled
from hpcgnn.temporal import batches
from hpcgnn.temporal.features import EventFeatures
from hpcgnn.temporal.neighbors import Answer, NeighborSource, Queries


class PretendedComm:
    """Takes the place of an ``MPI.Comm`` of ``size`` ranks, of which this process is rank 0. recorder: of rank 0, for
    all of its communicators."""

    rank = 0

    def __init__(self, size: int, recorder: Recorder):
        self.size, self.recorder = size, recorder
        self._posted: dict[int, list[np.ndarray]] = defaultdict(list)

    @contextlib.contextmanager
    def _exchange(self, kind: str, sent: np.ndarray | None = None, num_bytes: int = 0) -> Iterator[None]:
        """Record an exchange, which the block makes in no time. sent [R]: bytes to each rank, of ROWS; num_bytes: of
        SUM."""
        self.recorder.note_computed()
        row = None if sent is None else np.where(np.arange(self.size) > 0, sent, 0)
        meeting = self.recorder.meeting(np.arange(self.size), kind, sent=row, num_bytes=num_bytes)
        self.recorder.note_wait(meeting)
        yield
        self.recorder.start_clock()

    def Dup(self) -> PretendedComm:
        """Return another communicator of the same ranks."""
        return PretendedComm(self.size, self.recorder)

    def Free(self) -> None:
        """Do nothing."""

    def Barrier(self) -> None:
        """Do nothing: no other rank exists."""

    def Split(self, color: int, key: int) -> Any:
        """Return the communicator of all ranks: they all choose alike."""
        return MPI.COMM_NULL if color == MPI.UNDEFINED else self.Dup()

    def Split_type(self, kind: int, key: int = 0) -> MPI.Comm:
        """Return the communicator of this rank's machine, on which it is alone."""
        return MPI.COMM_SELF.Dup()

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        """Return the value, which rank 0 sends."""
        return value

    def gather(self, value: Any) -> list:
        """Return the value once for every rank."""
        with self._exchange(MEET):
            return [value] * self.size

    allgather = gather

    def allreduce(self, value: Any, operation: MPI.Op = MPI.SUM) -> Any:
        """Return the sum of the value over all ranks; of other operations, the value."""
        with self._exchange(MEET):
            return value * self.size if operation == MPI.SUM else value

    def Allreduce(self, send: Any, out: Any, operation: MPI.Op = MPI.SUM) -> None:
        """Sum ``out`` in place over all ranks; other operations leave it."""
        assert send is MPI.IN_PLACE
        with self._exchange(SUM, num_bytes=np.asarray(out).nbytes):
            if operation == MPI.SUM:
                out *= self.size

    def Allgather(self, send: np.ndarray, out: np.ndarray) -> None:
        """Fill ``out`` [R, ...]."""
        with self._exchange(MEET):
            out.reshape(self.size, -1)[:] = send.reshape(-1)

    def Gatherv(self, send: list, receive: list) -> None:
        """Fill the rows of all ranks."""
        rows, out = send[0], receive[0]
        out[:] = np.concatenate([rows] * self.size)

    def Alltoall(self, send: np.ndarray, out: np.ndarray) -> None:
        """Fill the place of rank p with what rank 0 gives rank R - p."""
        with self._exchange(COUNTS):
            out[:] = send[-np.arange(self.size)]

    def Ialltoall(self, send: np.ndarray, out: np.ndarray) -> MPI.Request:
        """Like Alltoall; done at once."""
        self.Alltoall(send, out)
        return MPI.REQUEST_NULL

    def Alltoallv(self, send: list, receive: list) -> None:
        """Copy the bytes for rank R - p to where the bytes from rank p belong; too few bytes are repeated."""
        rows, out = (np.frombuffer(message[0], np.uint8) for message in (send, receive))
        (counts, starts), (wanted, places) = send[1], receive[1]
        with self._exchange(ROWS, counts):
            for peer in np.flatnonzero(wanted).tolist():
                other = -peer % self.size
                _fill(out[places[peer] :][: wanted[peer]], rows[starts[other] :][: counts[other]])

    def Ialltoallv(self, send: list, receive: list) -> MPI.Request:
        """Like Alltoallv; done at once."""
        self.Alltoallv(send, receive)
        return MPI.REQUEST_NULL

    def Irecv(self, message: list, peer: int, tag: int) -> MPI.Request:
        """Note memory for bytes, which are there once rank 0 has sent as many to rank R - p."""
        self._posted[-peer % self.size].append(np.frombuffer(message[0], np.uint8))
        return MPI.REQUEST_NULL

    def Isend(self, message: list, peer: int, tag: int) -> MPI.Request:
        """Copy bytes into the memory that waits for them; done at once."""
        if self._posted[peer]:
            _fill(self._posted[peer].pop(0), np.frombuffer(message[0], np.uint8))
        return MPI.REQUEST_NULL


def _fill(out: np.ndarray, rows: np.ndarray) -> None:
    """Copy bytes, again and again where they are fewer. Without any, zeros: the first rows of all tables."""
    if len(rows):
        out[:] = np.resize(rows, len(out)) if len(rows) < len(out) else rows[: len(out)]
    else:
        out[:] = 0


@contextlib.contextmanager
def pretend(size: int, num_nodes: int, config: CommConfig, recorder: Recorder | None = None) -> Iterator[World]:
    """Yield a world of ``size`` ranks, of which this process is rank 0. In the block, sessions can be opened in that
    world, for a slice with ``num_nodes`` nodes in each of ``size`` parts. recorder: of rank 0."""
    recorder = recorder or Recorder(Trace(size))

    def places_of(keys: np.ndarray, num_keys: int, world: World, channel: Channel) -> tuple[np.ndarray, int]:
        """Pretend that keys of all ranks alternate: key number i of rank p is at place i R + p of all."""
        places = np.empty(len(keys), np.int64)
        places[np.argsort(keys, kind="stable")] = np.arange(len(keys)) * size
        return places, len(keys) * size

    def lookup(directory: NodeDirectory, places: np.ndarray) -> np.ndarray:
        """Return the nodes at places of a list in which nodes of all ranks alternate, from the own ones in it."""
        number, rank = np.divmod(places, size)
        return directory.own_rows[number, 0] + rank * num_nodes

    def spill(step: np.ndarray, sizes: np.ndarray, channel: Channel) -> np.ndarray:
        """Pretend that loads are even: no event or seed moves to another rank."""
        return np.zeros(len(step), np.int64)

    def shifted(ids: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """Return the nodes that rank p would answer where rank 0 answers ``ids``: p parts further; -1 stays."""
        return np.where(ids < 0, ids, (ids + rank * num_nodes) % (size * num_nodes))

    def neighbors(source: NeighborSource, queries: Queries, *further: Any, **options: Any) -> Answer:
        answer = ask_histories(source, queries, *further, **options)
        with recorder.pause():
            return replace(answer, other=shifted(answer.other, queries.nodes[:, None] // num_nodes))

    def features(
        table: EventFeatures, event: np.ndarray, first: np.ndarray, second: np.ndarray, channel: Channel
    ) -> Any:
        with recorder.pause():
            second = shifted(second, first[:, None] // num_nodes)
        return fetch_features(table, event, first, second, channel)

    def sample(sampler: NeighborSampler, frontier: list[np.ndarray], *further: Any) -> Sampled:
        drawn = ask_lists(sampler, frontier, *further)
        with recorder.pause():
            rank = np.repeat(frontier[0] // num_nodes, np.diff(drawn.indptr))
            return replace(drawn, source=shifted(drawn.source, rank))

    def arrived(columns: list[np.ndarray], *further: Any) -> list[np.ndarray]:
        """Return the edges that arrive, of which those from rank p are what this rank has sent to rank R - p."""
        source, target, *others = exchange(columns, *further)
        with recorder.pause():
            rank = -(source // num_nodes) % size
            return [shifted(source, rank), shifted(target, rank), *others]

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
        yield World(config, PretendedComm(size, recorder))  # type: ignore[arg-type]


def pretend_steps(
    config: Any, sizes: tuple[int, int, int, int], steps: int, skipped: int, folder: Path
) -> SimulatedSteps:
    """Train ``skipped`` steps and then ``steps`` more, which are recorded, on one rank of many. sizes: ranks, nodes and
    edges of each, width of features; folder: for its part of the graph and what the run writes."""
    config, (num_ranks, num_nodes, *_) = copy.deepcopy(config), sizes
    config.comm.watchdog_seconds, config.comm.max_message_bytes = 0, WHOLE_MESSAGES
    config.comm.ranks_per_machine = 1
    if config.KIND == "static":
        config.sampling.topology = "sharded"
    kinds.kind_of(config).make_slice(str(folder / "part"), *sizes)
    recorder = Recorder(Trace(num_ranks, clock_of(config)))
    with in_place(), pretend(num_ranks, num_nodes, config.comm, recorder) as world:
        return train_steps(config, str(folder / "part"), folder / "run", world, recorder, steps, skipped)
