"""Scores of a split under the configured protocol, and the metrics made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hpcgnn.run.session import Session
from hpcgnn.sample.plan import StepPlan
from hpcgnn.tasks.metrics import NAMES, RANKING_NAMES, link_metrics, ranking_metrics, ranks_of
from hpcgnn.tasks.temporal_link import Scores


@dataclass(slots=True)
class Collected:
    """Scores of this rank's events, step after step: positive [b]; negative [b, k], or, for one-vs-many, only the ranks
    [b] of the events among their negatives."""

    ranking: bool
    positive: list[np.ndarray] = field(default_factory=list)
    negative: list[np.ndarray] = field(default_factory=list)
    ranks: list[np.ndarray] = field(default_factory=list)
    _pending: list[np.ndarray] = field(default_factory=list)

    def add(self, plan: StepPlan, scores: Scores) -> None:
        """Take a plan's scores; the negatives of a step may come in several plans, of which the last is final."""
        self._pending.append(scores.negative.T.double().cpu().numpy())
        if not plan.final:
            return
        positive, negative = scores.positive.double().cpu().numpy(), np.concatenate(self._pending, axis=1)
        self._pending.clear()
        self.positive.append(positive)
        if self.ranking:
            self.ranks.append(ranks_of(positive, negative))
        else:
            self.negative.append(negative)


def run_split(session: Session, split: str, stop: Callable[[], bool] = lambda: False) -> Collected | None:
    """Collective. Score a split; memory moves on. ``stop`` is collective, asked after every step: None when it says
    so."""
    collected = Collected(session.ranking)
    with session.plans(split, 0) as plans:
        for plan in plans:
            session.watchdog.at(split, plan.step)
            task = session.task
            collected.add(plan, task.evaluate(plan) if plan.final else task.score(plan))
            if stop():
                return None
    return collected


def split_metrics(session: Session, split: str, collected: Collected) -> dict[str, float]:
    """Collective. AP and AUC, or MRR and hits@10 for one-vs-many; NaN for a split without events."""
    names = RANKING_NAMES if session.ranking else NAMES
    if session.batches[split].num_steps == 0:
        return dict.fromkeys(names, float("nan"))
    inductive = session.batches[split].inductive
    if session.ranking:
        return ranking_metrics(np.concatenate(collected.ranks), inductive, session.world)
    return link_metrics(
        np.concatenate(collected.positive), np.concatenate(collected.negative), inductive, session.world
    )


def split_scores(scores: list[Scores]) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the steps' scores: positive [b], negative [b, k], float64."""
    positive = [s.positive.double().cpu().numpy() for s in scores]
    negative = [s.negative.T.double().cpu().numpy() for s in scores]
    return np.concatenate(positive), np.concatenate(negative)
