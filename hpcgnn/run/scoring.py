"""Scores of a split under the configured protocol, and the metrics made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hpcgnn.comm.world import World
from hpcgnn.run.session import Session
from hpcgnn.sample.plan import StepPlan
from hpcgnn.tasks.metrics import NAMES, RANKING_NAMES, link_metrics, ranking_metrics, ranks_of
from hpcgnn.tasks.temporal import StepScores
from hpcgnn.tasks.temporal_label import LabelScores, label_metrics
from hpcgnn.tasks.temporal_label import metric_names as label_metric_names
from hpcgnn.tasks.temporal_link import Scores


class Collected(Protocol):
    """Scores of this rank's events of a split, step after step."""

    def add(self, plan: StepPlan, scores: StepScores) -> None:
        """Take a plan's scores."""

    def metrics(self, inductive: np.ndarray, world: World) -> dict[str, float]:
        """Collective. Metrics of all; inductive [b] bool of the events."""


@dataclass(slots=True)
class LinkCollected:
    """positive [b]; negative [b, k], or, for one-vs-many, only the ranks [b] of the events among their negatives."""

    ranking: bool
    positive: list[np.ndarray] = field(default_factory=list)
    negative: list[np.ndarray] = field(default_factory=list)
    ranks: list[np.ndarray] = field(default_factory=list)
    _pending: list[np.ndarray] = field(default_factory=list)

    def add(self, plan: StepPlan, scores: Scores) -> None:
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

    def metrics(self, inductive: np.ndarray, world: World) -> dict[str, float]:
        """Collective. AP and AUC, or MRR and hits@10 for one-vs-many."""
        if self.ranking:
            return ranking_metrics(np.concatenate(self.ranks), inductive, world)
        return link_metrics(np.concatenate(self.positive), np.concatenate(self.negative), inductive, world)


@dataclass(slots=True)
class LabelCollected:
    """output [b, C] and label [b]."""

    output: list[np.ndarray] = field(default_factory=list)
    label: list[np.ndarray] = field(default_factory=list)

    def add(self, plan: StepPlan, scores: LabelScores) -> None:
        """Take a plan's scores."""
        output, label = scores.arrays().values()
        self.output.append(output)
        self.label.append(label)

    def metrics(self, inductive: np.ndarray, world: World) -> dict[str, float]:
        """Collective. Metrics of the labelled events."""
        return label_metrics(np.concatenate(self.output), np.concatenate(self.label), world)


def metric_names(session: Session) -> tuple[str, ...]:
    """The metrics of a split; the first one is monitored when nothing else is said."""
    if session.config.task.has_labels:
        return label_metric_names(session.config.task.kind, session.classes)
    return RANKING_NAMES if session.ranking else NAMES


def run_split(session: Session, split: str, stop: Callable[[], bool] = lambda: False) -> Collected | None:
    """Collective. Score a split; memory moves on. ``stop`` is collective, asked after every step: None when it says
    so."""
    collected = LabelCollected() if session.config.task.has_labels else LinkCollected(session.ranking)
    with session.plans(split, 0) as plans:
        for plan in plans:
            session.watchdog.at(split, plan.step)
            task = session.task
            collected.add(plan, task.evaluate(plan) if plan.final else task.score(plan))
            if stop():
                return None
    return collected


def split_metrics(session: Session, split: str, collected: Collected) -> dict[str, float]:
    """Collective. The metrics of ``metric_names``; NaN for a split without events."""
    if session.batches[split].num_steps == 0:
        return dict.fromkeys(metric_names(session), float("nan"))
    return collected.metrics(session.batches[split].inductive, session.world)


def concatenate(scores: list[StepScores]) -> dict[str, np.ndarray]:
    """The steps' scores by name, one row an event."""
    steps = [step.arrays() for step in scores]
    return {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}


def split_scores(scores: list[Scores]) -> tuple[np.ndarray, np.ndarray]:
    """The steps' scores of links: positive [b], negative [b, k], float64."""
    positive, negative = concatenate(scores).values()
    return positive, negative
