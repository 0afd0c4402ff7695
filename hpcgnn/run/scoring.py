"""Scores of a split under the configured protocol, and the metrics made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hpcgnn.comm.world import World
from hpcgnn.run.base import BaseSession
from hpcgnn.task.collect import StepScores
from hpcgnn.task.labels import LabelScores, label_metrics
from hpcgnn.task.links import Scores
from hpcgnn.tasks.metrics import link_metrics, ranking_metrics, ranks_of


class Scored(Protocol):
    """Scores of this rank's events of a split."""

    def metrics(self, batches, world: World) -> dict[str, float]:
        """Collective. Metrics of all, those of ``batches``."""


class Collected(Scored, Protocol):
    """Scores of this rank's events of a split, step after step."""

    def add(self, plan: Any, scores: Any) -> None:
        """Take a plan's scores."""


@dataclass(slots=True)
class LinkCollected:
    """positive [b]; negative [b, k], or, for one-vs-many, only the ranks [b] of the events among their negatives."""

    ranking: bool
    positive: list[np.ndarray] = field(default_factory=list)
    negative: list[np.ndarray] = field(default_factory=list)
    ranks: list[np.ndarray] = field(default_factory=list)
    _pending: list[np.ndarray] = field(default_factory=list)

    def add(self, plan: Any, scores: Scores) -> None:
        """Take a plan's scores; the negatives of a step may come in several plans, of which the last is final."""
        positive, negative = scores.arrays().values()
        self._pending.append(negative)
        if not plan.final:
            return
        self.take(positive, np.concatenate(self._pending, axis=1))
        self._pending.clear()

    def take(self, positive: np.ndarray, negative: np.ndarray) -> None:
        """Scores of a whole step's events [b] and of all their negatives [b, k]."""
        self.positive.append(positive)
        if self.ranking:
            self.ranks.append(ranks_of(positive, negative))
        else:
            self.negative.append(negative)

    def metrics(self, batches: Any, world: World) -> dict[str, float]:
        """Collective. AP and AUC, or MRR and hits@10 for one-vs-many."""
        if self.ranking:
            return ranking_metrics(np.concatenate(self.ranks), batches.inductive, world)
        return link_metrics(np.concatenate(self.positive), np.concatenate(self.negative), batches.inductive, world)


@dataclass(slots=True)
class LabelCollected:
    """output [b, C] and label [b]; measure: the metrics of all of them."""

    output: list[np.ndarray] = field(default_factory=list)
    label: list[np.ndarray] = field(default_factory=list)
    measure: Callable[[np.ndarray, np.ndarray, World], dict[str, float]] = label_metrics

    def add(self, plan: Any, scores: LabelScores) -> None:
        """Take a plan's scores."""
        output, label = scores.arrays().values()
        self.output.append(output)
        self.label.append(label)

    def metrics(self, batches: object, world: World) -> dict[str, float]:
        """Collective. Metrics of the labelled events or nodes."""
        return self.measure(np.concatenate(self.output), np.concatenate(self.label), world)


def split_metrics(session: BaseSession, split: str, collected: Scored) -> dict[str, float]:
    """Collective. The metrics of ``metric_names``; NaN for a split without roots."""
    if session.batches[split].num_steps == 0:
        return dict.fromkeys(session.metric_names(), float("nan"))
    return collected.metrics(session.batches[split], session.scored_by)


def concatenate(scores: Sequence[StepScores]) -> dict[str, np.ndarray]:
    """The steps' scores by name, one row an event."""
    steps = [step.arrays() for step in scores]
    return {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}


def split_scores(scores: list[Scores]) -> tuple[np.ndarray, np.ndarray]:
    """The steps' scores of links: positive [b], negative [b, k], float64."""
    positive, negative = concatenate(scores).values()
    return positive, negative
