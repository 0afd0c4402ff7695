"""Times PyTorch Geometric's HeteroConv of GATConv against the R-GAT of a session, on the blocks that it samples.

The layers of MLPerf's R-GAT (rgnn.py of github.com/alibaba/graphlearn-for-pytorch, 181b75a): GATConv of each relation
without self-loops, added up. They get the weights of the session's model, so that both have the same outputs. S source
and D destination nodes of a block, by type.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hpcgnn.bench import command
from hpcgnn.loop.session import Session
from hpcgnn.static.features import FEATURE
from hpcgnn.static.model.blocks import Batch, edge_index, rows_of

TOLERANCE = 1e-3


def check_installed() -> None:
    """Raise ValueError where PyG cannot be imported."""
    command.check_installed("--peer pyg", "torch-geometric")


class PeerRGAT(nn.Module):
    """The layers of ``model``, an R-GAT without norm and features of edges, in PyG."""

    def __init__(self, model: Any):
        from torch_geometric.nn import GATConv, HeteroConv

        super().__init__()
        self.model, self.names, self.layers = model, [], nn.ModuleList()
        for number, (source, target) in enumerate(model.sizes.relations):
            self.names.append((str(source), str(number), str(target)))
        for layer in model.layers:
            matrices, heads = layer.weights(), layer.heads
            convolutions = {}
            for name, *weights in zip(self.names, matrices, layer.source, layer.target, strict=True):
                matrix, source, target = (tensor.detach() for tensor in weights)
                width = matrix.shape[1] // heads
                conv = GATConv(len(matrix), width, heads, layer.concat, add_self_loops=False, bias=False)
                conv.lin.weight = nn.Parameter(matrix.t().clone())
                conv.att_src, conv.att_dst = (nn.Parameter(end[None].clone()) for end in (source, target))
                convolutions[name] = conv
            self.layers.append(HeteroConv(convolutions, aggr="sum"))

    def forward(self, batch: Batch, inputs: Sequence[torch.Tensor], p: float = 0.0) -> torch.Tensor:
        """Compute the outputs [D of all types, outputs] of the last block from input rows by type; p: of dropout."""
        rows = [product(of_type) for of_type, product in zip(inputs, self.model.input.products, strict=True)]
        for number, (layer, ours, block) in enumerate(zip(self.layers, self.model.layers, batch.blocks, strict=True)):
            if number:
                rows = [functional.dropout(self.model.activation(of_type), p) for of_type in rows]
            own = [of_type[:count] for of_type, count in zip(rows, block.num_dst, strict=True)]
            with_edges = [relation for relation in block.relations if len(relation.source)]
            ends = {self.names[r.relation]: (rows[r.src_type], own[r.dst_type]) for r in with_edges}
            edges = {self.names[relation.relation]: edge_index(relation) for relation in with_edges}
            around = layer(ends, edges)
            width, weight = ours.own.bias.shape[0], ours.own.weight
            rows = [
                around.get(str(kind), of_type.new_zeros((len(of_type), width))) + ours.own.bias
                for kind, of_type in enumerate(own)
            ]
            if weight is not None:
                rows = [around_node + node @ weight[0] for around_node, node in zip(rows, own, strict=True)]
        output, joined = self.model.output, torch.cat(rows)
        return joined if output is None else functional.linear(joined, output.weight, output.bias)


def compare(session: Session, num_steps: int) -> dict[str, float]:
    """Time forward and backward passes of both models in turns, after one that warms up: medians of the CPU time, over
    all threads, and of the time by the clock, in seconds. Features are fetched beforehand. Raises ValueError for
    another model, and where the outputs differ."""
    model, config = session.model, session.config
    if config.model.norm != "none" or config.model.edge_features or not hasattr(model, "layers"):
        raise ValueError("--peer pyg compares model.kind rgat without norm, residual and edge_features")
    theirs, seconds = PeerRGAT(model), []
    batches, sampler = session.batches["train"], session.loaders["train"].samplers[0]
    for step in range(num_steps + 1):
        plan = sampler.plan(batches, 0, step % batches.num_steps)
        fetches = zip(session.graph.rows, plan.fetches, strict=True)
        rows: list[Any] = [of_type.wanted(fetch, FEATURE) for of_type, fetch in fetches]
        if any(of_type is None for of_type in rows):
            raise ValueError("--peer pyg compares model.kind rgat on graphs where all node types have features")
        inputs = [rows_of(of_type).clone() for of_type in rows]
        if step == 0:
            check_outputs(plan.batch, inputs, model, theirs)
        ours = timed(model, lambda: torch.cat(model(plan.batch, inputs)))  # noqa: B023 - it is called at once
        seconds.append([*ours, *timed(theirs, lambda: theirs(plan.batch, inputs, config.model.dropout))])  # noqa: B023
    names = ("compute_cpu_seconds", "compute_seconds", "pyg_compute_cpu_seconds", "pyg_compute_seconds")
    return dict(zip(names, np.median(seconds[1:], axis=0).tolist(), strict=True))


@torch.no_grad()
def check_outputs(batch: Batch, inputs: list[torch.Tensor], model: Any, theirs: PeerRGAT) -> None:
    """Raise ValueError where the outputs of the models differ, with dropout off."""
    calm = type(batch)(batch.blocks, batch.identity, batch.degree)
    ours, other = torch.cat(model(calm, inputs)), theirs(calm, inputs)
    difference, scale = float((ours - other).abs().max()), float(other.abs().max())
    if not difference <= TOLERANCE * max(1, scale):
        raise ValueError(f"--peer pyg: outputs differ by {difference:g}, where the largest is {scale:g}")


def timed(model: nn.Module, forward: Callable[[], torch.Tensor]) -> tuple[float, float]:
    """Return the CPU time and the time by the clock of a forward and a backward pass."""
    model.zero_grad()
    cpu, clock = time.process_time(), time.perf_counter()
    outputs = forward()
    target = torch.arange(len(outputs)) % outputs.shape[1]
    functional.cross_entropy(outputs, target).backward()
    return time.process_time() - cpu, time.perf_counter() - clock
