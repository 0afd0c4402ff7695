"""What a model of snapshots says of every node at the last snapshots, by the graph's original ids.

n nodes of a rank, C outputs.
"""

from __future__ import annotations

import numpy as np

from hpcgnn.comm.together import together
from hpcgnn.loop.node_file import NodeColumns, text
from hpcgnn.run.snapshot_session import SnapshotSession


def forecast_nodes(session: SnapshotSession, last: int) -> NodeColumns:
    """Collective. Original id (the row where the graph has none), and the model's outputs [n, C] at each of the
    ``last`` snapshots, named after its number: of what lies ``sampling.horizon`` later, numbers as in the source.

    Raises DistributedError for more snapshots than follow those of training.
    """
    partition = session.partition
    known = partition.num_snapshots - session.splits["train"].stop
    with together(session.world, "predict"):
        if not 1 <= last <= known:
            raise ValueError(f"--snapshots must be 1 to {known}, the snapshots after those of training; got {last}")
    columns = {"node": text(partition.columns.get("id", partition.flat_row))}
    for number, rows in session.forecast():
        if number >= partition.num_snapshots - last:
            columns[f"snapshot_{number}"] = session.goal.in_units(rows).cpu().numpy()
    order = np.argsort(partition.flat_row)
    found = {name: column[order] for name, column in columns.items()}
    return NodeColumns(partition.flat_row[order], partition.book.num_nodes, found)
