"""Ranking metrics over a whole split, exact on any number of ranks: the scores are gathered, never the metrics
averaged."""

from __future__ import annotations

import math

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from hpcgnn.comm.world import DistributedError, World

NAMES = ("ap", "auc", "inductive_ap", "inductive_auc")


def link_metrics(positive: np.ndarray, negative: np.ndarray, inductive: np.ndarray, world: World) -> dict[str, float]:
    """Collective. Average precision and ROC AUC of events against negatives, over all events and over the inductive
    ones.

    positive [b], negative [b, k] scores of this rank's events; inductive [b] bool. NaN where there is no such event.
    Scores are ranked in float32, so that equal pairs stay tied whatever the order of additions that led to them.
    """
    positive, negative = positive.astype(np.float32), negative.astype(np.float32)
    if world.any(not (np.isfinite(positive).all() and np.isfinite(negative).all())):
        raise DistributedError("a score is not finite: the model has diverged; lower train.lr", user_error=False)
    pieces = [world.gather_rows(values) for values in (positive, negative, inductive)]
    if world.rank > 0:
        return world.broadcast()
    values = [*_scores(pieces[0], pieces[1]), *_scores(pieces[0][pieces[2]], pieces[1][pieces[2]])]
    return world.broadcast(dict(zip(NAMES, values, strict=True)))


def _scores(positive: np.ndarray, negative: np.ndarray) -> tuple[float, float]:
    if len(positive) == 0 or negative.size == 0:
        return math.nan, math.nan
    scores = np.concatenate([positive, negative.ravel()])
    labels = np.concatenate([np.ones(len(positive)), np.zeros(negative.size)])
    return float(average_precision_score(labels, scores)), float(roc_auc_score(labels, scores))
