"""What runs on static graphs share, sampled or whole: the graph, what is learnt of it, the model, learnable rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from hpcgnn.comm.together import together
from hpcgnn.config import StaticConfig
from hpcgnn.nn.graph_models import GraphModel, GraphSizes, make_model
from hpcgnn.run.goal import GoalSession
from hpcgnn.run.graph_goal import Goal, NodeGoal
from hpcgnn.run.graph_link_goal import LinkGoal
from hpcgnn.sample.direction import outward
from hpcgnn.sample.graph_config import OUT
from hpcgnn.sample.node_tables import NodeTables
from hpcgnn.store.embeddings import EmbeddingConfig, EmbeddingStore, SparseEmbedding
from hpcgnn.store.features import FEATURE, NodeRows
from hpcgnn.store.graph_partition import GraphPartition, open_graph_partition
from hpcgnn.store.stage import stage_path
from hpcgnn.tasks.graph_config import LINK, NODE

GOALS: dict[str, Callable[..., Goal]] = {NODE: NodeGoal, LINK: LinkGoal}


class StaticSession(GoalSession):
    """Collective to create and to close. Kinds of runs call ``_open`` and ``_build_model``, and fill in ``partition``
    and ``tables``."""

    roots = "seeds"
    config: StaticConfig
    goal: Goal
    model: GraphModel
    partition: GraphPartition
    tables: NodeTables
    memory: EmbeddingStore

    def _open(self, path: str, needs_edges: bool) -> None:
        """Collective. Read the partition set, and what is learnt of it."""
        config, world = self.config, self.world
        folder = stage_path(path, config.data.stage_to, world)
        with together(world, "open the partition set"):
            out = config.sampling.direction == OUT
            partition = open_graph_partition(
                folder, world.rank, world.size, config.data.check_hash, needs_edges, with_out=out
            )
            self.learnt = _learnt_types(partition, config.embedding.types)
            _check_basis_rows(config.model.basis_rows, partition)
            self._check(partition)
        if out:
            partition = outward(partition, self.plan_channel)
        self.goal = GOALS[config.task.kind](config, partition, world, self.plan_channel)

    def _check(self, partition: GraphPartition) -> None:
        """Raises ValueError for what does not go together with the graph."""

    @property
    def rows(self) -> tuple[NodeRows, ...]:
        """What steps fetch of nodes, by type."""
        return self.tables.rows

    def _build_model(self) -> None:
        """Collective. The model, and learnable rows of the types that need them."""
        config, partition, seed = self.config, self.partition, self.config.train.seed
        torch.manual_seed(seed % (1 << 63))
        with together(self.world, "build the model"):
            tables = {
                kind: SparseEmbedding(
                    partition.flat_row[partition.of_type(kind)], config.model.row_width, self._embedding_config(),
                    config.train.lr, seed, self.dtype, self.world.device,
                )
                for kind in self.learnt
            }  # fmt: skip
            relations = tuple((relation.src_type, relation.dst_type) for relation in partition.relations)
            widths = tuple(self._input_width(kind) for kind in range(len(partition.types)))
            model: Any = self.goal.extend(
                make_model(config.model, GraphSizes(widths, relations, self.goal.num_outputs))
            )
        self.model = model.to(device=self.world.device, dtype=self.dtype)
        self.memory = EmbeddingStore(tables, partition.type_start)

    def _embedding_config(self) -> EmbeddingConfig:
        """As configured; rows of bases start by default as matrices [all nodes, hidden] do (Glorot and Bengio)."""
        embedding, model = self.config.embedding, self.config.model
        if not model.basis_rows or embedding.scale:
            return embedding
        return replace(embedding, scale=math.sqrt(6 / (self.partition.book.num_nodes + model.hidden)))

    def _input_width(self, kind: int) -> int:
        """Of a type's input rows: features, then learnable rows."""
        rows = self.rows[kind]
        width = rows.tables[FEATURE].shape[1] if FEATURE in rows.tables else 0
        return width + self.config.model.row_width * (kind in self.learnt)

    @abstractmethod
    def last_rows(self) -> torch.Tensor:
        """Collective. Rows of all local nodes [n, W] after the last layer, with all their neighbours, in order of local
        row: what the output layer takes, or, in models without one, the outputs."""

    def _describe_graph(self) -> list[str]:
        """Collective. The graph, and what is learnt of it."""
        partition, book, config = self.partition, self.partition.book, self.config
        seeds = ", ".join(f"{name} {pool.total}" for name, pool in self.goal.pools.items())
        edges = sum(relation.num_edges for relation in partition.relations)
        learnt = int(self.world.total(sum(table.weight.numel() for table in self.memory.tables.values())))
        return [
            f"{book.num_nodes} nodes of {len(partition.types)} types, {edges} edges of {len(partition.relations)} "
            f"relations in {book.offsets.shape[1] - 1} parts",
            f"{self.goal.describe()}: {seeds}",
            f"{config.train.precision}; {self.batches['train'].num_steps} steps an epoch",
            *([f"{learnt} learnable numbers of nodes, at their owners"] if learnt else []),
        ]


def _check_basis_rows(wanted: bool, partition: GraphPartition) -> None:
    """Raises ValueError for rows of bases where a type has features."""
    named = [name for name, features in zip(partition.types, partition.features, strict=True) if features is not None]
    if wanted and named:
        raise ValueError(f"model.basis_rows is for graphs without features, but {', '.join(named)} has some")


def _learnt_types(partition: GraphPartition, names: list[str]) -> tuple[int, ...]:
    """Node types with learnable rows: those named, by default those without features. Raises ValueError."""
    bare = [kind for kind, features in enumerate(partition.features) if features is None]
    return tuple(sorted(set(bare) | {partition.type_of(name) for name in names}))
