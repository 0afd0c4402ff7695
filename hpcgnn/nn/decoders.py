"""Decoders, which score pairs of embeddings as links, and their table.

n positive pairs, k negatives each, m candidates, Z width of embeddings, K neighbors a node. All decoders have these
methods. ``forward`` scores pairs of source and destination [n, Z], one of them perhaps [k, n, Z], as [n] or [k, n].
``all_pairs`` scores queries [n, Z] with every candidate [m, Z] as [n, m]. Queries are sources or, if reverse,
destinations; relation [n] is their edge type. Subclasses of ``Decoder`` do it in two parts, a row made of the query and
its comparison, so that ranks with a share of the candidates each need the rows alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from hpcgnn.choices import Part, has_kernel
from hpcgnn.native.layers import can_multiply
from hpcgnn.native.link_decoder import link_decoder, of_roles
from hpcgnn.native.products import linear


class Decoder(nn.Module):
    """Base of decoders that make a row of a query and compare it with candidates, one pair at a time or all of them.
    reciprocal: queries of sources have other weights by edge type; is_product: ``match`` is a product of matrices."""

    reciprocal, is_product = False, True

    def ask(self, query, relation=None, reverse: bool = False, factor=None) -> torch.Tensor:
        """Make the rows [..., Z] that candidates are compared with. factor [n, .]: multiplies the rows of edge types,
        None: 1."""
        return query

    def compare(self, asked, answer) -> torch.Tensor:
        """Score rows of queries, one answer each, [n] or [k, n]."""
        return (asked * answer).sum(-1)

    def match(self, asked, candidate) -> torch.Tensor:
        """Score rows of queries [n, Z] with all candidates [m, Z]: [n, m]."""
        return linear(asked, candidate)

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        """Score pairs [n] or [k, n], as answers to the queries of their sources."""
        return self.compare(self.ask(source, relation), destination)

    def all_pairs(self, query, candidate, relation=None, reverse: bool = False) -> torch.Tensor:
        """Score queries with all candidates, [n, m]."""
        return self.match(self.ask(query, relation, reverse), candidate)


class DotProduct(Decoder):
    """Scores a pair by the dot product of both."""


class Cosine(Decoder):
    """Scores a pair by the cosine of the angle between both, divided by a temperature."""

    is_product = False

    def __init__(self, temperature: float = 1.0):
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"the temperature of cosine scores must be positive, got {temperature}")
        self.temperature = temperature

    def ask(self, query, relation=None, reverse: bool = False, factor=None) -> torch.Tensor:
        return functional.normalize(query, dim=-1) / self.temperature

    def match(self, asked, candidate) -> torch.Tensor:
        return linear(asked, functional.normalize(candidate))

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        """Score pairs [n] or [k, n]."""
        return functional.cosine_similarity(source, destination, dim=-1) / self.temperature


class MlpDecoder(nn.Module):
    """Scores a pair by a network of two layers over both; the direction counts."""

    def __init__(self, width: int):
        super().__init__()
        self.source, self.destination = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 1)

    def weights(self) -> list[torch.Tensor]:
        """List the weights in the order in which `link_decoder` takes them."""
        return [self.source.weight, self.source.bias, self.destination.weight, self.out.weight, self.out.bias]

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        """Score pairs [n] or [k, n], in plain torch."""
        from_source = linear(source, self.source.weight, self.source.bias)
        from_destination = linear(destination.flatten(0, -2), self.destination.weight)
        from_destination = from_destination.view(*destination.shape[:-1], self.destination.out_features)
        return functional.linear(torch.relu(from_source + from_destination), self.out.weight, self.out.bias).squeeze(-1)

    @torch.no_grad()
    def all_pairs(self, query, candidate, relation=None, reverse: bool = False) -> torch.Tensor:
        """Score all pairs without gradients, one hidden column after the other: [n, m, Z] would not fit in memory."""
        source, destination = (candidate, query) if reverse else (query, candidate)
        source = linear(source, self.source.weight, self.source.bias)
        destination = linear(destination, self.destination.weight)
        rows, columns = (destination, source.T.contiguous()) if reverse else (source, destination.T.contiguous())
        score = self.out.bias.expand(len(query), len(candidate)).clone()
        hidden = torch.empty_like(score)
        for number, weight in enumerate(self.out.weight[0].tolist()):
            torch.add(rows[:, number : number + 1], columns[number], out=hidden)
            score.add_(hidden.relu_(), alpha=weight)
        return score


class RelationDecoder(Decoder):
    """Base of decoders with a row of weights by edge type. Subclasses define ``turn``. reciprocal: each edge type has a
    second row, through which sources are asked for (Lacroix et al., Canonical tensor decomposition for knowledge base
    completion, 2018)."""

    is_complex = is_complex_relation = False  # rows of nodes, and of edge types: complex numbers, the real parts first

    def __init__(self, relations: int, width: int, reciprocal: bool = False):
        super().__init__()
        if self.is_complex and width % 2:
            raise ValueError(f"complex embeddings are of even width, got {width}")
        self.relations, self.reciprocal = relations, reciprocal
        self.relation = nn.Embedding(relations * (1 + reciprocal), self.relation_width(width))
        self.draw(self.relation.weight)

    def relation_width(self, width: int) -> int:
        """Return the width of the rows of edge types for nodes of width Z."""
        return width

    def draw(self, weight: torch.Tensor) -> None:
        """Draw the first values of the rows of edge types."""
        nn.init.xavier_uniform_(weight)

    def turn(self, query, row, reverse: bool) -> torch.Tensor:
        """Make the rows [..., Z] of queries from the nodes' rows [..., Z] and the edge types' [n, .]."""
        raise NotImplementedError

    def place(self, relation, reverse: bool):
        """Return the rows of the weights that queries of edge types [n] read."""
        return relation + self.relations if reverse and self.reciprocal else relation

    def ask(self, query, relation=None, reverse: bool = False, factor=None) -> torch.Tensor:
        row = self.relation(self.place(relation, reverse))
        return self.turn(query, row if factor is None else row * factor, reverse and not self.reciprocal)


class DistMult(RelationDecoder):
    """Scores a pair by the sum of source * relation * destination (Yang et al., Embedding entities and relations for
    learning and inference in knowledge bases, 2015)."""

    def turn(self, query, row, reverse: bool) -> torch.Tensor:
        return query * row


class ComplEx(RelationDecoder):
    """Scores a pair by the real part of the sum of source * relation * conjugate of destination, as complex numbers.
    Their real parts are the first half of a row (Trouillon et al., Complex embeddings for simple link prediction,
    2016)."""

    is_complex = is_complex_relation = True

    def turn(self, query, row, reverse: bool) -> torch.Tensor:
        return _complex_product(query, row, -1 if reverse else 1)


class ConvTransE(RelationDecoder):
    """Scores a pair by the dot product of the destination and a row that a convolution makes of the rows of source and
    edge type (Shang et al., End-to-end structure-aware convolutional networks for knowledge base completion, 2019).
    Layer normalization of each row takes the place of batch normalization, so that no score depends on the other
    queries. Sources are always asked for through second rows of the edge types."""

    channels, kernel = 50, 3

    def __init__(self, relations: int, width: int):
        super().__init__(relations, width, reciprocal=True)
        self.enter = nn.LayerNorm(width)
        self.convolution = nn.Conv1d(2, self.channels, self.kernel, padding=self.kernel // 2)
        self.product = nn.Linear(self.channels * width, width)
        self.leave = nn.LayerNorm(width)

    def turn(self, query, row, reverse: bool) -> torch.Tensor:
        pair = self.enter(torch.stack(torch.broadcast_tensors(query, row), -2))
        maps = torch.relu(self.convolution(pair.flatten(0, -3)))
        return torch.relu(self.leave(self.product(maps.flatten(1)))).view(*pair.shape[:-2], pair.shape[-1])


class EvolvedDecoder:
    """A decoder with weights by edge type, whose rows of edge types are given, in place of weights: rows [2 T, Z], the
    second T for queries of sources, or [T, Z]."""

    def __init__(self, decoder: RelationDecoder, rows: torch.Tensor):
        self._decoder, self._rows = decoder, rows

    def ask(self, query, relation=None, reverse: bool = False) -> torch.Tensor:
        """Make the rows [..., Z] that candidates are compared with."""
        decoder = self._decoder
        row = functional.embedding(decoder.place(relation, reverse), self._rows)
        return decoder.turn(query, row, reverse and not decoder.reciprocal)

    def match(self, asked, candidate) -> torch.Tensor:
        """Score rows of queries [n, Z] with all candidates [m, Z]: [n, m]."""
        return self._decoder.match(asked, candidate)

    def all_pairs(self, query, candidate, relation=None, reverse: bool = False) -> torch.Tensor:
        """Score queries with all candidates, [n, m]."""
        return self.match(self.ask(query, relation, reverse), candidate)

    def __call__(self, source, destination, relation=None) -> torch.Tensor:
        """Score pairs [n] or [k, n], as answers to the queries of their sources."""
        return self._decoder.compare(self.ask(source, relation), destination)


DISTANCES = {"l1": 1.0, "l2": 2.0}  # names of norms


class TransE(RelationDecoder):
    """Scores a pair by ``offset`` minus the length of source + relation - destination, the sum of absolute values or
    the Euclidean length (Bordes et al., Translating embeddings for modeling multi-relational data, 2013)."""

    is_product = False

    def __init__(self, relations: int, width: int, reciprocal: bool = False, distance: str = "l1", offset: float = 0.0):
        super().__init__(relations, width, reciprocal)
        self.norm, self.offset = DISTANCES[distance], offset

    def turn(self, query, row, reverse: bool) -> torch.Tensor:
        return query - row if reverse else query + row

    def compare(self, asked, answer) -> torch.Tensor:
        return self.offset - torch.linalg.vector_norm(asked - answer, self.norm, dim=-1)

    def match(self, asked, candidate) -> torch.Tensor:
        # Not by products: rounding of |a|^2 + |b|^2 - 2ab is large where two rows are near each other.
        return self.offset - torch.cdist(asked, candidate, self.norm, compute_mode="donot_use_mm_for_euclid_dist")


class RotatE(RelationDecoder):
    """Scores a pair by ``offset`` minus the sum of the absolute values of source * relation - destination, as complex
    numbers. Relations are rotations, of which the weights are the angles (Sun et al., RotatE, 2019)."""

    is_complex, is_product = True, False

    def __init__(self, relations: int, width: int, reciprocal: bool = False, offset: float = 0.0):
        super().__init__(relations, width, reciprocal)
        self.offset = offset

    def relation_width(self, width: int) -> int:
        return width // 2

    def draw(self, weight: torch.Tensor) -> None:
        nn.init.uniform_(weight, -math.pi, math.pi)

    def turn(self, query, row, reverse: bool) -> torch.Tensor:
        return _complex_product(query, torch.cat([row.cos(), row.sin()], -1), -1 if reverse else 1)

    def compare(self, asked, answer) -> torch.Tensor:
        difference = torch.stack((asked - answer).chunk(2, -1))
        return self.offset - torch.linalg.vector_norm(difference, dim=0).sum(-1)

    def match(self, asked, candidate) -> torch.Tensor:
        return self.offset - _SumOfModuli.apply(asked, candidate)


class _SumOfModuli(torch.autograd.Function):
    """Sums the absolute values of the differences of complex rows [n, Z] and [m, Z], one column after the other, there
    and back: [n, m, Z] would not fit in memory."""

    @staticmethod
    def forward(ctx, rows, others):
        ctx.save_for_backward(rows, others)
        total = rows.new_zeros(len(rows), len(others))
        for _, _, _, size in _column_differences(rows, others):
            total += size
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        rows, others = ctx.saved_tensors
        of_rows, of_others, half = torch.zeros_like(rows), torch.zeros_like(others), rows.shape[1] // 2
        for column, real, imaginary, size in _column_differences(rows, others):
            slope = gradient / size.masked_fill_(size == 0, 1.0)  # the gradient is 0 where both are equal
            for at, part in ((column, real), (half + column, imaginary)):
                part *= slope
                of_rows[:, at], of_others[:, at] = part.sum(1), -part.sum(0)
        return of_rows, of_others


def _column_differences(rows: torch.Tensor, others: torch.Tensor):
    """Yield the complex columns of rows [n, Z] minus the ones of others [m, Z]: number, real and imaginary parts and
    absolute values [n, m]."""
    half, columns = rows.shape[1] // 2, others.T.contiguous()
    for number in range(half):
        real = rows[:, number : number + 1] - columns[number]
        imaginary = rows[:, half + number : half + number + 1] - columns[half + number]
        yield number, real, imaginary, (real.square() + imaginary.square()).sqrt_()


def _complex_product(rows: torch.Tensor, factor: torch.Tensor, sign: int) -> torch.Tensor:
    """Multiply rows [..., Z] of complex numbers with factors [..., Z] or, where sign is -1, with their conjugates."""
    (real, imaginary), (factor_real, factor_imaginary) = rows.chunk(2, -1), factor.chunk(2, -1)
    factor_imaginary = sign * factor_imaginary
    return torch.cat(
        [real * factor_real - imaginary * factor_imaginary, real * factor_imaginary + imaginary * factor_real], -1
    )


def meeting(source_node, source_slot, destination_node, destination_slot) -> torch.Tensor:
    """Mark the common nodes of two neighborhoods, [n, 4 K] 0 or 1. Marked are the source's slots that are the
    destination, the destination's slots that are the source, and each side's slots that the other side has as well.

    source_node, destination_node [n] rows; source_slot, destination_slot [n, K] rows, -1 pads.
    """
    common = (source_slot.unsqueeze(2) == destination_slot.unsqueeze(1)) & (source_slot >= 0).unsqueeze(2)
    pieces = [
        source_slot == destination_node.unsqueeze(1), destination_slot == source_node.unsqueeze(1),
        common.any(2), common.any(1),
    ]  # fmt: skip
    return torch.cat(pieces, dim=1)


class PairDecoder(nn.Module):
    """An MLP over the embeddings, plus one over the common nodes of the neighborhoods.

    Baselines without memory score by whether a destination is among the source's recent neighbors, and how recent it is
    (Poursafaei et al., EdgeBank, 2022). Common neighbors add to that (Yu et al., DyGFormer, 2023; Zhang et al., TNCN,
    2024).
    """

    def __init__(self, width: int, slots: int):
        super().__init__()
        self.link = MlpDecoder(width)
        self.hidden, self.out = nn.Linear(4 * slots, width), nn.Linear(width, 1, bias=False)

    def forward(self, source, destination, met) -> torch.Tensor:
        """Score pairs. source [n, Z], destination [n, Z] or [k, n, Z], met: ``meeting`` [n, 4 K] or [k, n, 4 K];
        returns logits."""
        features = met.to(source.dtype)
        hidden = torch.relu(linear(features.flatten(0, -2), self.hidden.weight, self.hidden.bias))
        return self.link(source, destination) + linear(hidden, self.out.weight).view(features.shape[:-1])


class ClockDecoder(nn.Module):
    """An MLP over clocks and counts of a pair and its nodes, plus one over the embeddings, if there are any.

    When a pair met last, and how often, ranks links better than most models do (Cornell et al., On the power of
    heuristics in temporal graphs, 2025). Here the weights of such facts are learned.
    """

    def __init__(self, width: int, clocks: int, hidden: int):
        """width: Z, 0 without embeddings; clocks: the numbers F of a pair; hidden: width of the layers."""
        super().__init__()
        self.link = MlpDecoder(width) if width else None
        self.first, self.second, self.out = nn.Linear(clocks, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, 1)

    def forward(self, source, destination, clocks) -> torch.Tensor:
        """Score pairs. source [n, Z] or [k, n, Z], destination [k, n, Z], clocks [k, n, F]; returns logits [k, n]."""
        hidden = clocks.flatten(0, -2)
        for layer in (self.first, self.second):
            hidden = torch.relu(linear(hidden, layer.weight, layer.bias))
        score = linear(hidden, self.out.weight, self.out.bias).view(clocks.shape[:-1])
        return score if self.link is None else score + self.link(source, destination)


class WalkDecoder(nn.Module):
    """A network of two layers over the embeddings, if there are any, and what another one makes of the numbers of a
    pair (Lu et al., Improving temporal link prediction via temporal walk matrix projection, TPNet, 2024)."""

    def __init__(self, width: int, numbers: int, hidden: int):
        """width: Z, 0 without embeddings; numbers: F of a pair; hidden: width of the layer over both."""
        super().__init__()
        self.wide, self.narrow = nn.Linear(numbers, 4 * numbers), nn.Linear(4 * numbers, numbers)
        self.pair = nn.Linear(numbers, hidden)
        self.source = nn.Linear(width, hidden, bias=False) if width else None
        self.destination = nn.Linear(width, hidden, bias=False) if width else None
        self.out = nn.Linear(hidden, 1)

    def forward(self, source, destination, numbers) -> torch.Tensor:
        """Score pairs. source [n, Z] or [k, n, Z], destination [k, n, Z], numbers [k, n, F]; returns logits [k, n]."""
        rows = torch.relu(linear(numbers.flatten(0, -2), self.wide.weight, self.wide.bias))
        for layer in (self.narrow, self.pair):
            rows = linear(rows, layer.weight, layer.bias)
        rows = rows.view(*numbers.shape[:-1], rows.shape[1])
        for of_end, ends in ((self.source, source), (self.destination, destination)):
            if of_end is not None:
                rows = rows + linear(ends.flatten(0, -2), of_end.weight).view(*ends.shape[:-1], rows.shape[-1])
        return linear(torch.relu(rows).flatten(0, -2), self.out.weight, self.out.bias).view(numbers.shape[:-1])


class PathDecoder(nn.Module):
    """Scores nodes by their states for a query and by the query's row, with a network of two layers (Zhu et al., Neural
    Bellman-Ford networks, 2021). A query is an edge type and the end that is asked for; each has a row. B queries, n
    nodes, W width. paths: computes states and scores from global ids, on all ranks together; set by whoever trains.
    """

    is_product = False
    paths: Any

    def __init__(self, relations: int, width: int):
        super().__init__()
        self.relations, self.query = relations, nn.Embedding(2 * relations, width)
        self.hidden, self.out = nn.Linear(2 * width, 2 * width), nn.Linear(2 * width, 1)

    def ask(self, edge_type: torch.Tensor, reverse: torch.Tensor) -> torch.Tensor:
        """Make the rows [B, W] of queries from edge types and whether sources are asked for, both [B]."""
        return self.query(edge_type + self.relations * reverse)

    def match(self, states: torch.Tensor, asked: torch.Tensor) -> torch.Tensor:
        """Score nodes by their states [n, B, W] for queries: [B, n]."""
        rows = torch.cat([states, asked.expand_as(states)], dim=-1)
        hidden = torch.relu(functional.linear(rows, self.hidden.weight, self.hidden.bias))
        return functional.linear(hidden, self.out.weight, self.out.bias).squeeze(-1).T

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        """Collective. Score pairs of nodes, global ids [m, 1]: [m]."""
        return self.paths.score_pairs(source.squeeze(1), destination.squeeze(1), relation)

    def all_pairs(self, query, candidate, relation=None, reverse: bool = False) -> torch.Tensor:
        """Collective. Score queries, global ids [Q, 1], alike on all ranks, with this rank's nodes [n, 1]: [Q, n]."""
        return self.paths.score(query.squeeze(1), relation, reverse)


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder: the width Z of embeddings, the number of edge types, the ``temperature`` of cosines, and the
    neighbors K of a node that it compares. reciprocal: edge types have a second row for queries of sources; distance,
    offset: of scores that are distances. clocks: numbers F of a pair; hidden: width of the layers that read them."""

    width: int
    relations: int = 1
    temperature: float = 1.0
    slots: int = 1
    reciprocal: bool = False
    distance: str = "l1"
    offset: float = 0.0
    clocks: int = 0
    hidden: int = 0


@dataclass(frozen=True)
class DecoderPart(Part):
    """A decoder. make: makes it from DecoderSizes; typed: has weights by edge type (RelationDecoder);
    reciprocal: always asks for sources through second rows of the edge types; options: the keys of the section that it
    reads. compares_neighbors: scores the common nodes of neighborhoods, too; reads_clocks: scores clocks and counts of
    pairs, too; reads_walks: scores numbers of random projections of walks, too. All three are for temporal graphs and
    have no ``all_pairs``. shares_negatives: its ``all_pairs`` has
    gradients, so that the edges of a batch may have the same negatives. of_paths: scores states of queries, which one
    kind of model of static graphs has. kernel: the class, and no subclass, that a
    native kernel computes."""

    make: Callable[[DecoderSizes], nn.Module]
    typed: bool = False
    reciprocal: bool = False
    options: tuple[str, ...] = ()
    compares_neighbors: bool = False
    reads_clocks: bool = False
    reads_walks: bool = False
    shares_negatives: bool = True
    of_paths: bool = False
    kernel: type[nn.Module] | None = None

    @property
    def needs_events(self) -> bool:
        """Whether it scores what temporal graphs alone have."""
        return self.compares_neighbors or self.reads_numbers

    @property
    def reads_numbers(self) -> bool:
        """Whether it scores numbers of pairs, and so needs no embeddings."""
        return self.reads_clocks or self.reads_walks


DECODERS = {
    "dot": DecoderPart(lambda sizes: DotProduct(), "dot product of the embeddings"),
    "cosine": DecoderPart(
        lambda sizes: Cosine(sizes.temperature), "cosine similarity, divided by task.temperature",
        options=("temperature",),
    ),
    "mlp": DecoderPart(
        lambda sizes: MlpDecoder(sizes.width), "two-layer network over both embeddings", shares_negatives=False,
        kernel=MlpDecoder,
    ),
    "distmult": DecoderPart(
        lambda sizes: DistMult(sizes.relations, sizes.width, sizes.reciprocal),
        "sum of the products with a row of the edge type (DistMult)", typed=True,
    ),
    "complex": DecoderPart(
        lambda sizes: ComplEx(sizes.relations, sizes.width, sizes.reciprocal),
        "DistMult over complex numbers (ComplEx)", typed=True,
    ),
    "transe": DecoderPart(
        lambda sizes: TransE(sizes.relations, sizes.width, sizes.reciprocal, sizes.distance, sizes.offset),
        "distance of the destination from the source plus a row of the edge type, negative (TransE)", typed=True,
        options=("distance", "offset"),
    ),
    "rotate": DecoderPart(
        lambda sizes: RotatE(sizes.relations, sizes.width, sizes.reciprocal, sizes.offset),
        "distance of the destination from the source turned by angles of the edge type, negative (RotatE)", typed=True,
        options=("offset",),
    ),
    "conv_transe": DecoderPart(
        lambda sizes: ConvTransE(sizes.relations, sizes.width),
        "product with a convolution over source and row of the edge type (ConvTransE)", typed=True, reciprocal=True,
    ),
    "paths": DecoderPart(
        lambda sizes: PathDecoder(sizes.relations, sizes.width),
        "two-layer network over a node's state for the query and the row of its edge type (NBFNet; model.kind nbfnet "
        "only)",
        typed=True, of_paths=True,
    ),
    "pair": DecoderPart(
        lambda sizes: PairDecoder(sizes.width, sizes.slots),
        "mlp, and whether the nodes are recent neighbors or have neighbors in common (temporal graphs only)",
        compares_neighbors=True, shares_negatives=False,
    ),
    "clocks": DecoderPart(
        lambda sizes: ClockDecoder(sizes.width, sizes.clocks, sizes.hidden),
        "mlp, and times since the last events of the pair and of its nodes, and their numbers (temporal graphs only)",
        reads_clocks=True, shares_negatives=False,
    ),
    "walks": DecoderPart(
        lambda sizes: WalkDecoder(sizes.width, sizes.clocks, sizes.hidden),
        "two-layer network over both embeddings and products of random projections of walks (TPNet; temporal graphs "
        "only)",
        reads_walks=True, shares_negatives=False,
    ),
    "clocks_walks": DecoderPart(
        lambda sizes: ClockDecoder(sizes.width, sizes.clocks, sizes.hidden),
        "clocks, with the products of walks among the numbers of the pair (temporal graphs only)", reads_clocks=True,
        reads_walks=True, shares_negatives=False,
    ),
}  # fmt: skip


def score_roles(decoder: Any, embedding: torch.Tensor) -> torch.Tensor:
    """Score pairs. embedding [1 + k, b, Z]: sources, then destinations of k roles; returns logits [k, b]. One native
    call on the CPU for a decoder that has a kernel."""
    if _is_native(decoder, embedding):
        return link_decoder(*of_roles(embedding), decoder.weights())
    return decoder(embedding[0], embedding[1:])


def score_at(
    decoder: Any, tables: Sequence[torch.Tensor], places: Sequence[torch.Tensor], relation: torch.Tensor | None = None
) -> torch.Tensor:
    """Score pairs of rows. tables: sources [S, Z] and destinations [D, Z]; places: the rows of each pair in them, both
    [b] or [k, b] int64; relation [b]: edge types or None. Returns logits [b] or [k, b]. A decoder that has a kernel
    multiplies each row once on the CPU, not each pair's."""
    if _is_native(decoder, *tables):
        tables, places = zip(*map(_rows_of_places, tables, places), strict=True)
        pairs = torch.broadcast_tensors(*places)
        flat = [place.reshape(place.numel() // max(1, place.shape[-1]), place.shape[-1]) for place in pairs]
        return link_decoder(tables, flat, decoder.weights()).view(pairs[0].shape)
    source, destination = (functional.embedding(place, table) for table, place in zip(tables, places, strict=True))
    if source.ndim == destination.ndim == 3:
        relation = None if relation is None else relation.repeat(len(source))
        return decoder(source.flatten(0, 1), destination.flatten(0, 1), relation).view(source.shape[:2])
    return decoder(source, destination, relation)


def _rows_of_places(table: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Take the rows of places out of a table that has more rows than there are places; the others would be multiplied
    for nothing."""
    if place.numel() >= len(table):
        return table, place
    return functional.embedding(place.flatten(), table), torch.arange(place.numel()).view(place.shape)


def _is_native(decoder: Any, *tensors: torch.Tensor) -> bool:
    return has_kernel(decoder, DECODERS) and can_multiply(*tensors, decoder.out.weight)
