"""Counts the remote rows that the steps of an epoch would need, before it begins, to find the rows that are worth a
copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hpcgnn.comm.world import World
from hpcgnn.graph.partition import Ranking

MOST_PRESAMPLED = 1000  # steps
MOST_ADDED = 1 << 22  # ids that wait to be counted
MOST_COUNTED = 1 << 26  # ids of a rank; 16 bytes each
InputIds = Callable[[int], Sequence[np.ndarray]]  # collective: the global ids that a step needs, by node type


class IdCounts:
    """Counts how often ids are added; memory grows with the different ones."""

    def __init__(self):
        self._ids, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self._added: list[np.ndarray] = []
        self._num_added = 0

    def __len__(self) -> int:
        """Number of ids in memory, of which those that wait may be the same."""
        return len(self._ids) + self._num_added

    def add(self, ids: np.ndarray) -> None:
        """Count ids [n] once more."""
        self._added.append(ids)
        self._num_added += len(ids)
        if self._num_added > max(MOST_ADDED, len(self._ids)):
            self.totals()

    def totals(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the different ids, increasing, and how often each was added."""
        ids, place = np.unique(np.concatenate([self._ids, *self._added]), return_inverse=True)
        counts = np.bincount(place[len(self._ids) :], minlength=len(ids))
        counts[place[: len(self._ids)]] += self._counts
        self._ids, self._counts, self._added, self._num_added = ids, counts, [], 0
        return ids, counts


def presample(
    input_ids: InputIds, num_steps: int, is_near: Sequence[Callable[[np.ndarray], np.ndarray]], world: World
) -> tuple[Ranking, ...]:  # fmt: skip
    """Collective. Rank the nodes of each type by how often the steps of an epoch need their rows (Yang et al., GNNLab,
    EuroSys 2022). Nodes whose rows are near (``is_near``, by type, of global ids) are left out. Of long epochs,
    MOST_PRESAMPLED steps at equal distances count, and fewer if a rank meets more than MOST_COUNTED nodes. probability
    of a ranking: the mean number of times that a step needs the node."""
    count = min(num_steps, MOST_PRESAMPLED)
    wanted = [IdCounts() for _ in is_near]
    for number in range(count):
        world.working("presample", number)
        for near, counts, ids in zip(is_near, wanted, input_ids(number * num_steps // count), strict=True):
            counts.add(ids[~near(ids)])
        if world.any(sum(map(len, wanted)) > MOST_COUNTED):  # all ranks stop together: input_ids is collective
            count = number + 1
            break
    rankings = []
    for counts in wanted:
        unique, uses = counts.totals()
        order = np.argsort(-uses, kind="stable")
        rankings.append(Ranking(unique[order], (uses[order] / max(1, count)).astype(np.float32)))
    return tuple(rankings)
