"""A pass over a whole static graph: every layer for all nodes of a rank, ghosts by halo exchange, with gradients.

n own nodes, stacked (see ``sample.full_graph``), g ghosts, D width of a layer's rows.
"""

from __future__ import annotations

import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import HaloChain
from hpcgnn.nn.graph_models import GraphModel
from hpcgnn.nn.message_blocks import Batch, IndexedRows
from hpcgnn.nn.step_key import StepKey
from hpcgnn.sample.full_graph import FullGraph, Half
from hpcgnn.tasks.graph_task import Rows, joined


class FullGraphPass:
    """One forward pass; all ranks make the same ones. features: by type, rows of [own nodes in the partition's order |
    ghosts], None without; learnt: by type, learnable rows of own nodes in the partition's order."""

    def __init__(
        self, model: GraphModel, graph: FullGraph, features: list[torch.Tensor | None],
        learnt: dict[int, torch.Tensor], key: StepKey, channel: Channel, chain: HaloChain,
    ):  # fmt: skip
        self.model, self.graph, self.channel, self.chain = model, graph, channel, chain
        self.features, self.learnt = features, learnt
        self.inner, self.outer = _batch(graph.inner, key), _batch(graph.outer, key)

    def rows(self) -> torch.Tensor:
        """Collective. Stacked rows [n, D] of the own nodes after the last layer."""
        rows = self._layer(0, InputHalo(self))
        for number in range(1, self.model.num_hops):
            rows = self._layer(number, RowHalo(self, rows))
        return rows

    def _layer(self, number: int, halo: InputHalo | RowHalo) -> torch.Tensor:
        """Collective. Inner nodes are computed while the ghosts of the outer ones are on their way."""
        graph, pieces = self.graph, []
        if graph.inner.num_nodes or not graph.outer.num_nodes:
            pieces.append(self.model.step(number, self.inner, graph.inner.block, halo.inner()))
        halo.wait()
        if graph.outer.num_nodes:
            pieces.append(self.model.step(number, self.outer, graph.outer.block, halo.outer()))
        return graph.join(*pieces) if len(pieces) == 2 else pieces[0]


class RowHalo:
    """Collective to create and to wait for. Source rows of a layer from the rows [n, D] of the one before."""

    def __init__(self, run: FullGraphPass, rows: torch.Tensor):
        self._graph, self._chain, self._rows = run.graph, run.chain, rows
        self._exchange = self._chain.start(run.graph.route.over(run.channel), rows)

    def wait(self) -> None:
        """The ghosts [g, D] are there."""
        self._ghosts = self._chain.finish(self._exchange)

    def inner(self) -> torch.Tensor:
        """Of the inner block."""
        return self._rows

    def outer(self) -> torch.Tensor:
        """Of the outer block, after ``wait``."""
        return self._graph.outer_sources(self._rows, self._ghosts)


class InputHalo:
    """Collective to create and to wait for. Source rows of the first layer, from inputs: features, which lie here for
    ghosts too, and learnable rows, which travel."""

    def __init__(self, run: FullGraphPass):
        self._run, chain, graph = run, run.chain, run.graph
        self._exchanges = {
            kind: chain.start(graph.routes[kind].over(run.channel), rows) for kind, rows in sorted(run.learnt.items())
        }

    def wait(self) -> None:
        """The ghosts' learnable rows are there."""
        finish = self._run.chain.finish
        self._ghosts = {kind: finish(exchange) for kind, exchange in self._exchanges.items()}

    def inner(self) -> Rows:
        """Of the inner block."""
        return self._first(self._run.inner, self._run.graph.inner, self._run.learnt)

    def outer(self) -> Rows:
        """Of the outer block, after ``wait``."""
        learnt = {kind: torch.cat([rows, self._ghosts[kind]]) for kind, rows in self._run.learnt.items()}
        return self._first(self._run.outer, self._run.graph.outer, learnt)

    def _first(self, batch: Batch, half: Half, learnt: dict[int, torch.Tensor]) -> Rows:
        inputs = []
        for kind, (table, source) in enumerate(zip(self._run.features, half.source, strict=True)):
            features = None if table is None else IndexedRows(table, source)
            inputs.append(joined(features, learnt[kind].index_select(0, source) if kind in learnt else None))
        return self._run.model.first(batch, inputs)


def _batch(half: Half, key: StepKey) -> Batch:
    """One block as a batch of its own."""
    return Batch((half.block,), half.identity, half.degree, key.seed, key.epoch, key.step, key.training)
