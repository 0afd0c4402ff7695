"""A model without layers predicts from sampled neighbors: what evaluation scores, on any number of ranks."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from link_graphs import friends
from mpi4py import MPI
from run_commands import asked
from static_runs import make_static_parts, open_graph_session, plain, static_config, typed
from test_graph_links import FRIENDS, link_config
from torch import nn

from hpcgnn.graph.splits import SPLITS
from hpcgnn.static.model.blocks import rows_of
from hpcgnn.static.predict import embed_ends, predict_nodes, read_pairs, score_pairs
from hpcgnn.static.sampled import sampled_outputs


class Whole(nn.Module):
    """Sums of neighbors, in one pass that has no layers to be taken one by one."""

    def __init__(self, config, sizes):
        super().__init__()
        self.widths = [width or config.hidden for width in sizes.inputs]
        self.product = nn.ModuleList(nn.Linear(width, sizes.outputs) for width in self.widths)

    def forward(self, batch, inputs):
        rows = [product(rows_of(of_type)) for product, of_type in zip(self.product, inputs, strict=True)]
        for block in batch.blocks:
            own = [of_type[:count] for of_type, count in zip(rows, block.num_dst, strict=True)]
            for edges in block.relations:
                destination = torch.repeat_interleave(torch.arange(len(edges.indptr) - 1), edges.indptr.diff())
                messages = rows[edges.src_type][edges.source] / (1 + edges.indptr.diff()[destination, None])
                own[edges.dst_type] = own[edges.dst_type].index_add(0, destination, messages)
            rows = own
        return rows


OWN = {"model__class_path": f"{__name__}.Whole", "sampling__fanouts": [2, 2]}


def by_row(session, outputs: torch.Tensor) -> np.ndarray | None:
    """Outputs of all nodes in order of the graph file, on rank 0."""
    rows, values = (session.world.gather_rows(a) for a in (session.partition.flat_row, outputs.numpy()))
    return None if rows is None else values[np.argsort(rows)]


@pytest.mark.parametrize("make", [plain, typed])
def test_outputs_are_what_evaluation_scores(comm, mpi_tmp_path, make):
    """And those of one rank, for all nodes of the type."""
    parts = make_static_parts(comm, make, mpi_tmp_path)
    session = open_graph_session(comm, parts, static_config(**OWN))
    table = predict_nodes(session)
    output, found = table.slab("output", 0, session.world), by_row(session, sampled_outputs(session))
    scored = [session.scores(split).columns()["output"] for split in SPLITS[1:]]
    scored = [np.concatenate(pieces) for pieces in zip(*comm.allgather(scored), strict=True)]
    if comm.rank:
        return
    lines = {tuple(row) for row in np.round(output, 9)}
    assert all(tuple(row) in lines for split in scored for row in np.round(split, 9))
    assert (np.abs(output).sum(1) > 0).all()
    alone = open_graph_session(MPI.COMM_SELF, parts, static_config(**OWN))
    np.testing.assert_allclose(found, by_row(alone, sampled_outputs(alone)), rtol=1e-9, atol=1e-12)


def test_pairs_are_scored(comm, mpi_tmp_path):
    """By the embeddings that are written."""
    parts = make_static_parts(comm, friends, mpi_tmp_path)
    session = open_graph_session(comm, parts, link_config(task__relation=FRIENDS, **OWN))
    table = embed_ends(session)
    names, rows = (table.slab(name, 0, session.world) for name in ("node", "embedding"))
    src, dst = [0, 1, 2, 3, 4], [5, 4, 3, 9, 0]
    score = score_pairs(session, asked(partial(read_pairs, session), src=src, dst=dst)).slab("score", 0, session.world)
    if comm.rank == 0:
        place = {int(name): at for at, name in enumerate(names)}
        ends = [rows[[place[node] for node in nodes]] for nodes in (src, dst)]
        np.testing.assert_allclose(score, (ends[0] * ends[1]).sum(1), rtol=1e-9)
