"""Times PyTorch Geometric's GraphSAGE over the same graph, to compare one rank with: NeighborLoader and SAGEConv."""

from __future__ import annotations

import importlib.util
import itertools
import time

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from hpcgnn.bench import command
from hpcgnn.loop.session import Session
from hpcgnn.static.features import FEATURE

STEPS = 3


def check_installed() -> None:
    """Raise ValueError where PyG, or both packages that its loader can sample with, cannot be imported."""
    pyg, *samplers = (importlib.util.find_spec(name) for name in ("torch_geometric", "pyg_lib", "torch_sparse"))
    if pyg is None or not any(samplers):
        raise ValueError("--peer pyg needs torch-geometric, and pyg-lib or torch-sparse for its NeighborLoader")


def step_seconds(session: Session) -> float:
    """Return the median seconds of a training step, sampling included, after a step that warms up.

    The loader samples on the CPU, as PyG's does; on a device a step also copies its batch there and ends when the
    device is done.
    """
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.nn import GraphSAGE

    partition, config, (rows,) = session.partition, session.config, session.graph.rows
    (edges,) = partition.edges
    dst = np.repeat(np.arange(partition.num_nodes), np.diff(edges.indptr))
    label = torch.from_numpy(partition.columns[0]["label"].astype(np.int64))
    device, features = session.world.device, rows.tables[FEATURE].cpu()
    data = Data(x=features, edge_index=torch.from_numpy(np.stack([edges.src, dst])), y=label)
    seeds = torch.from_numpy(session.goal.pools["train"].columns["id"])
    loader = NeighborLoader(
        data, config.sampling.fanouts, seeds, batch_size=config.train.batch_size, shuffle=True, num_workers=0
    )
    model = GraphSAGE(features.shape[1], config.model.hidden, config.model.layers, session.goal.num_outputs)
    model = model.to(device, session.dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.train.lr)
    # A small graph has fewer batches an epoch than there are steps to time.
    batches, seconds = itertools.chain.from_iterable(itertools.repeat(loader)), []
    for _ in range(STEPS + 1):
        begin = time.perf_counter()
        batch = next(batches).to(device)
        optimizer.zero_grad()
        output = model(batch.x, batch.edge_index)[: batch.batch_size]
        cross_entropy(output, batch.y[: batch.batch_size]).backward()
        optimizer.step()
        command.wait_for(device)
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds[1:]))
