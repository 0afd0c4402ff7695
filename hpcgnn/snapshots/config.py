"""The sections of run files on snapshot graphs, and which of their values go together."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from hpcgnn.choices import check_choices
from hpcgnn.comm.world import CommConfig
from hpcgnn.loop.settings import OutputConfig, Sections, TrainConfig, check_parallel_epochs
from hpcgnn.snapshots.goals import EDGE, EDGE_REGRESSION, GRAPH, NODE, NODES, REGRESSION
from hpcgnn.snapshots.graph import WEIGHT
from hpcgnn.snapshots.link_goal import GOALS, RANKINGS
from hpcgnn.snapshots.model import MODELS
from hpcgnn.snapshots.model.batch_norm import NORMS
from hpcgnn.snapshots.model.roland import UPDATES
from hpcgnn.snapshots.plan import REFUSE
from hpcgnn.task.config import LINK, TaskConfig


@dataclass
class SnapshotSamplingConfig:
    """The snapshots that a prediction sees, and how rows of neighbors come from other ranks.

    Attributes:
        window_size: snapshots that a prediction sees, the one that it is made from last; 0: all before it, the model's
            state is carried on from step to step (truncated backpropagation: gradients end where a step begins).
        shuffle: for window_size above 0: training takes targets in random order.
        updates_per_batch: training steps on the same snapshots, one after the other, before training goes on to the
            next ones; train.train_metrics measures the first of them. With train.batch_size 1 and train.epochs 1 every
            snapshot is predicted by a model that has learned from all before it: the live update of ROLAND.
        halo_ratio: share of the neighbors in other parts that a training step sees, drawn anew for every step (BNS-GCN;
            sums of inputs that are not learned always have all neighbors); 1: all.
        halo_staleness: number of epochs in which hidden rows of neighbors in other parts are used, without gradient,
            after the epoch that brought them; 0: they are brought in every step.
        routes: "kept": neighborhoods and routes of all snapshots stay in memory; "fresh": they are made for every
            step.
        prefetch: plans made ahead in the background; 0: none; -1: 3 where ranks have a core (or a GPU) besides their
            compute threads, or are on several machines, else none.
    """

    window_size: int = 0
    shuffle: bool = False
    updates_per_batch: int = 1
    halo_ratio: float = 1.0
    halo_staleness: int = 0
    routes: Literal["kept", "fresh"] = "kept"
    prefetch: int = -1

    def __post_init__(self):
        check_choices("sampling", self)
        if self.window_size < 0 or self.prefetch < -1:
            raise ValueError("sampling.window_size must be at least 0, sampling.prefetch at least -1")
        if self.updates_per_batch < 1:
            raise ValueError(f"sampling.updates_per_batch must be at least 1, got {self.updates_per_batch}")
        if not 0 < self.halo_ratio <= 1 or self.halo_staleness < 0:
            raise ValueError("sampling.halo_ratio must be above 0 and at most 1, sampling.halo_staleness at least 0")
        if self.halo_staleness and (self.shuffle or self.halo_ratio < 1):
            raise ValueError(
                "sampling.halo_staleness keeps rows for the same step of later epochs: it needs sampling.shuffle false "
                "and sampling.halo_ratio 1"
            )
        if self.shuffle and not self.window_size:
            raise ValueError("sampling.shuffle needs sampling.window_size above 0: state is carried in order of time")

    @property
    def by_part(self) -> bool:
        """Whether a step treats neighbors in other parts unlike neighbors in the same part, on whatever rank they
        are."""
        return self.halo_ratio < 1 or self.halo_staleness > 0


@dataclass
class SnapshotInputConfig:
    """Inputs of a node in a snapshot: its features (column ``feat``), and the following.

    Attributes:
        lags: number of snapshots, up to this one, whose values of the target are inputs.
        unknown: a lag whose target is missing: "refuse" it, take the node's "last" known value (0 before the first), or
            "zero".
        degrees: in- and out-degree in the snapshot: "none", "log" (log of 1 + degree), "onehot".
        degree_classes: for onehot: number of classes; higher degrees are in the last one.
    """

    lags: int = 0
    unknown: Literal["refuse", "last", "zero"] = "refuse"
    degrees: Literal["none", "log", "onehot"] = "none"
    degree_classes: int = 32

    def __post_init__(self):
        check_choices("inputs", self)
        if self.lags < 0 or self.degree_classes < 2:
            raise ValueError("inputs.lags must be at least 0, inputs.degree_classes at least 2")
        if self.unknown != REFUSE and not self.lags:
            raise ValueError(f"inputs.unknown {self.unknown} is for inputs.lags, which are 0")


@dataclass
class SnapshotEmbeddingConfig:
    """Learnable node embeddings, inputs beside the others.

    Attributes:
        dim: width of a node's embedding; -1: model.hidden where there are no other inputs, else 0: none.
    """

    dim: int = -1

    def __post_init__(self):
        if self.dim < -1:
            raise ValueError(f"node_embedding.dim must be at least -1, got {self.dim}")


@dataclass
class SnapshotModelConfig:
    """The model.

    Attributes:
        class_path: a model class of your own, such as package.module.Class; empty: the parts below.
        kind: which model.
        layers: graph convolutions, one behind the other; of models of filters: recurrent units.
        hidden: width of hidden rows.
        order: terms of a filter: the rows themselves, and 1, 2, .. steps along the edges.
        heads: attention heads; they divide hidden.
        update: of roland: what becomes of a layer's hidden rows.
        dropout: share of hidden rows between layers that is dropped, keyed by node, snapshot and column.
        norm: normalization of hidden rows.
        edge_weights: messages are multiplied by the edges' column weight, where there is one.
    """

    class_path: str = ""
    kind: Annotated[str, MODELS] = "tgcn"
    layers: int = 1
    hidden: int = 32
    order: int = 2
    heads: int = 4
    update: Annotated[str, UPDATES] = "gru"
    dropout: float = 0.0
    norm: Annotated[str, NORMS] = "none"
    edge_weights: bool = True

    def __post_init__(self):
        check_choices("model", self)
        if min(self.hidden, self.layers, self.order, self.heads) < 1:
            raise ValueError("model.hidden, model.layers, model.order and model.heads must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout must be in [0, 1), got {self.dropout}")
        if not self.class_path:
            self._check_options()

    def _check_options(self) -> None:
        """Raise ValueError for keys that the model does not read, and heads that do not fit."""
        options = MODELS[self.kind].options
        if "heads" in options and self.hidden % self.heads:
            raise ValueError(f"model.heads ({self.heads}) must divide model.hidden ({self.hidden})")
        for key in fields(self):
            value, readers = getattr(self, key.name), [kind for kind in MODELS if key.name in MODELS[kind].options]
            if readers and key.name not in options and value != key.default:
                raise ValueError(f"model.{key.name} {value} is for model.kind {', '.join(readers)}; got {self.kind}")


@dataclass
class SnapshotDataConfig:
    """The graph and its splits.

    Attributes:
        path: folder of a partition set; empty: a built-in synthetic graph.
        val_ratio: share of the snapshots that predictions are made from, for validation; unset: 0.1.
        test_ratio: share of these snapshots for the test, at the end; unset: 0.2.
        val_snapshots: number of snapshots for validation; -1: by ratio.
        test_snapshots: number of snapshots for the test; -1: by ratio.
        split_by: "time": training, validation and test follow each other, by the shares or numbers above; "graph": so,
            too, by the splits that the graph names, as facts do; "nodes": for task.kind node, the column ``split``
            divides the nodes, in all snapshots; "auto": nodes where no node's class changes, else time.
        check_hash: compare every part with its hash in the book before use.
        stage_to: a folder on a disk of the machine that a rank copies its parts to first; empty: none. Environment
            variables in it, such as '$TMPDIR', have the values of each job that trains the run.
        synthetic_nodes: number of nodes of the built-in graph.
        synthetic_snapshots: number of snapshots of the built-in graph.
    """

    path: str = ""
    val_ratio: float | None = None
    test_ratio: float | None = None
    val_snapshots: int = -1
    test_snapshots: int = -1
    split_by: Literal["auto", "time", "nodes", "graph"] = "auto"
    check_hash: bool = True
    stage_to: str = ""
    synthetic_nodes: int = 400
    synthetic_snapshots: int = 40

    def __post_init__(self):
        check_choices("data", self)
        val, test = self.fractions
        if not (val >= 0 and test >= 0 and val + test < 1):
            raise ValueError("data.val_ratio and data.test_ratio must be >= 0 and leave something to train on")
        if min(self.val_snapshots, self.test_snapshots) < -1:
            raise ValueError("data.val_snapshots and data.test_snapshots must be at least 0, or -1: by ratio")
        if self.synthetic_nodes < 20 or not 10 <= self.synthetic_snapshots < 1 << 16:
            raise ValueError("data.synthetic_nodes must be at least 20, data.synthetic_snapshots 10 to 65535")
        self._check_splits()

    def _check_splits(self) -> None:
        """Raise ValueError for a share beside a number of snapshots, or beside the graph's own splits."""
        for split in ("val", "test"):
            share, count = getattr(self, f"{split}_ratio"), getattr(self, f"{split}_snapshots")
            if share is not None and count >= 0:
                raise ValueError(f"data.{split}_ratio is {share}, data.{split}_snapshots is {count}: give one")
        if self.split_by == GRAPH:
            self.refuse_shares("data.split_by graph takes the splits that the graph names")

    @property
    def fractions(self) -> tuple[float, float]:
        """Shares of the snapshots for validation and test."""
        return (
            0.1 if self.val_ratio is None else self.val_ratio,
            0.2 if self.test_ratio is None else self.test_ratio,
        )

    def refuse_shares(self, reason: str) -> None:
        """Raise ValueError for shares or numbers of snapshots that are set, but not read for a reason."""
        for key in fields(self):
            if key.name.startswith(("val_", "test_")) and getattr(self, key.name) != key.default:
                raise ValueError(f"data.{key.name} has no effect: {reason}; leave it unset")

    def split(self, first: int, last: int) -> dict[str, range]:
        """Divide the snapshots ``first`` .. ``last`` that predictions are made from into splits, in order of time.
        Raises ValueError when none is left to train on."""
        total = last - first + 1
        val, test = (
            round(fraction * total) if count < 0 else count
            for fraction, count in zip(self.fractions, (self.val_snapshots, self.test_snapshots), strict=True)
        )
        train = total - val - test
        if train < 1:
            raise ValueError(
                f"{max(0, total)} snapshots can be predicted from, {val} for validation and {test} for the test: none "
                "is left to train on; lower inputs.lags, sampling.window_size or the shares of data"
            )
        begin = first + train
        return {
            "train": range(first, begin), "val": range(begin, begin + val), "test": range(begin + val, last + 1)
        }  # fmt: skip


@dataclass
class SnapshotTaskConfig(TaskConfig):
    """The task: what is learned of a snapshot, from the snapshots before it.

    Attributes:
        kind: what is predicted.
        target: name of the column that holds it; "degree", where the graph has no such: of regression, log of 1 +
            in-degree.
        horizon: number of snapshots between the one that a prediction is made from and the one that it is for; 0: the
            same snapshot.
        forecast_steps: for regression: number of snapshots predicted at once, the first one ``horizon`` later.
        undirected: for link: the graph has every edge in both directions; one of them, drawn for each pair and
            snapshot, is learned.
        new_links: for link: leave out edges that the snapshot has from which predictions are made.
        negatives: for link: number of negatives drawn for every edge in training.
        negative_ends: for link: a negative has the edge's source and a drawn "destination", or "both" ends are drawn.
        strict: for link: no negative is an edge of the snapshot, nor a node with itself.
    """

    kind: Annotated[str, GOALS] = "regression"
    target: str = "target"
    horizon: int = 1
    forecast_steps: int = 1
    undirected: bool = False
    new_links: bool = False
    negatives: int = 1
    negative_ends: Literal["destination", "both"] = "destination"
    strict: bool = False

    def __post_init__(self):
        super().__post_init__()
        for name in ("forecast_steps", "negatives"):
            if getattr(self, name) < 1:
                raise ValueError(f"task.{name} must be at least 1, got {getattr(self, name)}")
        if self.horizon < 0:
            raise ValueError(f"task.horizon must be at least 0, got {self.horizon}")


@dataclass
class SnapshotTrainConfig(TrainConfig):
    """The loop.

    Attributes:
        epochs: passes over the snapshots of training.
        batch_size: snapshots that a step predicts from, on all ranks together, one after the other in time; where state
            is carried on gradients go back no further. As many as there are, or more, make an epoch one step.
    """

    batch_size: int = 8


@dataclass
class SnapshotEvalConfig:
    """Validation and test.

    Attributes:
        negatives: for link: number of negatives drawn for every edge, the same in all epochs.
        ranking: for link: what edges are ranked among.
    """

    negatives: int = 1
    ranking: Annotated[str, RANKINGS] = ""

    def __post_init__(self):
        check_choices("eval", self)
        if self.negatives < 1:
            raise ValueError(f"eval.negatives must be at least 1, got {self.negatives}")


@dataclass
class SnapshotConfig(Sections):
    """A run on a snapshot graph."""

    KIND = "snapshots"

    data: SnapshotDataConfig = field(default_factory=SnapshotDataConfig)
    task: SnapshotTaskConfig = field(default_factory=SnapshotTaskConfig)
    sampling: SnapshotSamplingConfig = field(default_factory=SnapshotSamplingConfig)
    inputs: SnapshotInputConfig = field(default_factory=SnapshotInputConfig)
    node_embedding: SnapshotEmbeddingConfig = field(default_factory=SnapshotEmbeddingConfig)
    model: SnapshotModelConfig = field(default_factory=SnapshotModelConfig)
    train: SnapshotTrainConfig = field(default_factory=SnapshotTrainConfig)
    eval: SnapshotEvalConfig = field(default_factory=SnapshotEvalConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self):
        check_parallel_epochs(self.train)
        if self.train.cuda_graphs:
            raise ValueError("train.cuda_graphs: steps of snapshots are launched kernel by kernel; leave it false")
        if self.data.split_by == NODES and self.task.kind != NODE:
            raise ValueError(f"data.split_by nodes is for task.kind node, not {self.task.kind}")
        if self.comm.sampling_servers:
            raise ValueError("comm.sampling_servers is for static graphs: nothing is sampled of snapshots; leave it 0")
        if self.train.drop_last and not self.sampling.window_size:
            raise ValueError("train.drop_last leaves snapshots out of the state that is carried on; set it false")
        self._check_known()
        self._check_ranking()
        if MODELS[self.model.kind].windowed and not self.model.class_path and not self.sampling.window_size:
            raise ValueError(
                f"model.kind {self.model.kind} looks back over a window: set sampling.window_size to its length, 2 or "
                "more"
            )

    def _check_known(self) -> None:
        """Raise ValueError for settings whose inputs would contain the target."""
        task, horizon, by_nodes = self.task, self.task.horizon, self.data.split_by == NODES
        if self.inputs.lags and task.kind in (REGRESSION, NODE) and not horizon:
            raise ValueError("inputs.lags are the target's values up to a snapshot's own: set task.horizon above 0")
        if self.inputs.lags and by_nodes:
            raise ValueError("inputs.lags would show the labels of all nodes: leave it 0 with data.split_by nodes")
        if task.kind == LINK and not horizon:
            raise ValueError(
                "task.horizon 0: messages travel on the very edges that task.kind link asks for; set it above 0"
            )
        is_weight = task.kind in (EDGE, EDGE_REGRESSION) and task.target == WEIGHT
        if is_weight and self.model.edge_weights and not horizon:
            raise ValueError(
                "task.horizon 0: messages are multiplied by the task.target weight that is asked for; set "
                "model.edge_weights false, or task.horizon above 0"
            )

    def _check_ranking(self) -> None:
        """Raise ValueError for a ranking that does not fit the task."""
        task, ranking = self.task, self.eval.ranking
        if ranking and task.kind != LINK:
            raise ValueError(f"eval.ranking needs task.kind link, not {task.kind}")
        if RANKINGS[ranking].whole and task.is_typed:
            raise ValueError(f"task.decoder {task.decoder} ranks edges by their types: use eval.ranking filtered")
        if RANKINGS[ranking].whole and (task.undirected or task.new_links):
            raise ValueError(f"eval.ranking {ranking} ranks all edges: leave task.undirected and task.new_links off")

    @property
    def num_groups(self) -> int:
        """The most groups of ranks that train parts of time side by side."""
        return self.comm.time_groups
