"""Losses of queries against all candidates, of which each rank scores its own share, and penalties of rows.

B queries of all ranks, in blocks of b; c candidates of this rank, N of all ranks; x answers of the queries of a block
among the candidates of this rank. A loss is this rank's share of the sum over queries. It comes with its slope, the
gradient by the scores, as a rank needs the sums of all others for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

Reduce = Callable[[torch.Tensor, str], torch.Tensor]  # collective: "sum" or "max" of values [b] over the ranks


@dataclass(frozen=True, slots=True)
class BlockAnswers:
    """The known answers of a block of queries among the candidates of this rank. query, place [x] int64: which query,
    and which candidate; size [b]: the number of answers of each query on all ranks; total: N; reduce: collective."""

    query: torch.Tensor
    place: torch.Tensor
    size: torch.Tensor
    total: int
    reduce: Reduce


def softmax_over_all(
    score: torch.Tensor, answers: BlockAnswers, smoothing: float = 0.0, power: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Collective. Sum the cross entropies of queries: of the softmax of their scores with all candidates and a target,
    which is 1 - smoothing, shared by the known answers, plus smoothing, shared by all candidates. A query counts as
    often as it has answers to the ``power``.

    score [b, c] becomes the slope. Returns the share of the loss and the slope.
    """
    query, place, size = answers.query, answers.place, answers.size.to(score.dtype)
    counted = size**power
    weight, even = ((1 - smoothing) * counted / size)[query], smoothing / answers.total * counted
    loss = -(weight * score[query, place]).sum()
    if smoothing:
        loss -= even @ score.sum(1)
    target = score.new_zeros(len(score)).index_add_(0, query, weight) + even * score.shape[1]
    highest = score.amax(1) if score.shape[1] else score.new_full((len(score),), -torch.inf)
    highest = answers.reduce(highest, "max")
    lowest = math.log(torch.finfo(score.dtype).tiny)  # where exp ends in subnormal numbers or 0, it is 30 times as slow
    score.sub_(highest[:, None]).clamp_(min=lowest).exp_()
    total = answers.reduce(score.sum(1), "sum")
    score.mul_((counted / total)[:, None])
    if smoothing:
        score.sub_(even[:, None])
    score.index_put_((query, place), -weight, accumulate=True)
    return loss + (target * (highest + total.log())).sum(), score


def binary_over_all(
    score: torch.Tensor, answers: BlockAnswers, smoothing: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum, over queries and candidates, the cross entropies of the logistic function of the score and a target, which
    is (1 - smoothing) * (1 for known answers, 0 for others) + smoothing / N.

    score [b, c] becomes the slope. Returns the share of the loss and the slope.
    """
    query, place, even = answers.query, answers.place, smoothing / answers.total
    weight = torch.full_like(score[query, place], 1 - smoothing)
    loss = functional.softplus(score).sum() - (weight * score[query, place]).sum()
    if even:
        loss -= even * score.sum()
    score.sigmoid_()
    if even:
        score.sub_(even)
    return loss, score.index_put_((query, place), -weight, accumulate=True)


PENALTIES = {"l2": 2, "n3": 3}  # powers


def power_sums(rows: torch.Tensor, penalty: str, is_complex: bool) -> torch.Tensor:
    """Sum the p-th powers of the entries of rows [n, Z], divided by p: [n]. l2: p = 2; n3: p = 3, of absolute values;
    of complex rows, the real parts first, these are the absolute values of complex numbers (Lacroix et al., Canonical
    tensor decomposition for knowledge base completion, 2018)."""
    power, squares = PENALTIES[penalty], rows.square()
    if is_complex:
        squares = torch.stack(squares.chunk(2, -1)).sum(0)
    return (squares if power == 2 else squares.pow(power / 2)).sum(1) / power
