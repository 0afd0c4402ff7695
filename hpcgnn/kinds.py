"""The kinds of graphs: how a run of each kind is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.loop.session import BaseSession
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.snapshots.session import SnapshotSession
from hpcgnn.static.config import WHOLE, StaticConfig
from hpcgnn.static.sampler_ranks import Samplers
from hpcgnn.static.session import FullGraphSession, GraphSession
from hpcgnn.temporal.session import Session


def make_session(
    config: Any, path: str, world: World, watchdog: Watchdog, samplers: Samplers | None = None
) -> BaseSession:
    """Collective. The session of a configuration's kind of graph; samplers: the ranks that draw for one on a static
    graph, if any."""
    if isinstance(config, StaticConfig) and config.sampling.mode == WHOLE:
        return FullGraphSession(config, path, world, watchdog)
    if isinstance(config, StaticConfig):
        return GraphSession(config, path, world, watchdog, samplers)
    if isinstance(config, SnapshotConfig):
        return SnapshotSession(config, path, world, watchdog)
    return Session(config, path, world, watchdog)


def make_built_in(config: Any, parts: Path) -> None:
    """Write the built-in graph of a run without data beside ``parts``, and partition it into it."""
    from data_tools.synthetic import (
        built_in,  # the one place where hpcgnn stands on data_tools, and only such a run does
    )

    data = config.data
    if isinstance(config, StaticConfig):
        built_in.make_synthetic_graph(parts, data.synthetic_nodes, links=config.task.kind == "link")
    elif isinstance(config, SnapshotConfig):
        built_in.make_synthetic_snapshots(parts, data.synthetic_nodes, data.synthetic_snapshots)
    else:
        built_in.make_synthetic(parts, data.synthetic_events)
