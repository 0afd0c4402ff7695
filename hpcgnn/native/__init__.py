"""The Python face of the kernels: argument checks, allocation, autograd functions, CPU/CUDA dispatch.

Planning operations (``random_integers``, ``sample``, ``owner``, ``relabel``) take and return NumPy arrays (CPU) or CUDA
tensors, and release the GIL; compute operations take torch tensors of any device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcgnn.native.attention import AttentionPlan, temporal_attention
    from hpcgnn.native.build import features
    from hpcgnn.native.encode import TimeEncode, time_encode, time_encode_reference
    from hpcgnn.native.grouped import grouped_linear, grouped_linear_reference
    from hpcgnn.native.gru import GruGates, gru_gates, gru_gates_reference
    from hpcgnn.native.neighbor_batch import sample_layers
    from hpcgnn.native.neighbors import sample_neighbors
    from hpcgnn.native.owner import (
        gather_ranges,
        locate,
        locate_by_owner,
        order_of_ranks,
        unique_by_owner,
    )
    from hpcgnn.native.random import Random, Stream, dropout_mask, random_integers
    from hpcgnn.native.relabel import Relabel, last_event, transpose_index, unique_relabel
    from hpcgnn.native.rows import GatherRows, gather_rows, scatter_rows, segment_sum_rows
    from hpcgnn.native.sage import sage_layer
    from hpcgnn.native.sample import NO_LIMIT, decay_keep, sample_recent, sample_uniform, temporal_reply
    from hpcgnn.native.segment import EdgeLists, graph_attention, segment_max, segment_sum
    from hpcgnn.native.workspace import empty_rows

MODULES = ("attention", "build", "encode", "grouped", "gru", "neighbor_batch", "neighbors", "owner", "random",
           "relabel", "rows", "sage", "sample", "segment", "workspace")  # fmt: skip

__all__ = [
    "NO_LIMIT",
    "AttentionPlan",
    "EdgeLists",
    "GatherRows",
    "GruGates",
    "Random",
    "Relabel",
    "Stream",
    "TimeEncode",
    "decay_keep",
    "dropout_mask",
    "empty_rows",
    "features",
    "gather_ranges",
    "gather_rows",
    "graph_attention",
    "grouped_linear",
    "grouped_linear_reference",
    "gru_gates",
    "gru_gates_reference",
    "last_event",
    "locate",
    "locate_by_owner",
    "order_of_ranks",
    "random_integers",
    "sage_layer",
    "sample_layers",
    "sample_neighbors",
    "sample_recent",
    "sample_uniform",
    "scatter_rows",
    "segment_max",
    "segment_sum",
    "segment_sum_rows",
    "temporal_attention",
    "temporal_reply",
    "time_encode",
    "time_encode_reference",
    "transpose_index",
    "unique_by_owner",
    "unique_relabel",
]


def __getattr__(name: str) -> Any:
    """Load all modules when the first of their names is asked for: they need torch, and tools that assign nodes to
    parts (`hpcgnn.native.parts`) do without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in MODULES:
        names = vars(importlib.import_module(f"{__name__}.{module}"))
        globals().update({key: names[key] for key in __all__ if key in names})
    return globals()[name]
