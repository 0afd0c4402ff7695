"""What a model of snapshots is made of."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.choices import check_choices

MODEL_KINDS = (
    "gcn", "sage", "gat", "tgcn", "tgcn_joint", "a3tgcn", "gconv_gru", "gconv_lstm", "dcrnn", "mpnn_lstm",
    "evolvegcn_o", "evolvegcn_h", "roland", "dysat",
)  # fmt: skip
WINDOWED_KINDS = ("a3tgcn", "dysat")
ATTENTION_KINDS = ("gat", "dysat")
NORMED_KINDS = ("gcn", "sage", "gat", "mpnn_lstm", "roland")
GRU, AVERAGE, CONCAT = "gru", "average", "concat"
NONE, BATCH = "none", "batch"


@dataclass
class SnapshotModelConfig:
    """The network.

    Attributes:
        class_path: a model class of your own, such as package.module.Class; empty: the parts below.
        kind: without memory of earlier snapshots: "gcn" (Kipf and Welling 2017), "sage" (Hamilton et al.
            2017), "gat" (Velickovic et al. 2018). Recurrent: "tgcn" (Zhao et al. 2019: GRU over graph convolutions of
            the inputs), "tgcn_joint" (likewise, of inputs and hidden rows), "a3tgcn" (Zhu et al. 2020: attention over
            the window's hidden rows of T-GCN), "gconv_gru" and "gconv_lstm" (Seo et al. 2018: GRU and LSTM of Chebyshev
            filters), "dcrnn" (Li et al. 2018: GRU of random walks both ways), "mpnn_lstm" (Panagopoulos et al. 2021:
            two LSTM layers over graph convolutions), "evolvegcn_o" and "evolvegcn_h" (Pareja et al. 2020: graph
            convolutions whose matrices change by a GRU, of itself or of the best-scored rows), "roland" (You et al.
            2022: the hidden rows of every layer are updated). "dysat" (Sankar et al. 2020: graph attention, then
            attention over the window).
        layers: graph convolutions, one behind the other; of tgcn_joint, gconv_gru, gconv_lstm and dcrnn: such units.
        hidden: width of hidden rows.
        order: of gconv_gru, gconv_lstm and dcrnn: terms of a filter, steps along the edges and one.
        heads: of gat and dysat; they divide hidden.
        update: of roland: "gru", "average" (old and new rows, weighed by the node's edges), "concat" (two layers over
            both).
        dropout: of hidden rows between layers, keyed by node, snapshot and column.
        norm: "batch": of gcn, sage, gat, mpnn_lstm and roland: batch normalisation in every layer, over all nodes of a
            snapshot; "none".
    """

    class_path: str = ""
    kind: str = "tgcn"
    layers: int = 1
    hidden: int = 32
    order: int = 2
    heads: int = 4
    update: str = GRU
    dropout: float = 0.0
    norm: str = NONE

    def __post_init__(self):
        check_choices("model", self, {"kind": MODEL_KINDS, "update": (GRU, AVERAGE, CONCAT), "norm": (NONE, BATCH)})
        if min(self.hidden, self.layers, self.order, self.heads) < 1:
            raise ValueError("model.hidden, model.layers, model.order and model.heads must be at least 1")
        if self.kind in ATTENTION_KINDS and self.hidden % self.heads:
            raise ValueError(f"model.heads ({self.heads}) must divide model.hidden ({self.hidden})")
        if self.norm == BATCH and self.kind not in NORMED_KINDS and not self.class_path:
            raise ValueError(f"model.norm batch is for model.kind {', '.join(NORMED_KINDS)}; got {self.kind}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"model.dropout must be in [0, 1), got {self.dropout}")
