"""Rules that make classes of nodes from the labels of training nodes and from edges, without training, and their table.

n own nodes, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hpcgnn.choices import Part
from hpcgnn.comm.exchange import Channel
from hpcgnn.graph.partition import GraphPartition
from hpcgnn.static.rows.propagate import Propagation


def propagate_labels(
    partition: GraphPartition, channel: Channel, relations: Sequence[int], config: Any, nodes: torch.Tensor,
    labels: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Collective. Propagate labels (Zhou et al., Learning with local and global consistency, 2003): in each of
    ``baseline.steps`` steps, the scores of a node become ``baseline.alpha`` times the sum of its neighbors' scores,
    each over the square root of the product of both degrees, plus 1 - alpha times its label.

    relations: numbers of the relations that labels follow; config: the section ``baseline``; nodes [k]: local rows of
    own nodes, labels [k, C]: one 1 in each row. Returns the scores [n, C] of the own nodes, and which nodes a label has
    reached [n] bool; the others have the share of each class among the labels.
    """
    hop = Propagation(partition, channel, labels.dtype, relations, self_loop=False)
    given = labels.new_zeros((partition.num_nodes, labels.shape[1])).index_copy(0, nodes, labels)
    scores = given
    for _ in range(config.steps):
        scores = config.alpha * hop(scores) + (1 - config.alpha) * given
    reached = scores.sum(1) > 0
    return torch.where(reached.unsqueeze(1), scores, _shares(labels, channel)), reached


def _shares(labels: torch.Tensor, channel: Channel) -> torch.Tensor:
    """Collective. Compute the share of each class [C] among the labels of all ranks."""
    counts = channel.everyone(labels.sum(0, keepdim=True)).sum(0)
    return counts / counts.sum()


@dataclass(frozen=True)
class NodeBaselinePart(Part):
    """A rule for nodes. make: see ``propagate_labels``. options: the keys of the section ``baseline`` that it reads."""

    make: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    options: tuple[str, ...] = ()


NODE_BASELINES = {
    "label_propagation": NodeBaselinePart(
        propagate_labels, "classes of nodes from the labels of training nodes, along edges (Zhou et al., 2003)",
        ("relations", "steps", "alpha"),
    ),
}  # fmt: skip
