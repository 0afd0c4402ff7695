"""Where a loop's features lie, and what a rank copies of them, changes no batch."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from static_runs import make_static_parts, plain

from hpcgnn import CommConfig, DistributedError, FeatureConfig, GraphModelConfig, NeighborLoader, StaticGraph, World

CHOICES = {
    "file": {"storage": "file"},
    "pinned": {"storage": "pinned", "device_ratio": 0.3},
    "cache": {"cache_ratio": 0.3},
    "stored cache": {"cache_ratio": 0.3, "cache_policy": "stored"},
    "cache of files": {"storage": "file", "cache_ratio": 0.3},
    "narrow": {"cache_ratio": 0.3, "wire": "bfloat16"},
}


@pytest.mark.parametrize("choice", CHOICES)
def test_batches_have_the_rows_of_their_nodes(comm, mpi_tmp_path, choice):
    """Two loaders of a graph; each rank is a machine, so that rows are remote."""
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    world = World(CommConfig(device="cpu", threads=1, ranks_per_machine=1), comm)
    graph = StaticGraph(parts, world, features=FeatureConfig(**CHOICES[choice]), dtype=torch.float64)
    with h5py.File(mpi_tmp_path / "graph.h5") as file:
        feat = torch.from_numpy(file["nodes/node/feat"][()])
    feat = (feat.bfloat16() if choice == "narrow" else feat).double()
    loaders = [NeighborLoader(graph, split, [3, 2], 16) for split in ("train", "test")]
    copies = graph.tables.num_copies()
    assert (copies > 0) == ("cache_ratio" in CHOICES[choice] and comm.size > 1)
    plainly = StaticGraph(parts, world, dtype=torch.float64)
    for loader, split in zip(loaders, ("train", "test"), strict=True):
        usual = NeighborLoader(plainly, split, [3, 2], 16)
        for _ in range(2):
            for batch, expected in zip(loader, usual, strict=True):
                assert torch.equal(batch.n_id[0], expected.n_id[0])
                assert torch.equal(batch.x[0], feat[batch.n_id[0]])
    graph.close()
    plainly.close()


def test_what_is_for_runs_is_refused(comm, mpi_tmp_path):
    """Batches of a loader lack weights of messages, and their rows are not standardized."""
    parts, world = make_static_parts(comm, plain, mpi_tmp_path), World(CommConfig(device="cpu", threads=1), comm)
    with pytest.raises(DistributedError, match=r"features.standardize is for run files"):
        StaticGraph(parts, world, FeatureConfig(standardize=True))
    graph = StaticGraph(parts, world)
    with pytest.raises(ValueError, match=r"model.edge_weights is for run files: .*batches have no weights"):
        graph.make_model(GraphModelConfig(layers=1, edge_weights=True), 2)
    assert np.isfinite(sum(of.sum().item() for of in graph.make_model(GraphModelConfig(layers=1), 2).parameters()))
