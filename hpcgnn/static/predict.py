"""Predicts all nodes of the type that a run on a static graph learnt, exactly, by the graph's original ids.

n nodes of a rank, N of all ranks, C classes, W width.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from jsonargparse import Namespace

from hpcgnn.comm.together import together
from hpcgnn.loop.node_file import NodeColumns, answer_with_nodes, text
from hpcgnn.loop.session import Session
from hpcgnn.static.config import SHARDED, StaticConfig
from hpcgnn.static.goals import NodeGoal
from hpcgnn.static.inference import last_rows


def check(arguments: Namespace, config: StaticConfig) -> StaticConfig:
    """Return the configuration that ``hpcgnn.predict`` opens a run with. Raises ValueError for arguments of other
    kinds."""
    if arguments.snapshots != 1:
        raise ValueError("--snapshots is for runs on snapshots: leave it out")
    if arguments.pairs or arguments.nodes:
        raise ValueError("--pairs and --nodes are for runs on temporal graphs; this one predicts all nodes: --out")
    return replace(config, sampling=replace(config.sampling, topology=SHARDED))  # nothing is sampled


def answer(session: Session, arguments: Namespace) -> None:
    """Collective. Write classes and outputs, or embeddings, of all nodes of the learnt type."""
    answer_with_nodes(arguments.out, predict_nodes(session, arguments.embeddings), session.world)


def predict_nodes(session: Session, embeddings: bool = False) -> NodeColumns:
    """Collective. Predict the nodes of this rank: original id (the row where the graph has none), predicted class (not
    where a node may have several labels), and outputs [n, C], or, with ``embeddings``, the rows [n, W] before the
    output layer; of a model without such a layer these are the outputs.

    Raises DistributedError for a run that learnt links.
    """
    with together(session.world, "predict"):
        if not isinstance(session.goal, NodeGoal):
            raise ValueError("predict writes the nodes of runs with task.kind node; this one learnt links")
    partition, kind = session.partition, session.goal.node_type
    nodes, base = partition.of_type(kind), partition.book.type_base()
    rows = last_rows(session)
    with torch.no_grad():
        outputs = session.model.last(rows)[nodes].cpu().numpy()
    row = partition.flat_row[nodes] - base[kind]
    columns = {"node": text(partition.columns[kind].get("id", row))}
    columns |= {} if session.goal.several else {"class": outputs.argmax(axis=1)}
    columns |= {"embedding": rows[nodes].cpu().numpy()} if embeddings else {"output": outputs}
    order = np.argsort(row)
    total = int(base[kind + 1] - base[kind])
    return NodeColumns(row[order], total, {name: column[order] for name, column in columns.items()})
