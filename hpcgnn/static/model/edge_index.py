"""Runs modules of PyTorch Geometric's forms on sampled blocks: ``forward(x, edge_index)``, and for graphs of several
node types or relations ``forward(x_dict, edge_index_dict)``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parameter import is_lazy

from hpcgnn.static.model.blocks import Adjacency, Batch, Block, IndexedRows, edge_index, feature_of, rows_of
from hpcgnn.static.model.by_hop import HopEdges, join_hops
from hpcgnn.static.model.edge_layers import FEATURE, WEIGHT, Arguments, small_graph, try_layers, widths_of

SEEDS = "batch_size"  # a further parameter that a forward may have
KEYS = {WEIGHT: "edge_weights", FEATURE: "edge_features"}  # of the section model, by the parameter that they fill
NAMED = ("in_channels", "hidden_channels", "num_layers", "out_channels", "metadata")  # parameters of constructors


def joined_form(model_class: type[nn.Module]) -> type[nn.Module] | None:
    """Return the class that runs a module whose forward begins with x and edge_index, or with x_dict and
    edge_index_dict; None for another forward."""
    forms = {"x edge_index": EdgeIndexModel, "x_dict edge_index_dict": EdgeIndexDictModel}
    return forms.get(" ".join(_parameters(model_class.forward)[1:3]))


class JoinedModel(nn.Module):
    """Calls a module with the rows of a batch's nodes and with its edges, in order of hops (see ``by_hop``); the first
    rows of each type in its result are outputs of the seeds of this type.

    ``first``, ``step`` and ``last`` compute the module's ``layers`` one by one, as those of a GraphModel. Stacked rows
    of narrower types end in zeros; of types that a layer leaves out they are zeros. problem: why layers cannot be
    computed one by one, as words after the name of the class; empty: they can. widths: see ``try_layers``. takes,
    gives: the arguments and the result of a layer, in words."""

    takes: str
    gives: str
    suffix = ""  # of the further parameters

    def __init__(self, config: Any, sizes: Any, module: nn.Module, further: Collection[str]):
        """further: the parameters of the forward that are filled, beside nodes and edges. Lazy parameters, as of a
        convolution with width -1, get their shapes. Raises ValueError for one whose shape stays unknown."""
        super().__init__()
        self.module, self.further = module, [name for name in KEYS if name in further]
        self._counts_seeds, self._outputs = SEEDS in further, sizes.outputs
        self._types, self._relations = sizes.metadata
        self._predicted = sizes.predicted
        self._num_relations = len(sizes.relations)
        if any(is_lazy(parameter) for parameter in module.parameters()):
            with torch.no_grad():
                self.result(module, small_graph(sizes, self.further, torch.Generator(), torch.float32))
        lacking = [name for name, parameter in module.named_parameters() if is_lazy(parameter)]
        if lacking:
            raise ValueError(
                f"model.class_path {config.class_path}: forward does not use {lacking[0]}, whose width is unknown: "
                "leave this part out, or give widths in place of -1"
            )
        self.widths, self.problem = try_layers(self, sizes)

    def result(self, function: nn.Module, given: Arguments) -> Any:
        """Call the module, or one of its layers, with the further arguments that it has parameters for."""
        raise NotImplementedError

    def call(self, function: nn.Module, given: Arguments) -> list[Any]:
        """Call the module, or one of its layers, and return its result by type."""
        raise NotImplementedError

    def further_of(self, function: nn.Module, given: Arguments) -> dict[str, list[torch.Tensor | None]]:
        """Choose the further arguments that a module has parameters for."""
        parameters = signature(function.forward).parameters
        takes_all = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
        names = {name: f"{name}{self.suffix}" for name in given.further}
        return {names[name]: of for name, of in given.further.items() if takes_all or names[name] in parameters}

    def forward(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> list[torch.Tensor]:
        """Compute outputs by type of the last block's nodes [D, outputs] from input rows [S, F] of the first one's."""
        rows = [rows_of(of_type) for of_type in inputs]
        like, counts = rows[0], batch.blocks[-1].num_dst
        joined = join_hops(batch.blocks, like.device)
        hops = [joined.of_relation(number) for number in range(self._num_relations)]
        nodes = [of_type[joined.node_places(kind)] for kind, of_type in enumerate(rows)]
        further = {name: [_joined(of_hops, name, like.dtype) for of_hops in hops] for name in self.further}
        given = Arguments(nodes, [_index(of_hops, like.device) for of_hops in hops], further, counts[0])
        results = enumerate(zip(self.call(self.module, given), counts, strict=True))
        return [self._of_seeds(of_type, count, kind, like) for kind, (of_type, count) in results]

    def _of_seeds(self, rows: Any, count: int, kind: int, like: torch.Tensor) -> torch.Tensor:
        """Take the rows of the seeds of a type [count, outputs]."""
        if rows is None and not count:
            return like.new_empty((0, 0))
        if not torch.is_tensor(rows) or rows.dim() != 2 or len(rows) < count:
            raise TypeError(f"forward({self.takes}) must return {self._rows_of(kind)}, not {_form(rows)}")
        return rows[:count]

    def _rows_of(self, kind: int) -> str:
        """Describe what a result has to hold."""
        raise NotImplementedError

    @property
    def num_hops(self) -> int:
        """Number of layers."""
        return max(0, len(self.widths) - 1)

    @property
    def embedding_hops(self) -> int:
        """Number of layers after which rows are embeddings: the module's, by the same name, or all but the last."""
        return getattr(self.module, "embedding_hops", max(0, self.num_hops - 1))

    def embedded(self, rows: torch.Tensor) -> torch.Tensor:
        """Leave out the zeros behind embeddings of predicted types that are narrower than others."""
        widths = self.widths[self.embedding_hops]
        return rows[:, : max(widths[kind] or 0 for kind in self._predicted or range(len(widths)))]

    def first(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> torch.Tensor | IndexedRows:
        """Stack the input rows; of one type they stay where they lie."""
        return inputs[0] if len(inputs) == 1 else self._stack(0, [rows_of(of_type) for of_type in inputs])

    def step(self, number: int, batch: Batch, block: Block, rows: torch.Tensor | IndexedRows) -> torch.Tensor:
        """Compute layer ``number``: stacked rows [D, .] of a block's destinations, from rows [S, .] of its sources."""
        stacked, relations = rows_of(rows), {relation.relation: relation for relation in block.relations}
        of_relation = [relations.get(relation) for relation in range(self._num_relations)]
        none = torch.empty((2, 0), dtype=torch.int64, device=stacked.device)
        further = {name: [_values(of, name, stacked.dtype) for of in of_relation] for name in self.further}
        given = Arguments(
            [
                None if width is None else of_type[:, :width]
                for of_type, width in zip(stacked.split(block.num_src), self.widths[number], strict=True)
            ],
            [none if of is None else edge_index(of) for of in of_relation],
            further,
        )
        layers: Any = self.module.layers
        new = self.call(layers[number], given)
        if widths_of(new) != self.widths[number + 1]:
            raise TypeError(
                f"layers[{number}] returned rows of the widths {widths_of(new)} by type, and {self.widths[number + 1]} "
                "when the model was made: it must not depend on the numbers of nodes and edges"
            )
        rows_of_types = [
            stacked.new_empty((count, 0)) if of_type is None else of_type[:count]
            for of_type, count in zip(new, block.num_dst, strict=True)
        ]
        return self._stack(number + 1, rows_of_types)

    def last(self, rows: torch.Tensor) -> torch.Tensor:
        """Take outputs [D, outputs] from the last layer's rows."""
        return rows[:, : self._outputs]

    def _stack(self, number: int, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Stack rows by type, with zeros behind narrower ones."""
        width = max(width or 0 for width in self.widths[number])
        return torch.cat([functional.pad(of_type, (0, width - of_type.shape[1])) for of_type in rows])


class EdgeIndexModel(JoinedModel):
    """Runs modules with ``forward(x, edge_index)``, on graphs of one node type and one relation."""

    takes, gives = "x, edge_index", "x"

    def __init__(self, model_class: type[nn.Module], config: Any, sizes: Any):
        """Make the module: by names where the class has a parameter in_channels, else as Class(config, sizes). Raises
        ValueError for a graph, a key or a parameter that does not go with it."""
        if (len(sizes.inputs), len(sizes.relations)) != (1, 1):
            raise ValueError(
                f"model.class_path {config.class_path}: forward(x, edge_index) is for graphs of one node type and one "
                f"relation, this one has {len(sizes.inputs)} and {len(sizes.relations)}: write "
                "forward(x_dict, edge_index_dict), such as by torch_geometric.nn.to_hetero (see docs/own_model.md)"
            )
        further = _filled(model_class, config, (*KEYS, SEEDS))
        named = "in_channels" in _parameters(model_class)
        super().__init__(config, sizes, _make(model_class, config, sizes, sizes.inputs[0], named), further)

    def result(self, function: nn.Module, given: Arguments) -> Any:
        further: dict[str, Any] = {name: of for name, (of,) in self.further_of(function, given).items()}
        if self._counts_seeds and given.num_seeds is not None:
            further[SEEDS] = given.num_seeds
        return function(given.rows[0], given.index[0], **further)

    def call(self, function: nn.Module, given: Arguments) -> list[Any]:
        return [self.result(function, given)]

    def _rows_of(self, kind: int) -> str:
        return "a tensor with a row for each node"


class EdgeIndexDictModel(JoinedModel):
    """Runs modules with ``forward(x_dict, edge_index_dict)``: rows by type, {name: [N, F]}, and edges by relation,
    {(source, name, destination): [2, E]}."""

    takes, gives, suffix = "x_dict, edge_index_dict", "x_dict", "_dict"

    def __init__(self, model_class: type[nn.Module], config: Any, sizes: Any):
        """Make the module: by names where its constructor has a parameter of these, else as Class(config, sizes).
        Raises ValueError for a key or a parameter that does not go with it."""
        further = _filled(model_class, config, [f"{name}{self.suffix}" for name in KEYS])
        widths, names = dict(zip(sizes.types, sizes.inputs, strict=True)), _parameters(model_class)
        module = _make(model_class, config, sizes, widths, not set(names).isdisjoint(NAMED))
        super().__init__(config, sizes, module, [name.removesuffix(self.suffix) for name in further])

    def result(self, function: nn.Module, given: Arguments) -> Any:
        nodes = {name: rows for name, rows in zip(self._types, given.rows, strict=True) if rows is not None}
        further = {
            name: {relation: of for relation, of in zip(self._relations, values, strict=True) if of is not None}
            for name, values in self.further_of(function, given).items()
        }
        return function(nodes, dict(zip(self._relations, given.index, strict=True)), **further)

    def call(self, function: nn.Module, given: Arguments) -> list[Any]:
        out = self.result(function, given)
        if not isinstance(out, Mapping):
            raise TypeError(f"forward({self.takes}) must return {self._rows_of(0)}, not {_form(out)}")
        return [out.get(name) for name in self._types]

    def _rows_of(self, kind: int) -> str:
        return f"a dictionary with a row for each node of {self._types[kind]}"


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
    of_hop = [(_values(hop.relation, name, dtype), hop.place) for hop in hops]
    pieces = [values[place] for values, place in of_hop if values is not None]
    return torch.cat(pieces) if pieces else None


def _values(relation: Adjacency | None, name: str, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the weights [E] or the features [E, F] of an adjacency's edges, if there are any."""
    if relation is None:
        return None
    values = relation.weight if name == WEIGHT else feature_of(relation)
    return None if values is None else values.to(dtype)


def _form(found: Any) -> str:
    """Describe a result: the shape of a tensor, or the type."""
    return str(list(found.shape)) if torch.is_tensor(found) else type(found).__name__


def _parameters(function: Any) -> list[str]:
    return list(signature(function).parameters)


def _must_be_given(parameter: Parameter) -> bool:
    variadic = parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return parameter.default is Parameter.empty and not variadic
