"""Runs modules of PyTorch Geometric's form on sampled blocks: ``forward(x, edge_index)``."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn

from hpcgnn.static.model.blocks import Batch, IndexedRows, feature_of, rows_of
from hpcgnn.static.model.by_hop import HopEdges, join_hops

FIRST = ["x", "edge_index"]  # the first parameters of the forward of such a module
WEIGHT, FEATURE, SEEDS = "edge_weight", "edge_attr", "batch_size"  # further ones that it may have
KEYS = {WEIGHT: "edge_weights", FEATURE: "edge_features"}  # of the section model, by the parameter that they fill


def takes_edge_index(model_class: type[nn.Module]) -> bool:
    """Whether the forward of a class begins with x and edge_index."""
    return _parameters(model_class.forward)[1:3] == FIRST


class EdgeIndexModel(nn.Module):
    """Calls a module with the rows of a batch's nodes [N, F] and its edges [2, E], in order of hops (see ``by_hop``);
    the first rows of its result are outputs of the seeds. For graphs of one node type and one relation."""

    def __init__(self, model_class: type[nn.Module], config: Any, sizes: Any):
        """Make the module: by names where the class has a parameter in_channels, else as Class(config, sizes). Raises
        ValueError for a graph, a key or a parameter that does not go with it."""
        super().__init__()
        if (len(sizes.inputs), len(sizes.relations)) != (1, 1):
            raise ValueError(
                f"model.class_path {config.class_path}: forward(x, edge_index) is for graphs of one node type and one "
                f"relation, this one has {len(sizes.inputs)} and {len(sizes.relations)}: make it a GraphModel (see "
                "docs/own_model.md)"
            )
        further = list(signature(model_class.forward).parameters.values())[3:]
        self._further = {name for name in (p.name for p in further) if name in (*KEYS, SEEDS)}
        for name, key in KEYS.items():
            if getattr(config, key) and name not in self._further:
                raise ValueError(f"model.{key}: the forward of {config.class_path} has no parameter {name}")
            if not getattr(config, key):
                self._further.discard(name)
        unfilled = [p for p in further if p.name not in self._further and _must_be_given(p)]
        if unfilled:
            name = unfilled[0].name
            remedy = f"set model.{KEYS[name]} true" if name in KEYS else "give it a default"
            raise ValueError(f"model.class_path {config.class_path}: nothing fills {name} of its forward: {remedy}")
        widths = _widths(model_class, config, sizes)
        self.module = model_class(**widths) if widths else model_class(config, sizes)

    def forward(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> list[torch.Tensor]:
        """Compute outputs of the last block's nodes [D, outputs] from input rows [S, F] of the first one's."""
        rows, num_seeds = rows_of(inputs[0]), batch.blocks[-1].num_dst[0]
        joined = join_hops(batch.blocks, rows.device)
        hops = joined.of_relation(0)
        index = torch.cat([rows.new_empty((2, 0), dtype=torch.int64), *(hop.index for hop in hops)], dim=1)
        values: dict[str, Any] = {SEEDS: num_seeds, WEIGHT: None, FEATURE: None}
        if hops:
            values |= {WEIGHT: _joined(hops, WEIGHT, rows.dtype), FEATURE: _joined(hops, FEATURE, rows.dtype)}
        further = {name: values[name] for name in self._further}
        out = self.module(rows[joined.node_places(0)], index, **further)
        if not torch.is_tensor(out) or out.dim() != 2 or len(out) < num_seeds:
            found = list(out.shape) if torch.is_tensor(out) else type(out).__name__
            raise TypeError(f"forward(x, edge_index) must return a tensor with a row for each node, not {found}")
        return [out[:num_seeds]]


def _joined(hops: list[HopEdges], name: str, dtype: torch.dtype) -> torch.Tensor | None:
    """Join the weights [E] or the features [E, F] of the edges of all hops, if there are any."""
    of_hop = [(hop.relation.weight if name == WEIGHT else feature_of(hop.relation), hop.place) for hop in hops]
    pieces = [values[place] for values, place in of_hop if values is not None]
    return torch.cat(pieces).to(dtype) if pieces else None


def _widths(model_class: type[nn.Module], config: Any, sizes: Any) -> dict[str, int]:
    """Choose the arguments of a constructor by the names of its parameters; none without in_channels."""
    widths = {
        "in_channels": sizes.inputs[0], "hidden_channels": config.hidden,
        "num_layers": config.layers, "out_channels": sizes.outputs,
    }  # fmt: skip
    names = _parameters(model_class)
    return {name: width for name, width in widths.items() if name in names} if "in_channels" in names else {}


def _parameters(function: Any) -> list[str]:
    return list(signature(function).parameters)


def _must_be_given(parameter: Parameter) -> bool:
    variadic = parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return parameter.default is Parameter.empty and not variadic
