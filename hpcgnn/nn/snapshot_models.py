"""Models of snapshot graphs: what every one of them offers the run, and how they are made.

n nodes of this rank, k sequences followed at once, H hidden columns.
"""

from __future__ import annotations

from hpcgnn.nn.own_class import own_class
from hpcgnn.nn.recurrent import TGCN, PlainGCN
from hpcgnn.nn.sequence_model import SequenceModel, SequenceSizes
from hpcgnn.nn.snapshot_config import SnapshotModelConfig

MODELS: dict[str, type[SequenceModel]] = {"gcn": PlainGCN, "tgcn": TGCN}


def make_model(config: SnapshotModelConfig, sizes: SequenceSizes) -> SequenceModel:
    """A model as configured. Raises ValueError."""
    return (own_class(config.class_path) if config.class_path else MODELS[config.kind])(config, sizes)
