"""The registry of the kinds of graphs. Each has the class of its run files, and functions that open a run, make its
data and write its answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.loop.schema import Schema
from hpcgnn.loop.session import Session
from hpcgnn.loop.settings import Sections
from hpcgnn.snapshots import baselines as snapshot_baselines
from hpcgnn.snapshots import predict as snapshot_answers
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.snapshots.session import open_session as open_snapshots
from hpcgnn.static import predict as static_answers
from hpcgnn.static.config import StaticConfig
from hpcgnn.static.sampler_ranks import beside_samplers
from hpcgnn.static.session import baseline_metrics as static_baseline_metrics
from hpcgnn.static.session import open_session as open_static
from hpcgnn.task.baselines import LINK_BASELINES
from hpcgnn.temporal import baselines
from hpcgnn.temporal import predict as temporal_answers
from hpcgnn.temporal.config import TemporalConfig
from hpcgnn.temporal.eval_config import expand_eval
from hpcgnn.temporal.eval_negatives import EVAL_NEGATIVES
from hpcgnn.temporal.session import open_session as open_temporal


def without_servers(config, path, world, watchdog, log, train: Callable[..., int]) -> int:
    """Collective. Call ``train`` with all ranks and None: there are no sampling servers."""
    return train(world, None)


@dataclass(frozen=True)
class Kind:
    """A kind of graph.

    config: the class of its run files; data: name of the built-in graph; open: collective, makes a session from a
    configuration. make: writes the built-in graph of a configuration beside a folder, and its partition set into the
    folder; make_slice: writes one part of a graph of any size. check: returns the configuration that ``hpcgnn.predict``
    opens a run with, or raises ValueError for arguments that are not for this kind; answer: collective, writes the
    requested answers. expand: writes out the short forms of a command line. beside_servers: collective, calls a
    function with the world of the ranks that train, and with the sampling servers on the other ranks, if any.
    protocols: words for other evaluations of a run. baselines: names of baselines that can take the place of a model,
    which score_baseline scores.
    """

    config: type[Sections]
    data: str
    open: Callable[..., Session]
    make: Callable[[Any, Path], None]
    make_slice: Callable[..., None]
    check: Callable[[Any, Any], Sections]
    answer: Callable[[Any, Any], None]
    expand: Callable[[list[str]], list[str]] = list
    beside_servers: Callable[..., int] = without_servers
    protocols: tuple[str, ...] = ()
    baselines: tuple[str, ...] = ()
    score_baseline: Callable[..., dict[str, float]] | None = None


def kind_of(config: Sections) -> Kind:
    """The kind of graph that a configuration is for."""
    return KINDS[config.KIND]


def open_session(
    config: Sections, path: str, world: World, watchdog: Watchdog, servers: Any = None, trained: Schema | None = None
) -> Session:
    """Collective. Open the session of a run; servers: its sampling servers, if there are any; trained: what the model
    that is to be loaded needs of a graph."""
    further = () if servers is None else (servers,)
    return kind_of(config).open(config, path, world, watchdog, *further, trained=trained)


def make_built_in(config: Sections, parts: Path) -> None:
    """Write the built-in graph of a run without data beside ``parts``, and partition it into it."""
    kind_of(config).make(config, parts)


# Here alone hpcgnn stands on data_tools, and only when a run without data starts.


def _make_events(config: Any, parts: Path) -> None:
    from data_tools import built_in

    built_in.make_synthetic(parts, config.data.synthetic_events)


def _make_events_slice(*sizes: Any) -> None:
    from data_tools import built_in

    built_in.write_temporal_slice(*sizes)


def _make_snapshots_slice(*sizes: Any, **options: Any) -> None:
    from data_tools import built_in

    built_in.write_snapshot_slice(*sizes, **options)


def _make_static_slice(*sizes: Any) -> None:
    from data_tools import built_in

    built_in.write_static_slice(*sizes)


def _make_static(config: Any, parts: Path) -> None:
    from data_tools import built_in

    built_in.make_synthetic_graph(parts, config.data.synthetic_nodes, links=config.task.of_edges)


def _make_snapshots(config: Any, parts: Path) -> None:
    from data_tools import built_in

    built_in.make_synthetic_snapshots(parts, config.data.synthetic_nodes, config.data.synthetic_snapshots)


DEFAULT_KIND = TemporalConfig.KIND
KINDS = {
    TemporalConfig.KIND: Kind(
        config=TemporalConfig, data="events", make=_make_events, make_slice=_make_events_slice, open=open_temporal,
        check=temporal_answers.check, answer=temporal_answers.answer, expand=expand_eval,
        protocols=("tgb", *EVAL_NEGATIVES), baselines=tuple(filter(None, baselines.BASELINES)),
        score_baseline=baselines.baseline_metrics,
    ),
    StaticConfig.KIND: Kind(
        config=StaticConfig, data="graph", make=_make_static, make_slice=_make_static_slice, open=open_static,
        check=static_answers.check, answer=static_answers.answer, beside_servers=beside_samplers,
        baselines=tuple(filter(None, LINK_BASELINES)), score_baseline=static_baseline_metrics,
    ),
    SnapshotConfig.KIND: Kind(
        config=SnapshotConfig, data="snapshots", make=_make_snapshots, make_slice=_make_snapshots_slice,
        open=open_snapshots,
        check=snapshot_answers.check, answer=snapshot_answers.answer,
        baselines=tuple(filter(None, snapshot_baselines.BASELINES)),
        score_baseline=snapshot_baselines.baseline_metrics,
    ),
}  # fmt: skip
