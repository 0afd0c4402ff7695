"""Baselines of classes: rules that predict classes without a model, on the same splits and metrics. A model must beat
them.

m nodes or events of a split at this rank, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcgnn.comm.together import together
from hpcgnn.graph.splits import SPLITS, place_of_split
from hpcgnn.loop.own_metrics import own_functions
from hpcgnn.loop.session import Session, scored_splits, split_metrics
from hpcgnn.task.labels import MISSING
from hpcgnn.temporal.batches import flags_of

Rule = Callable[[Session, str], np.ndarray]


def predict_most_frequent(session: Session, split: str) -> np.ndarray:
    """Collective. Score every class by its share of the training labels [m, C]."""
    return np.tile(_shares(session), (len(_labels_of(session, split)), 1))


def predict_majority_of_contacts(session: Session, split: str) -> np.ndarray:
    """Collective. Score the classes of nodes [m, C] by the shares of their events before the time of the label, with
    other nodes of known classes; without such an event, as ``predict_most_frequent``. Equal shares: the lowest class.
    """
    graph, labels, classes = session.graph, session.goal.node_classes, session.goal.num_outputs
    partition, chosen = graph.partition, labels.of_split(place_of_split(split))
    history = partition.history
    known = flags_of(labels.known(partition.num_nodes), history.other, partition, graph.channel)
    place = labels.spread(partition.num_nodes, np.full(len(labels.ids), MISSING), MISSING)
    place[labels.first + chosen] = np.arange(len(chosen))
    until = labels.spread(partition.num_nodes, labels.time, 0)
    node = np.repeat(np.arange(partition.num_nodes), np.diff(history.indptr))
    is_other = history.other != partition.book.local_to_global(session.world.rank)[node]
    counts_at = (known >= 0) & (place[node] >= 0) & (history.time < until[node]) & is_other
    cells = place[node[counts_at]] * classes + known[counts_at]
    counts = np.bincount(cells, minlength=len(chosen) * classes).reshape(len(chosen), classes)
    total, shares = counts.sum(axis=1, keepdims=True), _shares(session)
    return np.where(total > 0, counts / np.maximum(total, 1), shares)


def predict_last_label(session: Session, split: str) -> np.ndarray:
    """Collective. Score 1 for the last known label of an event's source before the event's batch [m, C]; without one,
    as ``predict_most_frequent`` (the persistent forecast of Huang et al., Temporal graph benchmark, 2023)."""
    events, batches = session.partition.events, session.batches[split]
    scores = predict_most_frequent(session, split)
    if len(events) == 0:
        return scores
    rows = events.row[_events_of(session, split)]
    source = events.src[_events_of(session, split)]
    before = batches.first_row[np.searchsorted(batches.first_row, rows, side="right") - 1]
    label, width = events.columns["label"], session.partition.num_events + 1
    labeled = np.flatnonzero(label >= 0)
    keys = events.src[labeled] * width + events.row[labeled]
    order = np.argsort(keys)
    last = np.searchsorted(keys[order], source * width + before) - 1
    event = labeled[order[np.maximum(last, 0)]] if len(labeled) else np.zeros(len(rows), np.int64)
    found = (last >= 0) & (events.src[event] == source)
    scores[found] = 0
    scores[found, label[event[found]]] = 1
    return scores


def _events_of(session: Session, split: str) -> np.ndarray:
    """Find the events of a split among the events whose source this rank owns."""
    first, stop = session.graph.splits.bounds[place_of_split(split) :][:2]
    rows = session.partition.events.row
    return np.flatnonzero((rows >= first) & (rows < stop))


def _labels_of(session: Session, split: str) -> np.ndarray:
    """Return the labels that the rules predict [m] int64, -1 where missing."""
    labels = session.goal.node_classes
    if labels is None:
        return session.partition.events.columns["label"][_events_of(session, split)]
    return labels.label[labels.of_split(place_of_split(split))]


def _shares(session: Session) -> np.ndarray:
    """Collective. Return the share of every class in the training labels [C]."""
    known, classes = _labels_of(session, SPLITS[0]), session.goal.num_outputs
    counts = session.world.reduce_array(np.bincount(known[known >= 0], minlength=classes).astype(np.int64))
    return counts / max(1, counts.sum())


def class_metrics_of(session: Session, rule: Rule, at: Callable[[str, int], Any]) -> dict[str, float]:
    """Collective. Compute the metrics of all scored splits, named as a model's. ``at(split, step)`` is called before
    every split."""
    with together(session.world, "baseline"):
        own_functions(session.config.train.metrics, session.goal.metric_names())
    values: dict[str, float] = {}
    for split, prefix in scored_splits(session).items():
        at(split, 0)
        collected = session.goal.collector()
        collected.take({"output": rule(session, split), "label": _labels_of(session, split)})
        values |= {f"{prefix}_{name}": value for name, value in split_metrics(session, split, collected).items()}
    return values
