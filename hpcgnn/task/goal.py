"""The interface of goals: what a run learns, and how its results are measured, on graphs of all kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from hpcgnn.task.collect import Collected, Measure


class Goal(ABC):
    """What is learnt and how it is measured. num_outputs: columns that the model computes for it."""

    num_outputs: int

    def extend(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model with the parts that the goal adds to it, such as a decoder."""
        return model

    @abstractmethod
    def collector(self) -> Collected:
        """Make the object that collects a split's scores and measures them."""

    @abstractmethod
    def metric_names(self) -> tuple[str, ...]:
        """Names of a split's metrics; the first one is monitored unless ``train.monitor`` names another."""

    @abstractmethod
    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Names of the metrics of training scores, and the function that makes them, as ``TrainScores`` takes both."""

    @abstractmethod
    def describe(self) -> str:
        """Say in a few words what is learnt."""

    def protocol(self) -> dict[str, str]:
        """Say how evaluation comes to its scores, for the report of ``hpcgnn.evaluate``."""
        return {}
