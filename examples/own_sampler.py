"""A sampler of the user's: the neighbors with the highest weights, up to the fanout, without chance.

Train with it by its path, from a folder on PYTHONPATH, on a graph with a column `weight` of the edges:

    PYTHONPATH=examples mpirun -np 2 hpcgnn train --kind static --data.path parts/ \
        --sampling.strategy weighted --sampling.class_path own_sampler.HeaviestNeighbors
"""

import numpy as np

from hpcgnn import NeighborSampler


class HeaviestNeighbors(NeighborSampler):
    """Neighbors with the highest weights; of equal ones, the first in order of edge row."""

    def draw(self, lists, nodes, fanout, random):
        begin, degree = lists.indptr[nodes], lists.indptr[nodes + 1] - lists.indptr[nodes]
        count = degree if fanout < 0 else np.minimum(degree, fanout)
        # All in-edges of the nodes: which of the nodes, and the position in the lists.
        number = np.repeat(np.arange(len(nodes)), degree)
        first = np.cumsum(degree) - degree
        position = np.arange(len(number)) - first[number] + begin[number]
        order = np.lexsort((position, -lists.weight[position].astype(np.int64), number))  # by node, heaviest first
        is_kept = np.arange(len(order)) - first[number] < count[number]
        return np.concatenate(([0], np.cumsum(count))), position[order[is_kept]]
