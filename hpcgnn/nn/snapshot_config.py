"""What a model of snapshots is made of."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.choices import check_choices

KINDS = ("gcn", "tgcn")
WINDOWED_KINDS = ()


@dataclass
class SnapshotModelConfig:
    """The network.

    Attributes:
        class_path: a model class of your own, such as package.module.Class; empty: the parts below.
        kind: "gcn" (no memory of earlier snapshots), "tgcn" (GRU over graph convolutions of the inputs).
        layers: graph convolutions, one behind the other.
        hidden: width of hidden rows.
        dropout: of hidden rows, keyed by node, snapshot and column.
    """

    class_path: str = ""
    kind: str = "tgcn"
    layers: int = 1
    hidden: int = 32
    dropout: float = 0.0

    def __post_init__(self):
        check_choices("model", self, {"kind": KINDS})
        if min(self.hidden, self.layers) < 1:
            raise ValueError("model.hidden and model.layers must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout must be in [0, 1), got {self.dropout}")
