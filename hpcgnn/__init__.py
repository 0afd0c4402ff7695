"""Graph neural network training on partitioned graphs, as an MPI batch application.

The names below are the public interface: ``from hpcgnn import fit, NeighborLoader``. They are loaded when they are
first used, so that ``import hpcgnn`` stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpcgnn import environment

if TYPE_CHECKING:
    from data_tools.built_in import make_synthetic_graph
    from data_tools.objects import convert_object as convert
    from data_tools.objects import from_edges
    from data_tools.partition.command import partition
    from hpcgnn.comm.gradients import FlatParameters, GradientSum, average_by_seeds, join_process_group
    from hpcgnn.comm.world import CommConfig, DistributedError, World
    from hpcgnn.loop.callbacks import Callback
    from hpcgnn.runs import Run, fit, load_run
    from hpcgnn.snapshots.config import SnapshotModelConfig, SnapshotSamplingConfig
    from hpcgnn.snapshots.loader import SnapshotLoader, SnapshotSequence
    from hpcgnn.snapshots.model.frame import SequenceModel
    from hpcgnn.snapshots.model.spatial import smooth_all
    from hpcgnn.snapshots.step import SequenceRows, SnapshotTask
    from hpcgnn.static.config import FeatureConfig, GraphModelConfig
    from hpcgnn.static.exact import exact_outputs
    from hpcgnn.static.graph import StaticGraph, induced_subgraph
    from hpcgnn.static.link_loader import LinkNeighborLoader
    from hpcgnn.static.loader import NeighborLoader
    from hpcgnn.static.model.blocks import rows_of, stack_first
    from hpcgnn.static.model.models import GraphModel, drop
    from hpcgnn.static.node_embedding import NodeEmbedding
    from hpcgnn.static.sampling.neighbors import NeighborSampler
    from hpcgnn.static.servers.loop import beside_servers
    from hpcgnn.task.labels import LabelScores
    from hpcgnn.task.metrics import (
        class_metrics,
        link_metrics,
        pool_metrics,
        query_metrics,
        ranking_metrics,
        ranks_of,
        regression_metrics,
    )
    from hpcgnn.temporal.config import MemoryConfig, TemporalModelConfig, TemporalSamplingConfig
    from hpcgnn.temporal.loader import TemporalGraph, TemporalLoader, evaluate_links
    from hpcgnn.temporal.mail import Mailing
    from hpcgnn.temporal.memory import NodeMemory
    from hpcgnn.temporal.model.model import TemporalModel

__version__ = "0.1.0"

# What each module adds to the public interface.
EXPORTS = {
    "data_tools.built_in": ("make_synthetic_graph",),
    "data_tools.objects": ("convert", "from_edges"),
    "data_tools.partition.command": ("partition",),
    "hpcgnn.runs": ("fit", "load_run", "Run"),
    "hpcgnn.loop.callbacks": ("Callback",),
    "hpcgnn.comm.world": ("World", "CommConfig", "DistributedError"),
    "hpcgnn.comm.gradients": ("FlatParameters", "GradientSum", "join_process_group", "average_by_seeds"),
    "hpcgnn.static.config": ("FeatureConfig", "GraphModelConfig"),
    "hpcgnn.static.graph": ("StaticGraph", "induced_subgraph"),
    "hpcgnn.static.exact": ("exact_outputs",),
    "hpcgnn.static.loader": ("NeighborLoader",),
    "hpcgnn.static.link_loader": ("LinkNeighborLoader",),
    "hpcgnn.static.node_embedding": ("NodeEmbedding",),
    "hpcgnn.static.servers.loop": ("beside_servers",),
    "hpcgnn.static.sampling.neighbors": ("NeighborSampler",),
    "hpcgnn.static.model.models": ("GraphModel", "drop"),
    "hpcgnn.static.model.blocks": ("rows_of", "stack_first"),
    "hpcgnn.temporal.config": ("TemporalSamplingConfig", "TemporalModelConfig", "MemoryConfig"),
    "hpcgnn.temporal.loader": ("TemporalGraph", "TemporalLoader", "evaluate_links"),
    "hpcgnn.temporal.mail": ("Mailing",),
    "hpcgnn.temporal.memory": ("NodeMemory",),
    "hpcgnn.temporal.model.model": ("TemporalModel",),
    "hpcgnn.snapshots.config": ("SnapshotModelConfig", "SnapshotSamplingConfig"),
    "hpcgnn.snapshots.loader": ("SnapshotSequence", "SnapshotLoader"),
    "hpcgnn.snapshots.model.frame": ("SequenceModel",),
    "hpcgnn.snapshots.model.spatial": ("smooth_all",),
    "hpcgnn.snapshots.step": ("SnapshotTask", "SequenceRows"),
    "hpcgnn.task.labels": ("LabelScores",),
    "hpcgnn.task.metrics": (
        "class_metrics", "link_metrics", "regression_metrics", "ranks_of", "ranking_metrics", "query_metrics",
        "pool_metrics",
    ),
}  # fmt: skip
ORIGINALS = {"convert": "convert_object"}  # names that a module knows by another one
MODULES = {name: module for module, names in EXPORTS.items() for name in names}
__all__ = [name for names in EXPORTS.values() for name in names]

if environment.is_command():
    environment.set_defaults()


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'hpcgnn' has no attribute {name!r}")
    return getattr(import_module(MODULES[name]), ORIGINALS.get(name, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
