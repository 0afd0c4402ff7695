"""A partitioned temporal graph and the planned steps of its splits, for runs and for training loops of users.

``docs/library.md`` shows a whole loop. All of it is collective: every rank makes the same objects in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.board import Board
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.timers import Timers
from hpcgnn.comm.world import World
from hpcgnn.graph.columns import Widening
from hpcgnn.graph.splits import SPLITS
from hpcgnn.loop.prefetch import Prefetcher
from hpcgnn.native import Random, Stream
from hpcgnn.task.goal import Collected, measure_events
from hpcgnn.task.links import LinkScores
from hpcgnn.temporal.batches import CHOSEN, Batches, are_sorted, chosen_rows, make_batches, open_splits
from hpcgnn.temporal.config import MemoryConfig, TemporalDataConfig, TemporalModelConfig, TemporalSamplingConfig
from hpcgnn.temporal.features import NodeFeatures, read_features
from hpcgnn.temporal.graph import KEPT, History
from hpcgnn.temporal.mail import Mailing
from hpcgnn.temporal.memory import Layout
from hpcgnn.temporal.model.model import TemporalModel, TemporalSizes, resolve_model
from hpcgnn.temporal.negatives import AnyNegatives, no_negatives, random_negatives, split_draws
from hpcgnn.temporal.plan import StepPlan
from hpcgnn.temporal.sampler import TemporalSampler
from hpcgnn.temporal.sides import Needs, Placement

EventSet = np.ndarray | torch.Tensor | Sequence[int]


class TemporalGraph:
    """Collective to create. This rank's part of a partition set (``partition``) and the splits of its events; board: on
    which the ranks of a machine read each other's node memory, if they do."""

    def __init__(
        self, path: str | os.PathLike, world: World, data: TemporalDataConfig | None = None, seed: int = 0,
        columns: Collection[str] = KEPT, of_nodes: Collection[str] = (), label_relation: str | None = None,
    ):  # fmt: skip
        """columns: of events, some of "feat", "label" and "split"; others are not read. of_nodes: of nodes, some of
        "label", "split" and "label_time", in addition to ids and features. label_relation: of several relations the one
        whose labels are read, empty: the only one with labels, None: none. Raises DistributedError for a partition set
        or splits that cannot be used."""
        self.world, self.seed, self.channel = world, seed, world.channel()
        self.board: Board | None = None
        self._features: dict[torch.dtype, NodeFeatures] = {}
        self._by_type: dict[bool, History] = {}
        data = data or TemporalDataConfig()
        partition, self.splits = open_splits(path, data, seed, world, self.channel, columns, of_nodes, label_relation)
        self.partition = read_features(partition, world, self.channel)

    def make_model(
        self, config: TemporalModelConfig, memory: MemoryConfig, slots: int, dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> TemporalModel:  # fmt: skip
        """Make a model of this graph on the rank's device. Weights are drawn from ``seed``, the same on all ranks.
        slots: number of neighbors per node, as the loader samples. Raises ValueError."""
        torch.manual_seed(seed)
        partition = self.partition
        sizes = TemporalSizes(
            partition.node_width, partition.edge_width, slots, edge_types=len(partition.edge_types)
        )  # fmt: skip
        model: Any = resolve_model(config.class_path)
        return model(config, memory, sizes).to(self.world.device, dtype)

    def sampling(self, config: TemporalSamplingConfig) -> TemporalSamplingConfig:
        """Return the section ``sampling`` with the fanouts of this graph's relations. Raises ValueError for a relation
        that it does not have."""
        return config.of_relations(self.partition.names_of_types, self.partition.number_of_type)

    def history(self, training: bool, sampling: TemporalSamplingConfig) -> History:
        """Return what training, or evaluation, may see of the events, in the form that samplers take: where relations
        have separate fanouts, node by node and relation by relation."""
        is_own = training and self.splits.history is not self.partition.history
        history = self.splits.history if is_own else self.partition.history
        if not sampling.relation_fanouts:
            return history
        if is_own not in self._by_type:
            self._by_type[is_own] = history.by_type(len(sampling.relation_fanouts))
        return self._by_type[is_own]

    def close(self) -> None:
        """Collective. Free the channel and what ranks share; neither graph nor loaders may be used any more."""
        for shared in (self.board, *self._features.values(), self.partition.features):
            if shared is not None:
                shared.close()
        self.channel.close()

    def features(
        self, dtype: torch.dtype, layout: Layout | None = None, is_replicated: bool = False
    ) -> NodeFeatures | None:  # fmt: skip
        """Collective. Return the features of nodes that plans bring, if nodes have any, once for all loaders of a
        dtype. layout: of the node memory, where ranks keep that of others; is_replicated: where each keeps that of all
        nodes."""
        columns = self.partition.node_feature
        if columns is not None and dtype not in self._features:
            encoding, widening = self.partition.node_encoding, None
            if encoding is None:
                table = torch.from_numpy(columns).to(dtype)
            else:
                widening = Widening(encoding, dtype, False)
                table = widening.stored(columns)
            if layout is not None:
                table = layout.spread(table.to(self.world.device), self.channel).cpu()
            self._features[dtype] = NodeFeatures(table, self.world, is_replicated, widening)
        return self._features.get(dtype)


@dataclass(frozen=True, slots=True)
class Planning:
    """Settings to plan the steps of a split, which several loaders can share; a step may need several plans.

    sampler: makes plans, over ``channel``; fixed: the negatives of a split's events in all epochs, None: new random
    ones in every epoch of training. epochs: places, in a round of epochs, of the epochs that a training step is planned
    for; chunk: negatives per event in a plan of evaluation, 0: all. timers: of the drawing of negatives; plan_timers:
    of plans; negative_kind: distribution of training negatives.
    """

    sampler: TemporalSampler
    channel: Channel
    fixed: Callable[[Batches], AnyNegatives] | None = None
    epochs: range = range(1)
    chunk: int = 0
    timers: Timers = field(default_factory=Timers)
    plan_timers: Timers = field(default_factory=Timers)
    negative_kind: str = "uniform"


class TemporalLoader:
    """Collective to create and to iterate. The steps of one split in time order, or of chosen events in their order,
    planned ahead in the background.

    As everywhere, batches, neighbors and negatives depend on the seed and the graph, not on the number of ranks.
    """

    def __init__(
        self, graph: TemporalGraph, events: str | EventSet, batch_size: int, *,
        sampling: TemporalSamplingConfig | None = None,
        negatives: int = 1, negative_pool: str = "destinations", hops: int = 1, mailing: Mailing | None = None,
        nearby: bool = False, drop_last: bool = False, dtype: torch.dtype = torch.float32,
        planning: Planning | None = None, evaluation: bool = False,
    ):  # fmt: skip
        """events: a split, "train", "val" or "test", or chosen events: a mask of all events [N] bool, or rows [k] in
        the order in which they are iterated, the same on every rank. batch_size: events of a global batch, the most of
        a window with ``sampling.batch_by`` span; sampling: neighbors, batches, plans made ahead; negatives: drawn for
        an event, from negative_pool, "destinations" or "all" nodes; hops: levels of neighbors; mailing: which mails the
        node memory wants, None without memory; nearby: whether plans list the neighbors' ids. drop_last: leave out a
        short last batch of training; planning: in the place of a sampler made of hops, mailing, nearby and dtype;
        evaluation: of chosen events negatives are the same in all epochs, and hidden nodes are neighbors, as in
        validation.

        Raises ValueError; DistributedError for chosen events that differ between ranks.
        """
        if isinstance(events, str) and events not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {events!r}")
        if isinstance(events, str) and evaluation:
            raise ValueError("evaluation is for chosen events: leave it out, or give the rows of the split's events")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if negatives < 1:
            raise ValueError(f"negatives must be at least 1, got {negatives}")
        world, partition, self._graph = graph.world, graph.partition, graph
        self._is_training = not evaluation if not isinstance(events, str) else events == "train"
        self._size, self._drop_last, self._per_event = batch_size, drop_last, negatives
        self._sampling = graph.sampling(sampling or TemporalSamplingConfig())
        self.prefetch = world.plans_ahead(self._sampling.prefetch)
        self._split, self._rows = self._chosen(events)
        if planning is None:
            channel = world.channel(polite=self.prefetch > 0)
            sampler = TemporalSampler(
                partition, graph.history(self._is_training, self._sampling), self._sampling,
                Needs(hops, mailing, nearby), graph.seed,
                Placement(channel, graph.channel, world.device, dtype, features=graph.features(dtype)),
                evaluation=not self._is_training,
            )  # fmt: skip
            planning = Planning(sampler, channel)
        self._planning, self.sampler = planning, planning.sampler
        self._pool_kind = negative_pool
        self._fixed: AnyNegatives | None = None
        self._begin()

    @property
    def is_padded(self) -> bool:
        """Whether plans are padded, for steps that are CUDA graphs."""
        return self.sampler.is_padded

    def set_events(self, events: str | EventSet) -> None:
        """Collective. Iterate over other events from now on, such as chosen ones in another order in each epoch.
        events: as when the loader was made; training stays training. Raises as the constructor does."""
        if isinstance(events, str):
            raise ValueError("set_events takes a mask or rows; make another loader for a split")
        self._split, self._rows = self._chosen(events)
        self._begin()

    def _chosen(self, events: str | EventSet) -> tuple[str, np.ndarray | None]:
        """Collective. Name the batches, and return the rows of chosen events, None for a split."""
        if isinstance(events, str):
            return events, None
        rows = chosen_rows(events, self._graph.partition.num_events, self._graph.world)
        return "train" if self._is_training else CHOSEN, rows

    def _begin(self) -> None:
        """Collective. Make the batches, and what draws their negatives. Raises ValueError for an order of events that
        steps cannot take."""
        if self._rows is not None and not are_sorted(self._rows):
            self._check_unsorted()
        self.batches, self._fixed = self._make_batches(self._size), None
        if self._planning.fixed is None:
            graph, planning = self._graph, self._planning
            kinds = self._pool_kind, planning.negative_kind
            self._draws = split_draws(*kinds, self.batches, graph.partition, graph.world, planning.channel)

    def _check_unsorted(self) -> None:
        """Raise ValueError for settings that need events in order of time."""
        order = "events that are not in order of time"
        if self.sampler.moves_memory:
            raise ValueError(f"mailing: node memory cannot move through {order}: sort them, or leave mailing None")
        if self._sampling.batch_by != "events":
            raise ValueError(f"sampling.batch_by {self._sampling.batch_by}: {order} are cut by number: use events")
        if not self._sampling.in_batch_neighbors:
            raise ValueError(
                f"sampling.in_batch_neighbors false: batches of {order} do not follow each other in time: sort them, "
                "or set it true"
            )

    def _make_batches(self, first_size: int) -> Batches:
        """Collective."""
        graph = self._graph
        return make_batches(
            self._split, graph.partition, graph.splits, self._size, self._sampling.batch_by, graph.world, graph.channel,
            self._drop_last, first_size, self._sampling.batch_span, self._rows,
        )  # fmt: skip

    def of_split(self, split: str, batch_size: int) -> TemporalLoader:
        """Collective. Make a loader of another split that plans as this one does."""
        return TemporalLoader(
            self._graph, split, batch_size, sampling=self._sampling, negatives=self._per_event, planning=self._planning
        )  # fmt: skip

    @property
    def world(self) -> World:
        """The ranks that share the events."""
        return self._graph.world

    def __len__(self) -> int:
        """Count the steps of an epoch, the same on all ranks."""
        return self.batches.num_steps

    def start_epoch(self, epoch: int) -> None:
        """Collective. Make the batches of an epoch: in training others in every epoch where ``sampling.random_chunks``
        is above 1."""
        chunks = self._sampling.random_chunks
        if chunks == 1 or not self._is_training:
            return
        random = Random(self._graph.seed, Stream.CHUNK, epoch=epoch)
        cut = 1 + int(native.random_integers(random, np.zeros(1, np.int64), 1, chunks)[0, 0])
        self.batches, self._fixed = self._make_batches(max(1, self._size * cut // chunks)), None

    def plans(self, epoch: int = 0, start: int = 0, scored: bool = True) -> Prefetcher[StepPlan]:
        """Collective. Make the plans of an epoch's steps from ``start`` on, to be used as a context manager: ``with
        loader.plans(epoch) as plans``. Of several plans a step the last one writes. Without negatives where nothing is
        ``scored``.

        Training draws new negatives in every epoch, validation and test the same.
        """
        batches, sampler = self.batches, self.sampler
        # Drawn here, not with the plans: lookups use the planning channel, which a background thread has from now on.
        with self._planning.timers("negatives"):
            drawn = self._drawn(epoch) if scored else [(no_negatives(batches), epoch)]
        per_event = max(1, drawn[0][0].per_event)
        chunk = per_event if self._is_training else self._planning.chunk or per_event
        firsts = range(0, per_event, chunk)  # columns at which the plans of the same negatives begin
        num_plans = len(drawn) * len(firsts)  # of a step

        def make(number: int) -> StepPlan:
            step, place = divmod(number, num_plans)
            negatives, epoch = drawn[place // len(firsts)]
            first = firsts[place % len(firsts)]
            with self._planning.plan_timers("plan"):
                is_last, columns = place == num_plans - 1, slice(first, first + chunk)
                return sampler.plan(batches, negatives, epoch, step, is_last, columns)

        in_a_row = sampler.plans_in_a_row(batches, drawn[0][0].per_event)
        return Prefetcher(make, start * num_plans, batches.num_steps * num_plans, self.prefetch, in_a_row)

    def _drawn(self, epoch: int) -> list[tuple[AnyNegatives, int]]:
        """Collective. Choose the negatives that the plans of a step look at, and the epochs that these are of."""
        places = self._planning.epochs if self._is_training else [0]
        return [(self.negatives(number), number) for number in (epoch + place for place in places)]

    def negatives(self, epoch: int) -> AnyNegatives:
        """Collective. Choose the negatives of this rank's events: new ones every epoch in training, fixed ones
        elsewhere."""
        if self._planning.fixed is None:
            return random_negatives(self.batches, self._draws, self._per_event, self._graph.seed, epoch)
        if self._fixed is None:
            self._fixed = self._planning.fixed(self.batches)
        return self._fixed

    def channels(self) -> list[Channel]:
        """List the channels that planning goes through."""
        return [self._planning.channel]


def evaluate_links(
    loader: TemporalLoader, score: Callable[[StepPlan], torch.Tensor], ranking: bool = False
) -> dict[str, float]:  # fmt: skip
    """Collective. Measure scores of a loader's events against their negatives, over all events and exactly, on any
    number of ranks: ap and auc, or, with ``ranking``, mrr and hits; also of the events with a node that training never
    saw, as ``inductive_ap`` and so on.

    score: of a plan, returns logits [1 + k, b] of this rank's b events and of their k negatives. It is called once for
    every step, in order and without gradients, and may write node memory.

    Raises ValueError for a loader without events, and for logits of another shape.
    """
    if len(loader) == 0:
        raise ValueError("evaluate_links: the loader has no events to score")
    collected = Collected(measure_events, ranking)
    with torch.no_grad(), loader.plans() as plans:
        for plan in plans:
            logits, shape = score(plan), (1 + plan.num_negatives, plan.num_events)
            if logits.shape != shape:
                raise ValueError(f"evaluate_links: score returns logits {shape}, got {tuple(logits.shape)}")
            collected.add(plan, LinkScores(logits[0], logits[1:], count=plan.columns.get("count")))
    return collected.metrics(loader.batches, loader.world)
