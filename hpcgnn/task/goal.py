"""What a run learns, and how its results are measured, as far as all kinds of graphs agree on it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from hpcgnn.task.collect import Collected, Measure


class Goal(ABC):
    """num_outputs: columns that the model computes for the goal."""

    num_outputs: int

    def extend(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model with the parts that the goal adds to it, such as a decoder."""
        return model

    @abstractmethod
    def collector(self) -> Collected:
        """What gathers a split's scores and measures them."""

    @abstractmethod
    def metric_names(self) -> tuple[str, ...]:
        """Names of a split's metrics; the first one is monitored when nothing else is said."""

    @abstractmethod
    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Names and function of the metrics of training scores, as ``TrainScores`` takes them."""

    @abstractmethod
    def describe(self) -> str:
        """What is learnt, in a few words."""

    def protocol(self) -> dict[str, str]:
        """How scores come about, for ``hpcgnn.evaluate``."""
        return {}
