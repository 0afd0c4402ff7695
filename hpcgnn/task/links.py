"""Links: scores of pairs of embeddings, and losses, which are sums over the given seeds.

The caller divides a loss by the number of seeds of the global batch. b, n or s positive pairs, k negatives each, Z
width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from hpcgnn.nn.decoder import LinkDecoder
from hpcgnn.nn.linear import linear

DECODERS = ("dot", "cosine", "mlp", "distmult", "complex")
TYPED = ("distmult", "complex")  # with weights by edge type


class DotProduct(nn.Module):
    """source . destination."""

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        """source, destination [n, Z], one of them perhaps [k, n, Z]; returns scores [n] or [k, n]."""
        return (source * destination).sum(-1)

    def all_pairs(self, query, candidate, relation=None, reverse: bool = False) -> torch.Tensor:
        """query [n, Z] with every candidate [m, Z], relation [n] of the queries; returns scores [n, m]. The queries are
        sources or, if reverse, destinations."""
        return linear(query, candidate)


class Cosine(nn.Module):
    """The cosine of the angle between both, over a temperature."""

    def __init__(self, temperature: float = 1.0):
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"the temperature of cosine scores must be positive, got {temperature}")
        self.temperature = temperature

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        """As DotProduct."""
        return functional.cosine_similarity(source, destination, dim=-1) / self.temperature

    def all_pairs(self, query, candidate, relation=None, reverse: bool = False) -> torch.Tensor:
        """As DotProduct."""
        return linear(functional.normalize(query) / self.temperature, functional.normalize(candidate))


class MlpDecoder(LinkDecoder):
    """A network of two layers over both; directed."""

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        """As DotProduct."""
        return super().forward(source, destination)

    @torch.no_grad()
    def all_pairs(self, query, candidate, relation=None, reverse: bool = False) -> torch.Tensor:
        """As DotProduct, without gradients: one hidden column after the other, [n, m] numbers at a time."""
        source, destination = (candidate, query) if reverse else (query, candidate)
        given = linear(source, self.source.weight, self.source.bias)
        asked = linear(destination, self.destination.weight)
        rows, columns = (asked, given.T.contiguous()) if reverse else (given, asked.T.contiguous())
        score = self.out.bias.expand(len(query), len(candidate)).clone()
        hidden = torch.empty_like(score)
        for number, weight in enumerate(self.out.weight[0].tolist()):
            torch.add(rows[:, number : number + 1], columns[number], out=hidden)
            score.add_(hidden.relu_(), alpha=weight)
        return score


class DistMult(nn.Module):
    """sum of source * relation * destination (Yang et al., Embedding entities and relations for learning and inference
    in knowledge bases, 2015)."""

    def __init__(self, relations: int, width: int):
        super().__init__()
        self.relation = nn.Embedding(relations, width)
        nn.init.xavier_uniform_(self.relation.weight)

    def forward(self, source, destination, relation) -> torch.Tensor:
        """As DotProduct; relation [n] int64."""
        return (source * self.relation(relation) * destination).sum(-1)

    def all_pairs(self, query, candidate, relation, reverse: bool = False) -> torch.Tensor:
        """As DotProduct; the same whichever of the two is the source."""
        return linear(query * self.relation(relation), candidate)


class ComplEx(nn.Module):
    """Real part of the sum of source * relation * conjugate of destination, complex numbers whose real parts are the
    first half of a row (Trouillon et al., Complex embeddings for simple link prediction, 2016)."""

    def __init__(self, relations: int, width: int):
        super().__init__()
        if width % 2:
            raise ValueError(f"complex embeddings are of even width, got {width}")
        self.relation = nn.Embedding(relations, width)
        nn.init.xavier_uniform_(self.relation.weight)

    def forward(self, source, destination, relation) -> torch.Tensor:
        """As DotProduct; relation [n] int64."""
        return (_turned(source, self.relation(relation), 1) * destination).sum(-1)

    def all_pairs(self, query, candidate, relation, reverse: bool = False) -> torch.Tensor:
        """As DotProduct."""
        return linear(_turned(query, self.relation(relation), -1 if reverse else 1), candidate)


def _turned(rows: torch.Tensor, by: torch.Tensor, sign: int) -> torch.Tensor:
    """rows [..., Z] times the complex numbers ``by`` [..., Z], or (sign -1) times their conjugates."""
    (real, imaginary), (cosine, sine) = rows.chunk(2, -1), by.chunk(2, -1)
    return torch.cat([real * cosine - sign * imaginary * sine, sign * real * sine + imaginary * cosine], -1)


def make_decoder(kind: str, width: int, relations: int = 1, temperature: float = 1.0) -> nn.Module:
    """One of DECODERS; temperature of cosine. Raises ValueError for another name."""
    makers: dict[str, Callable[[], nn.Module]] = {
        "dot": DotProduct,
        "cosine": lambda: Cosine(temperature),
        "mlp": lambda: MlpDecoder(width),
        "distmult": lambda: DistMult(relations, width),
        "complex": lambda: ComplEx(relations, width),
    }
    if kind not in makers:
        raise ValueError(f"decoder must be one of {', '.join(DECODERS)}, got {kind!r}")
    return makers[kind]()


def binary_loss(
    positive: torch.Tensor, negative: torch.Tensor, weight: torch.Tensor | None = None, adversarial: float = 0.0
) -> torch.Tensor:
    """Sum over pairs of -log p(pair) - mean over its negatives of log(1 - p), p the logistic function of the score.

    positive [n], negative [k, n], -inf where there is none; weight [n] factors or None; adversarial: as in ``average``.
    """
    loss = functional.softplus(-positive) + average(functional.softplus(negative), negative, adversarial)
    return (loss if weight is None else loss * weight).sum()


def margin_loss(
    positive: torch.Tensor, negative: torch.Tensor, margin: float = 1.0, adversarial: float = 0.0
) -> torch.Tensor:
    """Triplet loss: sum over pairs [n] of the mean over their negatives [k, n], -inf where there is none, of
    max(0, margin - pair + negative)."""
    return average(torch.relu(margin - positive + negative), negative, adversarial).sum()


def average(loss: torch.Tensor, negative: torch.Tensor, adversarial: float) -> torch.Tensor:
    """Mean [n] of losses [k, n] over those of k negatives whose score [k, n] is above -inf, 0 without any; with
    adversarial above 0 weighted by the softmax of adversarial * score (Sun et al., RotatE, 2019)."""
    there = negative > float("-inf")
    if not adversarial:
        return loss.sum(0) / there.sum(0).clamp(min=1)
    weight = (adversarial * negative.detach()).softmax(0)
    return (loss * torch.where(there, weight, 0)).sum(0)


def softmax_loss(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Sum over pairs [n] of -log softmax of their score among it and those of their negatives [k, n], -inf where there
    is none."""
    score = torch.cat([positive.unsqueeze(1), negative.T], dim=1)
    target = torch.zeros(len(positive), dtype=torch.int64, device=positive.device)
    return functional.cross_entropy(score, target, reduction="sum")


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(slots=True)
class SnapshotLinkScores:
    """Logits: positive [s], negative [k, s]; number [s]: of the snapshot that each is predicted from."""

    positive: torch.Tensor
    negative: torch.Tensor
    number: torch.Tensor

    def detach(self) -> SnapshotLinkScores:
        """Without their gradients."""
        return SnapshotLinkScores(self.positive.detach(), self.negative.detach(), self.number)

    def arrays(self) -> dict[str, np.ndarray]:
        """positive [s], negative [s, k], float64; number [s] int64."""
        columns = {"positive": self.positive.double(), "negative": self.negative.T.double(), "number": self.number}
        return {name: values.cpu().numpy() for name, values in columns.items()}

    @classmethod
    def join(cls, scores: list[SnapshotLinkScores]) -> SnapshotLinkScores:
        """Those of several targets as one."""
        names = {"positive": 0, "negative": 1, "number": 0}
        return cls(**{name: torch.cat([getattr(s, name) for s in scores], dim) for name, dim in names.items()})


def _binary(positive: torch.Tensor, negative: torch.Tensor, weight: float) -> torch.Tensor:
    """weight times -log p(edge), and the mean over its negatives of -log(1 - p)."""
    against = average(functional.softplus(negative), negative, 0.0)
    return weight * functional.softplus(-positive).sum() + against.sum()


@dataclass(slots=True)
class Scores:
    """Logits of one step: positive [b], negative [k, b]."""

    positive: torch.Tensor
    negative: torch.Tensor

    def detach(self) -> Scores:
        """Without their gradients."""
        return Scores(self.positive.detach(), self.negative.detach())

    def arrays(self) -> dict[str, np.ndarray]:
        """positive [b], negative [b, k], float64."""
        columns = {"positive": self.positive, "negative": self.negative.T}
        return {name: values.double().cpu().numpy() for name, values in columns.items()}
