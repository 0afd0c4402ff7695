"""``python -m hpcgnn.predict run/ --pairs pairs.csv --out scores.csv``: probabilities of events after the end of the
graph. ``--nodes nodes.csv --out embeddings.csv`` (or ``.npz``): embeddings of nodes at such times.

Loads the best epoch, moves node memory through validation and test events, and answers for each (src, dst[, time]) or
(node[, type][, time]) of the file. Ids are those of the source data.

Of a run on a static graph: ``python -m hpcgnn.predict run/ --out nodes.csv`` (or ``.npz``): class and outputs, or
``--embeddings``, of all nodes of the learnt type, with all their neighbours.

Of a run on snapshots: ``python -m hpcgnn.predict run/ --out nodes.csv --snapshots 3``: the model's outputs for all
nodes at the last three snapshots, after it has seen those before: predictions, or of runs on links embeddings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonargparse
import numpy as np

from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.loop import launch
from hpcgnn.loop.node_file import write_nodes
from hpcgnn.loop.settings import Sections
from hpcgnn.reopen import command_parser, open_run, parse
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.snapshots.session import SnapshotSession, forecast_nodes
from hpcgnn.static.config import SHARDED, StaticConfig
from hpcgnn.static.predict import predict_nodes
from hpcgnn.static.session import StaticSession
from hpcgnn.temporal.predict import (
    embed_nodes,
    read_nodes,
    read_pairs,
    replay,
    score_pairs,
    write_embeddings,
    write_scores,
)
from hpcgnn.temporal.session import Session
from hpcgnn.temporal.splits import event_times


def main(world: World, argv: list[str]) -> int:
    """Collective."""
    parser = command_parser("python -m hpcgnn.predict", __doc__)
    parser.add_argument("--pairs", type=str, default="", help="CSV with columns src, dst and optionally time")
    parser.add_argument(
        "--nodes", type=str, default="",
        help="CSV with columns node, type (of graphs with several) and optionally time",
    )  # fmt: skip
    parser.add_argument("--snapshots", type=int, default=1, help="of snapshot graphs: outputs at so many last ones")
    parser.add_argument("--embeddings", action="store_true", help="of static graphs: embeddings in place of outputs")
    parser.add_argument(
        "--out", type=str, required=True,
        help="CSV to write: src, dst, time, score, or node, type, time and the embedding, or node, class and outputs; "
        ".npz: arrays of the same",
    )  # fmt: skip
    arguments, comm = parse(parser, argv, world)
    change = partial(_checked, arguments)
    with open_run(arguments.run, arguments.data.path, comm, world, change) as (session, _):
        if isinstance(session, (StaticSession, SnapshotSession)):
            _write_all(session, arguments)
            return launch.EXIT_DONE
        assert isinstance(session, Session)
        last = int(event_times(session.partition, np.array([session.partition.num_events - 1]), world)[0])
        answer = _score if arguments.pairs else _embed
        answer(session, arguments, last)
    return launch.EXIT_DONE


def _checked(arguments: jsonargparse.Namespace, config: Sections) -> Sections:
    """The run's configuration. Raises ValueError for options that are not for its kind of graph."""
    if not isinstance(config, SnapshotConfig) and arguments.snapshots != 1:
        raise ValueError("--snapshots is for runs on snapshots: leave it out")
    if isinstance(config, (StaticConfig, SnapshotConfig)) and (arguments.pairs or arguments.nodes):
        raise ValueError("--pairs and --nodes are for runs on temporal graphs; this one predicts all nodes: --out")
    if isinstance(config, StaticConfig):
        return replace(config, sampling=replace(config.sampling, topology=SHARDED))  # nothing is sampled
    if isinstance(config, SnapshotConfig) and not arguments.embeddings:
        return config
    if arguments.embeddings:
        raise ValueError("--embeddings is for runs on static graphs; this one embeds the nodes of a file: --nodes")
    if bool(arguments.pairs) == bool(arguments.nodes):
        raise ValueError("give either --pairs or --nodes")
    return config


def _write_all(session: StaticSession | SnapshotSession, arguments: jsonargparse.Namespace) -> None:
    """Collective. Classes and outputs, or embeddings, of all nodes of the learnt type; outputs at the last
    snapshots."""
    world, path = session.world, arguments.out
    if isinstance(session, SnapshotSession):
        nodes = forecast_nodes(session, arguments.snapshots)
    else:
        nodes = predict_nodes(session, arguments.embeddings)
    with together(world, f"write {path}"):
        if world.rank == 0:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_nodes(path, nodes, world)
    if world.rank == 0:
        print(f"{path}: {nodes.total} nodes")


def _score(session: Session, arguments: jsonargparse.Namespace, last: int) -> None:
    """Collective. Probabilities of the pairs."""
    world, kind = session.world, session.config.task.kind
    with together(world, "arguments"):
        if session.config.task.has_labels:
            raise ValueError(f"--pairs scores links, but this run learns labels (task.kind {kind}): use --nodes")
    pairs = launch.on_first_rank(world, "read the pairs", lambda: read_pairs(arguments.pairs, last))
    replay(session)
    scores = score_pairs(session, pairs)
    _write(world, arguments.out, f"{len(pairs)} scores", lambda: write_scores(arguments.out, pairs, scores))


def _embed(session: Session, arguments: jsonargparse.Namespace, last: int) -> None:
    """Collective. Embeddings of the nodes."""
    world, types = session.world, session.partition.book.node_types
    nodes = launch.on_first_rank(world, "read the nodes", lambda: read_nodes(arguments.nodes, types, last))
    replay(session)
    embedding: Any = embed_nodes(session, nodes)
    _write(world, arguments.out, f"{len(nodes)} embeddings", lambda: write_embeddings(arguments.out, nodes, embedding))


def _write(world: World, path: str, what: str, write: Callable[[], None]) -> None:
    """Collective. Rank 0 writes the answer and says ``what`` it is."""
    with together(world, f"write {what}"):
        if world.rank == 0:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write()
            print(f"{path}: {what}")


if __name__ == "__main__":
    sys.exit(launch.run(main))
