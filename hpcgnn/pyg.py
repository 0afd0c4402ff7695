"""Mini-batches as PyTorch Geometric's Data and HeteroData."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import torch

from hpcgnn.nn.message_blocks import Adjacency, Block
from hpcgnn.store import files

if TYPE_CHECKING:
    from hpcgnn.graph_loader import NeighborBatch


def check_installed() -> None:
    """Raises ValueError where torch_geometric cannot be imported."""
    if importlib.util.find_spec("torch_geometric") is None:
        raise ValueError("as_data 'pyg' needs torch-geometric: pip install 'hpcgnn[pyg]', or leave as_data empty")


def to_data(batch: NeighborBatch, types: tuple[str, ...], relations: tuple[str, ...]):
    """Data for one type and one relation, HeteroData for several.

    Nodes carry x and n_id; the seeds, which are the first nodes of their type, y, input_id and batch_size (those of
    this rank). edge_index [2, E] (source, destination): each pair of nodes that some hop sampled, once; every hop draws
    anew for all nodes so far, so a layer over the union sees more than the block it belongs to. ``adjs`` are the hops
    for layered use, the innermost first: (edge_index, (source nodes, destination nodes)), in HeteroData by relation.
    num_seeds: those of all ranks.
    """
    from torch_geometric.data import Data, HeteroData

    typed = (len(types), len(relations)) != (1, 1)
    data = HeteroData() if typed else Data()
    for kind, name in enumerate(types):
        store = data[name] if typed else data
        store.n_id, store.num_nodes = batch.n_id[kind], len(batch.n_id[kind])
        if batch.x[kind] is not None:
            store.x = batch.x[kind]
    seeds = data[types[batch.seed_type]] if typed else data
    seeds.input_id, seeds.batch_size = batch.input_id, len(batch.seeds)
    if batch.y is not None:
        seeds.y = batch.y
    data.num_seeds = batch.batch_size
    blocks, device = batch.batch.blocks, batch.input_id.device
    if not typed:
        data.edge_index, data.adjs = _union(blocks, 0, device), [_hop(block)[0] for block in blocks]
        return data
    names = [files.split_relation(name) for name in relations]
    for number, name in enumerate(names):
        data[name].edge_index = _union(blocks, number, device)
    data.adjs = [{names[number]: found for number, found in _hop(block).items()} for block in blocks]
    return data


def _hop(block: Block) -> dict[int, tuple[torch.Tensor, tuple[int, int]]]:
    """By relation the edges of a block, and its source and destination nodes."""
    return {
        relation.relation: (_edges(relation), (block.num_src[relation.src_type], block.num_dst[relation.dst_type]))
        for relation in block.relations
    }


def _edges(relation: Adjacency) -> torch.Tensor:
    """[2, E] source, destination."""
    degree = relation.indptr[1:] - relation.indptr[:-1]
    destination = torch.repeat_interleave(torch.arange(len(degree), device=degree.device), degree)
    return torch.stack([relation.source, destination])


def _union(blocks: tuple[Block, ...], number: int, device: torch.device) -> torch.Tensor:
    """Different pairs [2, E] of a relation in all blocks, by destination. Positions in a block are such in those
    further in, too."""
    found = [_edges(relation) for block in blocks for relation in block.relations if relation.relation == number]
    if not found:
        return torch.empty((2, 0), dtype=torch.int64, device=device)
    edges = torch.cat(found, dim=1)
    width = int(edges[0].max()) + 1 if edges.shape[1] else 1
    key = torch.unique(edges[1] * width + edges[0])
    return torch.stack([key % width, key // width])
