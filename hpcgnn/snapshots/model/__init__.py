"""Models of snapshot graphs, by kind."""

from __future__ import annotations

from typing import Any

from hpcgnn.nn.own_class import check_parts, named_errors, own_class
from hpcgnn.snapshots.config import SnapshotModelConfig
from hpcgnn.snapshots.model.evolving import EvolveGCNH, EvolveGCNO
from hpcgnn.snapshots.model.filtered import DCRNN, GConvGRU, GConvLSTM, JointTGCN
from hpcgnn.snapshots.model.frame import SequenceModel, SequenceSizes
from hpcgnn.snapshots.model.recurrent import A3TGCN, MPNNLSTM, TGCN
from hpcgnn.snapshots.model.roland import ROLAND
from hpcgnn.snapshots.model.stacks import DySAT, PlainModel

MODELS: dict[str, type[SequenceModel]] = {
    "gcn": PlainModel, "sage": PlainModel, "gat": PlainModel, "tgcn": TGCN, "tgcn_joint": JointTGCN, "a3tgcn": A3TGCN,
    "gconv_gru": GConvGRU, "gconv_lstm": GConvLSTM, "dcrnn": DCRNN, "mpnn_lstm": MPNNLSTM, "evolvegcn_o": EvolveGCNO,
    "evolvegcn_h": EvolveGCNH, "roland": ROLAND, "dysat": DySAT,
}  # fmt: skip


def make_model(config: SnapshotModelConfig, sizes: SequenceSizes) -> SequenceModel:
    """Make the configured model. Raises ValueError."""
    kind: Any = own_class(config.class_path) if config.class_path else MODELS[config.kind]
    with named_errors(config.class_path):
        model = kind(config, sizes)
    if config.class_path:
        check_parts(model, config.class_path)
    return model
