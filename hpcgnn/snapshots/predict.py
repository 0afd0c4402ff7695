"""What a model predicts for every node at the last snapshots, by the graph's original ids.

n nodes of this rank, C outputs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jsonargparse import Namespace

from hpcgnn.comm.together import together
from hpcgnn.loop.answer_file import AnswerColumns, answer_with, text
from hpcgnn.loop.session import Session
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.snapshots.plan import make_batches


def check(arguments: Namespace, config: SnapshotConfig) -> SnapshotConfig:
    """Return the configuration that ``hpcgnn.predict`` opens a run with. Raises ValueError for arguments of other
    kinds."""
    if arguments.pairs or arguments.nodes:
        raise ValueError("--pairs and --nodes are not for runs on snapshots, which predict all nodes: leave them out")
    if arguments.embeddings:
        raise ValueError("--embeddings is not for runs on snapshots: leave it out")
    return config


def answer(session: Session, arguments: Namespace) -> None:
    """Collective. Write the outputs for all nodes at the last snapshots."""
    answer_with(arguments.out, forecast_nodes(session, arguments.snapshots), "nodes", session.world)


def forecast(session: Session) -> Iterator[tuple[int, torch.Tensor]]:
    """Collective. Yield snapshots and the model's outputs [n, C] there, from the first one after training to the
    graph's last; a state that is carried on must be that after training. Where splits begin without state, from the
    first one of training."""
    loader = session.loaders["train"]
    if session.forgets:
        session.memory.reset()
    numbers = range(_first(session), session.partition.num_snapshots)
    batches = make_batches("forecast", numbers, session.config.train.batch_size, np.zeros(numbers.stop, np.int64))
    for step in range(batches.num_steps):
        session.watchdog.at("forecast", step)
        plan = loader.planner.forecast(batches, step)
        yield from zip(plan.targets, session.task.outputs(plan), strict=True)


def _first(session: Session) -> int:
    """The first snapshot that can be predicted from."""
    snapshots = session.loaders["train"].snapshots
    return snapshots.start if session.forgets else snapshots.stop


def forecast_nodes(session: Session, last: int) -> AnswerColumns:
    """Collective. Predict for every node: original id (the row where the graph has none), and the model's outputs
    [n, C] at each of the ``last`` snapshots, named after its number: of what lies ``sampling.horizon`` later, numbers
    as in the source.

    Raises DistributedError for more snapshots than follow those of training, or, where splits are of nodes, than there
    are from the first one of training on.
    """
    partition = session.partition
    most = partition.num_snapshots - _first(session)
    with together(session.world, "predict"):
        if most < 1:
            raise ValueError("no snapshot follows those of training: train with data.test_snapshots above 0")
        if not 1 <= last <= most:
            which = "from the first of training on" if session.forgets else "after those of training"
            raise ValueError(f"--snapshots must be 1 to {most}, the snapshots {which}; got {last}")
    columns = {"node": text(partition.columns.get("id", partition.flat_row))}
    for number, rows in forecast(session):
        if number >= partition.num_snapshots - last:
            columns[f"snapshot_{number}"] = session.goal.in_units(rows).cpu().numpy()
    order = np.argsort(partition.flat_row)
    columns = {name: column[order] for name, column in columns.items()}
    return AnswerColumns(partition.flat_row[order], partition.book.num_nodes, columns)
