"""Predictions for every node at the last snapshots, with the graph's original ids.

n nodes of this rank, C outputs.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import numpy as np
import torch

from hpcgnn.comm.together import together
from hpcgnn.loop.answer_file import AnswerColumns, answer_with, text
from hpcgnn.loop.session import Session
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.snapshots.goals import NODE, REGRESSION
from hpcgnn.snapshots.session import follow

TYPE = "type"  # column of the nodes that holds their types


def check(arguments: Namespace, config: SnapshotConfig) -> SnapshotConfig:
    """Return the configuration that ``hpcgnn.predict`` opens a run with. Raises ValueError for arguments of other
    kinds."""
    if arguments.pairs or arguments.nodes:
        raise ValueError(
            "--pairs and --nodes are not for snapshot graphs, whose runs predict for all nodes: leave them out"
        )
    hidden = config.task.kind not in (REGRESSION, NODE)
    if hidden and not arguments.embeddings:
        raise ValueError(
            f"predictions of task.kind {config.task.kind} are about pairs of nodes, which this command does not write: "
            "use --embeddings to write the rows of nodes that score pairs"
        )
    if arguments.embeddings and not hidden:
        raise ValueError(f"--embeddings: the outputs of task.kind {config.task.kind} are predictions; leave it out")
    return config


def answer(session: Session, arguments: Namespace) -> None:
    """Collective. Write the predictions for all nodes at the last snapshots."""
    answer_with(arguments.out, forecast_nodes(session, arguments.snapshots), "nodes", session.world)


def forecast(session: Session) -> Iterator[tuple[int, torch.Tensor]]:
    """Collective. Yield snapshots and the model's outputs [n, C] there, from the first one after training to the
    graph's last; a state that is carried on must be that after training. Where splits begin without state, from the
    first one of training."""
    if session.forgets:
        session.memory.reset()
    yield from follow(session, range(_first(session), session.partition.num_snapshots))


def _first(session: Session) -> int:
    """The first snapshot that can be predicted from."""
    snapshots = session.loaders["train"].snapshots
    return snapshots.start if session.forgets else snapshots.stop


def forecast_nodes(session: Session, last: int) -> AnswerColumns:
    """Collective. Return the model's outputs for every node at each of the ``last`` snapshots, as the columns of
    ``_named``. Further columns are the node's original id (its row where the graph has none), and its type where the
    graph has several.

    Raises DistributedError for more snapshots than follow the training snapshots, or, where splits are of nodes, than
    there are from the first training snapshot on.
    """
    partition = session.partition
    most = partition.num_snapshots - _first(session)
    with together(session.world, "predict"):
        if most < 1:
            raise ValueError("no snapshot follows the training snapshots: train with data.test_snapshots above 0")
        if not 1 <= last <= most:
            which = "from the first of training on" if session.forgets else "after those of training"
            raise ValueError(f"--snapshots must be 1 to {most}, the snapshots {which}; got {last}")
    columns = {"node": text(partition.columns.get("id", partition.flat_row))}
    if TYPE in partition.names and TYPE in partition.columns:
        columns[TYPE] = np.array(partition.names[TYPE])[partition.columns[TYPE]]
    for number, rows in forecast(session):
        if number >= partition.num_snapshots - last:
            columns |= _named(session, number, session.goal.in_units(rows).cpu().numpy())
    order = np.argsort(partition.flat_row)
    columns = {name: column[order] for name, column in columns.items()}
    return AnswerColumns(partition.flat_row[order], partition.book.num_nodes, columns)


def _named(session: Session, number: int, outputs: np.ndarray) -> dict[str, np.ndarray]:
    """Name the outputs [n, C] at a snapshot after the snapshot t that they are for: of numbers ``snapshot_t``, of
    several steps ``snapshot_t_from_number``, numbers as in the source; of classes ``class_t``, by name where the graph
    has them, and outputs ``snapshot_t`` [n, C]; hidden rows are ``embedding_number``, after their own snapshot."""
    task, target = session.config.task, number + session.config.task.horizon
    if task.kind == NODE:
        chosen, names = outputs.argmax(axis=1), session.partition.names.get(task.target, [])
        best = np.array(names)[chosen] if len(names) == outputs.shape[1] else chosen
        return {f"class_{target}": best, f"snapshot_{target}": outputs}
    if task.kind != REGRESSION:
        return {f"embedding_{number}": outputs}
    steps = np.split(outputs, task.forecast_steps, axis=1)
    of = f"_from_{number}" if task.forecast_steps > 1 else ""
    single = steps[0].shape[1] == 1
    return {f"snapshot_{target + step}{of}": rows[:, 0] if single else rows for step, rows in enumerate(steps)}
