"""Scores of pairs of embeddings, and losses of link prediction. n pairs, k negatives a pair, Z width.

Losses are sums over the given seeds: the caller divides by the number of seeds of the global batch.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from hpcgnn.nn.decoder import LinkDecoder

DECODERS = ("dot", "cosine", "mlp", "distmult")


class DotProduct(nn.Module):
    """source . destination."""

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        """source [n, Z], destination [n, Z] or [k, n, Z]; returns scores [n] or [k, n]."""
        return (source * destination).sum(-1)

    def all_pairs(self, query, candidate, relation=None) -> torch.Tensor:
        """query [n, Z] with every candidate [m, Z], relation [n] of the queries; returns scores [n, m]."""
        return query @ candidate.T


class Cosine(nn.Module):
    """The cosine of the angle between both, over a temperature."""

    def __init__(self, temperature: float = 1.0):
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"the temperature of cosine scores must be positive, got {temperature}")
        self.temperature = temperature

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        """As DotProduct."""
        return functional.cosine_similarity(source.expand_as(destination), destination, dim=-1) / self.temperature

    def all_pairs(self, query, candidate, relation=None) -> torch.Tensor:
        """As DotProduct."""
        return functional.normalize(query) @ functional.normalize(candidate).T / self.temperature


class MlpDecoder(LinkDecoder):
    """A network of two layers over both; directed."""

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        """As DotProduct."""
        return super().forward(source, destination)


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

    def all_pairs(self, query, candidate, relation) -> torch.Tensor:
        """As DotProduct; the same whichever of the two is the source."""
        return (query * self.relation(relation)) @ candidate.T


def make_decoder(kind: str, width: int, relations: int = 1) -> nn.Module:
    """One of DECODERS. Raises ValueError for another name."""
    makers = {
        "dot": DotProduct,
        "cosine": Cosine,
        "mlp": lambda: MlpDecoder(width),
        "distmult": lambda: DistMult(relations, width),
    }
    if kind not in makers:
        raise ValueError(f"decoder must be one of {', '.join(DECODERS)}, got {kind!r}")
    return makers[kind]()


def binary_loss(positive: torch.Tensor, negative: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Sum over pairs of -log p(pair) - mean over its negatives of log(1 - p), p the logistic function of the score.

    positive [n], negative [k, n], weight [n] factors or None.
    """
    loss = functional.softplus(-positive) + functional.softplus(negative).mean(0)
    return (loss if weight is None else loss * weight).sum()


def margin_loss(positive: torch.Tensor, negative: torch.Tensor, margin: float = 1.0) -> torch.Tensor:
    """Triplet loss: sum over pairs [n] of the mean over their negatives [k, n] of max(0, margin - pair + negative)."""
    return torch.relu(margin - positive + negative).mean(0).sum()


def softmax_loss(score: torch.Tensor, target: torch.Tensor, excluded: torch.Tensor | None = None) -> torch.Tensor:
    """In-batch softmax: sum over pairs of -log softmax of their score among all candidates.

    score [n, m] of every source with every candidate (the destinations of the whole global batch, so that the loss does
    not depend on which pairs share a rank), target [n] int64 the right one, excluded [n, m] bool candidates that
    are no negatives (the same destination once more), or None.
    """
    if excluded is not None:
        own = functional.one_hot(target, score.shape[1]).bool()
        score = score.masked_fill(excluded & ~own, float("-inf"))
    return functional.cross_entropy(score, target, reduction="sum")
