"""Everything of a run on a static graph that its steps share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from hpcgnn.comm.together import together
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.config import StaticConfig
from hpcgnn.nn.graph_models import GraphSizes, make_model
from hpcgnn.run.base import BaseSession
from hpcgnn.run.graph_inference import exact_scores
from hpcgnn.run.scoring import LabelCollected
from hpcgnn.run.train_scores import Measure, measure_nodes
from hpcgnn.sample.graph_plan import GraphPlan, GraphSampler
from hpcgnn.sample.node_tables import NodeTables
from hpcgnn.sample.prefetch import Prefetcher
from hpcgnn.sample.seeds import SeedBatches, SeedPool, epoch_shuffle, make_pool, make_seed_batches
from hpcgnn.sample.splits import SPLITS
from hpcgnn.store.embeddings import EmbeddingStore, SparseEmbedding
from hpcgnn.store.features import FEATURE, NodeRows
from hpcgnn.store.graph_partition import GraphPartition, open_graph_partition
from hpcgnn.tasks.graph_node import GraphNodeTask
from hpcgnn.tasks.labels import count_classes, labelled_type, node_labels
from hpcgnn.tasks.metrics import BINARY_NAMES, MULTICLASS_NAMES, node_metrics


class GraphSession(BaseSession):
    """Collective to create and to close. A run on a static graph."""

    roots = "seeds"

    def __init__(self, config: StaticConfig, path: str, world: World, watchdog: Watchdog):
        super().__init__(config, world, watchdog)
        with together(world, "open the partition set"):
            self.partition = open_graph_partition(path, world.rank, world.size, config.data.check_hash)
            self.seed_type = labelled_type(self.partition, config.task.node_type, "task.node_type")
            self.learnt = _learnt_types(self.partition, config.embedding.types)
            config.sampling.check_relations([relation.name for relation in self.partition.relations])
        self._make_pools()
        self.tables = NodeTables(self.partition, config.features, world, self.data_channel, self.dtype)
        self.sampler = self._make_sampler()
        if self.tables.wants_copies:
            self.tables.keep_copies(self.sampler, self.batches["train"], self.learnt)
            self.sampler = self._make_sampler()
        self._build_model()
        self.task = GraphNodeTask(self.model, self.rows, self.memory, self.seed_type, self.timers)

    def _make_pools(self) -> None:
        """Collective. Seeds of the splits: nodes with a label, at their owners."""
        partition, kind, world = self.partition, self.seed_type, self.world
        columns, mine = partition.columns[kind], partition.of_type(kind)
        with together(world, "read the labels"):
            label, split = node_labels(columns, partition.types[kind], self.config.task.classes)
        self.classes = count_classes(label, self.config.task.classes, world)
        ids, num_keys = partition.global_ids(kind), partition.book.num_nodes
        self.pools: dict[str, SeedPool] = {}
        for number, name in enumerate(SPLITS):
            chosen = np.flatnonzero((split == number) & (label >= 0))
            seeds = {"id": ids[chosen], "label": label[chosen]}
            self.pools[name] = make_pool(
                name, partition.flat_row[mine][chosen], num_keys, seeds, world, self.plan_channel
            )  # fmt: skip
        self.batches: dict[str, SeedBatches] = {}
        self.start_epoch(0)
        for name in SPLITS[1:]:
            size = self.config.eval.batch_size or self.config.train.batch_size
            self.batches[name] = make_seed_batches(self.pools[name], size, None, world, self.plan_channel)

    def start_epoch(self, epoch: int) -> None:
        """Collective. The seeds of training in an order of their own."""
        train = self.config.train
        shuffle = epoch_shuffle(train.seed, epoch)
        shared = (self.world, self.plan_channel, train.drop_last)
        self.batches["train"] = make_seed_batches(self.pools["train"], train.batch_size, shuffle, *shared)

    @property
    def rows(self) -> tuple[NodeRows, ...]:
        """What steps fetch of nodes, by type."""
        return self.tables.rows

    def _make_sampler(self) -> GraphSampler:
        config = self.config
        return GraphSampler(
            self.partition, self.rows, config.sampling, config.train.seed, self.seed_type, self.plan_channel,
            self.data_channel, self.world.device, self.plan_threads,
        )  # fmt: skip

    def _build_model(self) -> None:
        """Collective. The model, and learnable rows of the types that need them."""
        config, partition, seed = self.config, self.partition, self.config.train.seed
        torch.manual_seed(seed % (1 << 63))
        with together(self.world, "build the model"):
            tables = {
                kind: SparseEmbedding(
                    partition.flat_row[partition.of_type(kind)], config.model.hidden, config.embedding,
                    config.train.lr, seed, self.dtype, self.world.device,
                )
                for kind in self.learnt
            }  # fmt: skip
            relations = tuple((relation.src_type, relation.dst_type) for relation in partition.relations)
            widths = tuple(self._input_width(kind) for kind in range(len(partition.types)))
            model = make_model(config.model, GraphSizes(widths, relations, self.classes))
        self.model = model.to(device=self.world.device, dtype=self.dtype)
        self.memory = EmbeddingStore(tables, partition.type_start)

    def _input_width(self, kind: int) -> int:
        """Of a type's input rows: features, then learnable rows."""
        rows = self.rows[kind]
        width = rows.tables[FEATURE].shape[1] if FEATURE in rows.tables else 0
        return width + self.config.model.hidden * (kind in self.learnt)

    def scores(self, split: str, stop: Callable[[], bool] = lambda: False) -> LabelCollected | None:
        """As for all sessions, or exact."""
        return exact_scores(self, split) if self.config.eval.exact else super().scores(split, stop)

    def plans(self, split: str, epoch: int, start: int = 0) -> Prefetcher[GraphPlan]:
        """Collective. The plans of a split's steps from ``start`` on."""
        batches = self.batches[split]

        def make(step: int) -> GraphPlan:
            with self.plan_timers("plan"):
                return self.sampler.plan(batches, epoch, step)

        return Prefetcher(make, start, batches.num_steps, self.prefetch)

    def metric_names(self) -> tuple[str, ...]:
        """Accuracy and macro_f1; of two classes auc and ap too."""
        return (*MULTICLASS_NAMES, *(BINARY_NAMES if self.classes == 2 else ()))

    def collector(self) -> LabelCollected:
        """Outputs and labels."""
        return LabelCollected(measure=node_metrics)

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """All metrics."""
        return self.metric_names(), measure_nodes

    def protocol(self) -> dict[str, str]:
        """Nothing to say."""
        return {}

    def describe(self) -> list[str]:
        """Collective. What is about to run, line by line."""
        world, book, partition = self.world, self.partition.book, self.partition
        seeds = ", ".join(f"{name} {pool.total}" for name, pool in self.pools.items())
        edges = sum(relation.num_edges for relation in partition.relations)
        learnt = int(world.total(sum(table.weight.numel() for table in self.memory.tables.values())))
        return [
            f"{world.size} ranks x {world.threads} threads on {world.device.type}, plans ahead: {self.prefetch}",
            f"{book.num_nodes} nodes of {len(partition.types)} types, {edges} edges of {len(partition.relations)} "
            f"relations in {book.offsets.shape[1] - 1} parts",
            f"{partition.types[self.seed_type]} labels, {self.classes} classes: {seeds}",
            f"{sum(p.numel() for p in self.model.parameters())} parameters, {self.config.train.precision}; "
            f"{self.batches['train'].num_steps} steps an epoch",
            *self._describe_copies(),
            *([f"{learnt} learnable numbers of nodes, at their owners"] if learnt else []),
        ]  # fmt: skip

    def _describe_copies(self) -> list[str]:
        """Collective."""
        if not self.tables.wants_copies:
            return []
        copies, predicted = self.tables.num_copies(), self.tables.predicted_hits
        return [f"copies of {copies} remote rows on all ranks together, predicted hit rate {predicted:.3f}"]


def _learnt_types(partition: GraphPartition, names: list[str]) -> tuple[int, ...]:
    """Node types with learnable rows: those named, by default those without features. Raises ValueError."""
    bare = [kind for kind, columns in enumerate(partition.columns) if "feat" not in columns]
    return tuple(sorted(set(bare) | {partition.type_of(name) for name in names}))
