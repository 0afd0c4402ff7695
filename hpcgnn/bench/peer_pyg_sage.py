"""Times PyTorch Geometric's GraphSAGE over the same graph, to compare one rank with: NeighborLoader and SAGEConv."""

from __future__ import annotations

import importlib.util
import time

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from hpcgnn.loop.session import Session
from hpcgnn.static.features import FEATURE

STEPS = 3


def check_installed() -> None:
    """Raise ValueError where PyG, or both packages that its loader can sample with, cannot be imported."""
    pyg, *samplers = (importlib.util.find_spec(name) for name in ("torch_geometric", "pyg_lib", "torch_sparse"))
    if pyg is None or not any(samplers):
        raise ValueError("--peer pyg needs torch-geometric, and pyg-lib or torch-sparse for its NeighborLoader")


def step_seconds(session: Session) -> float:
    """Return the median seconds of a training step, sampling included, after a step that warms up."""
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import GraphSAGE

    partition, config, (rows,) = session.partition, session.config, session.graph.rows
    (edges,) = partition.edges
    dst = np.repeat(np.arange(partition.num_nodes), np.diff(edges.indptr))
    label = torch.from_numpy(partition.columns[0]["label"].astype(np.int64))
    data = Data(x=rows.tables[FEATURE], edge_index=torch.from_numpy(np.stack([edges.src, dst])), y=label)
    seeds = torch.from_numpy(session.goal.pools["train"].columns["id"])
    loader = NeighborLoader(
        data, config.sampling.fanouts, seeds, batch_size=config.train.batch_size, shuffle=True, num_workers=0
    )
    width = rows.tables[FEATURE].shape[1]
    model = GraphSAGE(width, config.model.hidden, config.model.layers, session.goal.num_outputs).to(session.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.train.lr)
    batches, seconds = iter(loader), []
    for _ in range(STEPS + 1):
        begin = time.perf_counter()
        batch = next(batches)
        optimizer.zero_grad()
        output = model(batch.x, batch.edge_index)[: batch.batch_size]
        cross_entropy(output, batch.y[: batch.batch_size]).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds[1:]))
