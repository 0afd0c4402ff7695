"""Losses, which are sums over a step's roots, and their table. The caller divides by the number of roots of the global
batch. n pairs or labels, k negatives a pair, c classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from hpcgnn.choices import Part
from hpcgnn.task.all_candidates import binary_over_all, softmax_over_all
from hpcgnn.task.own_loss import OwnLoss

LINKS, CLASSES, NUMBERS, WEIGHTS = "links", "classes", "numbers", "weights of classes"  # what is learned
ANYTHING = "anything"
CUSTOM = "custom"
SMOOTHED = ("label_smoothing",)

Loss = Callable[..., torch.Tensor]


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
    """Average losses [k, n] over a pair's negatives, [n]: the entries whose score [k, n] is above -inf; 0 without any.
    With adversarial above 0 the softmax of adversarial * score weighs them (Sun et al., RotatE, 2019)."""
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


def bpr_loss(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Sum over pairs [n] of the mean over their negatives [k, n], -inf where there is none, of -log of the logistic
    function of pair - negative (Rendle et al., BPR: Bayesian personalized ranking from implicit feedback, 2009)."""
    return average(functional.softplus(negative - positive), negative, 0.0).sum()


def ccl_loss(
    positive: torch.Tensor, negative: torch.Tensor, margin: float = 0.8, negative_weight: float = 1.0
) -> torch.Tensor:
    """Sum over pairs [n] of 1 - cosine of the pair, plus ``negative_weight`` times the mean over their negatives
    [k, n], -inf where there is none, of max(0, cosine - margin) (Mao et al., SimpleX, 2021)."""
    against = average(torch.relu(negative - margin), negative, 0.0)
    return (1 - positive).sum() + negative_weight * against.sum()


def class_loss(output: torch.Tensor, label: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Sum of cross entropies of labels [n], those below 0 left out, from outputs [n, c], each times the weight [c] of
    its class. Labels [n, c] of 0 and 1, several a node: the binary cross entropies, 0 for labels below 0, divided by
    c."""
    if label.ndim == 2:
        target, known = label.clamp(min=0).to(output.dtype), (label >= 0).to(output.dtype)
        known = known if weight is None else known * weight
        return functional.binary_cross_entropy_with_logits(output, target, known, reduction="sum") / output.shape[1]
    return functional.cross_entropy(output, label, weight, ignore_index=-1, reduction="sum")


def _errors(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Subtract numbers, outputs [n] or [n, 1] and labels [n]; 0 where the label is NaN."""
    label, output = label.to(output.dtype), output.squeeze(-1) if output.ndim > label.ndim else output
    return torch.where(torch.isnan(label), 0.0, output - label.nan_to_num())


def soft_class_loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Sum of cross entropies of logits [n, c] with weights of classes [n, c], which mostly add up to 1 in a row."""
    return functional.cross_entropy(output, label.to(output.dtype), reduction="sum")


def ranked_weights_loss(
    output: torch.Tensor, label: torch.Tensor, most: int = 20, margin: float = 1e-3
) -> torch.Tensor:  # fmt: skip
    """Sum over rows of a loss of the order of classes, from outputs [n, c] and weights of classes [n, c], at least 0.

    It compares classes among the ``most`` highest outputs and the ``most`` largest weights of a row, i with j where i
    has the larger weight. The first term is NDCG-Loss2 (Wang et al., The LambdaLoss framework for ranking metric
    optimization, 2018): the sum of (G_i - G_j) (1 / D_d - 1 / D_(d + 1)) log2(1 + exp(s_j - s_i)). Here s are outputs,
    d is the difference of the places of i and j by output, D_d = log2(1 + d), and G a weight divided by the largest
    possible gain of the row, as in NDCG. The second one is the mean of max(0, margin - s_i + s_j), which keeps scores
    apart (Mantri et al., NAViS, 2025).
    """
    chosen, is_chosen = _classes_to_rank(output.detach(), label, most)
    label = label.to(output.dtype)
    score, weight = output.gather(1, chosen), label.gather(1, chosen)
    discount = 1 / torch.log2(torch.arange(2, chosen.shape[1] + 3, dtype=output.dtype, device=output.device))
    place = _places(score.detach().masked_fill(~is_chosen, -torch.inf))
    distance = (place.unsqueeze(2) - place.unsqueeze(1)).abs()
    steps = torch.cat([discount.new_zeros(1), discount[:-1] - discount[1:]])[distance]
    best = label.sort(dim=1, descending=True).values[:, :most]
    gain = weight / (best * discount[: best.shape[1]]).sum(1, keepdim=True).clamp(min=torch.finfo(output.dtype).tiny)
    gap, gains = (values.unsqueeze(2) - values.unsqueeze(1) for values in (score, gain))
    is_pair = (gains > 0) & is_chosen.unsqueeze(2) & is_chosen.unsqueeze(1)
    lost = torch.where(is_pair, gains * steps * functional.softplus(-gap), 0).sum() / math.log(2)
    near = torch.where(is_pair, torch.relu(margin - gap), 0).sum((1, 2)) / is_pair.sum((1, 2)).clamp(min=1)
    return lost + near.sum()


def _classes_to_rank(output: torch.Tensor, label: torch.Tensor, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the classes with the ``most`` highest outputs and weights of each row, the lower class first among equals.
    Returns classes [n, m], and which of these entries [n, m] count: each class once, and weights above 0 alone."""
    by_output, by_weight = (
        values.argsort(dim=1, descending=True, stable=True)[:, :most] for values in (output, label)
    )  # fmt: skip
    is_new = (label.gather(1, by_weight) > 0) & (by_weight.unsqueeze(2) != by_output.unsqueeze(1)).all(2)
    return torch.cat([by_output, by_weight], dim=1), torch.cat([torch.ones_like(is_new), is_new], dim=1)


def _places(score: torch.Tensor) -> torch.Tensor:
    """Return the places of scores in their rows [n, m], from 0, the highest first."""
    return score.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


def squared_loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Sum of squared errors of numbers, outputs [n] or [n, 1] and labels [n]; labels that are NaN are left out."""
    return _errors(output, label).square().sum()


def absolute_loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    """Sum of absolute errors of numbers, outputs [n] or [n, 1] and labels [n]; labels that are NaN are left out."""
    return _errors(output, label).abs().sum()


@dataclass(frozen=True)
class LossPart(Part):
    """A loss. make: makes from the section task a function of scores of pairs [n] and of their negatives [k, n] for
    links, of outputs and labels for other tasks. learns: LINKS, CLASSES, NUMBERS, WEIGHTS or ANYTHING; options: the
    keys of the section that it reads; of_cosines: scores must be cosines; kernel: the function that native training
    steps compute. over_all: makes a loss of queries against all candidates, see ``all_candidates``, not for temporal
    graphs; several: edges with the same query make one query, for static graphs alone."""

    make: Callable[[Any], Callable[..., Any]]
    learns: str = LINKS
    options: tuple[str, ...] = ()
    over_all: bool = False
    several: bool = False
    of_cosines: bool = False
    kernel: Loss | None = None


def _binary(task: Any) -> Loss:
    """Return the function itself where nothing changes it, for which there is a kernel."""
    options = {"positive_weight": task.positive_weight, "adversarial": task.adversarial}
    return partial(binary_loss, **options) if options != {"positive_weight": 1, "adversarial": 0} else binary_loss


LOSSES = {
    "binary": LossPart(
        _binary, "cross entropy of a pair and of its negatives", LINKS, ("positive_weight", "adversarial"),
        kernel=binary_loss,
    ),
    "margin": LossPart(
        lambda task: partial(margin_loss, margin=task.margin, adversarial=task.adversarial),
        "a pair must score higher than its negatives by task.margin", LINKS, ("margin", "adversarial"),
    ),
    "softmax": LossPart(lambda task: softmax_loss, "cross entropy of a pair among its negatives"),
    "one_vs_all": LossPart(
        lambda task: partial(softmax_over_all, smoothing=task.label_smoothing),
        "cross entropy of an end of a pair among all nodes (not for temporal graphs)", LINKS, SMOOTHED, over_all=True,
    ),
    "k_vs_all": LossPart(
        lambda task: partial(softmax_over_all, smoothing=task.label_smoothing, power=task.answer_power),
        "cross entropy of all known answers of a query among all nodes (static graphs only)", LINKS,
        (*SMOOTHED, "answer_power"), over_all=True, several=True,
    ),
    "k_vs_all_binary": LossPart(
        lambda task: partial(binary_over_all, smoothing=task.label_smoothing),
        "cross entropy of each node, whether it is a known answer of a query (static graphs only)", LINKS, SMOOTHED,
        over_all=True, several=True,
    ),
    "bpr": LossPart(lambda task: bpr_loss, "a pair must score higher than its negatives (Rendle et al., BPR, 2009)"),
    "ccl": LossPart(
        lambda task: partial(ccl_loss, margin=task.margin, negative_weight=task.negative_weight),
        "cosine of a pair, and the cosines of its negatives above task.margin (Mao et al., SimpleX, 2021)", LINKS,
        ("margin", "negative_weight"), of_cosines=True,
    ),
    "cross_entropy": LossPart(lambda task: class_loss, "cross entropy of classes", CLASSES, ("class_weights",)),
    "soft_cross_entropy": LossPart(
        lambda task: soft_class_loss, "cross entropy of weights of classes (temporal graphs only)", WEIGHTS
    ),
    "lambda_ndcg": LossPart(
        lambda task: ranked_weights_loss,
        "order of the classes by weight, as NDCG counts it (Wang et al., LambdaLoss, 2018), with a margin (temporal "
        "graphs only)", WEIGHTS,
    ),
    "mse": LossPart(lambda task: squared_loss, "mean squared error of numbers", NUMBERS),
    "mae": LossPart(lambda task: absolute_loss, "mean absolute error of numbers", NUMBERS),
    CUSTOM: LossPart(
        lambda task: OwnLoss(task.loss_path, task.learns == LINKS), "the function that task.loss_path names", ANYTHING,
        ("loss_path",),
    ),
}  # fmt: skip


def make_loss(task: Any, weight: torch.Tensor | None = None) -> Loss:
    """Make the loss that the section task names; weight [c]: of classes, None: all 1."""
    loss = LOSSES[task.loss].make(task)
    return loss if weight is None else partial(loss, weight=weight)


def losses_of(learns: str, over_all: bool = False) -> list[str]:
    """Names of the losses of what is learned; the first is the default. over_all: also the losses of queries against
    all candidates."""
    return [name for name, row in LOSSES.items() if row.learns in (learns, ANYTHING) and row.over_all <= over_all]
