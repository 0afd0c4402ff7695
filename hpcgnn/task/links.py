"""Decoders, which score pairs of embeddings as links, and losses, which are sums over positive pairs.

The caller divides a loss by the number of seeds of the global batch. n or s positive pairs, k negatives each, m
candidates, Z width of embeddings. What all decoders share: ``forward`` scores pairs, of source and destination [n, Z],
one of them perhaps [k, n, Z], as [n] or [k, n]; ``all_pairs`` scores queries [n, Z] with every candidate [m, Z] as
[n, m]. Queries are sources or, if reverse, destinations; relation [n] is their edge type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hpcgnn.choices import check_choice
from hpcgnn.native.layers import can_multiply
from hpcgnn.native.link_decoder import link_decoder
from hpcgnn.native.products import linear

DecoderKind = Literal["dot", "cosine", "mlp", "distmult", "complex"]
TYPED = ("distmult", "complex")  # with weights by edge type


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


class LinkDecoder(nn.Module):
    """Scores a pair by a network of two layers over both; it has no ``all_pairs``."""

    def __init__(self, width: int):
        super().__init__()
        self.source, self.destination = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 1)

    def score(self, embedding) -> torch.Tensor:
        """Score pairs. embedding [R, b, Z]: sources, then destinations of R - 1 roles; returns logits [R - 1, b]. One
        native call on the CPU. Subclasses are asked for their own ``forward``."""
        if type(self) is not LinkDecoder or not can_multiply(embedding, self.out.weight):
            return self(embedding[0], embedding[1:])
        return link_decoder(embedding, *self.weights())

    def weights(self) -> list[torch.Tensor]:
        """List the weights in the order in which `link_decoder` takes them."""
        return [self.source.weight, self.source.bias, self.destination.weight, self.out.weight, self.out.bias]

    def forward(self, source, destination) -> torch.Tensor:
        """Score pairs. source [n, Z]; destination [n, Z] or [k, n, Z]; returns logits [n] or [k, n], in plain torch."""
        from_source = linear(source, self.source.weight, self.source.bias)
        from_destination = linear(destination.flatten(0, -2), self.destination.weight)
        from_destination = from_destination.view(*destination.shape[:-1], self.destination.out_features)
        return functional.linear(torch.relu(from_source + from_destination), self.out.weight, self.out.bias).squeeze(-1)


class MlpDecoder(LinkDecoder):
    """Scores a pair as its base does, and queries with all candidates; the direction counts."""

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        """Score pairs [n] or [k, n]."""
        return super().forward(source, destination)

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
    """Scores a pair by the real part of the sum of source * relation * conjugate of destination, complex numbers whose
    real parts are the first half of a row (Trouillon et al., Complex embeddings for simple link prediction, 2016)."""

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


def make_decoder(kind: str, width: int, relations: int = 1, temperature: float = 1.0) -> nn.Module:
    """Make a decoder of embeddings of some width; temperature: of cosine. Raises ValueError for an unknown kind."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "dot": DotProduct,
        "cosine": lambda: Cosine(temperature),
        "mlp": lambda: MlpDecoder(width),
        "distmult": lambda: DistMult(relations, width),
        "complex": lambda: ComplEx(relations, width),
    }
    check_choice("decoder", kind, makers)
    return makers[kind]()


def binary_loss(
    positive: torch.Tensor, negative: torch.Tensor, positive_weight: float = 1.0, adversarial: float = 0.0
) -> torch.Tensor:
    """Sum over pairs of -log p(pair), times ``positive_weight``, minus the mean over its negatives of log(1 - p), where
    p is the logistic function of the score.

    positive [n]; negative [k, n], -inf where there is none; adversarial: see ``average``.
    """
    against = average(functional.softplus(negative), negative, adversarial)
    return positive_weight * functional.softplus(-positive).sum() + against.sum()


def margin_loss(
    positive: torch.Tensor, negative: torch.Tensor, margin: float = 1.0, adversarial: float = 0.0
) -> torch.Tensor:
    """Sum over pairs [n] of the mean over their negatives [k, n], -inf where there is none, of the triplet loss
    max(0, margin - pair + negative)."""
    return average(torch.relu(margin - positive + negative), negative, adversarial).sum()


def average(loss: torch.Tensor, negative: torch.Tensor, adversarial: float) -> torch.Tensor:
    """Average losses [k, n] over a pair's negatives, [n]: those whose score [k, n] is above -inf; 0 without any. With
    adversarial above 0 the softmax of adversarial * score weighs them (Sun et al., RotatE, 2019)."""
    is_negative = negative > float("-inf")
    if not adversarial:
        return loss.sum(0) / is_negative.sum(0).clamp(min=1)
    weight = (adversarial * negative.detach()).softmax(0)
    return (loss * torch.where(is_negative, weight, 0)).sum(0)


def softmax_loss(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Sum over pairs [n] of -log softmax of the pair's score among itself and the scores of its negatives [k, n], -inf
    where there is none."""
    score = torch.cat([positive.unsqueeze(1), negative.T], dim=1)
    target = torch.zeros(len(positive), dtype=torch.int64, device=positive.device)
    return functional.cross_entropy(score, target, reduction="sum")


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def make_loss(kind: str, margin: float = 1.0, adversarial: float = 0.0, positive_weight: float = 1.0) -> Loss:
    """Make the loss that ``task.loss`` names: a sum over pairs, of their scores [n] and their negatives' [k, n]."""
    losses: dict[str, Loss] = {
        "binary": partial(binary_loss, positive_weight=positive_weight, adversarial=adversarial),
        "margin": partial(margin_loss, margin=margin, adversarial=adversarial),
        "softmax": softmax_loss,
    }
    return losses[kind]


def mean_loss(loss: Loss, positive: torch.Tensor, negatives: Sequence[torch.Tensor]) -> torch.Tensor:
    """Average the losses of pairs [n] against negatives [k, n] over the ends that negatives stand in for."""
    total: Any = sum(loss(positive, negative) for negative in negatives)
    return total / len(negatives)


@dataclass(slots=True)
class LinkScores:
    """Logits of one step: positive [s]; negative [k, s], -inf where there is none.

    ends: where negatives stand in for both ends of a pair, how many of the k do so for each; number [s]: the snapshot
    that a pair is predicted from; count [s]: how many of the k, the first ones, count for each pair, None: all.
    """

    positive: torch.Tensor
    negative: torch.Tensor
    ends: tuple[int, ...] = ()
    number: torch.Tensor | None = None
    count: torch.Tensor | None = None

    @classmethod
    def of_ends(cls, positive: torch.Tensor, negatives: list[torch.Tensor]) -> LinkScores:
        """Make scores from the negatives [k, s] that stand in for each end."""
        if len(negatives) == 1:
            return cls(positive, negatives[0])
        return cls(positive, torch.cat(negatives), tuple(map(len, negatives)))

    def loss(self, loss: Loss) -> torch.Tensor:
        """Sum a loss over pairs; where negatives stand in for both ends, it is the mean of both."""
        return mean_loss(loss, self.positive, self.negative.split(self.ends) if self.ends else [self.negative])

    def detach(self) -> LinkScores:
        """Return the scores without their gradients."""
        return replace(self, positive=self.positive.detach(), negative=self.negative.detach())

    def arrays(self) -> dict[str, np.ndarray]:
        """Return positive [s] and negative [s, k] float64; of snapshots also number [s] int64; where not all negatives
        count, count [s] int64."""
        columns = {"positive": self.positive.double(), "negative": self.negative.T.double()}
        columns |= {} if self.number is None else {"number": self.number}
        columns |= {} if self.count is None else {"count": self.count}
        return {name: values.cpu().numpy() for name, values in columns.items()}

    @classmethod
    def join(cls, scores: list[LinkScores]) -> LinkScores:
        """Join the scores of several target snapshots."""
        positive, negative = torch.cat([s.positive for s in scores]), torch.cat([s.negative for s in scores], 1)
        numbers = [s.number for s in scores if s.number is not None]
        return cls(positive, negative, number=torch.cat(numbers) if numbers else None)
