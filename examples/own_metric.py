"""A custom metric: the mean over classes of the share of nodes that are classified correctly.

Monitor it by:

    PYTHONPATH=examples mpirun -np 2 hpcgnn train --kind static --train.metrics [own_metric.balanced_accuracy] \
        --train.monitor balanced_accuracy
"""

import numpy as np


def balanced_accuracy(scores):
    """Return a number of the scores of a split: arrays of all ranks, one row per node."""
    label, predicted = scores["label"], scores["output"].argmax(axis=1)
    return np.mean([(predicted[label == number] == number).mean() for number in np.unique(label)])
