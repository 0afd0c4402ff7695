"""Frames, which models of snapshots compute on, and the interface of these models to the run: tensors only.

A *frame* is one place in k sequences of snapshots that a step follows at once. The sequences are k windows that end at
different targets, or one (k = 1) where state is carried on. *State* is a model's memory from snapshot to snapshot: rows
of nodes [n, k, W], kept at their owners, and tensors [k, ...] that all ranks share. n nodes of this rank, F or I input,
D hidden, C output columns, T edge types; rows are [n, k, D].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from hpcgnn.comm.halo import RankHalo, RankRows
from hpcgnn.native import segment_sum
from hpcgnn.native.random import StepKey
from hpcgnn.nn.aggregation import attend, product, score_columns
from hpcgnn.snapshots.neighborhood import SNAPSHOT_BITS, Neighborhood, next_term, propagate
from hpcgnn.task.moments import Standard

RELATION = "relation"  # name of the state that holds the rows of edge types


@dataclass(slots=True)
class Neighbors:
    """The neighbors of all nodes in one snapshot: ``into`` along in-edges, ``out`` along out-edges where the model has
    ``with_out``, each with its halo (None: no remote nodes)."""

    into: Neighborhood
    halo: RankHalo | None = None
    out: Neighborhood | Any = None
    out_halo: RankHalo | None = None

    def propagate(self, name: str, rows: torch.Tensor, exchange=None, out: bool = False) -> torch.Tensor:
        """Collective. Sum rows [n, D] over neighbors."""
        side, halo = (self.out, self.out_halo) if out else (self.into, self.halo)
        return propagate(side, halo, name, rows, exchange)

    def attend(self, rows: torch.Tensor, exchange, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Collective. Sum rows [n, k, H], whose exchange was started, over neighbors by attention."""
        if self.halo is not None:
            remote_nodes = self.halo.finish(exchange)
            rows = torch.cat([rows, remote_nodes.view(len(remote_nodes), *rows.shape[1:])])
        columns = score_columns(source, target)
        scores = product(rows.reshape(-1, len(columns)), columns).view(*rows.shape[:-1], columns.shape[1])
        return attend(rows, scores, self.into.merged)

    def sum_types(self, relation: torch.Tensor) -> torch.Tensor:
        """Sum the rows [2 T, D] of the types of all edges of a node, along in-edges the first T: [n, D]."""
        along, back = relation.chunk(2)
        return segment_sum(along, self.into.types) + segment_sum(back, self.out.types)

    def start(self, rows: torch.Tensor, out: bool = False):
        """Collective. Begin the exchange of rows [n, D] for a ``propagate`` to come."""
        halo = self.out_halo if out else self.halo
        return None if halo is None else halo.start(rows)


@dataclass(slots=True)
class Snapshot:
    """One snapshot as a step sees it. inputs [n, F]; identity [n]: row ids, the keys of dropout. smoothed: terms of the
    inputs' series by operator, direction and number, kept from step to step, None where inputs are learned. whole: all
    neighbors, over which inputs that are not learned are smoothed, where the step sees a part of the neighbors."""

    number: int
    neighbors: Neighbors
    inputs: torch.Tensor
    identity: torch.Tensor
    smoothed: dict[tuple[str, bool, int], torch.Tensor] | Any = None
    whole: Neighbors | None = None


@dataclass(slots=True)
class Frame:
    """k snapshots, some with the same neighbors. everyone: brings the rows of all ranks [R m, D], m of each; None on a
    single rank. counts [R]: nodes of every rank. uses [k]: number of places in the step's frames that each snapshot
    takes, empty: one each."""

    snapshots: list[Snapshot]
    key: StepKey = field(default_factory=StepKey)
    everyone: RankRows | None = None
    counts: tuple[int, ...] = ()
    uses: tuple[int, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Nodes of all ranks."""
        return sum(self.counts) or len(self.snapshots[0].identity)

    @property
    def inputs(self) -> torch.Tensor:
        """[n, k, F]."""
        return side_by_side([snapshot.inputs for snapshot in self.snapshots])

    @property
    def learned(self) -> bool:
        """Whether inputs are learned: their sums over neighbors change with every step and are not kept."""
        return self.snapshots[0].smoothed is None

    @property
    def degree(self) -> torch.Tensor:
        """Sums of the weights of all in-edges [n, k, 1]."""
        return side_by_side([snapshot.neighbors.into.degree for snapshot in self.snapshots]).unsqueeze(2)

    @property
    def distinct(self) -> list[Neighbors]:
        """The different neighbors of the snapshots, in order of the first snapshot with them."""
        return list({id(snapshot.neighbors): snapshot.neighbors for snapshot in self.snapshots}.values())

    def start(self, rows: torch.Tensor, out: bool = False) -> list:
        """Collective. Begin the exchanges of rows [n, k, D] for a ``propagate`` to come."""
        if len(self.distinct) == 1:
            return [self.distinct[0].start(rows.flatten(1), out)]
        return [s.neighbors.start(piece, out) for s, piece in zip(self.snapshots, rows.unbind(1), strict=True)]

    def propagate(self, name: str, rows: torch.Tensor, exchanges: list | None = None, out: bool = False):
        """Collective. Return operator (``make_operator``) @ rows of every snapshot [n, k, D]."""
        if len(self.distinct) == 1:
            return self.distinct[0].propagate(name, rows.flatten(1), exchanges and exchanges[0], out).view(rows.shape)
        exchanges = exchanges or [None] * len(self.snapshots)
        pieces = zip(self.snapshots, rows.unbind(1), exchanges, strict=True)
        return side_by_side([s.neighbors.propagate(name, piece, ahead, out) for s, piece, ahead in pieces])

    def attend(self, rows: torch.Tensor, exchanges: list, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Collective. Sum neighbors' and own rows [n, k, H] of every snapshot, weighed by attention (``attend``).
        source and target [heads, H / heads] make scores of rows; exchanges: of the same rows, started before."""
        if len(self.distinct) == 1:
            return self.distinct[0].attend(rows, exchanges[0], source, target)
        pieces = zip(self.snapshots, rows.split(1, dim=1), exchanges, strict=True)
        return torch.cat([s.neighbors.attend(piece, ahead, source, target) for s, piece, ahead in pieces], dim=1)

    def sum_types(self, relation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum the rows [k, 2 T, D] of the types of all edges of a node in every snapshot, [n, k, D]; also returns the
        number of these edges, [n, k, 1]. Along in-edges the first T rows are read, along out-edges the others."""
        pairs = [(snapshot.neighbors, rows) for snapshot, rows in zip(self.snapshots, relation, strict=True)]
        total = side_by_side([neighbors.sum_types(rows) for neighbors, rows in pairs])
        degree = side_by_side([neighbors.into.degree + neighbors.out.degree for neighbors, _ in pairs])
        return total, degree.unsqueeze(2)

    def average_by_type(self, rows: torch.Tensor) -> torch.Tensor:
        """Collective. Average rows [n, k, D], in every snapshot, over the nodes of all ranks that are an end of an edge
        of a type: [k, T, D]; 0 for a type without edges."""
        ends = [snapshot.neighbors.into.ends_by_type(snapshot.neighbors.out) for snapshot in self.snapshots]
        sums = [segment_sum(piece, lists) for piece, lists in zip(rows.unbind(1), ends, strict=True)]
        counts = torch.cat([lists.degree for lists in ends]).to(rows.dtype)
        total = torch.cat([torch.cat(sums), counts.unsqueeze(1)], dim=1)
        if self.everyone is not None:
            of_ranks = self.everyone.finish(self.everyone.start(total))
            total = of_ranks.view(len(self.counts), *total.shape).sum(0)
        mean = total[:, :-1] / total[:, -1:].clamp(min=1)
        return mean.view(len(ends), -1, rows.shape[2])

    def smooth(self, name: str, out: bool = False, power: int = 1) -> torch.Tensor:
        """Collective. Return a term of the operator's series (``next_term``) of the inputs [n, k, F], the first of them
        operator @ inputs: formed once in a run where inputs are not learned."""
        return side_by_side([self._smooth(snapshot, name, out, power) for snapshot in self.snapshots])

    def drop(self, rows: torch.Tensor, site: int, p: float) -> torch.Tensor:
        """Drop entries of rows [n, k, D] by their keys; every place in a model has its own site."""
        if not self.key.training or p == 0 or rows.numel() == 0:
            return rows
        step = self.key.step << SNAPSHOT_BITS
        keys = [replace(self.key, step=step + snapshot.number) for snapshot in self.snapshots]
        masks = [
            key.dropout_mask(snapshot.identity, site, p, rows.shape[2], rows.dtype)
            for key, snapshot in zip(keys, self.snapshots, strict=True)
        ]
        return rows * torch.stack(masks, dim=1)

    def _smooth(self, snapshot: Snapshot, name: str, out: bool, power: int) -> torch.Tensor:
        if power <= 0:
            return snapshot.inputs
        terms, neighbors = snapshot.smoothed, snapshot.whole or snapshot.neighbors
        if terms is None:
            terms, neighbors = {}, snapshot.neighbors
        if (name, out, power) not in terms:
            last = self._smooth(snapshot, name, out, power - 1)
            before = self._smooth(snapshot, name, out, power - 2) if power > 1 else None
            terms[name, out, power] = next_term(name, neighbors.propagate(name, last, out=out), before)
        return terms[name, out, power]


def side_by_side(rows: list[torch.Tensor]) -> torch.Tensor:
    """Stack k times [n, D] to [n, k, D]; a single one is not copied."""
    return rows[0].unsqueeze(1) if len(rows) == 1 else torch.stack(rows, dim=1)


State = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class SequenceSizes:
    """Columns of the inputs and of the outputs; history: snapshots of a window, 0: state is carried on; learned: number
    of columns, the last ones of the inputs, that are learnable embeddings; edge_types: number T of edge types that the
    decoder of links has weights for, 0: it has none."""

    inputs: int
    outputs: int
    history: int = 0
    learned: int = 0
    edge_types: int = 0


@dataclass(frozen=True, slots=True)
class EvolvedOutputs:
    """Outputs [n, C] of nodes, and the rows [2 T, C] of edge types that go with them."""

    rows: torch.Tensor
    relation: torch.Tensor


class SequenceModel(nn.Module):
    """Base of the models of snapshots. A custom model is made as Class(config, sizes) and has these attributes and
    methods.

    node_state: widths of the state of nodes by name; with_out: whether frames must have out-neighbors. weighs_edges:
    whether the model weighs edges itself and cannot use their column weight; typed_edges: whether neighborhoods must
    have the types of edges; evolves_relations: whether the state after a window has the rows [k, 2 T, C] of edge types,
    as ``relation``, that links are scored with; config: the section ``model``. output: the last layer, a module, whose
    inputs are the embeddings of ``hpcgnn predict``; a model without it has none.
    standard_inputs, standard_target: how a run standardizes inputs that are not learned, before the model sees them,
    and the target, after the model's outputs; None: not.
    """

    node_state: dict[str, int] = {}  # noqa: RUF012 - models set their own
    with_out = False
    weighs_edges = False
    typed_edges = False
    evolves_relations = False
    standard_inputs: Standard | None
    standard_target: Standard | None

    def __init__(self, config: Any, sizes: SequenceSizes):
        super().__init__()
        self.config, self.sizes = config, sizes
        self.standard_inputs = self.standard_target = None

    def begin(self, inputs: torch.Tensor) -> State:
        """Return the state before the first snapshot, for inputs [n, k, I]."""
        nodes, sequences = inputs.shape[:2]
        state = {name: inputs.new_zeros(nodes, sequences, width) for name, width in self.node_state.items()}
        return state | {name: value.expand(sequences, *value.shape) for name, value in self.shared_state().items()}

    def asked(self, sequence: list) -> list:
        """Select, from a list with an item a frame, the items that outputs are formed of: the last one of a window, all
        where state is carried on."""
        return sequence[-1:] if self.sizes.history else sequence

    def shared_state(self) -> State:
        """Return the state that is the same for all nodes, as a sequence begins [...]: learned, or zeros."""
        return {}

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        """Collective. Compute the outputs [n, k, C] of snapshots that follow each other, all of them or the last ones,
        and the state after the last."""
        raise NotImplementedError
