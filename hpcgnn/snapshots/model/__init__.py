"""Models of snapshot graphs, and their table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcgnn.choices import Part
from hpcgnn.nn.own_class import check_parts, named_errors, own_class
from hpcgnn.snapshots.model.evolving import EvolveGCNH, EvolveGCNO
from hpcgnn.snapshots.model.filtered import DCRNN, GConvGRU, GConvLSTM, JointTGCN
from hpcgnn.snapshots.model.frame import SequenceModel, SequenceSizes
from hpcgnn.snapshots.model.recurrent import A3TGCN, MPNNLSTM, TGCN
from hpcgnn.snapshots.model.regcn import REGCN
from hpcgnn.snapshots.model.roland import ROLAND
from hpcgnn.snapshots.model.stacks import DySAT, PlainGAT, PlainGCN, PlainSAGE
from hpcgnn.snapshots.model.wavenet import GraphWaveNet


@dataclass(frozen=True)
class ModelPart(Part):
    """A model. make: makes it from the section ``model`` and SequenceSizes; options: the keys of the section that this
    model reads and some other models do not. windowed: it looks back over a window, which ``sampling.window_size`` must
    give; evolves: it has rows of edge types, with which a typed decoder scores links; drops_one: dropout also
    has an effect with one layer, and not only between layers."""

    make: Callable[[Any, SequenceSizes], SequenceModel]
    options: tuple[str, ...] = ()
    windowed: bool = False
    evolves: bool = False
    drops_one: bool = False


MODELS = {
    "gcn": ModelPart(PlainGCN, "GCN without recurrence (Kipf and Welling 2017)", ("norm",)),
    "sage": ModelPart(PlainSAGE, "GraphSAGE without recurrence (Hamilton et al. 2017)", ("norm",)),
    "gat": ModelPart(PlainGAT, "GAT without recurrence (Velickovic et al. 2018)", ("heads", "norm")),
    "tgcn": ModelPart(TGCN, "GRU over graph convolutions of the inputs (Zhao et al. 2019)"),
    "tgcn_joint": ModelPart(
        JointTGCN, "GRU over graph convolutions of inputs and hidden rows (Zhao et al. 2019)", drops_one=True
    ),
    "a3tgcn": ModelPart(A3TGCN, "attention over a window's hidden rows of tgcn (Zhu et al. 2020)", windowed=True),
    "gconv_gru": ModelPart(GConvGRU, "GRU of Chebyshev filters (Seo et al. 2018)", ("order",), drops_one=True),
    "gconv_lstm": ModelPart(GConvLSTM, "LSTM of Chebyshev filters (Seo et al. 2018)", ("order",), drops_one=True),
    "dcrnn": ModelPart(
        DCRNN, "GRU of random walks along in-edges and out-edges (Li et al. 2018)", ("order",), drops_one=True
    ),
    "graph_wavenet": ModelPart(
        GraphWaveNet, "gated convolutions over time, random walks and a learned adjacency (Wu et al. 2019)", ("order",),
        windowed=True, drops_one=True,
    ),
    "mpnn_lstm": ModelPart(MPNNLSTM, "two LSTM layers over graph convolutions (Panagopoulos et al. 2021)", ("norm",)),
    "evolvegcn_o": ModelPart(EvolveGCNO, "GCN whose matrices a GRU updates (Pareja et al. 2020)"),
    "evolvegcn_h": ModelPart(EvolveGCNH, "evolvegcn_o whose GRU reads the best-scored rows (Pareja et al. 2020)"),
    "roland": ModelPart(ROLAND, "GraphSAGE with updates of its hidden rows (You et al. 2022)", ("update", "norm")),
    "regcn": ModelPart(
        REGCN, "graph convolutions by edge type, whose rows a GRU updates, and a gate over a window (Li et al. 2021)",
        windowed=True, evolves=True, drops_one=True,
    ),
    "dysat": ModelPart(DySAT, "gat, then attention over a window (Sankar et al. 2020)", ("heads",), windowed=True),
}  # fmt: skip


def make_model(config: Any, sizes: SequenceSizes) -> SequenceModel:
    """Make the model that the section ``model`` names. Raises ValueError."""
    kind: Any = own_class(config.class_path) if config.class_path else MODELS[config.kind].make
    with named_errors(config.class_path):
        model = kind(config, sizes)
    if config.class_path:
        check_parts(model, config.class_path)
    return model
