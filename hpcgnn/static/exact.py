"""Computes the layers of a user's training loop for all nodes exactly: layer by layer, with all neighbors.

A layer's rows lie at the owners of their nodes. Each pass computes a part of the nodes, and pulls the rows of their
neighbors. n nodes of a type at this rank; S source nodes of a type in a pass, the first D of which the layer computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.comm.route import Route
from hpcgnn.comm.together import together
from hpcgnn.comm.world import DistributedError
from hpcgnn.static import pyg
from hpcgnn.static.batches import LayerBatch
from hpcgnn.static.features import FEATURE
from hpcgnn.static.graph import StaticGraph
from hpcgnn.static.inference import full_block, missing_layers, skips_forward
from hpcgnn.static.loader import LoaderOptions
from hpcgnn.static.model.blocks import Batch
from hpcgnn.static.model.models import GraphModel
from hpcgnn.static.plan import block_on
from hpcgnn.static.sampling.edges import EdgeColumns

Layer = Callable[[Any, Any], Any]
Rows = list[torch.Tensor | None]  # by node type


@torch.no_grad()
def exact_outputs(
    graph: StaticGraph, layers: GraphModel | Sequence[Layer], as_data: str = "", *,
    x: Mapping[str, torch.Tensor] | None = None, relations: Sequence[str] | None = None,
    edge_columns: Sequence[str] = (), with_edge_ids: bool = False, nodes_per_pass: int = 10_000,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """Collective. Compute the outputs of all nodes by node type: [n, C] for this rank's nodes, in the order of
    ``graph.nodes(type)``. No neighbor is left out, and every node is computed once in a layer.

    layers: a model of ``graph.make_model`` or a subclass of GraphModel, or functions (x, batch), one a layer. A
    function computes rows of the first D nodes of each type from rows of all S nodes, and may return rows of all S. as
    data "": x and results are tuples by node type, in the order of ``graph.types``, with None for a type without rows;
    the batch is a ``LayerBatch``. "pyg": x and results are a tensor, or a dict by node type where batches are
    HeteroData; the batch is Data or HeteroData as from NeighborLoader. It also has ``degree`` [S], in-degrees in the
    whole graph, and ``batch_size``, which is D. "hetero": HeteroData always.

    x: rows [n, F] of this rank's nodes, by node type, in place of the input rows of the graph; the same types on all
    ranks. relations: the names of the followed ones; None: all. edge_columns, with_edge_ids: as for NeighborLoader.
    nodes_per_pass: nodes of a rank that a layer computes at once; bounds memory.

    Raises DistributedError.
    """
    options = LoaderOptions([], 1, as_data=as_data, edge_columns=edge_columns, with_edge_ids=with_edge_ids)
    with together(graph.world, "compute exact outputs"):
        options.check(graph)
        names = graph.relations if relations is None else relations
        followed = sorted(graph.partition.relation_of(name, "relations") for name in names)
        if nodes_per_pass < 1:
            raise ValueError(f"nodes_per_pass must be at least 1, got {nodes_per_pass}")
        rows = _input_rows(graph, x or {})
        functions = layers if isinstance(layers, Sequence) else _functions_of(layers, graph, rows, as_data)
    passes = _Passes(graph, options, followed, nodes_per_pass)
    for number, layer in enumerate(functions):
        rows = passes.compute(number, layer, rows)
    return {name: of_type for name, of_type in zip(graph.types, rows, strict=True) if of_type is not None}


def _input_rows(graph: StaticGraph, x: Mapping[str, torch.Tensor]) -> Rows:
    """Return the given rows by type, and features in memory. Raises ValueError."""
    rows: Rows = [of_type.tables.get(FEATURE) for of_type in graph.rows]  # type: ignore[misc]
    for name, given in x.items():
        kind = graph.partition.type_of(name)
        count = len(graph.nodes(name))
        if given.dim() != 2 or len(given) != count:
            raise ValueError(f"x: {name} has {count} nodes at this rank, got rows of shape {tuple(given.shape)}")
        rows[kind] = given.detach().to(graph.world.device)
    return rows


def _functions_of(model: Any, graph: StaticGraph, rows: Rows, as_data: str) -> list[Layer]:
    """Make the functions of a model's layers. Raises ValueError."""
    if problem := missing_layers(model):
        name = type(getattr(model, "module", model)).__name__
        raise ValueError(f"layers: {name} {problem}: give a list of functions (x, batch), one a layer")
    if skips_forward(type(model)):
        raise ValueError(
            f"layers: {type(model).__name__} has another forward than its base class, which exact outputs would skip: "
            "they call first, step and last; do there what forward adds"
        )
    if as_data:
        raise ValueError(f"as_data {as_data!r} is for functions of layers; leave it empty for a GraphModel")
    if bare := [name for name, of_type in zip(graph.types, rows, strict=True) if of_type is None]:
        raise ValueError(f"x: node type {bare[0]} has no features; give the rows of this rank's nodes")
    model.eval()
    return [partial(_step, model, number) for number in range(max(1, model.num_hops))]


def _step(model: Any, number: int, x: tuple[torch.Tensor, ...], batch: LayerBatch) -> Sequence[torch.Tensor]:
    """Compute a layer of a GraphModel, with what precedes the first and follows the last one."""
    (block,) = batch.batch.blocks
    rows = model.first(batch.batch, x) if number == 0 else torch.cat(x)
    rows = model.step(number, batch.batch, block, rows) if model.num_hops else block.own(rows)
    return (model.last(rows) if number + 1 >= model.num_hops else rows).split(block.num_dst)


class _Passes:
    """Computes layers for all nodes of the graph, a part of this rank's nodes at a time. Collective."""

    def __init__(self, graph: StaticGraph, options: LoaderOptions, followed: list[int], size: int):
        partition = graph.partition
        self._graph, self._options, self._followed, self._size = graph, options, followed, size
        self._num_passes = -(-max(graph.world.allgather(partition.num_nodes)) // size)
        self._edges = EdgeColumns(partition, options.edge_columns, graph.dtype, bool(options.as_data) or None)
        self._relabel = [native.Relabel(int(count)) for count in np.diff(partition.book.type_base())]

    def compute(self, number: int, layer: Layer, rows: Rows) -> Rows:
        """Compute a layer's rows [n, W] by type from the rows of the layer before."""
        pieces: list[list[torch.Tensor]] = [[] for _ in rows]
        for first in range(0, self._num_passes * self._size, self._size):
            batch = self._batch(first, rows)
            (block,) = batch.batch.blocks
            for kind, of_type in enumerate(self._call(layer, batch)):
                if of_type is not None:
                    pieces[kind].append(of_type[: block.num_dst[kind]])
        outputs = [torch.cat(of_type) if of_type else None for of_type in pieces]
        self._check(number, outputs)
        return outputs

    def _batch(self, first: int, rows: Rows) -> LayerBatch:
        """Make the batch of the local nodes from ``first`` on, with the rows of their neighbors."""
        graph, device = self._graph, self._graph.world.device
        partition = graph.partition
        begin, end = (min(partition.num_nodes, row) for row in (first, first + self._size))
        block, ids = full_block(partition, begin, end, self._relabel, self._followed, self._edges)
        identity, degree, x = [], [], []
        for kind, (tables, own) in enumerate(zip(graph.rows, rows, strict=True)):
            route = Route.plan(partition.book.of_type(kind), ids[kind], graph.channel).to(device)
            identity.append(tables.pull_exact(route, "identity"))
            degree.append(tables.pull_exact(route, "degree"))
            if own is None or own is tables.tables.get(FEATURE):
                x.append(None if own is None else tables.pull_exact(route, FEATURE))
            else:
                x.append(route.pull(own)[0])
        base = partition.book.type_base()
        n_id = tuple(keys - int(start) for keys, start in zip(identity, base, strict=False))
        inner = Batch((block_on(device, block),), tuple(identity), tuple(degree), 0, 0, 0, False)
        return LayerBatch(inner, tuple(x), n_id, ({},) * len(n_id))

    def _call(self, layer: Layer, batch: LayerBatch) -> Sequence[torch.Tensor | None]:
        """Call a layer with rows and batch in the form that it takes; returns its rows by type."""
        graph = self._graph
        if not self._options.as_data:
            made = layer(batch.x, batch)
            return made if isinstance(made, Sequence) else [made]
        data, typed = pyg.add_nodes_and_edges(batch, graph, self._options), pyg.is_typed(graph, self._options)
        stores = [data[name] for name in graph.types] if typed else [data]
        for kind, store in enumerate(stores):
            store.degree, store.batch_size = batch.batch.degree[kind], batch.batch.blocks[0].num_dst[kind]
        if not typed:
            return [layer(batch.x[0], data)]
        given = {name: of_type for name, of_type in zip(graph.types, batch.x, strict=True) if of_type is not None}
        made = layer(given, data)
        return [made.get(name) for name in graph.types]

    def _check(self, number: int, outputs: Rows) -> None:
        """Raises DistributedError for rows that do not fit the nodes, or are other ones on another rank."""
        graph = self._graph
        with together(graph.world, "compute exact outputs"):
            for name, of_type in zip(graph.types, outputs, strict=True):
                if of_type is not None and len(of_type) != len(graph.nodes(name)):
                    raise ValueError(
                        f"layer {number} has {len(of_type)} rows for {len(graph.nodes(name))} nodes of {name}: it must "
                        "return rows of at least the first batch_size nodes"
                    )
        widths = graph.world.allgather([None if of_type is None else of_type.shape[1:] for of_type in outputs])
        if any(of_rank != widths[0] for of_rank in widths):
            message = f"layer {number} returns rows of other types or widths on other ranks: {widths}"
            raise DistributedError(message, user_error=True)


__all__ = ["exact_outputs"]
