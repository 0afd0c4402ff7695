"""Runs modules of PyTorch Geometric's forms on sampled blocks: ``forward(x, edge_index)``, and for graphs of several
node types or relations ``forward(x_dict, edge_index_dict)``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hpcgnn.static.model.blocks import Batch, IndexedRows, feature_of, rows_of
from hpcgnn.static.model.by_hop import HopEdges, join_hops

WEIGHT, FEATURE, SEEDS = "edge_weight", "edge_attr", "batch_size"  # further parameters that a forward may have
KEYS = {WEIGHT: "edge_weights", FEATURE: "edge_features"}  # of the section model, by the parameter that they fill
NAMED = ("in_channels", "hidden_channels", "num_layers", "out_channels", "metadata")  # parameters of constructors


def joined_form(model_class: type[nn.Module]) -> type[nn.Module] | None:
    """Return the class that runs a module whose forward begins with x and edge_index, or with x_dict and
    edge_index_dict; None for another forward."""
    forms = {"x edge_index": EdgeIndexModel, "x_dict edge_index_dict": EdgeIndexDictModel}
    return forms.get(" ".join(_parameters(model_class.forward)[1:3]))


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
                f"relation, this one has {len(sizes.inputs)} and {len(sizes.relations)}: write "
                "forward(x_dict, edge_index_dict), such as by torch_geometric.nn.to_hetero (see docs/own_model.md)"
            )
        self._further = _filled(model_class, config, (*KEYS, SEEDS))
        named = "in_channels" in _parameters(model_class)
        self.module = _make(model_class, config, sizes, sizes.inputs[0], named)

    def forward(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> list[torch.Tensor]:
        """Compute outputs of the last block's nodes [D, outputs] from input rows [S, F] of the first one's."""
        rows, num_seeds = rows_of(inputs[0]), batch.blocks[-1].num_dst[0]
        joined = join_hops(batch.blocks, rows.device)
        hops = joined.of_relation(0)
        index = _index(hops, rows.device)
        values: dict[str, Any] = {SEEDS: num_seeds, WEIGHT: None, FEATURE: None}
        if hops:
            values |= {WEIGHT: _joined(hops, WEIGHT, rows.dtype), FEATURE: _joined(hops, FEATURE, rows.dtype)}
        further = {name: values[name] for name in self._further}
        out = self.module(rows[joined.node_places(0)], index, **further)
        if not torch.is_tensor(out) or out.dim() != 2 or len(out) < num_seeds:
            found = list(out.shape) if torch.is_tensor(out) else type(out).__name__
            raise TypeError(f"forward(x, edge_index) must return a tensor with a row for each node, not {found}")
        return [out[:num_seeds]]


class EdgeIndexDictModel(nn.Module):
    """Calls a module with the rows of a batch's nodes by type, {name: [N, F]}, and its edges by relation, {(source,
    name, destination): [2, E]}, in order of hops as in ``EdgeIndexModel``; the first rows of each type in its result
    are outputs of the seeds of this type."""

    def __init__(self, model_class: type[nn.Module], config: Any, sizes: Any):
        """Make the module: by names where its constructor has a parameter of these, else as Class(config, sizes). Lazy
        parameters, as of a convolution with width -1, get their shapes. Raises ValueError for a key or a parameter that
        does not go with it."""
        super().__init__()
        self._types, self._relations = sizes.metadata
        self._further = _filled(model_class, config, [f"{name}_dict" for name in KEYS])
        widths, names = dict(zip(self._types, sizes.inputs, strict=True)), _parameters(model_class)
        self.module = _make(model_class, config, sizes, widths, not set(names).isdisjoint(NAMED))
        if any(is_lazy(parameter) for parameter in self.module.parameters()):
            edge = torch.zeros((2, 1), dtype=torch.int64)
            with torch.no_grad():
                self.module(
                    {name: torch.zeros(1, width) for name, width in widths.items()},
                    dict.fromkeys(self._relations, edge),
                    **self._first_further(sizes),
                )
        lacking = [name for name, parameter in self.module.named_parameters() if is_lazy(parameter)]
        if lacking:
            raise ValueError(
                f"model.class_path {config.class_path}: forward does not use {lacking[0]}, whose width is unknown: "
                "leave this part out, or give widths in place of -1"
            )

    def _first_further(self, sizes: Any) -> dict[str, dict]:
        """Make weights and features of one edge of each relation."""
        features = zip(self._relations, sizes.edges, strict=False)  # sizes.edges is empty where none are read
        made: dict[str, dict] = {
            f"{WEIGHT}_dict": dict.fromkeys(self._relations, torch.zeros(1)),
            f"{FEATURE}_dict": {relation: torch.zeros(1, width) for relation, width in features if width},
        }
        return {name: made[name] for name in self._further}

    def forward(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> list[torch.Tensor]:
        """Compute outputs by type of the last block's nodes [D, outputs] from input rows [S, F] of the first one's."""
        rows = [rows_of(of_type) for of_type in inputs]
        joined = join_hops(batch.blocks, rows[0].device)
        hops = {relation: joined.of_relation(number) for number, relation in enumerate(self._relations)}
        nodes = {name: rows[kind][joined.node_places(kind)] for kind, name in enumerate(self._types)}
        edges = {relation: _index(of_relation, rows[0].device) for relation, of_relation in hops.items()}
        further: dict[str, dict] = {}
        for name in self._further:
            values = {relation: _joined(of, name.removesuffix("_dict"), rows[0].dtype) for relation, of in hops.items()}
            further[name] = {relation: column for relation, column in values.items() if column is not None}
        out = self.module(nodes, edges, **further)
        counts = batch.blocks[-1].num_dst
        return [self._of_type(out, name, count, rows[0]) for name, count in zip(self._types, counts, strict=True)]

    def _of_type(self, out: Any, name: str, count: int, like: torch.Tensor) -> torch.Tensor:
        """Take the rows of the seeds of a type [count, outputs]."""
        rows = out.get(name) if isinstance(out, Mapping) else out
        if isinstance(out, Mapping) and rows is None and not count:
            return like.new_empty((0, 0))
        if not isinstance(out, Mapping) or not torch.is_tensor(rows) or rows.dim() != 2 or len(rows) < count:
            found = list(rows.shape) if torch.is_tensor(rows) else type(rows).__name__
            raise TypeError(
                f"forward(x_dict, edge_index_dict) must return a dictionary with a row for each node of {name}, not "
                f"{found}"
            )
        return rows[:count]


def _filled(model_class: type[nn.Module], config: Any, names: Sequence[str]) -> set[str]:
    """Choose the further parameters of a forward, of these ``names``, that are filled. Raises ValueError for a key
    whose parameter is missing, and for a parameter that nothing fills."""
    further = list(signature(model_class.forward).parameters.values())[3:]
    filled = {parameter.name for parameter in further if parameter.name in names}
    keys = {name: KEYS[name.removesuffix("_dict")] for name in names if name != SEEDS}
    for name, key in keys.items():
        if getattr(config, key) and name not in filled:
            raise ValueError(f"model.{key}: the forward of {config.class_path} has no parameter {name}")
        if not getattr(config, key):
            filled.discard(name)
    unfilled = [p for p in further if p.name not in filled and _must_be_given(p)]
    if unfilled:
        name = unfilled[0].name
        remedy = f"set model.{keys[name]} true" if name in keys else "give it a default"
        raise ValueError(f"model.class_path {config.class_path}: nothing fills {name} of its forward: {remedy}")
    return filled


def _make(model_class: type[nn.Module], config: Any, sizes: Any, widths: Any, by_name: bool) -> nn.Module:
    """Make a module by the names among its constructor's parameters, or as Class(config, sizes). widths: of the input
    rows, by type where there are several."""
    if not by_name:
        return model_class(config, sizes)
    values = widths, config.hidden, config.layers, sizes.outputs, sizes.metadata
    arguments, names = dict(zip(NAMED, values, strict=True)), _parameters(model_class)
    return model_class(**{name: value for name, value in arguments.items() if name in names})


def _index(hops: list[HopEdges], device: torch.device) -> torch.Tensor:
    """Join the edges [2, E] of all hops."""
    none = torch.empty((2, 0), dtype=torch.int64, device=device)
    return torch.cat([none, *(hop.index for hop in hops)], dim=1)


def _joined(hops: list[HopEdges], name: str, dtype: torch.dtype) -> torch.Tensor | None:
    """Join the weights [E] or the features [E, F] of the edges of all hops, if there are any."""
    of_hop = [(hop.relation.weight if name == WEIGHT else feature_of(hop.relation), hop.place) for hop in hops]
    pieces = [values[place] for values, place in of_hop if values is not None]
    return torch.cat(pieces).to(dtype) if pieces else None


def _parameters(function: Any) -> list[str]:
    return list(signature(function).parameters)


def _must_be_given(parameter: Parameter) -> bool:
    variadic = parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return parameter.default is Parameter.empty and not variadic
