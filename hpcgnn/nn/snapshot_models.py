"""Models of snapshot graphs, by kind."""

from __future__ import annotations

from typing import Any

from hpcgnn.nn.dysat import DySAT
from hpcgnn.nn.evolving import EvolveGCNH, EvolveGCNO
from hpcgnn.nn.filtered import DCRNN, GConvGRU, GConvLSTM, JointTGCN
from hpcgnn.nn.own_class import own_class
from hpcgnn.nn.recurrent import A3TGCN, MPNNLSTM, TGCN
from hpcgnn.nn.roland import ROLAND
from hpcgnn.nn.sequence_model import SequenceModel, SequenceSizes
from hpcgnn.nn.snapshot_config import SnapshotModelConfig
from hpcgnn.nn.snapshot_stacks import PlainGAT, PlainGCN, PlainSAGE

MODELS: dict[str, type[SequenceModel]] = {
    "gcn": PlainGCN, "sage": PlainSAGE, "gat": PlainGAT, "tgcn": TGCN, "tgcn_joint": JointTGCN, "a3tgcn": A3TGCN,
    "gconv_gru": GConvGRU, "gconv_lstm": GConvLSTM, "dcrnn": DCRNN, "mpnn_lstm": MPNNLSTM, "evolvegcn_o": EvolveGCNO,
    "evolvegcn_h": EvolveGCNH, "roland": ROLAND, "dysat": DySAT,
}  # fmt: skip


def make_model(config: SnapshotModelConfig, sizes: SequenceSizes) -> SequenceModel:
    """A model as configured. Raises ValueError."""
    kind: Any = own_class(config.class_path) if config.class_path else MODELS[config.kind]
    return kind(config, sizes)
