"""Ranks edges of a snapshot among all pairs of nodes (Pareja et al., EvolveGCN, 2020), or their ends among all nodes.

n nodes of this rank, N of all ranks, s edges into this rank's nodes, P of all ranks, Z width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.halo import HaloChain
from hpcgnn.comm.world import World
from hpcgnn.snapshots.pairs import Answers, Pairs
from hpcgnn.task.metrics import Levels
from hpcgnn.task.ranking import Candidates

ALL_NAMES = ("map", "mrr", "auc")
ELEMENTS = 1 << 24  # of what is compared at once
SCORES = 1 << 18  # of pairs at once: they stay in a cache


@dataclass(slots=True)
class RankedPairs:
    """How well edges rank among all pairs. values [t, 3] of t targets, the same on all ranks: average precision of
    edges against all other pairs; mean over sources of the mean reciprocal rank of their edges among all destinations,
    other edges too; ROC AUC. Infinite where a score is not finite."""

    values: np.ndarray

    @classmethod
    def join(cls, ranked: list[RankedPairs]) -> RankedPairs:
        """Join the ranks of several targets."""
        return cls(np.concatenate([r.values for r in ranked]))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the values by name [t]."""
        return dict(zip(ALL_NAMES, self.values.T, strict=True))


@dataclass(slots=True)
class AnswerRanks:
    """Where right answers rank among all nodes: rank [r] for this rank's edges."""

    rank: np.ndarray

    @classmethod
    def join(cls, ranks: list[AnswerRanks]) -> AnswerRanks:
        """Join the ranks of several targets."""
        return cls(np.concatenate([r.rank for r in ranks]))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the ranks [r] by name."""
        return {"rank": self.rank}


def rank_answers(decoder: Any, outputs: torch.Tensor, answers: Answers, channel: Channel, world: World) -> AnswerRanks:
    """Collective. Rank both ends of every edge, other edges of the snapshot left out; from outputs [n, Z]."""
    most, ranks = int(world.reduce_array(np.array([len(outputs)]), "max")[0]), []
    types = answers.edges[:, 2]
    for asks, ((reached, place), known) in enumerate(zip(answers.rows, answers.known, strict=True)):
        rows = reached.bring(outputs, HaloChain(), channel)[place]
        candidates = Candidates(known, most, reverse=asks == 1)
        query, answer = answers.edges[:, asks], answers.edges[:, 1 - asks]
        ranks.append(candidates.ranks(decoder, outputs, rows, query, types, answer, world)[answers.own])
    return AnswerRanks(np.concatenate(ranks))


def rank_all_pairs(decoder: Any, outputs: torch.Tensor, pairs: Pairs, channel: Channel, world: World):
    """Collective. Rank edges among all pairs, from outputs [n, Z]; pairs: sources as global ids, destinations as local
    rows."""
    everyone = channel.everyone(outputs)  # in order of global id
    score = score_matrix(decoder, everyone, outputs)
    positive = score[pairs.destination, pairs.source]
    if world.reduce_array(np.array([bool(torch.isfinite(score).all())], np.int64), "min")[0] == 0:
        return RankedPairs(np.full((1, len(ALL_NAMES)), np.inf))  # told by all ranks later: others may rank nothing now
    levels = Levels.of(positive.cpu().numpy(), world)
    levels.add(score)
    levels.add(positive, -1)
    levels = levels.summed(world)
    mrr = _mean_reciprocal_rank(score, pairs.source, positive, channel, world)
    return RankedPairs(np.array([[levels.average_precision(), mrr, levels.auc()]]))


def score_matrix(decoder: Any, source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    """Score destinations [n, Z] with all sources [N, Z]: [n, N] float32."""
    score = torch.empty((len(destination), len(source)), device=source.device)
    most = max(1, SCORES // max(1, len(source)))
    for at in range(0, len(destination), most):
        score[at : at + most] = decoder.all_pairs(destination[at : at + most], source, None, True)
    return score


def _mean_reciprocal_rank(score: torch.Tensor, source, positive, channel: Channel, world: World) -> float:
    """Collective. Rank a source's edges among all destinations, ties counted half; average the reciprocals by source,
    then over sources."""
    source, positive = (channel.everyone(values.contiguous()) for values in (source, positive))
    if len(source) == 0:
        return math.nan
    most, counts = max(1, ELEMENTS // max(1, len(score))), []
    for at in range(0, len(source), most):
        column, own = score[:, source[at : at + most]], positive[at : at + most]
        counts.append(torch.stack([(column > own).sum(0), (column >= own).sum(0)]))
    above, upto = world.reduce_array(torch.cat(counts, dim=1).cpu().numpy())
    _, number, edges = np.unique(source.cpu().numpy(), return_inverse=True, return_counts=True)
    reciprocal = 1 / (1 + 0.5 * (above + upto - 1))
    return math.fsum(np.bincount(number, reciprocal) / edges) / len(edges)
