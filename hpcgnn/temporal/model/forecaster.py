"""Models that predict the labels of nodes at times from earlier labels alone, and their table. c labels, K classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from hpcgnn.choices import Part


class VirtualState(nn.Module):
    """NAViS: a linear state of every node, and gates that also read a state of all nodes (Mantri et al., Revisiting
    node affinity prediction in temporal graphs, 2025, arXiv 2510.06940).

    With the node's last label x, its state h and the common state g, all [K], and the logistic function s:
    a = s(W_a [x, h] + b_a), new h = a h + (1 - a) x; z = s(W_z [x, h, g] + b_z), output = z (new h) + (1 - z) x.
    Both gates are single numbers, as in the authors' program (github.com/orfeld415/NAVIS, 2b503ef), which has 5 K
    weights. z = 0 is the persistent forecast, and z = 1 with a fixed a an exponential moving average.
    """

    has_memory, has_embedding = True, False

    def __init__(self, num_classes: int):
        super().__init__()
        self.state_gate, self.output_gate = nn.Linear(2 * num_classes, 1), nn.Linear(3 * num_classes, 1)

    def forward(
        self, state: torch.Tensor, last: torch.Tensor, common: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Predict labels. state, last [c, K]: of their nodes; common [K]. Returns outputs and new states, both [c,
        K]."""
        read = torch.cat([last, state], dim=1)
        keep = torch.sigmoid(self.state_gate(read))
        new = keep * state + (1 - keep) * last
        share = torch.sigmoid(self.output_gate(torch.cat([read, common.expand_as(last)], dim=1)))
        return share * new + (1 - share) * last, new


@dataclass(frozen=True)
class ForecasterPart(Part):
    """A model of earlier labels. make: makes it from the number of classes; None: a model of events predicts."""

    make: Callable[[int], nn.Module] | None


FORECASTERS = {
    "": ForecasterPart(None, "the model of events that the keys below describe"),
    "navis": ForecasterPart(
        VirtualState,
        "averages of the node's labels, with gates that also read the labels of all nodes (Mantri et al., NAViS, 2025)",
    ),
}  # fmt: skip
