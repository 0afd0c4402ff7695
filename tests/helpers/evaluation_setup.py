"""One split of a small graph as its evaluation sees it, on any communicator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from training_runs import make_parts, on_rank_0

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.temporal.batches import Batches, Splits, make_batches, open_splits
from hpcgnn.temporal.config import TemporalDataConfig
from hpcgnn.temporal.eval_negatives import EVAL_NEGATIVES, NegativeSource
from hpcgnn.temporal.graph import TemporalPartition
from hpcgnn.temporal.negatives import negative_pool, of_step


def module_folder(comm, tmp_path_factory) -> Path:
    """Collective. An empty folder, the same on all ranks."""
    return on_rank_0(comm, lambda: tmp_path_factory.mktemp("evaluation"))


def graph_and_parts(comm, folder: Path, make, **options) -> tuple[Path, Path]:
    """Collective. A graph file that ``make`` writes, and a partition set of it."""
    graph = folder / f"{make.__name__}.h5"
    on_rank_0(comm, lambda: make(graph, **options) and None)
    return graph, make_parts(comm, graph, folder / make.__name__, 8)


@dataclass
class Evaluation:
    """A rank's share of a split; flat_of: flat row id of every global id."""

    world: World
    channel: Channel
    partition: TemporalPartition
    splits: Splits
    batches: Batches
    source: NegativeSource
    flat_of: np.ndarray

    @classmethod
    def open(cls, comm, parts, split="test", batch_size=40, seed=7, **data) -> Evaluation:
        """Collective. ``data``: options of TemporalDataConfig."""
        world = World(CommConfig(device="cpu", threads=1), comm)
        channel = world.channel()
        partition, splits = open_splits(parts, TemporalDataConfig(**data), seed, world, channel)
        batches = make_batches(split, partition, splits, batch_size, "events", world, channel)
        pool = negative_pool("destinations", partition.events.dst, partition, world, channel)
        source = NegativeSource(partition, splits, pool, world, channel, seed)
        flat_of = np.empty(partition.book.num_nodes, np.int64)
        for ids, flat in comm.allgather((partition.book.local_to_global(comm.rank), partition.flat_row)):
            flat_of[ids] = flat
        return cls(world, channel, partition, splits, batches, source, flat_of)

    def make_negatives(self, kind: str, per_event: int = 2, path=""):
        """Collective. The negatives of this rank's events."""
        return EVAL_NEGATIVES[kind].make(self.batches, replace(self.source, per_event=per_event, path=str(path)))

    def negatives(self, kind: str, per_event: int = 2, path="") -> np.ndarray | None:
        """Collective. Flat row ids of the negative pairs of the whole split, [events, k, 2] in order of event row, on
        rank 0."""
        made = self.make_negatives(kind, per_event, path)
        steps = [of_step(made, self.batches, step, slice(None), self.channel) for step in range(self.batches.num_steps)]
        assert all(step.per_event == made.per_event for step in steps)
        dst = np.concatenate([np.empty((0, made.per_event), np.int64), *(step.dst for step in steps)])
        src = np.repeat(self.batches.events.src[:, None], made.per_event, axis=1)
        if steps and steps[0].src is not None:
            src = np.concatenate([step.src for step in steps])
        return self.by_row(self.flat_of[np.stack([src, dst], axis=2)])

    def by_row(self, values: np.ndarray) -> np.ndarray | None:
        """Collective. Values of all ranks' events in order of event row, on rank 0."""
        rows, values = self.world.gather_rows(self.batches.events.row), self.world.gather_rows(values)
        return None if rows is None else values[np.argsort(rows)]
