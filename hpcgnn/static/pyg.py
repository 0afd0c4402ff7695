"""Converts mini-batches to PyTorch Geometric's Data and HeteroData."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch

from hpcgnn.graph import files
from hpcgnn.static.batches import LayerBatch, LinkBatch, NeighborBatch
from hpcgnn.static.config import OUT
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.model.blocks import Block, edge_index
from hpcgnn.static.model.by_hop import JoinedHops, join_hops

# Names that batches have beside those of Data, and those of Data that are free for columns.
SET_HERE = {
    "n_id", "input_id", "batch_size", "num_seeds", "input_type", "adjs", "e_id", "src_index", "dst_pos_index",
    "dst_neg_index",
}  # fmt: skip
FREE = {"time", "pos", "face"}


def check_installed() -> None:
    """Check that torch_geometric is installed. Raises ValueError where it cannot be imported."""
    if importlib.util.find_spec("torch_geometric") is None:
        raise ValueError("as_data 'pyg' needs torch-geometric: pip install torch-geometric, or leave as_data empty")


def check_node_columns(names: Sequence[str]) -> None:
    """Raise ValueError for columns of nodes that PyTorch Geometric's Data, or a batch here, uses the names of."""
    from torch_geometric.data import Data

    taken = (SET_HERE | set(dir(Data))) - FREE
    for name in names:
        if name in taken or name.startswith("edge_"):
            raise ValueError(
                f"node_columns: {name} has another meaning in PyTorch Geometric's Data: rename the column, or leave "
                "as_data empty, where batch.columns has it by type"
            )


def to_data(batch: NeighborBatch, graph: StaticGraph, options: Any):
    """Convert a batch of nodes: Data for one type and one relation, HeteroData for several, or where
    ``options.as_data`` is "hetero".

    Nodes carry x, n_id and ``options.node_columns``, of which the column label is y; the seeds, which are the first
    nodes of their type, y, input_id and batch_size (seeds of this rank). num_seeds: seeds of all ranks; input_type: of
    the seeds, in HeteroData. For edges see ``add_nodes_and_edges``.
    """
    data, typed = add_nodes_and_edges(batch, graph, options), is_typed(graph, options)
    seeds = data[graph.types[batch.seed_type]] if typed else data
    seeds.input_id, seeds.batch_size = batch.input_id, len(batch.seeds)
    if batch.y is not None and "label" not in options.node_columns:
        seeds.y = batch.y
    if typed:
        data.input_type = graph.types[batch.seed_type]
    data.num_seeds = batch.batch_size
    return data


def to_link_data(batch: LinkBatch, graph: StaticGraph, options: Any):
    """Convert a batch of edges to Data or HeteroData, with edge_label_index and edge_label, or, with drawn destinations
    alone, src_index, dst_pos_index and dst_neg_index; input_id; batch_size, the seeds of this rank."""
    data, typed = add_nodes_and_edges(batch, graph, options), is_typed(graph, options)
    name = files.split_relation(graph.relations[batch.relation])
    edges, src, dst = (data[name], data[name[0]], data[name[2]]) if typed else (data, data, data)
    edges.input_id, edges.batch_size, data.num_seeds = batch.input_id, len(batch.row), batch.batch_size
    if typed:
        data.input_type = name
    if batch.negative_dst is None or batch.negative_src is not None:
        edges.edge_label_index, edges.edge_label = batch.edge_label_index, batch.edge_label
        return data
    src.src_index, dst.dst_pos_index = batch.src, batch.dst
    dst.dst_neg_index = batch.negative_dst.squeeze(1) if batch.negative_dst.shape[1] == 1 else batch.negative_dst
    return data


def add_nodes_and_edges(batch: NeighborBatch | LinkBatch | LayerBatch, graph: StaticGraph, options: Any):
    """Make Data or HeteroData of a batch, without its seeds.

    edge_index [2, E] (source, destination, as in the graph, whichever way it was followed) has each edge that some
    hop sampled, once; parallel edges are separate. Nodes of disjoint batches have batch, the number of their seed.
    options: of the loader, which may ask for e_id, the edges' rows in the graph file, and for columns: edge_attr
    (column feat), edge_weight, edge_<column>. Every hop draws anew for all nodes so far, so a layer over the union
    sees more than the block it belongs to. ``adjs`` are the hops for layered use, the innermost first: (edge_index
    from neighbors to the nodes they were sampled for, (source nodes, destination nodes)), in HeteroData by
    relation.

    ``options.by_hop``: nodes and edges are those of ``join_hops`` instead, without ``adjs``. num_sampled_nodes: by hop,
    nodes that it reached, the seeds first; num_sampled_edges: by hop, edges that it drew; in HeteroData by type and by
    relation.
    """
    from torch_geometric.data import Data, HeteroData

    typed, with_ids = is_typed(graph, options), options.tells_edges
    data = HeteroData() if typed else Data()
    blocks, device = batch.batch.blocks, batch.n_id[0].device
    joined = join_hops(blocks, device) if options.by_hop else None
    for kind, name in enumerate(graph.types):
        store, place = data[name] if typed else data, joined.node_places(kind) if joined else slice(None)
        store.n_id = batch.n_id[kind][place]
        store.num_nodes = len(store.n_id)
        rows = batch.x[kind]
        if rows is not None:
            store.x = rows[place]
        if batch.seed_number:
            store.batch = batch.seed_number[kind][place]
        for column, values in batch.columns[kind].items():
            store["y" if column == "label" else column] = values[place]
        if joined:
            store.num_sampled_nodes = [len(of_hop) for of_hop in joined.nodes[kind]]
    names = [files.split_relation(name) for name in graph.relations]
    if joined:
        for number, relation in enumerate(names):
            _add_by_hop(data[relation] if typed else data, joined, number, graph.direction == OUT, with_ids)
        return data
    for number, relation in enumerate(names):
        _add_edges(data[relation] if typed else data, blocks, number, graph.direction == OUT, device, with_ids)
    if typed:
        data.adjs = [{names[number]: hop for number, hop in _hop(block).items()} for block in blocks]
    else:
        none = torch.empty((2, 0), dtype=torch.int64, device=device)
        data.adjs = [_hop(block).get(0, (none, (block.num_src[0], block.num_dst[0]))) for block in blocks]
    return data


def is_typed(graph: StaticGraph, options: Any) -> bool:
    """Say whether batches are HeteroData."""
    return options.as_data == "hetero" or (len(graph.types), len(graph.relations)) != (1, 1)


def _add_edges(
    store, blocks: tuple[Block, ...], number: int, backward: bool, device: torch.device, with_ids: bool
) -> None:
    """Add the edges of a relation in all blocks, each once, by destination. Positions in a block are the same in the
    blocks further in."""
    hops: list[Any] = [relation for block in blocks for relation in block.relations if relation.relation == number]
    if not hops:
        store.edge_index = torch.empty((2, 0), dtype=torch.int64, device=device)
        return
    pairs = torch.cat([edge_index(relation) for relation in hops], dim=1)
    identity = torch.cat([relation.edge for relation in hops]).to(device)
    unique = _first_of_each(pairs[1], identity)
    store.edge_index = pairs[:, unique].flip(0) if backward else pairs[:, unique]
    if with_ids:
        store.e_id = identity[unique]
        for name in hops[0].columns:
            column = torch.cat([relation.columns[name] for relation in hops])
            store["edge_attr" if name == "feat" else f"edge_{name}"] = column[unique]


def _add_by_hop(store, joined: JoinedHops, number: int, backward: bool, with_ids: bool) -> None:
    """Add the edges of a relation in order of hop."""
    hops: list[Any] = joined.of_relation(number)
    store.num_sampled_edges = [len(of_hop[number].place) if number in of_hop else 0 for of_hop in joined.edges]
    none = torch.empty((2, 0), dtype=torch.int64, device=joined.nodes[0][0].device)
    index = torch.cat([none, *(hop.index for hop in hops)], dim=1)
    store.edge_index = index.flip(0) if backward else index
    if with_ids and hops:
        store.e_id = torch.cat([hop.relation.edge.to(none.device)[hop.place] for hop in hops])
        for name in hops[0].relation.columns:
            column = torch.cat([hop.relation.columns[name][hop.place] for hop in hops])
            store["edge_attr" if name == "feat" else f"edge_{name}"] = column


def _first_of_each(destination: torch.Tensor, identity: torch.Tensor) -> torch.Tensor:
    """Find the positions of the different pairs (destination, identity), in order of destination, then identity."""
    order = torch.argsort(identity, stable=True)
    order = order[torch.argsort(destination[order], stable=True)]
    destination, identity = destination[order], identity[order]
    is_first = torch.ones(len(order), dtype=torch.bool, device=order.device)
    is_first[1:] = (destination[1:] != destination[:-1]) | (identity[1:] != identity[:-1])
    return order[is_first]


def _hop(block: Block) -> dict[int, tuple[torch.Tensor, tuple[int, int]]]:
    """List by relation the edges of a block and its numbers of source and destination nodes."""
    return {
        relation.relation: (edge_index(relation), (block.num_src[relation.src_type], block.num_dst[relation.dst_type]))
        for relation in block.relations
    }
