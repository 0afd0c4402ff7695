"""The sections of run files on temporal graphs, and which of their values go together."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, cast

from hpcgnn.choices import check_choices, names_with
from hpcgnn.comm.world import CommConfig
from hpcgnn.loop.settings import (
    OutputConfig,
    Planner,
    Sections,
    TrainConfig,
    check_graphs,
    check_time_groups,
    check_train_split,
)
from hpcgnn.native.random import MOST_HOPS
from hpcgnn.nn.decoders import DECODERS
from hpcgnn.task.config import TaskConfig
from hpcgnn.task.losses import LOSSES, WEIGHTS
from hpcgnn.temporal.baselines import BASELINES
from hpcgnn.temporal.eval_config import BaselineConfig, TemporalEvalConfig
from hpcgnn.temporal.model.forecaster import FORECASTERS
from hpcgnn.temporal.model.readout import READOUTS
from hpcgnn.temporal.model.updater import MESSAGES, UPDATERS
from hpcgnn.temporal.node_labels import PROPERTY, sha256_of_labels


@dataclass
class TemporalSamplingConfig:
    """Neighbors and batches.

    Attributes:
        fanouts: Number of neighbors to sample for a node: one number for all layers, or one for each layer, the
            neighbors of the roots first. They are of all relations together.
        relation_fanouts: Fanouts of single relations by name (src.rel.dst or rel), or of edge types; 0: the relation is
            not followed. If set, each relation is sampled separately, and relations without a name here have fanouts.
        strategy: Sampling of neighbors: the most "recent" ones, "uniform" without replacement, or "window": uniform
            among the events of the last ``window_length`` units of time.
        window_length: Length of a time window, in the data's unit of time; strategy window only.
        num_windows: Number of consecutive windows in which a root's neighbors are sampled, each ``window_length`` long
            (the snapshots of DySAT).
        remote_half_life: Half-life of remote neighbors, in the data's unit of time; 0: all are kept. A neighbor in
            another part is kept with probability 2^-(age // remote_half_life), the boundary decay of StarryGL.
        in_batch_neighbors: Allow earlier events of the same batch as neighbors.
        batch_by: Division into batches. "events": by number of events; "time": the same, but equal times stay in one
            batch; "span": a batch has all events of a window of batch_span units of time.
        batch_span: Length of the windows of batch_by span, in the data's unit of time. They begin at its multiples, and
            empty ones are skipped. A window of more than train.batch_size events is cut into batches of nearly equal
            size.
        random_chunks: Number of chunks of a batch. Above 1, the first batch of each training epoch has a random number
            of chunks, so that epochs have different batches (random chunk scheduling of TGL).
        prefetch: Number of plans made ahead in the background; 0: none. -1: 3 where ranks have a spare core or a GPU,
            or where the job has several machines; else none.
        plan_on: Place where plans are made: the "host" or the "device", which then holds the graph (CUDA with one
            rank). "auto": the device if possible and if the graph fits into half of its free memory.
    """

    fanouts: list[int] = field(default_factory=lambda: [10])
    relation_fanouts: dict[str, list[int]] = field(default_factory=dict)
    strategy: Literal["recent", "uniform", "window"] = "recent"
    window_length: int = 0
    num_windows: int = 1
    remote_half_life: int = 0
    in_batch_neighbors: bool = True
    batch_by: Literal["events", "time", "span"] = "events"
    batch_span: int = 0
    random_chunks: int = 1
    prefetch: int = -1
    plan_on: Planner = "auto"

    def __post_init__(self):
        if not self.fanouts or min(self.fanouts) < 1:
            raise ValueError(f"sampling.fanouts must be at least 1, one number or one a layer, got {self.fanouts}")
        for name, fanouts in self.relation_fanouts.items():
            if not fanouts or min(fanouts) < 0:
                raise ValueError(
                    f"sampling.relation_fanouts.{name} must be at least 0, one number or one a layer, got {fanouts}"
                )
        if self.prefetch < -1 or self.random_chunks < 1:
            raise ValueError("sampling.random_chunks must be at least 1, sampling.prefetch at least -1")
        check_choices("sampling", self)
        if self.num_windows < 1 or self.window_length < 0 or self.remote_half_life < 0:
            raise ValueError("sampling.num_windows must be at least 1, window_length and remote_half_life at least 0")
        if self.strategy == "window" and self.window_length == 0:
            raise ValueError(
                "sampling.strategy window needs sampling.window_length, its width in the data's unit of time"
            )
        if self.strategy != "window" and (self.num_windows > 1 or self.window_length > 0):
            raise ValueError(f"sampling.window_length and num_windows belong to strategy window, not {self.strategy}")
        if self.batch_by == "span" and self.batch_span < 1:
            raise ValueError(
                "sampling.batch_by span needs sampling.batch_span, the length of a window in the data's unit of time, "
                f"at least 1, got {self.batch_span}"
            )
        if self.batch_by != "span" and self.batch_span:
            raise ValueError(f"sampling.batch_span belongs to batch_by span, not {self.batch_by}: leave it 0")
        if self.random_chunks > 1 and self.batch_by != "events":
            raise ValueError("sampling.random_chunks > 1 cuts batches by events: use sampling.batch_by events")

    def fanouts_at(self, hop: int) -> list[int]:
        """Numbers of neighbors in a hop from the roots, the first one 0: of each relation, where these have fanouts of
        their own, else one of all relations. The relations must be known (``of_relations``)."""
        lists = list(self.relation_fanouts.values()) or [self.fanouts]
        return [fanouts[hop] if len(fanouts) > 1 else fanouts[0] for fanouts in lists]

    def fanout(self, hop: int) -> int:
        """Number of neighbors in a hop from the roots, the first one 0."""
        return sum(self.fanouts_at(hop))

    def of_relations(self, names: Sequence[str], numbers: Mapping[str, int]) -> TemporalSamplingConfig:
        """Return the section with fanouts of all relations, in the order of ``names``, where some have separate
        fanouts. numbers: of relations, by any name.

        Raises ValueError for a relation that the graph does not have, and where a layer is left without neighbors.
        """
        if not self.relation_fanouts:
            return self
        named: dict[int, str] = {}
        for name in self.relation_fanouts:
            if name not in numbers:
                listed = ", ".join(names)
                raise ValueError(f"sampling.relation_fanouts: no relation {name}; the graph has {listed}")
            other = named.setdefault(numbers[name], name)
            if other != name:
                raise ValueError(f"sampling.relation_fanouts: {other} and {name} are one relation: leave one out")
        lists = [
            self.relation_fanouts[named[number]] if number in named else self.fanouts for number in range(len(names))
        ]
        config = replace(self, relation_fanouts=dict(zip(names, lists, strict=True)))
        empty = [hop for hop in range(max(map(len, lists))) if config.fanout(hop) == 0]
        if empty:
            raise ValueError(
                f"sampling.relation_fanouts leave no neighbor in layer {empty[0] + 1}: set one of them above 0"
            )
        return config


@dataclass
class TemporalModelConfig:
    """The model.

    Attributes:
        class_path: Custom model class, such as package.module.Class; empty: a built-in model, which the keys below
            describe.
        forecaster: Model that predicts the labels of a node from earlier labels alone, without events. Kind
            node_property only; the sections memory and sampling and the keys below keep their defaults.
        readout: Computation of a node's embedding from its memory and neighbors.
        layers: Number of attention layers; each layer reads the neighbors' state just before their event. Of readouts
            dygformer and tcl the number of transformer blocks, of tpnet the number of mixer blocks, of cawn the number
            of steps of a walk.
        time_dim: Width of the time encoding.
        hidden: Width of the node embeddings.
        heads: Number of attention heads, which must divide hidden, and channel_dim with readout dygformer.
        patch_size: Number of consecutive neighbors that are one input of the transformer; readout dygformer only.
        channel_dim: Width of each channel of a patch: node features, edge features, time and numbers of occurrences;
            readout dygformer only.
        common_hops: Number of hops over which common neighbors are counted, 1 or 2; readout tncn only.
        dropout: Dropout probability of every readout except identity. The draws depend on root and column only.
        time_encoding: Frequencies of the time encoding: "fixed", or "learnable", which needs time_unit.
        time_unit: Divisor of time differences, in the data's unit of time, for learnable frequencies. Neighboring
            events should be at most 100 of these units apart.
        learn_phase: Learn the phases of the fixed frequencies.
        message: Message function between a mail and the memory updater.
        message_dim: Width of the messages that the "mlp" message function makes.
        message_from: Part of the other endpoint in a mail: its "memory", or its attention "embedding" (DyRep).
    """

    class_path: str = ""
    forecaster: Annotated[str, FORECASTERS] = ""
    readout: Annotated[str, READOUTS] = "attention"
    layers: int = 1
    time_dim: int = 100
    hidden: int = 100
    heads: int = 2
    patch_size: int = 1
    channel_dim: int = 50
    common_hops: int = 1
    dropout: float = 0.1
    time_encoding: Literal["fixed", "learnable"] = "fixed"
    time_unit: float = 0.0
    learn_phase: bool = False
    message: Annotated[str, MESSAGES] = "identity"
    message_dim: int = 100
    message_from: Literal["memory", "embedding"] = "memory"

    def __post_init__(self):
        check_choices("model", self)
        for name in ("time_dim", "hidden", "heads", "layers", "message_dim", "patch_size", "channel_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"model.{name} must be at least 1, got {getattr(self, name)}")
        if self.layers > MOST_HOPS:
            raise ValueError(f"model.layers must be at most {MOST_HOPS}, got {self.layers}")
        if self.hidden % self.heads:
            raise ValueError(f"model.heads ({self.heads}) must divide model.hidden ({self.hidden})")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout must be in [0, 1), got {self.dropout}")
        if self.time_encoding == "learnable" and not self.time_unit > 0:
            raise ValueError(
                "model.time_encoding learnable needs model.time_unit > 0 (in the data's unit of time, so large that "
                "differences stay below about 100): without it, rounding grows until training is chaotic"
            )
        if READOUTS[self.readout].has_channels and self.channel_dim % self.heads:
            raise ValueError(f"model.heads ({self.heads}) must divide model.channel_dim ({self.channel_dim})")
        if self.patch_size > 1 and not READOUTS[self.readout].has_channels:
            raise ValueError(
                f"model.patch_size is for model.readout {names_with(READOUTS, 'has_channels')}, the readout is "
                f"{self.readout}: leave it 1"
            )
        if self.common_hops not in (1, 2):
            raise ValueError(f"model.common_hops must be 1 or 2, got {self.common_hops}")
        if self.common_hops > 1 and not READOUTS[self.readout].sums_common:
            raise ValueError(
                f"model.common_hops is for model.readout {names_with(READOUTS, 'sums_common')}, the readout is "
                f"{self.readout}: leave it 1"
            )
        if self.layers > 1 and not READOUTS[self.readout].layered:
            raise ValueError(
                f"model.layers is {self.layers}, but model.readout {self.readout} has one layer: use model.layers 1, "
                f"or readout {names_with(READOUTS, 'layered')}"
            )

    @property
    def num_hops(self) -> int:
        """Number of hops of neighbors that an embedding needs."""
        readout = READOUTS[self.readout]
        if readout.sums_common:
            return max(self.layers, self.common_hops)
        if readout.of_pairs and not readout.has_steps:
            return 1
        return self.layers if readout.sees_neighbors or self.message_from == "embedding" else 0


@dataclass
class MemoryConfig:
    """Node memory and mailbox.

    Attributes:
        dim: Width of a node's memory; with updater walks of each of its projections.
        updater: Function that updates a node's memory from its mails.
        walk_steps: Number of steps of the longest walks; updater walks only.
        walk_scales: Time scales of walks, in the data's unit of time: a step loses the factor e in each. Each scale has
            separate projections; updater walks only.
        aggregator: Aggregation of a node's messages of a batch to one mail: the "last" message, or the "mean" of all.
        mailbox_slots: Number of newest mails to keep for each node; with aggregator mean, of as many batches.
        deliver_to: Receivers of mails: the endpoints of the event ("self"), or also their sampled "neighbors".
        update_at: Ranks that update memory: the "owner" (once for each node) or each "user" (once for each rank that
            needs the node).
        placement: Placement of node memory: "sharded" (a rank keeps its nodes), "replicated" (every rank keeps all
            nodes, with one exchange per step), or "auto": replicated up to replicate_mib.
        replicate_mib: Maximum size of the node memory that placement "auto" replicates, in MiB.
        staleness: Number of steps by which the memory that training reads is late, so that this number of write-backs
            can run during computation; 0: exact.
        hot_ratio: Share of the nodes whose memory is also copied to every rank: the nodes with most training events. 0:
            none.
    """

    dim: int = 100
    updater: Annotated[str, UPDATERS] = "gru"
    walk_steps: int = 3
    walk_scales: list[float] = field(default_factory=lambda: [1e6])
    aggregator: Literal["last", "mean"] = "last"
    mailbox_slots: int = 1
    deliver_to: Literal["self", "neighbors"] = "self"
    update_at: Literal["owner", "user"] = "owner"
    placement: Literal["sharded", "replicated", "auto"] = "sharded"
    replicate_mib: int = 64
    staleness: int = 0
    hot_ratio: float = 0.0

    def __post_init__(self):
        check_choices("memory", self)
        if self.dim < 1:
            raise ValueError(f"memory.dim must be at least 1, got {self.dim}")
        if self.mailbox_slots < 1:
            raise ValueError(f"memory.mailbox_slots must be at least 1, got {self.mailbox_slots}")
        if self.mailbox_slots > 1 and self.has_memory and not UPDATERS[self.updater].reads_mailbox:
            raise ValueError(
                f"memory.updater {self.updater} reads one mail, memory.mailbox_slots is {self.mailbox_slots}: use "
                f"updater {names_with(UPDATERS, 'reads_mailbox')}, or one slot"
            )
        if self.placement == "replicated" and self.update_at == "user":
            raise ValueError("memory.placement replicated works with memory.update_at owner only: use update_at owner")
        for name in ("staleness", "hot_ratio"):
            if getattr(self, name) and not self.has_memory:
                raise ValueError(
                    f"memory.{name} needs node memory, but memory.updater is {self.updater}: leave {name} 0"
                )
        self._check_walks()
        self._check_staleness()
        self._check_hot_nodes()

    def _check_walks(self) -> None:
        if not self.has_walks:
            for name, unset in (("walk_steps", 3), ("walk_scales", [1e6])):
                if getattr(self, name) != unset:
                    walks = names_with(UPDATERS, "has_walks")
                    raise ValueError(
                        f"memory.{name} is for memory.updater {walks}, the updater is {self.updater}: leave it out"
                    )
            return
        if self.walk_steps < 1:
            raise ValueError(f"memory.walk_steps must be at least 1, got {self.walk_steps}")
        if not self.walk_scales or not all(0 < scale < math.inf for scale in self.walk_scales):
            raise ValueError(f"memory.walk_scales must be times above 0, in the data's unit, got {self.walk_scales}")
        for name, default in (("aggregator", "last"), ("deliver_to", "self"), ("staleness", 0)):
            if getattr(self, name) != default:
                raise ValueError(
                    f"memory.{name} {getattr(self, name)} is about mails, and memory.updater {self.updater} has none: "
                    f"use {default}"
                )

    def _check_staleness(self) -> None:
        if self.staleness < 0:
            raise ValueError(f"memory.staleness must be at least 0, got {self.staleness}")

    def _check_hot_nodes(self) -> None:
        if not 0 <= self.hot_ratio <= 1:
            raise ValueError(f"memory.hot_ratio is a share of the nodes, in [0, 1], got {self.hot_ratio}")
        if self.hot_ratio == 0:
            return
        if self.placement != "sharded":
            raise ValueError(
                f"memory.placement {self.placement} keeps whole memories, memory.hot_ratio copies a part: use "
                "placement sharded, or hot_ratio 0"
            )

    def replicates(self, mib: float) -> bool:
        """Say whether every rank keeps a node memory of that size as a whole."""
        fits = self.placement == "auto" and self.update_at == "owner" and mib <= self.replicate_mib
        return self.placement == "replicated" or fits

    @property
    def has_memory(self) -> bool:
        """Whether nodes have a memory."""
        return UPDATERS[self.updater].make is not None

    @property
    def has_walks(self) -> bool:
        """Whether node memory is projections of walks, which no mail changes."""
        return UPDATERS[self.updater].has_walks

    @property
    def simple(self) -> bool:
        """Whether a node gets one mail a batch, of its last event, so that winners alone send mails."""
        return (
            self.aggregator == "last" and self.mailbox_slots == 1 and self.deliver_to == "self" and not self.has_walks
        )


@dataclass
class TemporalDataConfig:
    """The graph and its splits.

    Attributes:
        path: Folder of the partition set; empty: built-in synthetic events.
        val_ratio: Share of the time axis (quantiles of event times) for validation; unset: 0.15, or the split that the
            graph's events have.
        test_ratio: Share of the time axis for the test, at the end; unset: 0.15, or the split that the graph's events
            have.
        new_node_ratio: Share of all nodes that are hidden from training, drawn from the nodes with events after
            training, to test unseen nodes; 0: none.
        check_hash: Compare each part with its hash in the book (book.h5) before use.
        stage_to: Folder on a disk of the machine, to which each rank copies its parts before it reads them; empty:
            none. Environment variables in it, such as '$TMPDIR', get their values in each job that starts or resumes
            the run.
        synthetic_events: Number of events of the built-in graph.
        type_column: Column of the events of a graph of one relation that holds the edge type of each, numbers from 0
            on; empty: none. In a graph of several relations, the relations are the edge types.
    """

    path: str = ""
    val_ratio: float | None = None
    test_ratio: float | None = None
    new_node_ratio: float = 0.0
    check_hash: bool = True
    stage_to: str = ""
    synthetic_events: int = 20_000
    type_column: str = ""

    def __post_init__(self):
        val, test = self.fractions
        if not (val >= 0 and test >= 0 and val + test < 1):
            raise ValueError("data.val_ratio and data.test_ratio must be >= 0 and leave something to train on")
        if not 0 <= self.new_node_ratio < 1:
            raise ValueError(f"data.new_node_ratio must be in [0, 1), got {self.new_node_ratio}")
        if self.synthetic_events < 100:
            raise ValueError(f"data.synthetic_events must be at least 100, got {self.synthetic_events}")

    @property
    def fractions(self) -> tuple[float, float]:
        """Shares of the time axis for validation and test, of a graph whose events have no split."""
        val, test = (FRACTION if share is None else share for share in (self.val_ratio, self.test_ratio))
        return val, test

    def check_own_split(self) -> None:
        """Raise ValueError for shares of a graph whose events have a column ``split``."""
        for name in ("val_ratio", "test_ratio"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"data.{name} is {getattr(self, name)}, but the events of this graph have a column split, which "
                    "decides: leave data.val_ratio and data.test_ratio unset, or convert the source without it"
                )


FRACTION = 0.15  # of the time axis for validation, and for the test


@dataclass
class TemporalTaskConfig(TaskConfig):
    """The task: what is learned of the events.

    Attributes:
        kind: Task. "link": whether an event happens. "node": class of an event's source at that time. "edge" and
            "edge_regression": label of the event, a class or a number. "node_property": weights of classes of nodes at
            times. "node_class": class of a node by its columns label and split, once.
        labels_file: File of the labels of kind node_property, which hpcgnn convert writes beside a graph file.
        labels_sha256: SHA-256 of labels_file, recorded when a run starts; a file with another content is refused
            afterwards.
        node_type: Node type whose labels are learned; empty: the only type that has labels. Kind node_class only.
        relation: Relation whose labels of events are learned (src.rel.dst or rel); empty: the only one that has labels.
            Kinds node, edge and edge_regression only.
        train_at: Times at which training predicts the class of a node: before each of its "events" up to the time of
            its label, or once, at the time of the "label". Kind node_class only.
        label_input: Share of the training nodes whose classes are inputs of a training step, in addition to the
            features; the classes of the other ones are predicted. Validation and test see the classes of all training
            nodes. 0: classes are no inputs. Kind node_class only.
        negatives: Number of negative destinations for each event; link prediction only.
        negative_pool: Nodes that negatives are drawn from: "destinations" (nodes that are the destination of an event)
            or "all" nodes. Link prediction only.
        balance_classes: Weigh classes by n / (classes * n_c), where n_c of the n training labels are of class c.
            Classification only.
        freeze: Train only the head; all other weights keep their values from train.init.
    """

    has_events = True

    kind: Literal["link", "node", "edge", "edge_regression", "node_property", "node_class"] = "link"
    labels_file: str = ""
    labels_sha256: str = ""
    node_type: str = ""
    relation: str = ""
    train_at: Literal["events", "label"] = "events"
    label_input: float = 0.0
    decoder: Annotated[str, DECODERS] = "mlp"
    negatives: int = 1
    negative_pool: Literal["destinations", "all"] = "destinations"
    balance_classes: bool = False
    freeze: bool = False

    def __post_init__(self):
        super().__post_init__()
        if self.has_properties != bool(self.labels_file):
            remedy = "name the GRAPH.labels.h5 that hpcgnn convert wrote" if self.has_properties else "leave it out"
            raise ValueError(f"task.labels_file goes with task.kind {PROPERTY}, and kind is {self.kind}: {remedy}")
        if self.negatives < 1:
            raise ValueError(f"task.negatives must be at least 1, got {self.negatives}")
        if self.is_typed:
            raise ValueError(
                f"task.decoder {self.decoder} has weights by edge type, which temporal graphs do not train: use another"
            )
        if self.balance_classes and "class_weights" not in LOSSES[self.loss].options:
            raise ValueError(f"task.balance_classes: task.loss {self.loss} does not weigh classes; leave it out")
        if self.class_weights and self.balance_classes:
            raise ValueError("task.class_weights and task.balance_classes both weigh the classes: use one")
        for name, default in (("node_type", ""), ("train_at", "events"), ("label_input", 0.0)):
            if getattr(self, name) != default and not self.of_nodes:
                raise ValueError(f"task.{name} is for task.kind node_class, task.kind is {self.kind}: leave it out")
        if self.relation and not self.of_events:
            raise ValueError(
                f"task.relation is for task.kind node, edge and edge_regression, task.kind is {self.kind}: leave it out"
            )
        if not 0 <= self.label_input < 1:
            raise ValueError(f"task.label_input is a share of the training nodes, in [0, 1), got {self.label_input}")

    @property
    def classifies(self) -> bool:
        """Whether labels are classes."""
        return self.kind in ("node", "edge", "node_class")

    @property
    def of_nodes(self) -> bool:
        """Whether the labels are columns of nodes; if not, events have them."""
        return self.kind == "node_class"

    @property
    def of_events(self) -> bool:
        """Whether the labels are a column of events."""
        return self.kind in ("node", "edge", "edge_regression")

    @property
    def predicts_nodes(self) -> bool:
        """Whether a class is predicted from the embedding of one node."""
        return self.kind in ("node", "node_class")

    @property
    def learns(self) -> str:
        """Kind of values in the loss."""
        return WEIGHTS if self.has_properties else super().learns

    @property
    def has_labels(self) -> bool:
        """Whether events have labels, or nodes have them as a column."""
        return self.kind not in ("link", PROPERTY)

    @property
    def has_properties(self) -> bool:
        """Whether nodes have labels at times, in a file."""
        return self.kind == PROPERTY


@dataclass
class TemporalConfig(Sections):
    """A run on a temporal graph."""

    KIND = "temporal"

    data: TemporalDataConfig = field(default_factory=TemporalDataConfig)
    task: TemporalTaskConfig = field(default_factory=TemporalTaskConfig)
    sampling: TemporalSamplingConfig = field(default_factory=TemporalSamplingConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    model: TemporalModelConfig = field(default_factory=TemporalModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: TemporalEvalConfig = field(default_factory=TemporalEvalConfig)
    baseline: BaselineConfig = field(default_factory=BaselineConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self):
        check_time_groups(self.comm)
        check_graphs(self.train, self.task.loss_path)
        check_train_split(self.eval.train_split, self.train)
        if self.eval.train_split and self.task.label_input and not self.baseline.kind:
            raise ValueError(
                "eval.train_split: with task.label_input, evaluation shows the classes of all training nodes, so each "
                "would be scored with its class as an input; leave it false"
            )
        if self.eval.batch_means and self.task.kind != "link":
            raise ValueError(f"eval.batch_means is for task.kind link, got {self.task.kind}: leave it false")
        if self.comm.sampling_servers:
            raise ValueError(
                "comm.sampling_servers is for static graphs: on temporal graphs, ranks sample where they keep "
                "node memory; leave it 0"
            )
        if self.train.drop_last and self.sampling.batch_by == "span":
            raise ValueError(
                "train.drop_last leaves out a batch below train.batch_size, and with sampling.batch_by span any may be "
                "one: leave it false"
            )
        if self.sampling.random_chunks > 1 and self.train.accumulate_steps > 1:
            raise ValueError(
                "sampling.random_chunks > 1 changes the steps of an epoch, train.accumulate_steps counts them: use one"
            )
        if self.task.freeze and not self.train.init:
            raise ValueError("task.freeze trains the head alone: name the run that the rest comes from with train.init")
        if self.task.kind != "link":
            _check_labels(self)
        if self.task.has_properties:
            _check_properties(self)
        if self.task.of_nodes:
            _check_nodes(self)
        if self.model.forecaster:
            _check_forecaster(self)
        tasks = BASELINES[self.baseline.kind].tasks
        if self.baseline.kind and self.task.kind not in tasks:
            fitting = " or ".join(name for name, part in BASELINES.items() if name and self.task.kind in part.tasks)
            remedy = f"use {fitting}, or leave it empty" if fitting else "leave it empty"
            raise ValueError(
                f"baseline.kind {self.baseline.kind} predicts for task.kind {' or '.join(tasks)}, task.kind is "
                f"{self.task.kind}: {remedy}"
            )
        if self.baseline.kind and self.train.callbacks:
            raise ValueError(
                f"train.callbacks follow training, and baseline.kind {self.baseline.kind} trains nothing: leave out "
                "one of them (train.metrics work)"
            )
        decoder = DECODERS[self.task.decoder]
        if not self.model.class_path:
            _check_parts(self.model, self.memory, self.sampling, decoder.reads_numbers)
            _check_walks(self)
            if READOUTS[self.model.readout].of_pairs:
                _check_pairs(self)
        elif decoder.reads_numbers:
            raise ValueError(
                f"task.decoder {self.task.decoder} does not go with model.class_path: custom models get no clocks of "
                "pairs and no walks; use another decoder"
            )
        elif self.memory.has_walks:
            raise ValueError(f"memory.updater {self.memory.updater} does not go with model.class_path: use another")
        if self.train.parallel_epochs > 1 and self.memory.has_memory:
            _check_writes(self.model, self.memory, self.sampling)

    @property
    def baseline_name(self) -> str:
        """The baseline that is evaluated in the place of a model; empty: there is a model."""
        return self.baseline.kind

    @property
    def model_name(self) -> str:
        """Name of the trained model: the class path of a custom model, or the parts of the model."""
        if self.model.forecaster:
            return f"{self.model.forecaster} of earlier labels"
        memory = f"{self.memory.updater} memory" if self.memory.has_memory else "no node memory"
        return self.model.class_path or f"{self.model.readout} embedding, {memory}"

    @property
    def run_name(self) -> str:
        """How the names of run folders begin, where ``output.dir`` gives none."""
        return "tgn"

    @property
    def num_groups(self) -> int:
        """The most groups of ranks that train epochs side by side."""
        return 1 if self.baseline.kind else self.train.parallel_epochs

    def resolve_inputs(self) -> None:
        """Make the paths of inputs absolute, and read the sha256 of the file of negatives. Raises ValueError for one
        that is missing."""
        super().resolve_inputs()
        self.eval.negatives_file = self.eval.negatives_file and os.path.abspath(self.eval.negatives_file)
        self.eval.negatives_sha256 = self.eval.read_sha256()
        self.task.labels_file = self.task.labels_file and os.path.abspath(self.task.labels_file)
        self.task.labels_sha256 = sha256_of_labels(self.task.labels_file)

    def evaluated_by(
        self, protocol: Any, negatives_file: str, baseline: Any, changes: dict[str, Any] | None = None
    ) -> TemporalConfig:  # fmt: skip
        """Return the configuration with another protocol, other negatives, a baseline in place of the model, or other
        values of keys of ``eval``. Raises ValueError."""
        config = self
        if negatives_file and not protocol:
            raise ValueError("--eval.negatives_file needs --eval file or --eval tgb")
        if protocol:
            config = replace(config, eval=config.eval.under(protocol, negatives_file))
        else:
            config.eval.check_file()
        if baseline:
            train = replace(config.train, callbacks=[])  # nothing is trained
            config = replace(config, baseline=config.baseline.of_kind(baseline), train=train)
        return cast(TemporalConfig, Sections.evaluated_by(config, "", "", "", changes))

    def check_evaluation(self, changes: dict[str, Any]) -> None:
        """Accept all changes: all evaluations read batch_size and train_split."""


def _check_parts(
    model: TemporalModelConfig, memory: MemoryConfig, sampling: TemporalSamplingConfig, reads_numbers: bool
) -> None:  # fmt: skip
    """Raise ValueError for parts of the model that do not go together. reads_numbers: the decoder has more than
    embeddings, and needs none."""
    readout, updater = READOUTS[model.readout], memory.updater
    has_mails = memory.has_memory and not memory.has_walks
    if readout.shows_memory and not has_mails and (readout.reads_last or not reads_numbers):
        raise ValueError(
            f"model.readout {model.readout} shows node memory, but memory.updater is {updater}: choose an updater, or "
            f"readout {names_with(READOUTS, 'shows_memory', False)}"
        )
    makes_mails = MESSAGES[model.message].make is not None or model.message_from != "memory"
    if makes_mails and not has_mails:
        raise ValueError(
            f"model.message and model.message_from make mails, but memory.updater is {updater}: choose an updater"
        )
    if UPDATERS[updater].has_heads and memory.dim % model.heads:
        raise ValueError(f"memory.updater {updater}: model.heads ({model.heads}) must divide memory.dim ({memory.dim})")
    of_relations = {f"relation_fanouts.{name}": fanouts for name, fanouts in sampling.relation_fanouts.items()}
    for name, fanouts in ({"fanouts": sampling.fanouts} | of_relations).items():
        hops = model.num_hops if readout.of_pairs else model.layers
        if len(fanouts) in (1, hops):
            continue
        if readout.of_pairs and hops == 1:
            raise ValueError(f"sampling.{name} {fanouts} needs one number for model.readout {model.readout}")
        levels = (
            f"hop, and model.readout {model.readout} has {hops}"
            if readout.of_pairs
            else f"layer, and model.layers is {model.layers}"
        )
        raise ValueError(f"sampling.{name} {fanouts} needs one number, or one a {levels}")
    if sampling.num_windows > 1 and (memory.has_memory or not readout.combines_windows):
        readouts = names_with(READOUTS, "combines_windows")
        raise ValueError(f"sampling.num_windows > 1 needs model.readout {readouts} and memory.updater none")


def _check_walks(config: TemporalConfig) -> None:
    """Raise ValueError for projections of walks that nothing reads, and for readers without them."""
    updater, decoder, readout = config.memory.updater, config.task.decoder, config.model.readout
    by_decoder, by_readout = DECODERS[decoder].reads_walks, READOUTS[readout].reads_walks
    if (by_decoder or by_readout) and not config.memory.has_walks:
        reader = f"task.decoder {decoder}" if by_decoder else f"model.readout {readout}"
        raise ValueError(
            f"{reader} reads projections of walks, memory.updater is {updater}: use {names_with(UPDATERS, 'has_walks')}"
        )
    if config.memory.has_walks and not (by_decoder or by_readout):
        raise ValueError(
            f"memory.updater {updater} is for task.decoder {names_with(DECODERS, 'reads_walks')} or model.readout "
            f"{names_with(READOUTS, 'reads_walks')}, which are {decoder} and {readout}: use one of them"
        )


def _check_pairs(config: TemporalConfig) -> None:
    """Raise ValueError for settings that embeddings of pairs do not go with."""
    name, task = f"model.readout {config.model.readout} embeds pairs of nodes", config.task
    if task.predicts_nodes or task.has_properties:
        readouts = names_with(READOUTS, "of_pairs", False)
        raise ValueError(f"{name}, task.kind {task.kind} predicts from one node: use {readouts}")
    if config.model.message_from == "embedding":
        raise ValueError(f"{name}, and mails cannot have the embedding of one: use model.message_from memory")
    if config.train.needs_graphs:
        raise ValueError(f"{name}, in blocks that train.cuda_graphs on does not record: leave it auto")


def _check_writes(model: TemporalModelConfig, memory: MemoryConfig, sampling: TemporalSamplingConfig) -> None:
    """Raise ValueError for node memory that differs between the epochs of a round, which share it."""
    sampled = sampling.strategy != "recent" or sampling.remote_half_life > 0
    if model.message_from == "embedding" and (sampled or model.dropout > 0):
        raise ValueError(
            "train.parallel_epochs > 1 needs mails that are the same in all epochs, but model.message_from embedding "
            "sends what dropout and sampled neighbors make of them: use message_from memory, or dropout 0 and "
            "strategy recent without remote_half_life"
        )
    if memory.deliver_to == "neighbors" and sampled:
        raise ValueError(
            "train.parallel_epochs > 1 needs mails that are the same in all epochs, but memory.deliver_to neighbors "
            "follows sampled neighbors: use deliver_to self, or strategy recent without remote_half_life"
        )


def _check_nodes(config: TemporalConfig) -> None:
    """Raise ValueError for settings of splits and batches of events, which task.kind node_class does not have."""
    data, train, sampling = config.data, config.train, config.sampling
    for name in ("val_ratio", "test_ratio", "new_node_ratio"):
        if getattr(data, name):
            raise ValueError(
                f"data.{name} splits events, and task.kind node_class splits nodes, by their column split (hpcgnn "
                "split --nodes): leave it out"
            )
    others = (
        ("train.parallel_epochs", train.parallel_epochs > 1), ("train.drop_last", train.drop_last),
        ("train.cuda_graphs on", train.needs_graphs), ("sampling.random_chunks", sampling.random_chunks > 1),
        ("sampling.plan_on", sampling.plan_on == "device"),
    )  # fmt: skip
    for name, is_set in others:
        if is_set:
            raise ValueError(f"{name} does not go with task.kind node_class: leave it out")
    if config.task.label_input and config.model.message_from == "embedding":
        raise ValueError(
            "task.label_input with model.message_from embedding would bring the class of a node into its own memory: "
            "use message_from memory"
        )


def _check_labels(config: TemporalConfig) -> None:
    """Raise ValueError for settings that only link prediction has."""
    if DECODERS[config.task.decoder].needs_events:
        raise ValueError(f"task.decoder {config.task.decoder} scores links, task.kind is {config.task.kind}: use mlp")
    if config.eval.ranking or config.eval.protocol:
        raise ValueError(
            f"eval.protocol and eval.negative_kind are for task.kind link, task.kind is {config.task.kind}"
        )


def _check_forecaster(config: TemporalConfig) -> None:
    """Raise ValueError for settings that a model of earlier labels does not go with: it reads no events."""
    name = config.model.forecaster
    if not config.task.has_properties:
        raise ValueError(
            f"model.forecaster {name} predicts labels of task.kind {PROPERTY}, task.kind is {config.task.kind}: leave "
            "it empty"
        )
    if config.task.freeze:
        raise ValueError(f"task.freeze trains the head alone, and model.forecaster {name} has none: leave it false")
    kept = {"forecaster", "prefetch", "plan_on"}
    for section in ("model", "memory", "sampling"):
        values = getattr(config, section)
        for key, default in vars(type(values)()).items():
            if key not in kept and getattr(values, key) != default:
                raise ValueError(
                    f"{section}.{key} describes a model of events, and model.forecaster {name} reads none: leave it out"
                )


def _check_properties(config: TemporalConfig) -> None:
    """Raise ValueError for settings that labels of nodes at times do not go with."""
    sampling, train = config.sampling, config.train
    unfit = {
        "sampling.random_chunks": sampling.random_chunks > 1,
        f"sampling.batch_by {sampling.batch_by}": sampling.batch_by != "events",
        "sampling.plan_on device": sampling.plan_on == "device", "train.drop_last": train.drop_last,
        "train.parallel_epochs": train.parallel_epochs > 1, "train.cuda_graphs on": train.needs_graphs,
        "data.new_node_ratio": config.data.new_node_ratio > 0,
    }  # fmt: skip
    for name, is_set in unfit.items():
        if is_set:
            raise ValueError(f"{name} does not go with task.kind {PROPERTY}: leave it out")
