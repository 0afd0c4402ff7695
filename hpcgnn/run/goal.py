"""What a run learns and how its results are measured, as far as kinds of graphs agree on it, and sessions with such a
goal."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from hpcgnn.run.base import BaseSession
from hpcgnn.run.scoring import Collected
from hpcgnn.run.train_scores import Measure


class BaseGoal(ABC):
    """num_outputs: of the model."""

    num_outputs: int

    def extend(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model with the parts that the task adds to it."""
        return model

    @abstractmethod
    def collector(self) -> Collected:
        """What gathers a split's scores."""

    @abstractmethod
    def metric_names(self) -> tuple[str, ...]:
        """The metrics of a split."""

    @abstractmethod
    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Names and function of the metrics of training scores."""

    @abstractmethod
    def describe(self) -> str:
        """What is learnt, in a few words."""


class GoalSession(BaseSession):
    """Collective to create and to close. Kinds of graphs fill in ``goal``, which says how scores are measured."""

    goal: BaseGoal

    def metric_names(self) -> tuple[str, ...]:
        """Those of the goal."""
        return self.goal.metric_names()

    def collector(self) -> Collected:
        """That of the goal."""
        return self.goal.collector()

    def train_measure(self) -> tuple[tuple[str, ...], Measure]:
        """Those of the goal."""
        return self.goal.train_measure()

    def protocol(self) -> dict[str, str]:
        """Nothing to say."""
        return {}
