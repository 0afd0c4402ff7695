"""Decoders, which score pairs of embeddings as links, and their table.

n positive pairs, k negatives each, m candidates, Z width of embeddings, K neighbors a node. All decoders have these
methods. ``forward`` scores pairs of source and destination [n, Z], one of them perhaps [k, n, Z], as [n] or [k, n].
``all_pairs`` scores queries [n, Z] with every candidate [m, Z] as [n, m]. Queries are sources or, if reverse,
destinations; relation [n] is their edge type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from hpcgnn.choices import Part, has_kernel
from hpcgnn.native.layers import can_multiply
from hpcgnn.native.link_decoder import link_decoder
from hpcgnn.native.products import linear


class DotProduct(nn.Module):
    """Scores a pair by the dot product of both."""

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        """Score pairs [n] or [k, n]."""
        return (source * destination).sum(-1)

    def all_pairs(self, query, candidate, relation=None, reverse: bool = False) -> torch.Tensor:
        """Score queries with all candidates, [n, m]."""
        return linear(query, candidate)


class Cosine(nn.Module):
    """Scores a pair by the cosine of the angle between both, divided by a temperature."""

    def __init__(self, temperature: float = 1.0):
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"the temperature of cosine scores must be positive, got {temperature}")
        self.temperature = temperature

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        """Score pairs [n] or [k, n]."""
        return functional.cosine_similarity(source, destination, dim=-1) / self.temperature

    def all_pairs(self, query, candidate, relation=None, reverse: bool = False) -> torch.Tensor:
        """Score queries with all candidates, [n, m]."""
        return linear(functional.normalize(query) / self.temperature, functional.normalize(candidate))


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


class DistMult(nn.Module):
    """Scores a pair by the sum of source * relation * destination (Yang et al., Embedding entities and relations for
    learning and inference in knowledge bases, 2015)."""

    def __init__(self, relations: int, width: int):
        super().__init__()
        self.relation = nn.Embedding(relations, width)
        nn.init.xavier_uniform_(self.relation.weight)

    def forward(self, source, destination, relation) -> torch.Tensor:
        """Score pairs of an edge type each, [n] or [k, n]."""
        return (source * self.relation(relation) * destination).sum(-1)

    def all_pairs(self, query, candidate, relation, reverse: bool = False) -> torch.Tensor:
        """Score queries with all candidates, [n, m]; it does not matter which of the two is the source."""
        return linear(query * self.relation(relation), candidate)


class ComplEx(nn.Module):
    """Scores a pair by the real part of the sum of source * relation * conjugate of destination, as complex numbers.
    Their real parts are the first half of a row (Trouillon et al., Complex embeddings for simple link prediction,
    2016)."""

    def __init__(self, relations: int, width: int):
        super().__init__()
        if width % 2:
            raise ValueError(f"complex embeddings are of even width, got {width}")
        self.relation = nn.Embedding(relations, width)
        nn.init.xavier_uniform_(self.relation.weight)

    def forward(self, source, destination, relation) -> torch.Tensor:
        """Score pairs of an edge type each, [n] or [k, n]."""
        return (_complex_product(source, self.relation(relation), 1) * destination).sum(-1)

    def all_pairs(self, query, candidate, relation, reverse: bool = False) -> torch.Tensor:
        """Score queries with all candidates, [n, m]."""
        return linear(_complex_product(query, self.relation(relation), -1 if reverse else 1), candidate)


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


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder: the width Z of embeddings, the number of edge types, the ``temperature`` of cosines, and the
    neighbors K of a node that it compares."""

    width: int
    relations: int = 1
    temperature: float = 1.0
    slots: int = 1


@dataclass(frozen=True)
class DecoderPart(Part):
    """A decoder. make: makes it from DecoderSizes; typed: has weights by edge type; divides: reads the temperature.
    compares_neighbors: scores the common nodes of neighborhoods, too, and has no ``all_pairs``. shares_negatives: its
    ``all_pairs`` has gradients, so that the edges of a batch may have the same negatives. kernel: the class, and no
    subclass, that a native kernel computes."""

    make: Callable[[DecoderSizes], nn.Module]
    typed: bool = False
    divides: bool = False
    compares_neighbors: bool = False
    shares_negatives: bool = True
    kernel: type[nn.Module] | None = None


DECODERS = {
    "dot": DecoderPart(lambda sizes: DotProduct(), "dot product of the embeddings"),
    "cosine": DecoderPart(
        lambda sizes: Cosine(sizes.temperature), "cosine similarity, divided by task.temperature", divides=True
    ),
    "mlp": DecoderPart(
        lambda sizes: MlpDecoder(sizes.width), "two-layer network over both embeddings", shares_negatives=False,
        kernel=MlpDecoder,
    ),
    "distmult": DecoderPart(
        lambda sizes: DistMult(sizes.relations, sizes.width),
        "sum of the products with a row of the edge type (DistMult)", typed=True,
    ),
    "complex": DecoderPart(
        lambda sizes: ComplEx(sizes.relations, sizes.width), "DistMult over complex numbers (ComplEx)", typed=True
    ),
    "pair": DecoderPart(
        lambda sizes: PairDecoder(sizes.width, sizes.slots),
        "mlp, and whether the nodes are recent neighbors or have neighbors in common (temporal graphs only)",
        compares_neighbors=True, shares_negatives=False,
    ),
}  # fmt: skip


def score_roles(decoder: Any, embedding: torch.Tensor) -> torch.Tensor:
    """Score pairs. embedding [R, b, Z]: sources, then destinations of R - 1 roles; returns logits [R - 1, b]. One
    native call on the CPU for a decoder that has a kernel."""
    if has_kernel(decoder, DECODERS) and can_multiply(embedding, decoder.out.weight):
        return link_decoder(embedding, *decoder.weights())
    return decoder(embedding[0], embedding[1:])
