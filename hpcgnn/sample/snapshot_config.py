"""The run file's ``sampling`` and ``inputs`` sections of snapshot graphs."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.choices import check_choices

KEPT, FRESH = "kept", "fresh"
DEGREES = ("none", "log", "onehot")


@dataclass
class SnapshotSamplingConfig:
    """Which snapshots a prediction sees, and how neighbours in other ranks are reached.

    Attributes:
        history: snapshots that a prediction sees, its own last; 0: all before it, the model's state is carried on from
            step to step (truncated backpropagation: gradients end where a step begins).
        horizon: a prediction is for so many snapshots later; 0: for its own.
        shuffle: of history above 0: training takes targets in random order.
        updates: training steps on the same snapshots, one after the other, before it goes on to the next ones; what
            train.train_metrics tells is of the first of them. With train.batch_size 1 and train.epochs 1 every snapshot
            is predicted by a model that has learnt from all before it: the live update of ROLAND.
        weighted: messages are multiplied by the edges' column weight, where there is one.
        boundary: share of the neighbours in other parts that a training step sees, drawn anew for every step (BNS-GCN;
            what is known of nodes without learning is always added up whole); 1: all.
        halo_staleness: hidden rows of neighbours in other parts are brought in one epoch, and used, without gradient,
            in so many epochs that follow; 0: brought in every step.
        routes: "kept": neighbourhoods and routes of all snapshots stay in memory; "fresh": they are made for every
            step.
        prefetch: plans made ahead in the background; 0: none; -1: 3 where ranks have a core (or a GPU) besides their
            compute threads, else none.
    """

    history: int = 0
    horizon: int = 1
    shuffle: bool = False
    updates: int = 1
    weighted: bool = True
    boundary: float = 1.0
    halo_staleness: int = 0
    routes: str = KEPT
    prefetch: int = -1

    def __post_init__(self):
        check_choices("sampling", self, {"routes": (KEPT, FRESH)})
        if min(self.history, self.horizon) < 0 or self.prefetch < -1:
            raise ValueError("sampling.history and sampling.horizon must be at least 0, sampling.prefetch at least -1")
        if self.updates < 1:
            raise ValueError(f"sampling.updates must be at least 1, got {self.updates}")
        if not 0 < self.boundary <= 1 or self.halo_staleness < 0:
            raise ValueError("sampling.boundary must be above 0 and at most 1, sampling.halo_staleness at least 0")
        if self.halo_staleness and (self.shuffle or self.boundary < 1):
            raise ValueError(
                "sampling.halo_staleness keeps rows for the same step of later epochs: it needs sampling.shuffle false "
                "and sampling.boundary 1"
            )
        if self.shuffle and not self.history:
            raise ValueError("sampling.shuffle needs sampling.history above 0: state is carried in order of time")

    @property
    def by_part(self) -> bool:
        """Whether neighbours in other parts are not as good as those of the same, on whatever rank they are."""
        return self.boundary < 1 or self.halo_staleness > 0


@dataclass
class SnapshotInputConfig:
    """What is known of a node in a snapshot: its features (column ``feat``), and the following.

    Attributes:
        lags: the newest values of its target, so many snapshots' (up to the snapshot's own).
        degrees: its in- and out-degree in the snapshot: "none", "log" (log of 1 + degree), "onehot".
        degree_classes: of onehot: degrees above are the last class.
        embedding: learnt numbers of the node, so many; -1: model.hidden of them where nothing else is known, else none.
    """

    lags: int = 0
    degrees: str = "none"
    degree_classes: int = 32
    embedding: int = -1

    def __post_init__(self):
        check_choices("inputs", self, {"degrees": DEGREES})
        if self.lags < 0 or self.embedding < -1 or self.degree_classes < 2:
            raise ValueError(
                "inputs.lags must be at least 0, inputs.embedding at least -1, inputs.degree_classes at least 2"
            )
