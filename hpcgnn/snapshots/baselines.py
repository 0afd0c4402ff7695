"""Baselines: rules that forecast numbers of nodes, or rank the ends of links, without a model, and their table. One
runs in the place of a model, with the same splits, targets and metrics: a model must beat it.

n nodes of this rank, F inputs of a node, C output columns, T training snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from hpcgnn.choices import Part
from hpcgnn.comm.group import DistributedError
from hpcgnn.comm.together import together
from hpcgnn.graph.splits import SPLITS
from hpcgnn.loop.own_metrics import own_functions
from hpcgnn.loop.session import Session, split_metrics
from hpcgnn.snapshots.goals import AVERAGES, REGRESSION, AveragePart
from hpcgnn.snapshots.recurrency import Recurrency
from hpcgnn.task.config import LINK

COLLINEAR = 1e-10  # singular values below this times the largest are rounding

Rule = Callable[[int], Any]


def _average(session: Session, part: AveragePart) -> Rule:
    """Collective. Make the mean of the last known values of a node."""
    with together(session.world, "baseline"):
        session.goal.know("baseline.kind")
    return partial(session.goal.recent, count=part.count(session.config.inputs.lags))


class LinearRegression:
    """Forecasts each output column by a linear function of a node's inputs, with the smallest squared error over the
    training snapshots; in closed form. Collinear inputs share a weight."""

    def __init__(self, session: Session, by_node: bool):
        """Collective. by_node: each node has its own function; else all nodes have one. Raises DistributedError without
        inputs or training targets."""
        self._session, self._train = session, session.loaders[SPLITS[0]].snapshots
        if self._inputs(self._train.start).shape[1] == 1:
            raise DistributedError("baseline.kind: nodes have no inputs; set inputs.lags above 0", user_error=True)
        if session.goal.roots[self._train].sum() == 0:
            raise DistributedError("baseline.kind: there are no numbers to fit: see task.target", user_error=True)
        columns = range(session.goal.num_outputs)
        fit = self._fit_nodes if by_node else self._fit
        self._weight = np.stack([fit(column) for column in columns], axis=-1)  # [1 or n, F + 1, C]

    def __call__(self, number: int) -> torch.Tensor:
        """Forecast from a snapshot [n, C]."""
        outputs = (self._inputs(number)[:, None] @ self._weight)[:, 0]
        return torch.from_numpy(outputs).to(self._session.world.device, self._session.dtype)

    def _inputs(self, number: int) -> np.ndarray:
        """Return the inputs of a snapshot, and 1 [n, F + 1]."""
        inputs = self._session.task.inputs(number).double().cpu().numpy()
        return np.column_stack([inputs, np.ones(len(inputs))])

    def _rows(self, column: int) -> Iterator[np.ndarray]:
        """Yield, for every training snapshot, inputs, 1 and target [n, F + 2]; zeros where the target is missing."""
        for number in self._train:
            inputs, targets = self._inputs(number), self._session.goal.want(SPLITS[0], 0, number)
            values = np.full(len(inputs) * self._session.goal.num_outputs, np.nan)
            values[targets.row.cpu().numpy()] = targets.value.cpu().numpy()
            target = values.reshape(len(inputs), -1)[:, column, None]
            yield np.where(np.isnan(target), 0.0, np.concatenate([inputs, target], axis=1))

    def _fit(self, column: int) -> np.ndarray:
        """Collective. Fit the rows of all ranks: [1, F + 1]. Their triangular factors are enough, and small."""
        factor: Any = np.zeros((0, self._inputs(self._train.start).shape[1] + 1))
        for rows in self._rows(column):
            factor = np.linalg.qr(np.concatenate([factor, rows]), mode="r")
        square = np.zeros((factor.shape[1],) * 2)
        square[: len(factor)] = factor
        return _solve(np.concatenate(self._session.world.allgather_array(square))[None])

    def _fit_nodes(self, column: int) -> np.ndarray:
        """Fit the rows of each node: [n, F + 1]."""
        return _solve(np.stack(list(self._rows(column)), axis=1))


def _solve(rows: np.ndarray) -> np.ndarray:
    """Solve least squares: rows [m, T, D + 1], whose last column is the target; returns [m, D]."""
    inputs, target = rows[..., :-1], rows[..., -1:]
    size = np.linalg.norm(inputs, axis=1, keepdims=True)
    size[size == 0] = 1.0
    return (np.linalg.pinv(inputs / size, rcond=COLLINEAR) @ target)[..., 0] / size[:, 0]


@dataclass(frozen=True)
class SnapshotBaselinePart(Part):
    """A baseline. make: of a session, collectively, a function of a snapshot, whose result the goal compares with the
    target: a forecast [n, C], or, for links, an object that scores queries with all nodes. None: the model is
    evaluated. task: the ``task.kind`` that it is for. of_lags: it reads ``inputs.lags``, which must be above 0;
    options: the keys of the section ``baseline`` that it reads."""

    make: Callable[[Session], Rule] | None
    task: str = REGRESSION
    of_lags: bool = False
    options: tuple[str, ...] = ()


BASELINES = {
    "": SnapshotBaselinePart(None, "the model"),
    **{
        name: SnapshotBaselinePart(partial(_average, part=part), part.says, of_lags=part.of_lags)
        for name, part in AVERAGES.items()
    },
    "linear": SnapshotBaselinePart(
        partial(LinearRegression, by_node=False), "linear regression on the inputs of a node, the same for all nodes"
    ),
    "linear_by_node": SnapshotBaselinePart(
        partial(LinearRegression, by_node=True), "linear regression on the inputs of a node, for each node separately"
    ),
    "recurrency_strict": SnapshotBaselinePart(
        partial(Recurrency, strict_weight=1.0), "how recent the same edge is, by edge type (Gastinger et al., 2024)",
        LINK, options=("decay",),
    ),
    "recurrency_relaxed": SnapshotBaselinePart(
        partial(Recurrency, strict_weight=0.0),
        "share of the earlier edges of the edge type that have the same answer (Gastinger et al., 2024)", LINK,
    ),
    "recurrency": SnapshotBaselinePart(
        partial(Recurrency, strict_weight=None), "weighted sum of recurrency_strict and recurrency_relaxed", LINK,
        options=("decay", "strict_weight"),
    ),
}  # fmt: skip


def baseline_metrics(
    session: Session, config: Any, at: Callable[[str, int], None] | None = None
) -> dict[str, float]:  # fmt: skip
    """Collective. Compute the metrics of validation and test, named as a model's. config: the section ``baseline``;
    ``at(split, step)``, in place of the watchdog's, is called before every step. Raises DistributedError."""
    at, goal = at or session.watchdog.at, session.goal
    at("baseline", 0)
    with together(session.world, "baseline"):
        own_functions(session.config.train.metrics, goal.metric_names())  # refused before anything is scored
    make = BASELINES[config.kind].make
    assert make is not None
    forecast, values = make(session), dict[str, float]()
    for split in SPLITS[1:]:
        collected = goal.collector()
        for step, numbers in enumerate(session.batches[split].targets):
            at(split, step)
            for number in numbers:
                scores = goal.compare(forecast(number), goal.want(split, 0, number))
                collected.take(scores.arrays())
        metrics = split_metrics(session, split, collected)
        values |= {f"{split}_{name}": value for name, value in metrics.items()}
    return values
