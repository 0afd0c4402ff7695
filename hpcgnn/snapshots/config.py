"""The sections of run files on snapshot graphs, and which of their values go together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal

from hpcgnn.choices import check_choices
from hpcgnn.comm.world import CommConfig
from hpcgnn.loop.settings import OutputConfig, Sections, TrainConfig, check_parallel_epochs, check_train_split
from hpcgnn.nn.decoders import DECODERS
from hpcgnn.snapshots.baselines import BASELINES
from hpcgnn.snapshots.goals import AVERAGES, DIFFERENCES, EDGE, EDGE_REGRESSION, GRAPH, NODE, NODES, REGRESSION
from hpcgnn.snapshots.graph import WEIGHT
from hpcgnn.snapshots.link_goal import GOALS, RANKINGS
from hpcgnn.snapshots.model import MODELS
from hpcgnn.snapshots.model.batch_norm import NORMS
from hpcgnn.snapshots.model.roland import UPDATES
from hpcgnn.snapshots.plan import REFUSE
from hpcgnn.task.config import LINK, TaskConfig
from hpcgnn.task.losses import LOSSES

OF_LAGS = " is of the last inputs.lags values: set inputs.lags above 0"


@dataclass
class SnapshotSamplingConfig:
    """The snapshots that a prediction sees, and how rows of neighbors come from other ranks.

    Attributes:
        window_size: Number of snapshots that a prediction sees; 0: all earlier ones, as the model carries its state
            from step to step. Gradients end where a step begins (truncated backpropagation).
        shuffle: Take the training targets in random order; needs window_size above 0.
        updates_per_batch: Number of training steps on the same snapshots before the next ones; train.train_metrics
            measures the first. With train.batch_size 1 and train.epochs 1, the model has learned from all snapshots
            before the predicted one (live update of ROLAND).
        halo_ratio: Share of the neighbors in other parts that a training step sees, drawn anew for every step
            (BNS-GCN); 1: all. Sums of inputs that are not learned always have all neighbors.
        halo_staleness: Number of epochs that reuse the hidden rows of neighbors in other parts, without gradient, after
            the epoch that exchanged them; 0: exchanged in every step.
        routes: Neighborhoods and routes of the snapshots: "kept" in memory for all, or made "fresh" for every step.
        prefetch: Number of plans made ahead in the background; 0: none. -1: 3 where ranks have a spare core or a GPU,
            or where the job has several machines; else none.
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
        lags: Number of snapshots, up to the current one, whose target values are inputs.
        unknown: Treatment of a missing target value among the lags, or where task.difference_from or a baseline needs
            it. "refuse" the data, take the node's "last" known value (0 before the first), or "zero".
        degrees: Degrees of a node in the snapshot, in and out, as inputs: "none", "log" (log of 1 + degree) or
            "onehot".
        degree_classes: Number of classes of the onehot degrees; the last class has all higher degrees.
        standardize: Subtract the mean of each input that is not learned and divide by its standard deviation. Both are
            of all nodes in the training snapshots, and are stored with the model.
    """

    lags: int = 0
    unknown: Literal["refuse", "last", "zero"] = "refuse"
    degrees: Literal["none", "log", "onehot"] = "none"
    degree_classes: int = 32
    standardize: bool = False

    def __post_init__(self):
        check_choices("inputs", self)
        if self.lags < 0 or self.degree_classes < 2:
            raise ValueError("inputs.lags must be at least 0, inputs.degree_classes at least 2")


@dataclass
class SnapshotEmbeddingConfig:
    """Learnable node embeddings, inputs beside the others.

    Attributes:
        dim: Width of the learnable node embeddings; 0: none; -1: model.hidden if there are no other inputs, else 0.
    """

    dim: int = -1

    def __post_init__(self):
        if self.dim < -1:
            raise ValueError(f"node_embedding.dim must be at least -1, got {self.dim}")


@dataclass
class SnapshotModelConfig:
    """The model.

    Attributes:
        class_path: Custom model class, such as package.module.Class; empty: a built-in model, which the keys below
            describe.
        kind: Model of the sequence of snapshots.
        layers: Number of graph convolutions one after the other. With gconv_gru, gconv_lstm, dcrnn and tgcn_joint:
            number of recurrent units. With graph_wavenet: number of layers, which look back over 2 to this power
            snapshots.
        hidden: Width of the hidden rows.
        order: Number of terms of a graph filter: the rows, then 1, 2, .. steps along the edges. gconv_gru, gconv_lstm
            and dcrnn only.
        heads: Number of attention heads, which must divide hidden; gat and dysat only.
        update: Update of a layer's hidden rows by a new snapshot; roland only.
        dropout: Dropout probability of hidden rows between layers. The draws depend on node, snapshot and column only.
        norm: Normalization of the hidden rows.
        edge_weights: Multiply messages by the column weight of the edges, if the graph has it.
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
        if self.dropout and self.layers == 1 and not MODELS[self.kind].drops_one:
            raise ValueError(
                f"model.dropout {self.dropout:g} is between layers, and model.layers is 1: use more layers, or leave "
                "model.dropout out"
            )
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
        path: Folder of the partition set; empty: a built-in synthetic graph.
        val_ratio: Share of the snapshots for validation, out of the snapshots that predictions are made from; unset:
            0.1.
        test_ratio: Share of the snapshots for the test, at the end, out of the snapshots that predictions are made
            from; unset: 0.2.
        val_snapshots: Number of snapshots for validation; -1: by val_ratio.
        test_snapshots: Number of snapshots for the test; -1: by test_ratio.
        split_by: Division into splits. "time": consecutive snapshots, by the shares or numbers above. "graph": the
            splits that the graph names. "nodes": by the column ``split`` of nodes, for task.kind node. "auto": nodes if
            no node changes its class, else time.
        check_hash: Compare each part with its hash in the book (book.h5) before use.
        stage_to: Folder on a disk of the machine, to which each rank copies its parts before it reads them; empty:
            none. Environment variables in it, such as '$TMPDIR', get their values in each job that starts or resumes
            the run.
        synthetic_nodes: Number of nodes of the built-in graph.
        synthetic_snapshots: Number of snapshots of the built-in graph.
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
        kind: Task, named by the target of its predictions.
        target: Name of the column that holds the target. For regression without such a column, "degree" is log of 1 +
            in-degree.
        horizon: Number of snapshots from the last input to the target; 0: the same snapshot; 1: the next one.
        forecast_steps: Number of snapshots predicted at once, the first one task.horizon later; regression only.
        difference_from: Let the model compute differences to a forecast of the target, up to the input snapshot.
            Losses, metrics and predictions are of the values themselves. Regression only.
        standardize: Let the model compute standardized numbers: the target is their product with the standard deviation
            of the training targets (with difference_from, of the differences) plus their mean. Both are of all nodes,
            and are stored with the model. Regression only.
        undirected: Learn one direction of each edge, drawn for each pair and snapshot, on a graph that has every edge
            in both. Link prediction only.
        new_links: Leave out edges that the last input snapshot already has; link prediction only.
        negatives: Number of training negatives drawn for each edge; link prediction only.
        negative_ends: Ends of an edge that negatives replace: the "destination", or "pair", both at once. Link
            prediction only.
        strict: Avoid negatives that are edges of the snapshot or self-loops; link prediction only.
        recurrency: Add to the score of a pair learned numbers for how many snapshots ago it had an edge, and how
            often, by edge type; link prediction only.
    """

    scores_all: ClassVar[bool] = True

    kind: Annotated[str, GOALS] = "regression"
    target: str = "target"
    horizon: int = 1
    forecast_steps: int = 1
    difference_from: Annotated[str, DIFFERENCES] = ""
    standardize: bool = False
    undirected: bool = False
    new_links: bool = False
    negatives: int = 1
    negative_ends: Literal["destination", "pair"] = "destination"
    strict: bool = False
    recurrency: bool = False

    def __post_init__(self):
        super().__post_init__()
        for name in ("forecast_steps", "negatives"):
            if getattr(self, name) < 1:
                raise ValueError(f"task.{name} must be at least 1, got {getattr(self, name)}")
        if self.horizon < 0:
            raise ValueError(f"task.horizon must be at least 0, got {self.horizon}")
        if self.recurrency and self.kind != LINK:
            raise ValueError(f"task.recurrency is for task.kind {LINK}, not {self.kind}: leave it out")
        for name in ("difference_from", "standardize"):
            if getattr(self, name) and self.kind != REGRESSION:
                raise ValueError(f"task.{name} is for task.kind {REGRESSION}, not {self.kind}: leave it out")
        if self.kind == LINK and LOSSES[self.loss].over_all:
            self._check_queries()
        if self.difference_from and not self.horizon:
            raise ValueError(
                "task.difference_from: with task.horizon 0 the newest value is the target; set task.horizon above 0"
            )

    def _check_queries(self) -> None:
        """Raise ValueError for keys that do not go with queries against all nodes."""
        if LOSSES[self.loss].several:
            raise ValueError(f"task.loss {self.loss} is for static graphs: use one_vs_all")
        if not DECODERS[self.decoder].shares_negatives:
            raise ValueError(f"task.loss {self.loss} needs a task.decoder other than {self.decoder}")
        for name in ("negatives", "negative_kind", "negative_ends", "strict"):
            if self._is_set(name):
                raise ValueError(f"task.{name}: task.loss {self.loss} draws no negatives: leave it out")


@dataclass
class SnapshotTrainConfig(TrainConfig):
    """The loop.

    Attributes:
        epochs: Number of passes through the training snapshots.
        batch_size: Number of consecutive snapshots that a step predicts from, on all ranks together. Where state is
            carried, gradients end at the start of a step. With all training snapshots or more, an epoch is one step.
    """

    batch_size: int = 8


@dataclass
class SnapshotEvalConfig:
    """Validation and test.

    Attributes:
        negatives: Number of negatives drawn for each edge, the same in all epochs; link prediction only.
        ranking: Ranking of edges in validation and test; link prediction only.
        train_split: Also score the training split, as validation is scored, and report its metrics, such as
            train_accuracy. Not together with train.train_metrics.
    """

    negatives: int = 1
    ranking: Annotated[str, RANKINGS] = ""
    train_split: bool = False

    def __post_init__(self):
        check_choices("eval", self)
        if self.negatives < 1:
            raise ValueError(f"eval.negatives must be at least 1, got {self.negatives}")


@dataclass
class SnapshotBaselineConfig:
    """A baseline in the place of the model: nothing is trained, validation and test are scored.

    Attributes:
        kind: Rule to evaluate in place of the model; for regression and link prediction.
        decay: Decay of the score of an earlier edge: 2 to the power of minus this times the snapshots since it.
            Baselines recurrency and recurrency_strict only.
        strict_weight: Weight of recurrency_strict in the sum of baseline recurrency; recurrency_relaxed has the weight
            1 minus this.
    """

    kind: Annotated[str, BASELINES] = ""
    decay: float = 0.02
    strict_weight: float = 0.99999

    def __post_init__(self):
        check_choices("baseline", self)
        if not (0 <= self.decay < math.inf and 0 <= self.strict_weight <= 1):
            raise ValueError("baseline.decay must be at least 0, and baseline.strict_weight 0 to 1")
        for key in fields(self):
            if key.name not in ("kind", *BASELINES[self.kind].options) and getattr(self, key.name) != key.default:
                kind = self.kind or "empty"
                raise ValueError(f"baseline.{key.name}: baseline.kind {kind} does not read it; leave it out")


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
    baseline: SnapshotBaselineConfig = field(default_factory=SnapshotBaselineConfig)
    comm: CommConfig = field(default_factory=CommConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self):
        check_parallel_epochs(self.train)
        check_train_split(self.eval.train_split, self.train)
        if self.train.needs_graphs:
            raise ValueError("train.cuda_graphs on does not work with snapshot graphs: leave it auto")
        if self.data.split_by == NODES and self.task.kind != NODE:
            raise ValueError(f"data.split_by nodes is for task.kind node, not {self.task.kind}")
        if self.comm.sampling_servers:
            raise ValueError(
                "comm.sampling_servers is for static graphs: runs on snapshot graphs do not sample; leave it 0"
            )
        if self.train.drop_last and not self.sampling.window_size:
            raise ValueError("train.drop_last leaves snapshots out of the state that is carried on; set it false")
        self._check_known()
        self._check_ranking()
        if self.baseline.kind:
            self._check_baseline()
        if MODELS[self.model.kind].windowed and not self.model.class_path and not self.sampling.window_size:
            raise ValueError(
                f"model.kind {self.model.kind} looks back over a window: set sampling.window_size to its length, 2 or "
                "more"
            )

    def _check_known(self) -> None:
        """Raise ValueError for settings whose inputs would contain the target."""
        task, horizon, by_nodes = self.task, self.task.horizon, self.data.split_by == NODES
        if self.inputs.unknown != REFUSE and not (self.inputs.lags or task.difference_from or self.baseline.kind):
            raise ValueError(f"inputs.unknown {self.inputs.unknown} is for inputs.lags, which are 0")
        if task.difference_from and AVERAGES[task.difference_from].of_lags and not self.inputs.lags:
            raise ValueError(f"task.difference_from {task.difference_from}{OF_LAGS}")
        if self.inputs.lags and task.kind in (REGRESSION, NODE) and not horizon:
            raise ValueError("inputs.lags include the target of the predicted snapshot: set task.horizon above 0")
        if self.inputs.lags and by_nodes:
            raise ValueError("inputs.lags would show the labels of all nodes: leave it 0 with data.split_by nodes")
        if task.kind == LINK and not horizon:
            raise ValueError(
                "task.horizon 0: messages pass along the edges that task.kind link predicts; set it above 0"
            )
        is_weight = task.kind in (EDGE, EDGE_REGRESSION) and task.target == WEIGHT
        if is_weight and self.model.edge_weights and not horizon:
            raise ValueError(
                "task.horizon 0: messages are multiplied by the task.target weight, which is predicted; set "
                "model.edge_weights false, or task.horizon above 0"
            )

    def _check_ranking(self) -> None:
        """Raise ValueError for a ranking that does not fit the task."""
        task, ranking = self.task, self.eval.ranking
        over_all = task.kind == LINK and LOSSES[task.loss].over_all
        if over_all and self.train.train_metrics:
            raise ValueError(
                f"train.train_metrics are of drawn negatives, and task.loss {task.loss} draws none: leave it false"
            )
        second = MODELS[self.model.kind].evolves and task.is_typed and not self.model.class_path
        if task.kind == LINK and (second or DECODERS[task.decoder].reciprocal) and not over_all:
            what = f"model.kind {self.model.kind}" if second else f"task.decoder {task.decoder}"
            raise ValueError(
                f"{what} has other rows of edge types for queries of sources, which drawn negatives do not train: use "
                "task.loss one_vs_all"
            )
        if ranking and task.kind != LINK:
            raise ValueError(f"eval.ranking needs task.kind link, not {task.kind}")
        if RANKINGS[ranking].whole and task.is_typed:
            raise ValueError(f"task.decoder {task.decoder} ranks edges by their types: use eval.ranking filtered")
        if RANKINGS[ranking].whole and (task.undirected or task.new_links):
            raise ValueError(f"eval.ranking {ranking} ranks all edges: leave task.undirected and task.new_links off")

    def _check_baseline(self) -> None:
        """Raise ValueError for settings that do not go with a rule in place of the model."""
        kind, part = f"baseline.kind {self.baseline.kind}", BASELINES[self.baseline.kind]
        if self.task.kind != part.task:
            what = "forecasts numbers of nodes" if part.task == REGRESSION else "ranks the ends of links"
            raise ValueError(f"{kind} {what}: use task.kind {part.task}, or leave it empty")
        if not self.task.horizon:
            raise ValueError(f"{kind} forecasts: set task.horizon above 0")
        if part.of_lags and not self.inputs.lags:
            raise ValueError(f"{kind}{OF_LAGS}")
        if self.train.callbacks:
            raise ValueError(f"train.callbacks follow training, and {kind} trains nothing: leave out train.callbacks")
        if self.comm.time_groups > 1:
            raise ValueError(f"{kind}: comm.time_groups divides the steps of a model; leave it 1")

    @property
    def baseline_name(self) -> str:
        """The baseline that is evaluated in the place of a model; empty: there is a model."""
        return self.baseline.kind

    def evaluated_by(
        self, protocol: Any, negatives_file: str, baseline: Any, changes: dict[str, Any] | None = None
    ) -> SnapshotConfig:  # fmt: skip
        """Return the configuration with another evaluation, or a baseline in place of the model. Raises ValueError for
        settings that do not go together."""
        other = "" if baseline in BASELINES else baseline
        config: Any = super().evaluated_by(protocol, negatives_file, other, changes)
        if baseline in ("", self.baseline.kind):
            return config
        return replace(
            config, baseline=SnapshotBaselineConfig(baseline), train=replace(config.train, callbacks=[]),
            comm=replace(config.comm, time_groups=1),
        )  # fmt: skip

    @property
    def num_groups(self) -> int:
        """The most groups of ranks that train parts of time side by side."""
        return self.comm.time_groups
