"""What a model of static graphs is made of."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.choices import check_choices

EMBEDDING = "embedding"
MODEL_KINDS = ("sage", "gcn", "gat", "rgcn", "rgat", EMBEDDING)
AGGREGATORS = ("mean", "sum", "max")
ACTIVATIONS = ("relu", "gelu", "elu", "none")
NORMS = ("none", "layer")
ATTENTION_KINDS = ("gat", "rgat")
RELATIONAL_KINDS = ("rgcn", "rgat")


@dataclass
class GraphModelConfig:
    """The network.

    Attributes:
        class_path: a model class of your own, such as package.module.Class; empty: the parts below.
        kind: "sage" (own row and aggregated neighbours), "gcn" (normalised by the degrees of both ends), "gat"
            (attention over neighbours), "rgcn" (a matrix a relation), "rgat" (matrix and attention a relation). gcn and
            gat are for graphs of one relation. "embedding": no layers, a node is its own row alone (of link).
        layers: hops; as many as sampling.fanouts has entries, where anything is sampled; of embedding 0.
        hidden: width of hidden rows and of learnt embeddings.
        heads: attention heads of gat and rgat; must divide hidden.
        dropout: of hidden rows, keyed by node and column.
        input_dropout: of the input rows, likewise.
        aggregator: of sage and rgcn: "mean", "sum" or "max" of the neighbours of one relation.
        activation: "relu", "gelu", "elu" or "none".
        norm: "layer" norm of hidden rows, or "none".
        residual: layers are added to their input; an input and an output product of their own stand around them.
        feed_forward: with residual: width, in units of hidden, of a two-layer network in every block; 0: none.
        bases: of rgcn and rgat: relations' matrices are sums of so many shared ones; 0: each its own.
        self_loop: gcn and gat: a node is its own neighbour; rgcn and rgat: its own row is added through a matrix.
        basis_rows: of rgcn with bases, on graphs without features: a node learns a row for each basis and one for its
            self loop, in place of one row and matrices of the first layer: Schlichtkrull et al., 2018, on one-hot rows.
        low_memory: of rgcn: relations one after the other, formed again in the backward pass.
    """

    class_path: str = ""
    kind: str = "sage"
    layers: int = 3
    hidden: int = 128
    heads: int = 4
    dropout: float = 0.0
    input_dropout: float = 0.0
    aggregator: str = "mean"
    activation: str = "relu"
    norm: str = "none"
    residual: bool = False
    feed_forward: int = 0
    bases: int = 0
    self_loop: bool = True
    basis_rows: bool = False
    low_memory: bool = False

    @property
    def node_columns(self) -> tuple[str, ...]:
        """What a batch must tell of its nodes: "identity" for dropout, "degree" for gcn; both for a class_path."""
        drops = self.dropout > 0 or self.input_dropout > 0
        wanted = {"identity": drops or self.class_path, "degree": self.kind == "gcn" or self.class_path}
        return tuple(name for name, needed in wanted.items() if needed)

    @property
    def row_width(self) -> int:
        """Width of the learnable rows of nodes."""
        return self.hidden * (self.bases + self.self_loop) if self.basis_rows else self.hidden

    def __post_init__(self):
        check_choices("model", self, {
            "kind": MODEL_KINDS, "aggregator": AGGREGATORS, "activation": ACTIVATIONS, "norm": NORMS,
        })  # fmt: skip
        if min(self.hidden, self.heads) < 1:
            raise ValueError("model.hidden and model.heads must be at least 1")
        if self.layers < 0 or (not self.class_path and (self.layers == 0) != (self.kind == EMBEDDING)):
            raise ValueError(
                "model.layers must be at least 1, and for model.kind embedding 0 (with sampling.fanouts []), got "
                f"{self.layers} for {self.kind}"
            )
        for name in ("dropout", "input_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"model.{name} must be in [0, 1), got {getattr(self, name)}")
        if min(self.bases, self.feed_forward) < 0:
            raise ValueError("model.bases and model.feed_forward must be at least 0")
        self._check_kind()

    def _check_kind(self) -> None:
        if self.kind in ATTENTION_KINDS and self.hidden % self.heads:
            raise ValueError(f"model.heads ({self.heads}) must divide model.hidden ({self.hidden})")
        if self.bases and self.kind not in RELATIONAL_KINDS:
            raise ValueError(f"model.bases shares the matrices of relations, model.kind is {self.kind}: use bases 0")
        if self.basis_rows and (self.kind != "rgcn" or self.bases == 0 or self.residual or self.layers < 2):
            raise ValueError(
                "model.basis_rows puts the bases of the first of several layers into the nodes' rows: it needs "
                "model.kind rgcn, model.bases above 0, at least 2 model.layers and no model.residual"
            )
        if self.low_memory and self.kind != "rgcn":
            raise ValueError(f"model.low_memory is for model.kind rgcn, not {self.kind}")
        if self.feed_forward and not self.residual:
            raise ValueError(
                "model.feed_forward is a part of residual blocks: set model.residual true, or feed_forward 0"
            )
