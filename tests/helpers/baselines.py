"""What one reaches without training, in plain NumPy from graph files: the marks that trained models must pass.

EdgeBank, the baseline of events, is hpcgnn's own (``evaluate --baseline``).
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from sklearn.metrics import average_precision_score

TRAIN, TEST = 0, 2


def neighbor_vote(graph: Path, edges: str = "node.to.node") -> float:
    """Accuracy on the test nodes, if a node has the class that most of its training neighbors have; the most frequent
    class of training, if it has none of these."""
    with h5py.File(graph) as file:
        label, split = (file[f"nodes/{edges.split('.')[0]}/{name}"][:] for name in ("label", "split"))
        src, dst = (file[f"edges/{edges}/{name}"][:] for name in ("src", "dst"))
    shown = np.bincount(label[split == TRAIN], minlength=label.max() + 1)
    votes = np.tile(shown / (shown.sum() + 1), (len(label), 1))  # less than one vote: what decides where there is none
    seen = split[src] == TRAIN
    np.add.at(votes, (dst[seen], label[src[seen]]), 1)
    return float((votes.argmax(axis=1) == label)[split == TEST].mean())


def popular_events_ap(graph: Path, edges: str, first_test: int) -> float:
    """Average precision of the events from ``first_test`` on against as many random destinations, if a destination's
    score is how many events it had before."""
    with h5py.File(graph) as file:
        dst = file[f"edges/{edges}/dst"][:]
    counts = np.bincount(dst[:first_test], minlength=dst.max() + 1)
    others = np.random.default_rng(0).choice(np.unique(dst), len(dst) - first_test)
    return _ap(counts[dst[first_test:]], counts[others])


def popular_items_recall(graph: Path, edges: str, k: int) -> float:
    """Mean over users of the share of their test items among the ``k`` items with the most training links, those that
    the user has in training left out."""
    src, dst, split, shape = _links(graph, edges)
    scores = np.tile(np.bincount(dst[split == TRAIN], minlength=shape[1]), (shape[0], 1))
    scores[src[split == TRAIN], dst[split == TRAIN]] = -1
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    hit = (best[src] == dst[:, None]).any(axis=1)
    return float(np.mean([hit[(split == TEST) & (src == user)].mean() for user in np.unique(src[split == TEST])]))


def popular_ends_mrr(graph: Path, edges: str) -> float:
    """Mean reciprocal rank of the test links, both ends asked for, if the score of an end is its number of training
    links; the other links of the pair's known end are left out, and ties share their mean rank."""
    src, dst, split, shape = _links(graph, edges)
    known = np.zeros(shape, bool)
    known[src, dst] = True
    ranks = []
    for ends, others, table in ((dst, src, known), (src, dst, known.T)):
        counts = np.bincount(ends[split == TRAIN], minlength=table.shape[1])
        for end, other in zip(ends[split == TEST], others[split == TEST], strict=True):
            rivals = counts[~table[other]]
            ranks.append(1 + (rivals > counts[end]).sum() + (rivals == counts[end]).sum() / 2)
    return float((1 / np.array(ranks)).mean())


def fitted_line_mse(graph: Path, first_test: int) -> float:
    """Mean squared error of a column ``target`` in the snapshots from ``first_test`` on, if it is a line of its last
    value: persistence with a slope, which the training snapshots tell."""
    with h5py.File(graph) as file:
        target = file["nodes/node/target"][:]
    before, after = target[:, : first_test - 1].ravel(), target[:, 1:first_test].ravel()
    slope, shift = np.polyfit(before, after, 1)
    return float(np.mean((slope * target[:, first_test - 1 : -1] + shift - target[:, first_test:]) ** 2))


def popular_snapshots_ap(graph: Path, first_test: int, negatives: int) -> float:
    """Average precision of the edges of the snapshots from ``first_test`` on, each against ``negatives`` random
    destinations, if a destination's score is how many edges began there before."""
    with h5py.File(graph) as file:
        dst, first, last = (file[f"edges/node.to.node/{name}"][:] for name in ("dst", "first", "last"))
    nodes, random, scores = dst.max() + 1, np.random.default_rng(0), []
    for snapshot in range(first_test, last.max() + 1):
        counts = np.bincount(dst[first < snapshot], minlength=nodes)
        there = dst[(first <= snapshot) & (last >= snapshot)]
        scores.append((counts[there], counts[random.integers(0, nodes, negatives * len(there))]))
    return _ap(*(np.concatenate(column) for column in zip(*scores, strict=True)))


def _ap(positive: np.ndarray, negative: np.ndarray) -> float:
    truth = np.repeat([1, 0], [len(positive), len(negative)])
    return float(average_precision_score(truth, np.concatenate([positive, negative])))


def _links(graph: Path, edges: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """src, dst and split of a relation's edges, and how many nodes there are at either end."""
    with h5py.File(graph) as file:
        columns = [file[f"edges/{edges}/{name}"][:] for name in ("src", "dst", "split")]
        types = edges.split(".")[0], edges.split(".")[2]
        return *columns, tuple(int(file[f"nodes/{name}"].attrs["num_nodes"]) for name in types)
