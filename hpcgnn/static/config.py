"""The sections of run files on static graphs, and which of their values go together."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, get_args

import torch

from hpcgnn.choices import OFF, check_choices, names_with
from hpcgnn.comm.world import CommConfig, DistributedError
from hpcgnn.graph.embeddings import EmbeddingConfig
from hpcgnn.graph.negative_file import sha256_of
from hpcgnn.graph.partition import WEIGHT
from hpcgnn.loop.settings import (
    OutputConfig,
    Planner,
    Sections,
    TrainConfig,
    check_graphs,
    check_parallel_epochs,
    check_time_groups,
    check_train_split,
)
from hpcgnn.native.random import MOST_HOPS, MOST_RELATIONS
from hpcgnn.nn.decoders import DECODERS
from hpcgnn.static.model.blocks import EDGE_FEATURE
from hpcgnn.static.model.composition import COMPOSITIONS
from hpcgnn.static.model.convolutions import ACTIVATIONS, CONVOLUTIONS, NORMS
from hpcgnn.static.rows.label_propagation import NODE_BASELINES
from hpcgnn.task.baselines import LINK_BASELINES, LinkBaselineConfig
from hpcgnn.task.config import TaskConfig
from hpcgnn.task.losses import LOSSES

FULL, FANOUTS = -1, "sampling.fanouts"
TRAINING, ALL = "train", "all"  # edges that carry messages
POOLED, LISTED = "pooled", "listed"
GIVEN = (POOLED, LISTED)  # rankings by the negatives of a file
AMONG_ALL = ("filtered", "destinations")  # rankings among all nodes
WEIGHTED: Final = "weighted"  # the strategy that draws by a column
SHARDED: Final = "sharded"
AUTO: Final = "auto"
DEVICE: Final = "device"
PINNED: Final = "pinned"
FILE: Final = "file"
Storage = Literal["auto", "device", "pinned", "file"]
STORAGES: tuple[Storage, ...] = (DEVICE, PINNED, FILE)  # of features, from the fastest one on
RECENT: Final = "recent"
Strategy = Literal["uniform", "replace", "weighted", "labor", "recent"]
Topology = Literal["auto", "sharded", "replicated"]
Direction = Literal["in", "out"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
IN, OUT = DIRECTIONS


@dataclass
class GraphSamplingConfig:
    """Which neighbors a mini-batch sees.

    Attributes:
        fanouts: Number of in-neighbors to sample per node and relation, one number for each layer, the seeds' hop
            first; -1: all neighbors. Empty: a model without layers.
        relation_fanouts: Fanouts of single relations by name (src.rel.dst), in place of fanouts; 0: the relation is not
            followed.
        strategy: Sampling of neighbors: "uniform" or "weighted" without replacement, "replace" (uniform with
            replacement), or "labor". With "labor", the nodes of a batch share draws, so that they sample the same
            neighbors (Balin and Catalyurek, 2023). "recent": the newest neighbors; needs time_column.
        time_column: Column of times, integers or numbers, of edges or nodes. A seed then sees only neighbors whose time
            is at most its time, on every hop. An edge has its time in the column, or the time of its source node; where
            both have the column, the later one. Relations without either are not restricted. Empty: no times.
        class_path: Custom class that draws neighbors, such as package.module.Class, a subclass of
            hpcgnn.NeighborSampler; empty: the strategy alone. With strategy "weighted", it gets the weights.
        weight_column: Column of the edges by which strategy "weighted" draws: a number of at least 0 for each edge;
            0: never drawn. It need not be the column ``weight``, which multiplies messages (model.edge_weights).
        eval_fanouts: Fanouts of validation and test; empty: the same as in training.
        direction: Direction of sampling: "in": neighbors are the sources of a node's in-edges; "out": neighbors are the
            destinations of its out-edges. "out" needs a partition set made with ``--out_edges``.
        topology: Placement of the edges: "sharded" (owners answer requests) or "replicated" (the ranks of a machine
            share a copy of all edges). "auto": replicated if a copy takes at most a quarter of every machine's free
            memory. The samples are the same.
        edge_columns: Columns of the edges that the sampled blocks contain, for custom model classes.
        prefetch: Number of plans made ahead in the background; 0: none. -1: 3 where ranks have a spare core or a GPU,
            or where the job has several machines or sampling servers; else none.
        in_flight: Number of plans that are made at the same time, each in its own thread; at most prefetch.
        plan_on: Place where neighbors are drawn: the "host" or the "device", which then holds all edges (CUDA; one
            rank, or topology "replicated"). "auto": the device if possible and if the edges fit into half of its free
            memory.
    """

    fanouts: list[int] = field(default_factory=lambda: [15, 10, 5])
    relation_fanouts: dict[str, list[int]] = field(default_factory=dict)
    strategy: Strategy = "uniform"
    time_column: str = ""
    class_path: str = ""
    weight_column: str = WEIGHT
    eval_fanouts: list[int] = field(default_factory=list)
    direction: Direction = "in"
    topology: Topology = "auto"
    edge_columns: list[str] = field(default_factory=list)
    prefetch: int = -1
    in_flight: int = 1
    plan_on: Planner = "auto"

    def __post_init__(self):
        check_choices("sampling", self)
        lists = {"fanouts": self.fanouts, **{f"relation_fanouts.{n}": v for n, v in self.relation_fanouts.items()}}
        if self.eval_fanouts:
            lists["eval_fanouts"] = self.eval_fanouts
        for name, values in lists.items():
            if len(values) != len(self.fanouts):
                raise ValueError(f"sampling.{name} needs {len(self.fanouts)} numbers, one a layer, got {values}")
            if any(value < FULL for value in values):
                raise ValueError(f"sampling.{name} must be -1 (all), 0 (none) or more, got {values}")
        if len(self.fanouts) > MOST_HOPS:
            raise ValueError(
                f"sampling.fanouts must have at most {MOST_HOPS} numbers, got {len(self.fanouts)}: use "
                "train.full_graph for deeper models"
            )
        if self.weight_column != WEIGHT and self.strategy != WEIGHTED:
            raise ValueError(
                f"sampling.weight_column {self.weight_column} is for sampling.strategy weighted, not {self.strategy}: "
                "leave it out"
            )
        if self.prefetch < -1:
            raise ValueError(f"sampling.prefetch must be at least -1, got {self.prefetch}")
        if self.class_path and self.time_column:
            raise ValueError("sampling.class_path does not know of times: leave it or sampling.time_column out")
        if self.strategy == RECENT and not self.time_column:
            raise ValueError(f"sampling.strategy {RECENT} needs sampling.time_column: name it, or use another strategy")
        if self.time_column and self.topology not in (AUTO, SHARDED):
            raise ValueError(
                f"sampling.topology {self.topology}: with sampling.time_column the owners of nodes draw: use {SHARDED}"
            )
        if self.time_column and self.plan_on == "device":
            raise ValueError("sampling.plan_on device: neighbors with sampling.time_column are drawn on the host")
        if self.in_flight < 1:
            raise ValueError(f"sampling.in_flight must be at least 1, got {self.in_flight}")
        if self.in_flight > 1 and 0 <= self.prefetch < self.in_flight:
            raise ValueError(
                f"sampling.in_flight {self.in_flight} needs a sampling.prefetch of at least as many, or -1, got "
                f"{self.prefetch}"
            )

    def check_relations(self, names: list[str]) -> None:
        """Raise ValueError for fanouts of a relation that the graph does not have, and for more relations than can be
        drawn from."""
        self.check_count(len(names))
        for name in self.relation_fanouts:
            if name not in names:
                raise ValueError(f"sampling.relation_fanouts: no relation {name}; the graph has {', '.join(names)}")

    def check_count(self, num_relations: int, key: str = FANOUTS) -> None:
        """Raise ValueError, with a remedy for ``key``, for more relations than can be drawn from."""
        if self.fanouts and num_relations > MOST_RELATIONS:
            remedy = "use stored"
            if key == FANOUTS:
                remedy = "use train.full_graph, or one relation with a column rel"
            raise ValueError(
                f"{key}: neighbors are drawn from at most {MOST_RELATIONS} relations, not {num_relations}: {remedy}"
            )


@dataclass
class GraphEvalConfig:
    """Validation and test.

    Attributes:
        batch_size: Number of seeds in a batch of validation and test; 0: the same as in training.
        negatives: Number of negatives drawn for each edge, the same in all epochs; 0: as in training, or 1 where
            training shares negatives in a batch. Link prediction only.
        ranking: Ranking of each edge by exact embeddings; empty: among drawn negatives. "filtered": among all nodes,
            both ends, without other true edges of the type. "destinations": among all destinations of a source, without
            the ones of its training edges. "pooled" and "listed": among the negatives of negatives_file. Link
            prediction only.
        negatives_file: File of given negatives; {split} in the path is replaced by val or test. For ranking pooled,
            pairs (src, dst), which every edge of the split is compared with; for listed, destinations of each edge.
        negatives_sha256: SHA-256 of negatives_file, recorded when a run starts; a file with another content is refused
            by hpcgnn evaluate.
        message_edges: Edges of the learned relation that carry messages in validation and test: "train": training
            edges; "train_val": in the test, validation edges too. Needs exact or ranking.
        exact: Score with all neighbors, layer by layer over the whole graph, instead of sampled batches.
        train_split: Also score the training split, as validation is scored, and report its metrics, such as
            train_accuracy. Labels only; labels of edges need task.message_splits all. Not together with
            train.train_metrics.
        nodes_per_pass: Number of nodes of a rank that one pass of exact scoring computes; bounds memory.
        correct_and_smooth: Correct the outputs of nodes by the errors at training nodes, then smooth them with the
            labels of training nodes, both along edges (Huang et al., 2020). No label of validation or test is read.
            Classes of nodes, with exact or train.full_graph only.
        correct_alpha: Share of the neighbors' errors in a step of correct_and_smooth.
        smooth_alpha: Share of the neighbors' classes in a step of correct_and_smooth.
        smooth_steps: Number of steps in which errors, and then classes, are sent.
        smooth_relations: Relations (src.rel.dst) along which errors and classes are sent; empty: all.
    """

    batch_size: int = 0
    negatives: int = 0
    ranking: Literal["", "filtered", "destinations", "pooled", "listed"] = ""
    negatives_file: str = ""
    negatives_sha256: str = ""
    message_edges: Literal["train", "train_val"] = "train"
    exact: bool = False
    train_split: bool = False
    nodes_per_pass: int = 10_000
    correct_and_smooth: bool = False
    correct_alpha: float = 0.8
    smooth_alpha: float = 0.8
    smooth_steps: int = 50
    smooth_relations: list[str] = field(default_factory=list)

    def __post_init__(self):
        check_choices("eval", self)
        if self.smooth_steps < 1 or not (0 < self.correct_alpha < 1 and 0 < self.smooth_alpha < 1):
            raise ValueError(
                "eval.smooth_steps must be at least 1, and eval.correct_alpha and eval.smooth_alpha between 0 and 1, "
                f"got {self.smooth_steps}, {self.correct_alpha} and {self.smooth_alpha}"
            )
        if min(self.batch_size, self.negatives) < 0 or self.nodes_per_pass < 1:
            raise ValueError("eval.batch_size and eval.negatives must be at least 0 and eval.nodes_per_pass at least 1")
        if (self.ranking in GIVEN) != bool(self.negatives_file):
            raise ValueError(
                f"eval.ranking {' and '.join(GIVEN)}, and no other, need eval.negatives_file; got eval.ranking "
                f"{self.ranking!r} with {self.negatives_file!r}"
            )
        if self.message_edges != TRAINING and not self.scores_all:
            raise ValueError(f"eval.message_edges {self.message_edges} needs eval.exact true, or eval.ranking")

    @property
    def scores_all(self) -> bool:
        """Whether a split is scored from the embeddings of all nodes."""
        return self.exact or bool(self.ranking)


@dataclass
class GraphModelConfig:
    """The model.

    Attributes:
        class_path: Custom model class, such as package.module.Class; empty: a built-in model, which the keys below
            describe.
        kind: Graph convolution of the layers.
        layers: Number of layers, and so of hops. With sampling, sampling.fanouts has one number for each layer. 0 with
            model.kind none.
        hidden: Width of hidden rows and of learnable node embeddings.
        heads: Number of attention heads, which must divide hidden; gat, gatv2, rgat, han, hgt and simple_hgn only.
        dropout: Dropout probability of hidden rows. The draws depend on node and column only.
        input_dropout: Dropout probability of the input rows. The draws depend on node and column only.
        aggregator: Aggregation of the neighbors of one relation: "mean", "sum" or "max"; sage and rgcn only. compgcn
            and nbfnet have "mean" and "sum", over the edges of all relations.
        composition: How compgcn combines the row of a neighbor with the row of the relation.
        edge_weights: Multiply messages by the column ``weight`` of the edges; an edge without a weight counts 1. sage
            and rgcn (mean: the weighted mean), gcn and lightgcn (degrees are sums of weights).
        edge_features: Add the features of edges (column ``feat``) to messages. sage and rgcn aggregate them like the
            rows of neighbors. gat and rgat add a product with them to the scores of attention, gatv2 to the sum of rows
            that a score is made of.
        activation: Activation function between the layers.
        norm: Normalization before each activation or, with residual, before each layer.
        input_layer: Add a linear layer before the first layer, with dropout and without activation.
        output_layer: Linear layer after the last layer. "none": the last layer makes the outputs. "linear": the linear
            layer makes them of rows of width hidden. "activated": these rows have norm, activation and dropout, too.
        residual: Add the input of each layer to its output, with a linear layer before the first and after the last
            one.
        linear_skip: Add a product of a node's own row to the output of each layer, before norm and activation. In place
            of residual.
        feed_forward: Width of a two-layer network in every block, in units of hidden; 0: none. Needs residual.
        initial_ratio: Share of a node's first row in the sums of every layer; gcn2 only.
        identity_decay: Weight of the matrices of the layers: beta is log(identity_decay / layer + 1), with layers
            counted from 1 (lambda of Chen et al., 2020); gcn2 only.
        bases: Number of shared matrices whose sums are the matrices of the relations; 0: a separate matrix for each
            relation. Relational models only.
        self_loop: Include a node's own row. With gcn, gat and gatv2, a node is its own neighbor. With rgcn and rgat,
            its row is added through a matrix. compgcn combines it with the row of a self-loop relation first.
        basis_rows: Learn rows of a node for each basis and for its self-loop, in place of one row and the first layer's
            matrices (Schlichtkrull et al., 2018, one-hot rows). rgcn with bases only, on graphs without features.
        low_memory: Compute relations one after the other, and again in the backward pass, to save memory; rgcn only.
    """

    class_path: str = ""
    kind: Annotated[str, CONVOLUTIONS] = "sage"
    layers: int = 3
    hidden: int = 128
    heads: int = 4
    dropout: float = 0.0
    input_dropout: float = 0.0
    aggregator: Literal["mean", "sum", "max"] = "mean"
    composition: Annotated[str, COMPOSITIONS] = "mult"
    edge_weights: bool = False
    edge_features: bool = False
    activation: Annotated[str, ACTIVATIONS] = "relu"
    norm: Annotated[str, NORMS] = "none"
    input_layer: bool = False
    output_layer: Literal["none", "linear", "activated"] = "none"
    residual: bool = False
    linear_skip: bool = False
    feed_forward: int = 0
    initial_ratio: float = 0.1
    identity_decay: float = 0.5
    bases: int = 0
    self_loop: bool = True
    basis_rows: bool = False
    low_memory: bool = False

    @property
    def node_columns(self) -> tuple[str, ...]:
        """The columns of nodes that a batch must have: "identity" for dropout, others for the layers; all for a
        class_path."""
        if self.class_path:
            return ("identity", "degree")
        drops = self.dropout > 0 or self.input_dropout > 0
        return ("identity",) * drops + CONVOLUTIONS[self.kind].node_columns

    @property
    def row_width(self) -> int:
        """Width of the learnable node embeddings."""
        return self.hidden * (self.bases + self.self_loop) if self.basis_rows else self.hidden

    @property
    def by_query(self) -> bool:
        """Whether the model has states of nodes for each query, and no rows of nodes."""
        return CONVOLUTIONS[self.kind].by_query and not self.class_path

    def __post_init__(self):
        check_choices("model", self)
        if min(self.hidden, self.heads) < 1:
            raise ValueError("model.hidden and model.heads must be at least 1")
        bare = CONVOLUTIONS[self.kind].make is None
        if self.layers < 0 or (not self.class_path and (self.layers == 0) != bare):
            raise ValueError(
                "model.layers must be at least 1, and for model.kind none 0 (with sampling.fanouts []), got "
                f"{self.layers} for {self.kind}"
            )
        for name in ("dropout", "input_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"model.{name} must be in [0, 1), got {getattr(self, name)}")
        if min(self.bases, self.feed_forward) < 0:
            raise ValueError("model.bases and model.feed_forward must be at least 0")
        self._check_kind()
        self._check_chain()

    def _check_chain(self) -> None:
        """Raise ValueError for parts around the layers of a model that has other ones there."""
        part = CONVOLUTIONS[self.kind]
        around = {
            f"norm {self.norm}": NORMS[self.norm].over_all, "input_layer": self.input_layer,
            "output_layer": self.output_layer != "none",
        }  # fmt: skip
        has_others = part.averages or part.keeps_first or part.over_all or part.make is None
        if (self.residual or has_others) and (used := _used({f"model.{name}": on for name, on in around.items()})):
            other = "model.residual" if self.residual else f"model.kind {self.kind}"
            raise ValueError(f"{used} does not go with {other}, which has other parts there: leave one out")

    def _check_kind(self) -> None:
        part = CONVOLUTIONS[self.kind]
        if part.attends and self.hidden % self.heads:
            raise ValueError(f"model.heads ({self.heads}) must divide model.hidden ({self.hidden})")
        between = {
            "norm": self.norm != "none", "dropout": self.dropout > 0, "residual": self.residual,
            "linear_skip": self.linear_skip,
        }  # fmt: skip
        if part.averages and (used := _used({f"model.{name}": is_set for name, is_set in between.items()})):
            raise ValueError(f"model.kind {self.kind} has nothing between its layers: leave out {used}")
        if self.bases and not part.shares_bases:
            raise ValueError(f"model.bases shares the matrices of relations, model.kind is {self.kind}: use bases 0")
        own_ends = self.residual or self.input_layer
        if self.basis_rows and (not part.make_basis or self.bases == 0 or own_ends or self.layers < 2):
            kinds = " or ".join(name for name, other in CONVOLUTIONS.items() if other.make_basis)
            raise ValueError(
                "model.basis_rows puts the bases of the first of several layers into the nodes' rows: it needs "
                f"model.kind {kinds}, model.bases above 0, at least 2 model.layers, no model.residual and no "
                "model.input_layer"
            )
        if self.edge_weights and not (self.class_path or (part.weighs and self.aggregator != "max")):
            kinds = " or ".join(name for name, other in CONVOLUTIONS.items() if other.weighs)
            as_feature = ": convert with the weight as column feat, and set model.edge_features true"
            raise ValueError(
                f"model.edge_weights is for model.kind {kinds}, with aggregator mean or sum, not for {self.kind}"
                f"{as_feature * (part.edge_features and not part.weighs)}"
            )
        if self.edge_features and not (self.class_path or part.edge_features):
            kinds = ", ".join(name for name, other in CONVOLUTIONS.items() if other.edge_features)
            raise ValueError(f"model.edge_features is for model.kind {kinds}, not {self.kind}")
        skips = self.residual or self.linear_skip
        if part.adds_own and skips:
            raise ValueError(
                f"model.kind {self.kind} adds the node's row itself: leave out model.residual and model.linear_skip"
            )
        if part.over_all and skips:
            raise ValueError(
                f"model.kind {self.kind} has no residual blocks: leave out model.residual and model.linear_skip"
            )
        if part.keeps_first and (skips or self.norm != "none"):
            raise ValueError(
                f"model.kind {self.kind} has its own residual: leave out model.residual, model.linear_skip and "
                "model.norm"
            )
        if self.linear_skip and (self.residual or part.make is None):
            other = "model.residual" if self.residual else f"model.kind {self.kind}, which has no layers"
            raise ValueError(f"model.linear_skip does not go with {other}: leave one out")
        if not 0 <= self.initial_ratio <= 1 or self.identity_decay <= 0:
            raise ValueError(
                "model.initial_ratio must be in [0, 1] and model.identity_decay above 0, got "
                f"{self.initial_ratio} and {self.identity_decay}"
            )
        if part.only_sums and self.aggregator == "max":
            raise ValueError(f"model.kind {self.kind} adds up its messages: use model.aggregator mean or sum")
        if self.low_memory and not part.low_memory:
            kinds = " or ".join(name for name, other in CONVOLUTIONS.items() if other.low_memory)
            raise ValueError(f"model.low_memory is for model.kind {kinds}, not {self.kind}")
        if self.feed_forward and not self.residual:
            raise ValueError(
                "model.feed_forward is a part of residual blocks: set model.residual true, or feed_forward 0"
            )


@dataclass
class GraphDataConfig:
    """The graph.

    Attributes:
        path: Folder of the partition set; empty: a built-in synthetic graph.
        check_hash: Compare each part with its hash in the book (book.h5) before use.
        stage_to: Folder on a disk of the machine, to which each rank copies its parts before it reads them; empty:
            none. Environment variables in it, such as '$TMPDIR', get their values in each job that starts or resumes
            the run.
        synthetic_nodes: Number of nodes of the built-in graph.
    """

    path: str = ""
    check_hash: bool = True
    stage_to: str = ""
    synthetic_nodes: int = 5_000

    def __post_init__(self):
        if self.synthetic_nodes < 100:
            raise ValueError(f"data.synthetic_nodes must be at least 100, got {self.synthetic_nodes}")


NODE, REGRESSION, LINK = "node", "regression", "link"
EDGE_CLASSES, EDGE_REGRESSION = "edge", "edge_regression"
OF_EDGES = (LINK, EDGE_CLASSES, EDGE_REGRESSION)
OR_EDGES = " or ".join(OF_EDGES)
STORED: Final = "stored"
EDGE, BATCH, SHARED = "edge", "batch", "shared"
ONE_END, BOTH_ENDS, PAIR = "destination", "both", "pair"


@dataclass
class OneTaskConfig(TaskConfig):
    """A task on the graph.

    Attributes:
        kind: Task: classification of a "node" or an "edge" by the column ``label``. With "regression" and
            "edge_regression", the label is a number (NaN: not known). "link": link prediction, whether there is an
            edge. The column ``split`` of nodes or edges has their split.
        node_type: Node type whose labels are learned; empty: the only type that has labels. Kinds node and regression
            only.
        relation: Relation whose edges are learned, as src.rel.dst; empty: the only relation with a column split. Kinds
            link, edge and edge_regression only.
        reverse: Relation that holds the same edges in reverse, which are left out together with the learned edges;
            empty: every relation that leads back; "none": none. Kinds link, edge and edge_regression only.
        message_edges: Form in which the learned relation carries messages: "stored", "typed" (one relation for each
            type in the column ``rel``), or "both" (typed, and a relation for each type in reverse). Kinds link, edge
            and edge_regression only.
        message_splits: Edges of the learned relation that carry messages: "train": training edges, and in a step none
            of its seeds; "all": all edges, which are known while their labels are not. "all" is for kinds edge and
            edge_regression only.
        edge_columns: Columns of numbers of the learned edges, from which the label is predicted together with both end
            nodes. Kinds edge and edge_regression only.
        standardize: Let the model compute standardized numbers: the label is their product with the standard deviation
            of the training labels plus their mean, which are stored with the model. Losses, metrics and predictions are
            of the labels themselves. Kinds regression and edge_regression only.
        negative_sharing: Sharing of training negatives: "edge": drawn for each edge; "batch": the destinations of the
            other edges of the batch; "shared": drawn once for all edges of a batch. Link prediction only.
        negatives: Number of training negatives. negative_sharing edge: drawn for each edge; 0: one. batch: edges of the
            batch whose destinations are used; 0: all. shared: drawn for a batch; 0: its number of edges. Link
            prediction only.
        strict: Avoid negatives that are training edges; link prediction only.
        negative_ends: Ends of an edge that negatives replace: the "destination"; "both" ends, each in turn; or "pair",
            both at once. "pair" needs negative_sharing edge, and strict false. With losses over all nodes, the ends
            that are asked for. Link prediction only.
        reciprocal: Learn a second row of each edge type, through which the sources of edges are asked for, in training,
            ranking and answers. Decoders with weights by edge type only.
        relation_dropout: Dropout probability of the rows of edge types, drawn for each query. Losses over all nodes
            only. For rows of nodes, see model.input_dropout.
        penalty: Penalty of the rows of nodes and edge types that a step's queries and their answers have. "l2": the
            sum of squares, divided by 2. "n3": the sum of the third powers of absolute values, divided by 3. Losses
            over all nodes only.
        node_penalty: Factor of the penalty of learnable node embeddings.
        relation_penalty: Factor of the penalty of the rows of edge types.
        penalty_counts: Count a row as often as the queries and answers of the step have it, a query with its weight by
            answer_power; false: once.
    """

    scores_all = has_paths = True

    kind: Literal["node", "regression", "link", "edge", "edge_regression"] = "node"
    node_type: str = ""
    relation: str = ""
    reverse: str = ""
    message_edges: Literal["stored", "typed", "both"] = "stored"
    message_splits: Literal["train", "all"] = "train"
    edge_columns: list[str] = field(default_factory=list)
    standardize: bool = False
    negative_sharing: Literal["edge", "batch", "shared"] = "edge"
    negatives: int = 0
    strict: bool = False
    negative_ends: Literal["destination", "both", "pair"] = "destination"
    reciprocal: bool = False
    relation_dropout: float = 0.0
    penalty: Literal["", "l2", "n3"] = ""
    node_penalty: float = 0.0
    relation_penalty: float = 0.0
    penalty_counts: bool = True

    def __post_init__(self):
        super().__post_init__()
        if self.negatives < 0:
            raise ValueError(f"task.negatives must be at least 0, got {self.negatives}")
        if self.negative_sharing != EDGE and not DECODERS[self.decoder].shares_negatives:
            raise ValueError(
                f"task.negative_sharing {self.negative_sharing} needs a task.decoder other than {self.decoder}"
            )
        if self.negative_ends == PAIR and (self.negative_sharing != EDGE or self.strict):
            key = f"negative_sharing {self.negative_sharing}" if self.negative_sharing != EDGE else "strict true"
            raise ValueError(
                f"task.negative_ends {PAIR} does not go with task.{key}: leave that out, or use {BOTH_ENDS}"
            )
        if self.negative_sharing == BATCH and self.negative_kind != type(self).negative_kind:
            raise ValueError(
                f"task.negative_kind {self.negative_kind} has no effect with task.negative_sharing batch; leave it out"
            )
        if self.standardize and self.kind not in (REGRESSION, EDGE_REGRESSION):
            raise ValueError(
                f"task.standardize is for task.kind {REGRESSION} or {EDGE_REGRESSION}, not {self.kind}: leave it false"
            )
        self._check_edges()
        self._check_queries()

    @property
    def of_edges(self) -> bool:
        """Whether the seeds are edges."""
        return self.kind in OF_EDGES

    @property
    def hides_edges(self) -> bool:
        """Whether held-out edges of the learned relation carry no messages."""
        return self.of_edges and self.message_splits == TRAINING

    @property
    def over_all(self) -> bool:
        """Whether training scores queries with all nodes, and draws no negatives."""
        return self.kind == LINK and LOSSES[self.loss].over_all

    @property
    def shares_model(self) -> bool:
        """Whether other tasks have the same layers, so that heads make the outputs of all."""
        return bool(self.further)

    @property
    def is_typed(self) -> bool:
        """Whether the decoder of links has weights by edge type."""
        return self.kind == LINK and super().is_typed

    def _check_queries(self) -> None:
        """Raise ValueError for keys of queries that do not fit the loss and the decoder."""
        if not 0 <= self.relation_dropout < 1:
            raise ValueError(f"task.relation_dropout must be in [0, 1), got {self.relation_dropout}")
        for name in ("node_penalty", "relation_penalty"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"task.{name} must be at least 0, got {getattr(self, name)}")
        of_types = {
            "reciprocal": self.reciprocal, "relation_dropout": self.relation_dropout,
            "relation_penalty": self.relation_penalty,
        }  # fmt: skip
        if (used := _used(of_types)) and not self.is_typed:
            raise ValueError(
                f"task.{used} needs weights by edge type: use task.decoder {names_with(DECODERS, 'typed')}"
            )
        if bool(self.penalty) != (self.node_penalty + self.relation_penalty > 0):
            raise ValueError("task.penalty needs task.node_penalty or task.relation_penalty above 0, and they need it")
        if self.kind == LINK and DECODERS[self.decoder].reciprocal and not self.reciprocal:
            raise ValueError(f"task.decoder {self.decoder} has rows for queries of both ends: set task.reciprocal true")
        is_drawn = self.negative_sharing == EDGE and not self.over_all
        if self.reciprocal and (is_drawn or self.negative_ends != BOTH_ENDS):
            raise ValueError(
                f"task.reciprocal has rows for queries of both ends: use task.negative_ends {BOTH_ENDS}, and task.loss "
                f"{names_with(LOSSES, 'over_all')}, or task.negative_sharing {SHARED} or {BATCH}"
            )
        if not self.over_all:
            if used := _used({"relation_dropout": self.relation_dropout, "penalty": self.penalty}):
                raise ValueError(f"task.{used} needs task.loss {names_with(LOSSES, 'over_all')}: leave it out")
            return
        without = {
            "negatives": self.negatives, "strict": self.strict, "negative_sharing": self.negative_sharing != EDGE,
            "negative_kind": self.negative_kind != type(self).negative_kind,
            f"negative_ends {PAIR}": self.negative_ends == PAIR,
        }  # fmt: skip
        if used := _used(without):
            raise ValueError(f"task.{used}: task.loss {self.loss} draws no negatives: leave it out")
        if not DECODERS[self.decoder].shares_negatives:
            raise ValueError(f"task.loss {self.loss} needs a task.decoder other than {self.decoder}")

    def _check_edges(self) -> None:
        """Raise ValueError for keys of edges in a task on nodes, and the other way round."""
        if not self.of_edges and (self.relation or self.reverse):
            raise ValueError(f"task.relation and task.reverse are for task.kind {OR_EDGES}: leave them empty")
        if self.of_edges and self.node_type:
            raise ValueError("task.node_type is for labels of nodes: leave it out")
        labels_edges = self.of_edges and self.kind != LINK
        if not labels_edges and (self.edge_columns or self.message_splits == ALL):
            key = "edge_columns" if self.edge_columns else f"message_splits {ALL}"
            raise ValueError(f"task.{key} is for task.kind {EDGE_CLASSES} or {EDGE_REGRESSION}: leave it out")
        if answers := [name for name in ("label", "split") if name in self.edge_columns]:
            raise ValueError(f"task.edge_columns: {answers[0]} is no input: leave it out")


@dataclass
class FurtherTaskConfig(OneTaskConfig):
    """A task that is learned together with the main one.

    Attributes:
        weight: Factor of the task's loss in the sum of the losses; 0: it is evaluated and not learned.
        batch_size: Number of the task's seeds in a step, over all ranks together; 0: train.batch_size.
    """

    weight: float = 1.0
    batch_size: int = 0

    def __post_init__(self):
        super().__post_init__()
        if self.loss_path:
            raise ValueError("loss_path is for the main task alone: leave it out")
        if self.over_all:
            raise ValueError(f"loss {self.loss} is for a task that is alone: use another")
        if not 0 <= self.weight < math.inf:
            raise ValueError(f"weight must be at least 0, got {self.weight}")
        if self.batch_size < 0:
            raise ValueError(f"batch_size must be at least 0, got {self.batch_size}")

    @property
    def shares_model(self) -> bool:
        return True


@dataclass
class GraphTaskConfig(OneTaskConfig):
    """The task on the graph.

    Attributes:
        more: Further tasks that the same layers learn, by name (multi-task learning). Each has the keys of task, and
            weight (1.0), the factor of its loss, and batch_size (0: train.batch_size). Its metrics have its name and _
            before theirs.
    """

    more: dict[str, FurtherTaskConfig] = field(default_factory=dict)

    def __post_init__(self):
        super().__post_init__()
        tasks: dict[str, Any] = dict(self.more)  # mappings, as files have them, or sections
        for name, keys in tasks.items():
            if not re.fullmatch(r"\w+", str(name), re.ASCII):
                raise ValueError(f"task.more: {name!r} is no name of a task: use letters, digits and _ alone")
            with of_task(name):
                tasks[name] = keys if isinstance(keys, FurtherTaskConfig) else _further_task(keys)
        self.more = tasks

    @property
    def further(self) -> dict[str, FurtherTaskConfig]:
        return self.more


def _further_task(keys: Any) -> FurtherTaskConfig:
    """Make the section of a further task. Raises ValueError."""
    if not isinstance(keys, dict):
        raise ValueError(f"expected a section with keys of task below it, got {keys!r}")
    try:
        return FurtherTaskConfig(**keys)
    except TypeError as error:
        raise ValueError(str(error)) from error


@contextlib.contextmanager
def of_task(name: str) -> Iterator[None]:
    """Let errors name the further task that they are about; empty: the main task."""
    begin = f"task.more.{name}: " if name else ""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{begin}{error}") from error
    except DistributedError as error:
        raise DistributedError(f"{begin}{error}", error.user_error) from error


WIRES = {"": None, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass
class FeatureConfig:
    """Input rows of nodes.

    Attributes:
        storage: Place of the rows of a rank: the "device"; "pinned" memory of the host, which the device reads
            directly; or the "file" of the part, read whenever rows are needed. "auto": the first place, in this order,
            where the rows of every rank take at most three quarters of its share of the free memory.
        device_ratio: Share of a rank's pinned rows that are also on the device: the nodes with most out-edges there.
            Storage pinned only.
        cache_ratio: Size of the feature cache of a rank, which holds copies of remote rows, as a share of the graph's
            nodes; 0: no cache.
        cache_policy: Choice of the rows in the feature cache. "presample" counts the rows that plans of the first epoch
            (at most 1,000) need. "stored" reads the ranking in the parts (``--cache_ranking`` of hpcgnn partition).
        wire: Data type in which rows are sent, and to which all rows are rounded, also on one rank: "float16" (up to
            65,504; larger features are refused) or "bfloat16". Empty: the type of the features.
        normalize: Divide the features of each node by the sum of their absolute values.
        standardize: Subtract the mean of each feature and divide by its standard deviation. Both are of the training
            nodes of the type, or of all its nodes if it has no split, and are stored with the model.
        hops: Number of hops over which features are propagated through the whole graph, once before training, for
            models such as mlp; 0: none. Graphs of one node type and one relation only.
        hop_rows: Input rows made of the propagated features: "all" hops side by side, after the features of the node
            (SIGN), or the "mean" over the hops (SSGC).
        own_ratio: Share of the features of the node in the mean over the hops; hop_rows mean only.
    """

    storage: Storage = AUTO
    device_ratio: float = 0.0
    cache_ratio: float = 0.0
    cache_policy: Literal["presample", "stored"] = "presample"
    wire: Literal["", "float16", "bfloat16"] = ""
    normalize: bool = False
    standardize: bool = False
    hops: int = 0
    hop_rows: Literal["all", "mean"] = "all"
    own_ratio: float = 0.0

    def __post_init__(self):
        check_choices("features", self)
        if self.hops < 0 or not 0 <= self.own_ratio <= 1:
            raise ValueError(
                "features.hops must be at least 0 and features.own_ratio from 0 to 1, got "
                f"{self.hops} and {self.own_ratio}"
            )
        if self.hops and self.storage == FILE:
            raise ValueError("features.storage file: propagated features lie in memory; use device or pinned")
        if self.own_ratio and (self.hop_rows != "mean" or not self.hops):
            raise ValueError("features.own_ratio needs features.hops and features.hop_rows mean")
        if not 0 <= self.device_ratio <= 1 or (self.device_ratio and self.storage != PINNED):
            raise ValueError(
                f"features.device_ratio must be from 0 to 1, and above 0 only with features.storage pinned; got "
                f"{self.device_ratio} with {self.storage}"
            )
        if not 0 <= self.cache_ratio < math.inf:
            raise ValueError(f"features.cache_ratio must be at least 0, got {self.cache_ratio}")

    @property
    def is_off_device(self) -> bool:
        """Whether rows are to lie elsewhere than in the memory of the device, whether or not it has room."""
        return self.storage in (PINNED, FILE)

    @property
    def needs_memory(self) -> bool:
        """Whether rows cannot stay in the part files: propagated ones are made when a run starts."""
        return self.hops > 0


@dataclass
class GraphTrainConfig(TrainConfig):
    """The training loop.

    Attributes:
        epochs: Number of passes through the training seeds, which are labeled nodes or edges.
        batch_size: Number of seeds in a global batch, over all ranks together.
        full_graph: Full-graph training: a step computes the whole graph, and no neighbor is sampled. Labels of nodes
            are learned full-batch: the loss is a mean over all training nodes, and train.batch_size has no effect. Of
            links, a step has train.batch_size. sampling.fanouts has no effect.
    """

    full_graph: bool = False


GRAPH_BASELINES: dict[str, Any] = LINK_BASELINES | NODE_BASELINES


@dataclass
class GraphBaselineConfig(LinkBaselineConfig):
    """A baseline in the place of the model: nothing is trained, validation and test are scored.

    Attributes:
        kind: Rule to evaluate in place of the model: of links, with eval.ranking destinations or filtered only, or of
            classes of nodes.
        exponents: Exponents of baseline link_propagation, by which it divides paths: of the number of edges of the
            known answer, of the other query, and of the answer. The larger one, the less popular nodes count.
        l2: Weight of the squared weights of baseline ease. Larger values trust frequent pairs alone.
        relations: Relations (src.rel.dst) along which baseline label_propagation sends labels; empty: all.
        steps: Number of steps of baseline label_propagation.
        alpha: Share of the neighbors' labels in a step of baseline label_propagation; the rest is the node's label.
    """

    kind: Annotated[str, GRAPH_BASELINES] = ""
    relations: list[str] = field(default_factory=list)
    steps: int = 50
    alpha: float = 0.9

    def __post_init__(self):
        super().__post_init__()
        if self.steps < 1 or not 0 < self.alpha < 1:
            raise ValueError(
                "baseline.steps must be at least 1, and baseline.alpha between 0 and 1, got "
                f"{self.steps} and {self.alpha}"
            )


@dataclass
class StaticConfig(Sections):
    """A run on a static graph, typed or not."""

    KIND = "static"

    data: GraphDataConfig = field(default_factory=GraphDataConfig)
    task: OneTaskConfig = field(default_factory=GraphTaskConfig)
    sampling: GraphSamplingConfig = field(default_factory=GraphSamplingConfig)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    node_embedding: EmbeddingConfig = field(default_factory=EmbeddingConfig)
    model: GraphModelConfig = field(default_factory=GraphModelConfig)
    train: GraphTrainConfig = field(default_factory=GraphTrainConfig)
    eval: GraphEvalConfig = field(default_factory=GraphEvalConfig)
    baseline: GraphBaselineConfig = field(default_factory=GraphBaselineConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self):
        check_time_groups(self.comm)
        check_parallel_epochs(self.train)
        check_graphs(self.train, self.task.loss_path)
        check_train_split(self.eval.train_split, self.train)
        if self.eval.train_split and self.task.further:
            raise ValueError("eval.train_split does not work with task.more: leave it false")
        if self.eval.train_split and self.task.of_edges and self.task.message_splits != ALL:
            remedy = "train.train_metrics true" if self.task.kind == LINK else f"task.message_splits {ALL}"
            raise ValueError(
                "eval.train_split: in evaluation training edges carry messages, so each would be scored with itself as "
                f"a message; leave it false, or use {remedy}"
            )
        tasks: list[OneTaskConfig] = [self.task, *self.task.further.values()]
        if self.eval.ranking and not self.learns_links:
            raise ValueError(f"eval.ranking needs task.kind link, not {self.task.kind}")
        if self.eval.ranking == POOLED and self.task.is_typed:
            raise ValueError(f"eval.ranking {POOLED}: given pairs have no edge type, which {self.task.decoder} reads")
        if self.eval.message_edges != TRAINING and not any(task.hides_edges for task in tasks):
            raise ValueError(
                f"eval.message_edges {self.eval.message_edges} is for task.kind {OR_EDGES}, with task.message_splits "
                f"{TRAINING}: leave it out"
            )
        _check_queries(self)
        if CONVOLUTIONS[self.model.kind].make is None and not self.model.class_path and not self.task.of_edges:
            raise ValueError(f"model.kind {self.model.kind} is for task.kind {OR_EDGES}: use another model.kind")
        if self.task.negative_sharing != EDGE and self.train.train_metrics:
            raise ValueError(f"train.train_metrics needs task.negative_sharing edge, not {self.task.negative_sharing}")
        _check_edge_columns(self)
        if self.sampling.time_column:
            _check_times(self)
        if self.features.hops and self.task.of_edges and self.task.message_splits != ALL:
            raise ValueError(
                "features.hops: propagated features would hold the edges that are learned: set it 0, or "
                f"task.message_splits {ALL}"
            )
        if self.features.standardize and self.model.class_path:
            raise ValueError("features.standardize is for built-in models: leave out model.class_path or standardize")
        if self.comm.server_features:
            _check_sampler_features(self)
        _check_paths(self)
        if self.train.full_graph:
            _check_full_graph(self)
        elif not self.model.class_path:
            _check_mini_batches(self)
        if self.eval.correct_and_smooth:
            _check_smoothing(self)
        if self.task.further:
            _check_tasks(self, tasks)
        if self.baseline.kind:
            _check_baseline(self)

    @property
    def features_of_steps(self) -> FeatureConfig:
        """The section ``features``, with storage "device" in place of "auto" where steps need features there."""
        needs_device = self.train.full_graph or self.task.over_all or self.train.needs_graphs
        if needs_device and self.features.storage == AUTO:
            return replace(self.features, storage=DEVICE)
        return self.features

    @property
    def sends_messages(self) -> bool:
        """Whether nodes see neighbors."""
        return bool(self.sampling.fanouts) or self.train.full_graph

    @property
    def baseline_name(self) -> str:
        """The baseline that is evaluated in the place of a model; empty: there is a model."""
        return self.baseline.kind

    def of_task(self, name: str) -> StaticConfig:
        """Return the configuration of one of several tasks, with its random numbers, batches and evaluation; empty: of
        the main task, which is this one."""
        if not name:
            return self
        task: FurtherTaskConfig = self.task.further[name]
        evaluation = self.eval
        if task.kind != LINK:
            evaluation = replace(evaluation, ranking="", negatives_file="", negatives_sha256="",
                                 exact=evaluation.scores_all)  # fmt: skip
        if not task.hides_edges:
            evaluation = replace(evaluation, message_edges="train")
        number = list(self.task.further).index(name) + 1
        train = replace(
            self.train, seed=seed_of(self.train.seed, number), batch_size=task.batch_size or self.train.batch_size,
            train_metrics=False, cuda_graphs=OFF,  # a step of several tasks is no graph
        )  # fmt: skip
        return replace(self, task=task, train=train, eval=evaluation)

    @property
    def by_task(self) -> dict[str, StaticConfig]:
        """The configurations of all tasks, the main one's first, with an empty name."""
        return {name: self.of_task(name) for name in ("", *self.task.further)}

    def resolve_inputs(self) -> None:
        """Make the paths of inputs absolute, and read the sha256 of the file of negatives. Raises ValueError for one
        that is missing."""
        super().resolve_inputs()
        self.eval.negatives_file = self.eval.negatives_file and os.path.abspath(self.eval.negatives_file)
        self.eval.negatives_sha256 = sha256_of(self.eval.negatives_file)

    def evaluated_by(
        self, protocol: Any, negatives_file: str, baseline: Any, changes: dict[str, Any] | None = None
    ) -> Sections:  # fmt: skip
        """Return the configuration with another evaluation, or a baseline in place of the model. Raises ValueError for
        words of other kinds of graphs, for keys without an effect, and where the file of negatives has another content
        than when the run began."""
        changes = dict(changes or {})
        if negatives_file:
            changes |= {"negatives_file": negatives_file, "negatives_sha256": sha256_of(negatives_file)}
        elif changes.get("ranking", self.eval.ranking) not in GIVEN:
            changes |= {"negatives_file": "", "negatives_sha256": ""} if self.eval.negatives_file else {}
        elif self.eval.negatives_sha256 and sha256_of(self.eval.negatives_file) != self.eval.negatives_sha256:
            raise ValueError(
                f"eval.negatives_file: {self.eval.negatives_file} is not what it was when the run began (another "
                "sha256): put the old file back"
            )
        config = super().evaluated_by(protocol, "", "" if baseline in GRAPH_BASELINES else baseline, changes)
        if baseline in ("", self.baseline.kind):
            return config
        train, evaluation = replace(config.train, callbacks=[]), replace(config.eval, correct_and_smooth=False)
        return replace(config, baseline=GraphBaselineConfig(baseline), train=train, eval=evaluation)

    def sampled_by(self, fanouts: list[int]) -> Sections:
        """Return the configuration with other fanouts of validation and test. Raises ValueError for fanouts that do not
        fit the run, and where all neighbors are used."""
        whole = {
            "train.full_graph scores with all neighbors: leave it out": self.train.full_graph,
            f"eval.ranking {self.eval.ranking} scores with all neighbors: leave it out, or add --eval.ranking drawn": (
                bool(self.eval.ranking)
            ),
            "eval.exact scores with all neighbors: leave it out, or add --eval.exact false": self.eval.exact,
        }
        for problem, is_used in whole.items():
            if is_used:
                raise ValueError(f"--sampling.eval_fanouts: {problem}")
        return replace(self, sampling=replace(self.sampling, eval_fanouts=fanouts))

    @property
    def learns_links(self) -> bool:
        """Whether any task is link prediction."""
        return any(task.kind == LINK for task in (self.task, *self.task.further.values()))

    def check_evaluation(self, changes: dict[str, Any]) -> None:
        """Raise ValueError for changed keys of ``eval`` that have no effect on this run."""
        super().check_evaluation(changes)
        whole = "train.full_graph" if self.train.full_graph else f"eval.ranking {self.eval.ranking}"
        if changes.get("exact") is False and (self.train.full_graph or self.eval.ranking):
            raise ValueError(f"--eval.exact false: {whole} always scores with all neighbors: leave it out")


def message_columns(config: StaticConfig) -> list[str]:
    """List the columns of edges that blocks have, besides weights that multiply messages."""
    return list(dict.fromkeys([*config.sampling.edge_columns, *[EDGE_FEATURE] * config.model.edge_features]))


def seed_of(seed: int, number: int) -> int:
    """Derive the seed, below 2^56, of the random numbers of a further task, counted from 1: no two tasks of a run draw
    the same."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {number}".encode(), digest_size=7).digest(), "big")


def _check_tasks(config: StaticConfig, tasks: list[OneTaskConfig]) -> None:
    """Raise ValueError for settings that do not go with several tasks."""
    settings = {
        "train.full_graph": config.train.full_graph, "train.cuda_graphs on": config.train.needs_graphs,
        "comm.sampling_servers": config.comm.sampling_servers > 0,
        f"eval.ranking {config.eval.ranking} of several tasks of kind link": (
            config.eval.ranking in GIVEN and sum(task.kind == LINK for task in tasks) > 1
        ),
        "task.message_edges typed and both": any(task.message_edges != STORED for task in tasks),
    }  # fmt: skip
    if used := _used(settings):
        raise ValueError(f"task.more: training of several tasks does not go with {used}: leave it out, or task.more")
    for name in config.task.further:
        with of_task(name):
            config.of_task(name)


def _check_smoothing(config: StaticConfig) -> None:
    """Raise ValueError for settings that do not go with a correction of the outputs of all nodes."""
    if config.task.kind != NODE:
        raise ValueError(f"eval.correct_and_smooth is for task.kind {NODE}, not {config.task.kind}: leave it false")
    if not (config.eval.exact or config.train.full_graph):
        raise ValueError("eval.correct_and_smooth needs the outputs of all nodes: set eval.exact true")
    settings = {"eval.train_split": config.eval.train_split, "task.more": bool(config.task.further)}
    if used := _used(settings):
        raise ValueError(f"eval.correct_and_smooth gives training nodes their labels, of one task: leave out {used}")


def _check_baseline(config: StaticConfig) -> None:
    """Raise ValueError for settings that do not go with a rule in place of the model."""
    kind = config.baseline.kind
    if kind in NODE_BASELINES and config.task.kind != NODE:
        raise ValueError(f"baseline.kind {kind} predicts classes of nodes: use task.kind {NODE}, or leave it empty")
    if kind in LINK_BASELINES and (config.task.kind != LINK or config.eval.ranking not in AMONG_ALL):
        raise ValueError(
            f"baseline.kind {kind} ranks links among all nodes: use task.kind {LINK} and eval.ranking "
            f"{' or '.join(AMONG_ALL)}, or leave it empty"
        )
    settings = {
        "task.more": bool(config.task.further), "comm.sampling_servers": config.comm.sampling_servers > 0,
        f"eval.message_edges {config.eval.message_edges}": config.eval.message_edges != TRAINING,
        "train.callbacks": bool(config.train.callbacks), "eval.correct_and_smooth": config.eval.correct_and_smooth,
    }  # fmt: skip
    if used := _used(settings):
        raise ValueError(f"baseline.kind {kind} scores one task by its training data: leave out {used}")


def _used(settings: dict[str, Any]) -> str:
    """Name the settings that are in use."""
    return ", ".join(name for name, is_used in settings.items() if is_used)


def _check_edge_columns(config: StaticConfig) -> None:
    """Raise ValueError for columns of edges where they are no inputs, or are not sent."""
    edges = {
        "sampling.edge_columns": config.sampling.edge_columns, "model.edge_weights": config.model.edge_weights,
        "model.edge_features": config.model.edge_features,
    }  # fmt: skip
    if config.task.of_edges and (answers := [n for n in ("label", "split") if n in config.sampling.edge_columns]):
        raise ValueError(
            f"sampling.edge_columns: {answers[0]} is no input of task.kind {config.task.kind}: leave it out"
        )
    if config.comm.sampling_servers and (used := _used(edges)):
        raise ValueError(f"{used}: sampling servers send no edge columns; leave comm.sampling_servers 0")
    if config.train.needs_graphs and (used := _used(edges)):
        raise ValueError(f"train.cuda_graphs on: CUDA graphs do not work with {used}; leave one out")


def _check_queries(config: StaticConfig) -> None:
    """Raise ValueError for settings that do not go with queries against all nodes in every step, or with separate rows
    for queries of sources."""
    if config.task.reciprocal and config.eval.ranking not in AMONG_ALL:
        raise ValueError(
            "task.reciprocal has other rows for queries of sources, which drawn negatives do not use: use eval.ranking "
            f"{' or '.join(AMONG_ALL)}"
        )
    if not config.task.over_all:
        return
    loss = f"task.loss {config.task.loss}"
    if not config.train.full_graph and (CONVOLUTIONS[config.model.kind].make or config.model.class_path):
        bare = " or ".join(name for name, part in CONVOLUTIONS.items() if part.make is None)
        raise ValueError(
            f"{loss} scores all nodes in every step, and sampled neighbors make rows of some: use model.kind "
            f"{bare}, train.full_graph true, or task.loss softmax with task.negative_sharing {SHARED}"
        )
    if not config.eval.scores_all:
        raise ValueError(f"{loss} draws no negatives: use eval.ranking {AMONG_ALL[0]}, or eval.exact true")
    settings = {
        "train.train_metrics": config.train.train_metrics, "train.cuda_graphs on": config.train.needs_graphs,
        "comm.sampling_servers": config.comm.sampling_servers > 0,
        f"features.storage {config.features.storage}": config.features.is_off_device,
        "features.wire": config.features.wire, "task.more": config.task.further,
    }  # fmt: skip
    if used := _used(settings):
        raise ValueError(f"{loss} scores all nodes at their owners in every step: leave out {used}")


def _check_paths(config: StaticConfig) -> None:
    """Raise ValueError for a decoder of paths without the model that has them, and for settings that such a model does
    not read."""
    kind, decoder, model = config.model.kind, config.task.decoder, config.model
    of_paths = config.task.kind == LINK and DECODERS[decoder].of_paths
    if of_paths != model.by_query:
        kinds = " or ".join(name for name, part in CONVOLUTIONS.items() if part.by_query)
        decoders = names_with(DECODERS, "of_paths")
        remedy = f"model.kind {kinds}" if of_paths else f"task.kind {LINK} with task.decoder {decoders}"
        key = f"task.decoder {decoder}" if of_paths else f"model.kind {kind}"
        raise ValueError(f"{key} is for paths from the nodes of queries: it needs {remedy}")
    if not of_paths:
        return
    if not config.task.over_all or config.eval.ranking not in AMONG_ALL:
        raise ValueError(
            f"model.kind {kind} scores queries with all nodes: use task.loss {names_with(LOSSES, 'over_all')}, and "
            f"eval.ranking {' or '.join(AMONG_ALL)}"
        )
    task, features = config.task, config.features
    settings = {
        "model.dropout": model.dropout, "model.input_dropout": model.input_dropout, "model.residual": model.residual,
        "model.linear_skip": model.linear_skip, "model.input_layer": model.input_layer,
        f"model.output_layer {model.output_layer}": model.output_layer != "none",
        f"model.norm {model.norm}": NORMS[model.norm].over_all, "task.reciprocal": task.reciprocal,
        "task.relation_dropout": task.relation_dropout, "task.penalty": task.penalty,
        "features.hops": features.hops, "features.standardize": features.standardize,
        "node_embedding.types": config.node_embedding.types,
    }  # fmt: skip
    if used := _used(settings):
        raise ValueError(f"model.kind {kind} has states of queries alone: leave out {used}")


def _check_sampler_features(config: StaticConfig) -> None:
    """Raise ValueError for settings that need features on the ranks that train."""
    settings = {
        "eval.exact": config.eval.exact,
        "eval.ranking": config.eval.ranking,
        "features.cache_ratio": config.features.cache_ratio > 0,
        "features.standardize": config.features.standardize,
        "features.hops": config.features.hops > 0,
        "features.storage pinned": config.features.storage == PINNED,
    }
    if used := _used(settings):
        raise ValueError(
            f"comm.server_features: ranks that train hold no features: leave out {used}, or comm.server_features"
        )


def _check_times(config: StaticConfig) -> None:
    """Raise ValueError for settings that compute a node once for all seeds, or share nodes between seeds."""
    settings = {
        "eval.exact": config.eval.exact,
        f"eval.ranking {config.eval.ranking}": config.eval.ranking,
        "train.full_graph": config.train.full_graph,
        f"task.negative_sharing {config.task.negative_sharing}": config.task.negative_sharing != EDGE,
        "comm.sampling_servers": config.comm.sampling_servers > 0,
    }
    if used := _used(settings):
        raise ValueError(
            f"sampling.time_column: every seed has its own time, at which its neighbors are drawn: leave out {used}, "
            "or sampling.time_column"
        )


def _check_mini_batches(config: StaticConfig) -> None:
    """Raise ValueError for built-in models that mini-batches do not train."""
    model, fanouts = config.model, config.sampling.fanouts
    if model.layers != len(fanouts):
        raise ValueError(f"sampling.fanouts {fanouts} needs one number a layer, and model.layers is {model.layers}")
    if CONVOLUTIONS[model.kind].over_all:
        raise ValueError(f"model.kind {model.kind} weighs relations by means over all nodes: set train.full_graph true")
    if model.by_query:
        raise ValueError(f"model.kind {model.kind} computes states of all nodes: set train.full_graph true")
    if NORMS[model.norm].over_all:
        raise ValueError(f"model.norm {model.norm} takes means over all nodes: set train.full_graph true, or use layer")


def _check_full_graph(config: StaticConfig) -> None:
    """Raise ValueError for settings that only mini-batches have."""
    sampling, features = config.sampling, config.features
    settings = {
        f"task.kind {config.task.kind}": config.task.of_edges and config.task.kind != LINK,
        f"model.kind {config.model.kind}": CONVOLUTIONS[config.model.kind].make is None and not config.model.class_path,
        f"eval.message_edges {config.eval.message_edges}": config.eval.message_edges != TRAINING,
        "train.cuda_graphs on": config.train.needs_graphs,
        "comm.sampling_servers": config.comm.sampling_servers > 0,
        "sampling.relation_fanouts": sampling.relation_fanouts,
        "sampling.eval_fanouts": sampling.eval_fanouts,
        "sampling.class_path": sampling.class_path,
        f"features.storage {features.storage}": features.is_off_device,
        "features.cache_ratio": features.cache_ratio > 0,
        "features.wire": features.wire,
    }
    if used := _used(settings):
        raise ValueError(
            f"train.full_graph passes over the whole graph in every step: leave out {used}, or train.full_graph"
        )
