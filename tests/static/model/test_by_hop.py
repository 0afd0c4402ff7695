"""Batches in order of hop: PyTorch Geometric's ``trim_to_layer`` changes no output, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mpi4py import MPI
from static_runs import make_static_parts, plain, typed
from test_graph_loader import open_graph

from hpcgnn.comm.world import DistributedError
from hpcgnn.graph import files
from hpcgnn.static.link_loader import LinkNeighborLoader
from hpcgnn.static.loader import NeighborLoader

geometric = pytest.importorskip("torch_geometric", reason="needs torch-geometric")
FANOUTS = [3, 2]


def of_seeds(comm, found) -> dict[int, np.ndarray]:
    """Collective. Outputs by seed, of all ranks."""
    return {row: output for pieces in comm.allgather(found) for row, output in pieces}


def open_by_hop(comm, make, folder, **options):
    graph = open_graph(comm, make_static_parts(comm, make, folder))
    return graph, NeighborLoader(graph, "train", FANOUTS, 16, shuffle=False, as_data="pyg", by_hop=True, **options)


def test_trimming_changes_no_output(comm, mpi_tmp_path):
    """Sampled neighbors: outputs of PyTorch Geometric's module with and without trimming, and on one rank."""
    torch.manual_seed(0)
    module = geometric.nn.GraphSAGE(6, 8, 2, 3).double()
    _, loader = open_by_hop(comm, plain, mpi_tmp_path, with_edge_ids=True)
    found = []
    with torch.no_grad():
        for data in loader:
            nodes, edges = data.num_sampled_nodes, data.num_sampled_edges
            assert (sum(nodes), sum(edges), nodes[0]) == (data.num_nodes, data.edge_index.shape[1], data.batch_size)
            assert len(edges) == len(FANOUTS) == len(nodes) - 1
            whole = module(data.x, data.edge_index)[: data.batch_size]
            trimmed = module(data.x, data.edge_index, num_sampled_nodes_per_hop=nodes, num_sampled_edges_per_hop=edges)[
                : data.batch_size
            ]
            torch.testing.assert_close(whole, trimmed, rtol=1e-12, atol=1e-12)
            hop = torch.repeat_interleave(torch.arange(3), torch.tensor(nodes))
            into = hop[data.edge_index[1]]
            assert torch.equal(into, torch.repeat_interleave(torch.arange(2), torch.tensor(edges)))
            assert len(data.e_id) == sum(edges)
            found += list(zip(data.input_id.tolist(), whole.numpy(), strict=True))
    alone = open_graph(MPI.COMM_SELF, mpi_tmp_path / "parts")
    expected = {}
    with torch.no_grad():
        for data in NeighborLoader(alone, "train", FANOUTS, 16, shuffle=False, as_data="pyg", by_hop=True):
            rows = module(data.x, data.edge_index)[: data.batch_size]
            expected |= dict(zip(data.input_id.tolist(), rows.numpy(), strict=True))
    everyone = of_seeds(comm, found)
    assert everyone.keys() == expected.keys()
    for row, output in everyone.items():
        np.testing.assert_allclose(output, expected[row], rtol=1e-9, atol=1e-12)


def test_heterogeneous_batches_are_trimmed(comm, mpi_tmp_path):
    """Sums of neighbors, relation by relation, without module: one hop at a time."""
    graph, loader = open_by_hop(comm, typed, mpi_tmp_path)
    names = [files.split_relation(name) for name in graph.relations]
    for data in loader:
        edges = {name: data[name].edge_index for name in names}
        nodes, drawn = ({key: data[key][name] for key in keys} for keys, name in (
            (graph.types, "num_sampled_nodes"), (names, "num_sampled_edges")
        ))  # fmt: skip
        assert all(sum(nodes[kind]) == data[kind].num_nodes for kind in graph.types)
        rows = {kind: data[kind].n_id.double().unsqueeze(1) + 1 for kind in graph.types}
        outputs = []
        for trims in (False, True):
            now, index = rows, edges
            for layer in range(len(FANOUTS)):
                if trims:
                    now, index, _ = geometric.utils.trim_to_layer(layer, nodes, drawn, now, index)
                now = {kind: now[kind].clone() for kind in now}
                before = {kind: of_type.clone() for kind, of_type in now.items()}
                for (src, _, dst), (source, target) in index.items():
                    now[dst].index_add_(0, target, before[src][source])
            outputs.append(now["paper"][: data["paper"].batch_size])
        assert torch.equal(*outputs)


def test_links_and_refusals(comm, mpi_tmp_path):
    graph, _ = open_by_hop(comm, typed, mpi_tmp_path)
    relation = ("paper.cites.paper", np.ones(700, bool))
    loaders = (
        LinkNeighborLoader(graph, relation, FANOUTS, 64, as_data="pyg", by_hop=ordered) for ordered in (True, False)
    )
    for by_hop, joined in zip(*loaders, strict=True):
        pairs = [data["paper"].n_id[data["paper", "cites", "paper"].edge_label_index] for data in (by_hop, joined)]
        assert torch.equal(*pairs)
        assert len(by_hop["paper"].num_sampled_nodes) == 3
    for options in ({}, {"as_data": "pyg", "subgraph_type": "induced"}):
        with pytest.raises(
            DistributedError, match="by_hop is for as_data 'pyg' or 'hetero' and subgraph_type directional"
        ):
            NeighborLoader(graph, "train", FANOUTS, 16, by_hop=True, **options)
