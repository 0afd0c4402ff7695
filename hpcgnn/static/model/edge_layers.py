"""Arguments of modules of PyTorch Geometric, and a trial of whether the layers of a module can be computed one by one.

S rows of nodes of a type, E edges of a relation.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from hpcgnn.nn.own_class import in_one_line

WEIGHT, FEATURE = "edge_weight", "edge_attr"  # parameters that hold values of the edges
# Of each type of the trial's graph: the nodes, and the first ones of them, all of whose neighbors are near.
NUM_NODES, NUM_NEAR, NUM_CLOSED = 6, 4, 2

Widths = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of a module or of one of its layers. rows: by type [S, F], None for types that a layer has left out;
    index: by relation, sources and destinations of the edges [2, E]; further: by parameter and relation, values of the
    edges [E, ...] or None; num_seeds: number of seeds, None for a layer."""

    rows: Sequence[torch.Tensor | None]
    index: Sequence[torch.Tensor]
    further: dict[str, list[torch.Tensor | None]]
    num_seeds: int | None = None


def small_graph(sizes: Any, names: Sequence[str], random: torch.Generator, dtype: torch.dtype) -> Arguments:
    """Make a small graph of a graph's types and relations, with random rows, and values of the edges for the parameters
    ``names``. The neighbors of the first NUM_CLOSED nodes of a type are among the first NUM_NEAR ones."""
    degree = torch.arange(NUM_NODES) % 2 + 2
    destination = torch.repeat_interleave(torch.arange(NUM_NODES), degree)
    index, count = [], len(destination)
    for _ in sizes.relations:
        bound = torch.where(destination < NUM_CLOSED, NUM_NEAR, NUM_NODES)
        source = (torch.rand(count, generator=random) * bound).long()
        index.append(torch.stack([source, destination]))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=dtype)

    widths = sizes.edges or [0] * len(index)
    values: dict[str, list[torch.Tensor | None]] = {
        WEIGHT: [1 + normal(count).abs() for _ in index],
        FEATURE: [normal(count, width) if width else None for width in widths],
    }
    rows = [normal(NUM_NODES, width) for width in sizes.inputs]
    return Arguments(rows, index, {name: values[name] for name in names}, NUM_NODES)


def try_layers(model: Any, sizes: Any) -> tuple[list[Widths], str]:
    """Compute a small graph by a copy of ``model.module``, and by the list ``layers`` of this copy, one layer after the
    other. Returns the widths of rows by type, None without rows, before each layer and after the last one, or, where
    layers cannot replace the forward, none and what hinders it, as words that follow the name of the class."""
    if not isinstance(getattr(model.module, "layers", None), nn.ModuleList):
        return [], (
            f"has no torch.nn.ModuleList layers, of which each maps ({model.takes}) to {model.gives} (see "
            "docs/own_model.md)"
        )
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return _try(model, sizes)
    except Exception as error:  # of the user's code, of any kind
        return [], f"has layers that cannot be called one by one as layer({model.takes}): {in_one_line(error)}"


def _try(model: Any, sizes: Any) -> tuple[list[Widths], str]:
    random = torch.Generator().manual_seed(0)
    module = copy.deepcopy(model.module).double().eval()
    for parameter in module.parameters():  # some layers begin as zeros
        parameter.add_(torch.randn(parameter.shape, generator=random, dtype=parameter.dtype), alpha=0.1)
    whole = small_graph(sizes, model.further, random, torch.float64)
    output = model.call(module, whole)
    whole = replace(whole, num_seeds=None)
    widths = [widths_of(whole.rows)]
    for number, layer in enumerate(module.layers):
        rows = model.call(layer, whole)
        widths.append(widths_of(rows))
        if not _alike(model.call(layer, _part(whole)), rows, NUM_CLOSED):
            return [], (
                f"has layers of which number {number} computes a node's row from more than the rows of the node and of "
                "its in-neighbors, and their edges, such as degrees of neighbors or means over all nodes"
            )
        whole = replace(whole, rows=rows)
    if not _alike(output, whole.rows, NUM_NODES):
        return [], "has a forward that is not its layers one after the other: do in layers what it adds"
    return widths, _wrong_outputs(widths[-1], sizes)


def _part(whole: Arguments) -> Arguments:
    """Take the near nodes, and the edges to closed ones."""
    chosen = [index[1] < NUM_CLOSED for index in whole.index]
    further = {
        name: [None if of is None else of[edges] for of, edges in zip(values, chosen, strict=True)]
        for name, values in whole.further.items()
    }
    rows = [None if of_type is None else of_type[:NUM_NEAR] for of_type in whole.rows]
    return Arguments(rows, [index[:, edges] for index, edges in zip(whole.index, chosen, strict=True)], further)


def widths_of(rows: Sequence[torch.Tensor | None]) -> Widths:
    """List the widths of rows by type; None without rows."""
    return tuple(None if of_type is None else of_type.shape[1] for of_type in rows)


def _alike(found: Sequence[Any], expected: Sequence[Any], count: int) -> bool:
    """Whether the first ``count`` rows of all types are equal but for rounding."""
    return widths_of(found) == widths_of(expected) and all(
        torch.allclose(of_type[:count], other[:count], rtol=1e-6, atol=1e-9)
        for of_type, other in zip(found, expected, strict=True)
        if of_type is not None
    )


def _wrong_outputs(widths: Widths, sizes: Any) -> str:
    """Say which type that is predicted has no outputs, or outputs of another width; empty: none."""
    for kind in sizes.predicted or range(len(widths)):
        if widths[kind] != sizes.outputs:
            found = "no rows" if widths[kind] is None else f"rows of {widths[kind]} columns"
            return f"has layers whose last one returns {found} for {sizes.types[kind]}, not {sizes.outputs} columns"
    return ""
