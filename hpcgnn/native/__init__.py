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
    from hpcgnn.native.neighbor_batch import DrawnFrom, find_pairs, sample_layers, sample_lists, sample_pairs
    from hpcgnn.native.neighbors import sample_neighbors
    from hpcgnn.native.owner import (
        gather_ranges,
        locate,
        locate_by_owner,
        order_of_ranks,
        unique_by_owner,
    )
    from hpcgnn.native.random import Random, Stream, dropout_mask, random_integers
    from hpcgnn.native.relabel import Relabel, last_event, transpose_index, unique_relabel, unique_sorted
    from hpcgnn.native.rows import GatherRows, count_reaching, gather_rows, scatter_rows, segment_sum_rows
    from hpcgnn.native.sage import sage_layer
    from hpcgnn.native.sample import NO_LIMIT, decay_keep, sample_recent, sample_uniform, temporal_reply
    from hpcgnn.native.segment import EdgeLists, graph_attention, segment_max, segment_sum
    from hpcgnn.native.workspace import empty_rows

# What each module adds to this face.
EXPORTS = {
    "attention": ("AttentionPlan", "temporal_attention"),
    "build": ("features",),
    "encode": ("TimeEncode", "time_encode", "time_encode_reference"),
    "grouped": ("grouped_linear", "grouped_linear_reference"),
    "gru": ("GruGates", "gru_gates", "gru_gates_reference"),
    "neighbor_batch": ("DrawnFrom", "find_pairs", "sample_layers", "sample_lists", "sample_pairs"),
    "neighbors": ("sample_neighbors",),
    "owner": ("gather_ranges", "locate", "locate_by_owner", "order_of_ranks", "unique_by_owner"),
    "random": ("Random", "Stream", "dropout_mask", "random_integers"),
    "relabel": ("Relabel", "last_event", "transpose_index", "unique_relabel", "unique_sorted"),
    "rows": ("GatherRows", "count_reaching", "gather_rows", "scatter_rows", "segment_sum_rows"),
    "sage": ("sage_layer",),
    "sample": ("NO_LIMIT", "decay_keep", "sample_recent", "sample_uniform", "temporal_reply"),
    "segment": ("EdgeLists", "graph_attention", "segment_max", "segment_sum"),
    "workspace": ("empty_rows",),
}
__all__ = [name for names in EXPORTS.values() for name in names]


def __getattr__(name: str) -> Any:
    """Load all modules when the first of their names is asked for: they need torch, and tools that assign nodes to
    parts (`hpcgnn.native.parts`) do without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module, names in EXPORTS.items():
        found = vars(importlib.import_module(f"{__name__}.{module}"))
        globals().update({key: found[key] for key in names})
    return globals()[name]
