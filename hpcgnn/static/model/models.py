"""Models of static graphs, typed or not, over sampled neighbors.

A model takes a Batch and the input rows of its innermost nodes, by node type, and returns rows of the seeds, by type.
The rows of a node depend on its neighborhood alone: dropout is keyed by layer, step, flat row id and column, norms are
per row. Batch normalization, in training, is of all nodes. config: the section ``model`` of the run file.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hpcgnn.choices import has_kernel
from hpcgnn.native.products import linear
from hpcgnn.native.random import StepKey
from hpcgnn.nn.own_class import check_parts, named_errors, own_class
from hpcgnn.static.model.blocks import Batch, Block, IndexedRows, rows_of, stack_first
from hpcgnn.static.model.convolutions import ACTIVATIONS, CONVOLUTIONS, NORMS, LayerShape, NodeBatchNorm, OwnRows
from hpcgnn.static.model.edge_index import joined_form
from hpcgnn.static.model.paths import PathModel


@dataclass(frozen=True, slots=True)
class GraphSizes:
    """Widths of the input rows by node type (0: no features, rows are embeddings of the config's row_width), the
    relations as (src_type, dst_type), the width of the output, the widths of the features of edges by relation (0:
    none, or none are read), the names of the node types and of the relations, the numbers of the node types that the
    task needs outputs of (none: all), and the numbers of the relations that lead back (``Relation``)."""

    inputs: tuple[int, ...]
    relations: tuple[tuple[int, int], ...]
    outputs: int
    edges: tuple[int, ...] = ()
    types: tuple[str, ...] = ()
    names: tuple[tuple[str, str, str], ...] = ()
    predicted: tuple[int, ...] = ()
    back: tuple[int, ...] = ()

    @property
    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """Names of the node types and of the relations, in the form of PyTorch Geometric."""
        return list(self.types), list(self.names)


def make_model(config: Any, sizes: GraphSizes) -> nn.Module:
    """Make the configured model; a class of the user's own as Class(config, sizes), or, with a forward of PyTorch
    Geometric's forms, by an EdgeIndexModel or EdgeIndexDictModel. Raises ValueError for parts that do not
    go together with the graph."""
    if config.class_path:
        model_class = own_class(config.class_path)
        form = None if issubclass(model_class, GraphModel) else joined_form(model_class)
        with named_errors(config.class_path):
            model = model_class(config, sizes) if form is None else form(model_class, config, sizes)
        check_parts(model, config.class_path)
        return model
    part = CONVOLUTIONS[config.kind]
    if part.one_relation and (len(sizes.inputs), len(sizes.relations)) != (1, 1):
        others = [
            name for name, other in CONVOLUTIONS.items() if other.make and not (other.one_relation or other.by_query)
        ]
        raise ValueError(
            f"model.kind {config.kind} is for graphs of one node type and one relation, this one has "
            f"{len(sizes.inputs)} and {len(sizes.relations)}: use {', '.join(others[:-1])} or {others[-1]}"
        )
    if part.make is None:
        return EmbeddingModel(config, sizes)
    if part.by_query:
        return _make_path_model(config, sizes)
    if part.keeps_first:
        return InitialRowModel(config, sizes)
    if part.averages:
        return AveragedModel(config, sizes)
    if part.over_all:
        return MixedModel(config, sizes)
    return (ResidualModel if config.residual else LayeredModel)(config, sizes)


def _make_path_model(config: Any, sizes: GraphSizes) -> PathModel:
    """Make the layers over states of queries. Raises ValueError for a graph of several node types."""
    if len(sizes.inputs) > 1:
        raise ValueError(f"model.kind {config.kind} is for graphs of one node type, this one has {len(sizes.inputs)}")
    width = config.hidden
    return PathModel(config, [make_convolution(config, sizes, width, width) for _ in range(config.layers)])


def make_convolution(
    config: Any, sizes: GraphSizes, in_width: int, out_width: int, concat: bool = True,
    takes_inputs: bool = False, number: int = 1,
):  # fmt: skip
    """Make a convolution from in_width to out_width; attention heads side by side, or (concat false) their mean;
    takes_inputs: it is the first one, of the model's input rows; number: of the layer, from 1 on."""
    part = CONVOLUTIONS[config.kind]
    make: Any = part.make_basis if takes_inputs and config.basis_rows else part.make
    edge_width = max(sizes.edges, default=0)
    counts = len(sizes.relations), len(sizes.inputs)
    relations = sizes.relations, sizes.back
    return make(LayerShape(config, in_width, out_width, *counts, concat, edge_width, number, *relations))


def drop(rows: torch.Tensor, batch: Batch, identity: torch.Tensor, site: int, p: float) -> torch.Tensor:
    """Drop entries of rows [n, W] by their keys, identity [n] and column; every place in a model has its own site."""
    if not batch.training or p == 0 or rows.numel() == 0:
        return rows
    key = StepKey(batch.seed, batch.epoch, batch.step)
    return rows * key.dropout_mask(identity, site, p, rows.shape[1], rows.dtype)


class InputRows(nn.Module):
    """Stacks the rows of all types to rows of one width; types are projected where asked for, or where widths
    differ."""

    def __init__(self, sizes: GraphSizes, hidden: int, always: bool):
        super().__init__()
        widths = {width or hidden for width in sizes.inputs}
        project = always or len(widths) > 1
        self.width = hidden if project else widths.pop()
        self.products = nn.ModuleList(
            nn.Linear(width, hidden) if project and width else nn.Identity() for width in sizes.inputs
        )

    @property
    def changes_rows(self) -> bool:
        """Whether the rows of any type are transformed."""
        return any(type(product) is not nn.Identity for product in self.products) or any(True for _ in self.buffers())

    def standardize(self, moments: Sequence[tuple[torch.Tensor, torch.Tensor] | None]) -> None:
        """Let input rows be standardized, by type: the mean and the standard deviation of the first columns, or None.
        Both are buffers, stored with the model."""
        for kind, of_type in enumerate(moments):
            if of_type is not None:
                mean, deviation = of_type
                self.register_buffer(f"mean_{kind}", mean)
                self.register_buffer(f"deviation_{kind}", deviation)

    def standardized(self, kind: int, rows: torch.Tensor) -> torch.Tensor:
        """Return the rows of a type, standardized where this is asked for."""
        mean = getattr(self, f"mean_{kind}", None)
        if mean is None:
            return rows
        features, learned = rows.split([len(mean), rows.shape[1] - len(mean)], dim=1)
        return torch.cat([(features - mean) / getattr(self, f"deviation_{kind}"), learned], dim=1)

    def forward(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Stack the rows of all types [S, width]."""
        rows = [
            linear(rows, product.weight, product.bias) if type(product) is nn.Linear else product(rows)
            for rows, product in zip(inputs, self.products, strict=True)
        ]
        return rows[0] if len(rows) == 1 else torch.cat(rows)


class GraphModel(nn.Module):
    """Base of the models of static graphs: ``forward`` is ``first``, a ``step`` a layer, and ``last``. Full-graph
    training and exact inference call these one by one; a row of their results does not depend on the other rows
    present. A model of labels that has embeddings of nodes sets ``embedding_hops``, the number of steps after which its
    rows are the embeddings. sent_columns: number of columns, the first ones, that a step reads of rows of neighbors;
    None: all. After a step that ``mixes``, ``mixed`` completes the rows by the ``summary`` of each rank's."""

    input: InputRows
    decoder: Any
    sent_columns: int | None = None

    def __init__(self, config: Any, sizes: GraphSizes):
        super().__init__()
        self.config, self.sizes = config, sizes
        self.activation = ACTIVATIONS[config.activation].make()

    @property
    def num_hops(self) -> int:
        """Blocks that a batch must have."""
        return self.config.layers

    def mixes(self, number: int) -> bool:
        """Whether the rows of step ``number`` depend on all nodes."""
        return False

    def forward(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> list[torch.Tensor]:
        """Compute outputs by type [num_dst of the last block, outputs] from inputs by type [num_src, F]."""
        if len(batch.blocks) != self.config.layers:
            raise ValueError(
                f"model.layers is {self.config.layers}, but the batch has {len(batch.blocks)} hops: one fanout a layer"
            )
        given = [len(of_type.index if isinstance(of_type, IndexedRows) else of_type) for of_type in inputs]
        if given != list(batch.blocks[0].num_src):
            raise ValueError(f"input rows {given} do not match the batch's nodes {batch.blocks[0].num_src}")
        rows: Any = self.first(batch, inputs)
        for number, block in enumerate(batch.blocks):
            rows = self.step(number, batch, block, rows)
            if self.mixes(number):
                rows = self.mixed(number, batch, rows, block.num_dst, self.summary(number, rows, block.num_dst)[None])
        return list(self.last(rows).split(batch.blocks[-1].num_dst))

    def first(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> torch.Tensor | IndexedRows:
        """Make stacked rows [S, .] of the innermost block's source nodes, from their inputs by type."""
        raise NotImplementedError

    def step(self, number: int, batch: Batch, block: Block, rows: Any) -> torch.Tensor:
        """Compute layer ``number``: stacked rows [D, .] of a block's destination nodes, from those [S, .] of its
        sources."""
        raise NotImplementedError

    def summary(self, number: int, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Summarize the rows [D, .] that step ``number`` made of this rank's nodes, ``counts`` of each type: [M, .]."""
        raise NotImplementedError

    def mixed(
        self, number: int, batch: Batch, rows: torch.Tensor, counts: Sequence[int], summaries: torch.Tensor
    ) -> torch.Tensor:
        """Complete the rows [D, .] of step ``number`` by the summaries of all ranks [R, M, .]. The nodes are the first
        ones of each type in the batch."""
        raise NotImplementedError

    def last(self, rows: torch.Tensor) -> torch.Tensor:
        """Compute outputs [D, outputs] from the last layer's rows."""
        return rows

    def embedded(self, rows: torch.Tensor) -> torch.Tensor:
        """Make embeddings [D, W] from the rows after ``embedding_hops`` steps: what the output layer reads of them."""
        return rows

    def _input(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows], p: float) -> torch.Tensor:
        """Drop entries of the input rows, project and stack them."""
        rows = [self.input.standardized(kind, rows_of(of_type)) for kind, of_type in enumerate(inputs)]
        return self.input(
            [drop(of_type, batch, keys, 0, p) for of_type, keys in zip(rows, batch.identity, strict=True)]
        )


class EmbeddingModel(GraphModel):
    """No layers: a node's row is its input, projected where types differ in width."""

    def __init__(self, config: Any, sizes: GraphSizes):
        super().__init__(config, sizes)
        self.input = InputRows(sizes, sizes.outputs, always=any(width != sizes.outputs for width in sizes.inputs))
        self.register_buffer("empty", torch.empty(0), persistent=False)  # tells device and dtype without parameters

    def forward(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> list[torch.Tensor]:
        """Make rows of the nodes from their input rows; the batch has no blocks."""
        rows = [rows_of(of_type) for of_type in inputs]
        return list(self.first(batch, rows).split([len(of_type) for of_type in rows]))

    def first(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> torch.Tensor:
        return self._input(batch, inputs, self.config.input_dropout)


class AveragedModel(GraphModel):
    """The mean of a node's input row, projected where types differ in width, and of its rows after every layer. Between
    two layers, a row is followed by the sum of the rows so far."""

    def __init__(self, config: Any, sizes: GraphSizes):
        super().__init__(config, sizes)
        self.input = InputRows(sizes, sizes.outputs, always=any(width != sizes.outputs for width in sizes.inputs))
        self.layer = make_convolution(config, sizes, sizes.outputs, sizes.outputs)
        self.sent_columns = sizes.outputs
        self.register_buffer("empty", torch.empty(0), persistent=False)  # tells device and dtype without parameters

    def first(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> torch.Tensor:
        return self._input(batch, inputs, self.config.input_dropout)

    def step(self, number: int, batch: Batch, block: Block, rows: torch.Tensor) -> torch.Tensor:
        width = self.sizes.outputs
        around = self.layer(block, rows[:, :width], stack_first(batch.degree, block.num_src))
        total = block.own(rows)[:, -width:] + around
        if number + 1 < self.config.layers:
            return torch.cat([around, total], dim=1)
        return total / (self.config.layers + 1)


class LayeredModel(GraphModel):
    """Convolutions with norm, activation and dropout between them; the last one gives the outputs, unless an output
    product follows. With linear skips, a product of the own row, by node type, is added to the output of a convolution.
    Dropout sites are 0 for the input rows, the number of a layer for its sources, and then those of both products."""

    def __init__(self, config: Any, sizes: GraphSizes):
        super().__init__(config, sizes)
        self.input = InputRows(sizes, config.hidden if config.input_layer else config.row_width, config.input_layer)
        within = config.layers - (config.output_layer != "activated")  # layers with norm and activation
        hidden = config.layers - (config.output_layer == "none")
        widths = [self.input.width, *[config.hidden] * hidden, *[sizes.outputs] * (config.layers - hidden)]
        self.layers = nn.ModuleList(
            make_convolution(config, sizes, before, after, concat=number < hidden, takes_inputs=number == 0)
            for number, (before, after) in enumerate(itertools.pairwise(widths))
        )
        self.skips = nn.ModuleList(
            OwnRows(before, after, len(sizes.inputs))
            for before, after in itertools.pairwise(widths if config.linear_skip else [])
        )
        self.norms = nn.ModuleList(NORMS[config.norm].make(config.hidden) for _ in range(within))
        self.output = nn.Linear(config.hidden, sizes.outputs) if config.output_layer != "none" else None
        self.embedding_hops = hidden  # outputs are made of them
        self.rectify = config.activation == "relu" and config.norm == "none" and not config.linear_skip

    def mixes(self, number: int) -> bool:
        """Whether the rows of step ``number`` depend on all nodes: in training with batch normalization."""
        return self.training and number < len(self.norms) and NORMS[self.config.norm].over_all

    def forward(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> list[torch.Tensor]:
        """Compute outputs as ``GraphModel`` does. Raises ValueError for training with batch normalization, which is of
        all nodes."""
        if self.mixes(0):
            raise ValueError(
                f"model.norm {self.config.norm} is of all nodes, not of a mini-batch: use train.full_graph"
            )
        return super().forward(batch, inputs)

    def first(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> torch.Tensor | IndexedRows:
        """Make rows for the first layer. Where nothing is done to them, rows of one type stay where they lie."""
        changed = self.input.changes_rows or (self.config.input_dropout and batch.training)
        if len(inputs) == 1 and not changed and not self.skips and has_kernel(self.layers[0], CONVOLUTIONS):
            return inputs[0]
        rows = self._input(batch, inputs, self.config.input_dropout)
        if not self.config.input_layer:
            return rows
        return self._dropped(batch, batch.blocks[0].num_src, self.config.layers + 1, rows)

    def step(self, number: int, batch: Batch, block: Block, rows: Any) -> torch.Tensor:
        plain = number == len(self.norms)  # the outputs
        if number:
            rows = self._dropped(batch, block.num_src, number, rows)
        out = self.layers[number](block, rows, stack_first(batch.degree, block.num_src), self.rectify and not plain)
        if self.skips:
            out = out + self.skips[number](block, rows)
        if plain or self.mixes(number):
            return out
        out = out if self.rectify else self.activation(self.norms[number](out))
        return self._before_output(number, batch, block.num_dst, out)

    def summary(self, number: int, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        return NodeBatchNorm.summary(rows)

    def mixed(
        self, number: int, batch: Batch, rows: torch.Tensor, counts: Sequence[int], summaries: torch.Tensor
    ) -> torch.Tensor:
        out = self.activation(self.norms[number](rows, summaries))
        return self._before_output(number, batch, counts, out)

    def last(self, rows: torch.Tensor) -> torch.Tensor:
        return rows if self.output is None else linear(rows, self.output.weight, self.output.bias)

    def _before_output(self, number: int, batch: Batch, counts: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
        """Drop entries of the rows that the output product takes, of the last layer; other rows stay."""
        return self._dropped(batch, counts, self.config.layers, rows) if number + 1 == self.config.layers else rows

    def _dropped(self, batch: Batch, counts: Sequence[int], site: int, rows: torch.Tensor) -> torch.Tensor:
        """Drop entries of rows of the first nodes of each type."""
        return drop(rows, batch, stack_first(batch.identity, counts), site, self.config.dropout)


class MixedModel(GraphModel):
    """Convolutions whose rows by relation are mixed with weights that depend on all nodes, and an output product."""

    def __init__(self, config: Any, sizes: GraphSizes):
        super().__init__(config, sizes)
        self.input = InputRows(sizes, config.row_width, always=False)
        widths = [self.input.width, *[config.hidden] * config.layers]
        self.layers = nn.ModuleList(
            make_convolution(config, sizes, before, after) for before, after in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(NORMS[config.norm].make(config.hidden) for _ in range(config.layers - 1))
        self.output = nn.Linear(config.hidden, sizes.outputs)
        self.embedding_hops = config.layers

    def first(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> torch.Tensor:
        return self._input(batch, inputs, self.config.input_dropout)

    def step(self, number: int, batch: Batch, block: Block, rows: torch.Tensor) -> torch.Tensor:
        if number:
            rows = drop(rows, batch, stack_first(batch.identity, block.num_src), number, self.config.dropout)
        return self.layers[number](block, rows, None)

    def mixes(self, number: int) -> bool:
        """Whether the rows of step ``number`` depend on all nodes: always."""
        return True

    def summary(self, number: int, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        layer: Any = self.layers[number]
        return layer.sums(rows, counts)

    def mixed(
        self, number: int, batch: Batch, rows: torch.Tensor, counts: Sequence[int], summaries: torch.Tensor
    ) -> torch.Tensor:
        layer: Any = self.layers[number]
        rows = layer.mixed(rows, counts, summaries.sum(0))
        return self.activation(self.norms[number](rows)) if number < len(self.norms) else rows

    def last(self, rows: torch.Tensor) -> torch.Tensor:
        return linear(rows, self.output.weight, self.output.bias)


class InitialRowModel(GraphModel):
    """An input product, convolutions that keep the nodes' first rows, and an output product (Chen et al., Simple and
    deep graph convolutional networks, 2020). Dropout is of the rows, and not of the first rows that are kept."""

    def __init__(self, config: Any, sizes: GraphSizes):
        super().__init__(config, sizes)
        hidden = config.hidden
        self.input = InputRows(sizes, hidden, always=True)
        self.layers = nn.ModuleList(
            make_convolution(config, sizes, hidden, hidden, number=number + 1) for number in range(config.layers)
        )
        self.output = nn.Linear(hidden, sizes.outputs)
        self.embedding_hops, self.sent_columns = config.layers, hidden

    def first(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> torch.Tensor:
        rows = self.activation(self._input(batch, inputs, self.config.input_dropout))
        return self._dropped(batch, batch.blocks[0].num_src, 1, rows, rows)

    def step(self, number: int, batch: Batch, block: Block, rows: torch.Tensor) -> torch.Tensor:
        out = self.layers[number](block, rows, stack_first(batch.degree, block.num_src))
        latest, first = out.chunk(2, dim=1)
        return self._dropped(batch, block.num_dst, number + 2, self.activation(latest), first)

    def _dropped(self, batch: Batch, counts: Sequence[int], site: int, latest, first) -> torch.Tensor:
        """Join rows, after dropout, with the first rows of their nodes."""
        keys = stack_first(batch.identity, counts)
        return torch.cat([drop(latest, batch, keys, site, self.config.dropout), first], dim=1)

    def embedded(self, rows: torch.Tensor) -> torch.Tensor:
        """Leave out the first rows, which layers alone read."""
        return rows[:, : self.config.hidden]

    def last(self, rows: torch.Tensor) -> torch.Tensor:
        return linear(self.embedded(rows), self.output.weight, self.output.bias)


class ResidualModel(GraphModel):
    """An input product, residual blocks, norm and an output product (the models of Platonov et al., A critical look at
    the evaluation of GNNs under heterophily, 2023). A block's output is added to its input."""

    def __init__(self, config: Any, sizes: GraphSizes):
        super().__init__(config, sizes)
        self.input = InputRows(sizes, config.hidden, always=True)
        self.layers = nn.ModuleList(ResidualBlock(config, sizes, number + 1) for number in range(config.layers))
        self.norm, self.output = NORMS[config.norm].make(config.hidden), nn.Linear(config.hidden, sizes.outputs)
        self.embedding_hops = config.layers

    def first(self, batch: Batch, inputs: Sequence[torch.Tensor | IndexedRows]) -> torch.Tensor:
        rows = self._input(batch, inputs, self.config.input_dropout)
        keys = stack_first(batch.identity, batch.blocks[0].num_src)
        return self.activation(drop(rows, batch, keys, 1, self.config.dropout))

    def step(self, number: int, batch: Batch, block: Block, rows: torch.Tensor) -> torch.Tensor:
        return self.layers[number](batch, block, rows)

    def embedded(self, rows: torch.Tensor) -> torch.Tensor:
        return self.norm(rows)

    def last(self, rows: torch.Tensor) -> torch.Tensor:
        return linear(self.embedded(rows), self.output.weight, self.output.bias)


class ResidualBlock(nn.Module):
    """own row + dropout(feed-forward(convolution(norm(rows)))); number counts blocks from 1. A convolution that is a
    product is the first of the feed-forward's two."""

    def __init__(self, config: Any, sizes: GraphSizes, number: int):
        super().__init__()
        hidden, wide = config.hidden, config.hidden * max(1, config.feed_forward)
        attends = CONVOLUTIONS[config.kind].attends
        self.config, self.site, self.activation = config, 2 * number, ACTIVATIONS[config.activation].make()
        self.norm = NORMS[config.norm].make(hidden)
        self.convolution = make_convolution(config, sizes, hidden, hidden if attends else wide)
        self.widen = nn.Linear(hidden, wide) if attends and config.feed_forward else None
        self.narrow = nn.Linear(wide, hidden) if config.feed_forward else None

    def forward(self, batch: Batch, block, rows: torch.Tensor) -> torch.Tensor:
        """Compute rows [D, hidden] of the block's destinations from rows [S, hidden] of its sources."""
        p, keys = self.config.dropout, stack_first(batch.identity, block.num_dst)
        out = self.convolution(block, self.norm(rows), stack_first(batch.degree, block.num_src))
        if self.widen is not None:
            out = linear(out, self.widen.weight, self.widen.bias)
        out = self.activation(drop(out, batch, keys, self.site, p))
        if self.narrow is not None:
            out = drop(linear(out, self.narrow.weight, self.narrow.bias), batch, keys, self.site + 1, p)
        return block.own(rows) + out
