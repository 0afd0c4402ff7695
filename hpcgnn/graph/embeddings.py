"""Learnable node embeddings: rows of nodes without features, kept at their owners, trained by a sparse optimizer.

n nodes at this rank, D width. Rows are drawn by flat row id, so that every partition starts alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch

from hpcgnn import native
from hpcgnn.choices import check_choices
from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.route import Route
from hpcgnn.comm.shared import MachineColumns
from hpcgnn.graph.saved_rows import NodeRowStore, SavedRows
from hpcgnn.native import Random, Stream

BETAS, EPS, ADAGRAD_EPS = (0.9, 0.999), 1e-8, 1e-10
RESOLUTION, SLAB = 1 << 24, 1 << 16


@dataclass
class EmbeddingConfig:
    """Learnable node embeddings.

    Attributes:
        types: Node types with learnable embeddings in addition to their features; node types without features always
            have them.
        optimizer: Optimizer of the embeddings: "adam" or "adagrad"; both update only the rows that a step uses.
        lr: Learning rate of the embeddings; 0: train.lr. Accumulation and clipping apply only to the model's weights.
        weight_decay: Weight decay of the embeddings, added to the gradients of the rows that a step uses.
        scale: Bound of the initial values, uniform in [-scale, scale]; 0: sqrt(3 / width), which gives rows of length 1
            on average.
        scheduled: Let the learning rate follow train.schedule and train.warmup_steps, as that of the model's weights
            does. Otherwise it is the same in every step.
    """

    types: list[str] = field(default_factory=list)
    optimizer: Literal["adam", "adagrad"] = "adam"
    lr: float = 0.0
    weight_decay: float = 0.0
    scale: float = 0.0
    scheduled: bool = False

    def __post_init__(self):
        check_choices("node_embedding", self)
        for name in ("lr", "weight_decay", "scale"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"node_embedding.{name} must be at least 0, got {getattr(self, name)}")


class SparseEmbedding:
    """Embeddings [n, D] of nodes and the state of their optimizer; ``step`` counts a row's own updates."""

    def __init__(
        self, flat_row: np.ndarray, width: int, config: EmbeddingConfig, lr: float, seed: int, dtype: torch.dtype,
        device: torch.device,
    ):  # fmt: skip
        self._config, self._highest = config, config.lr or lr
        self._lr = self._highest
        self.weight = torch.empty((len(flat_row), width), dtype=dtype, device=device)
        for first in range(0, len(flat_row), SLAB):
            self.weight[first : first + SLAB] = _draw(flat_row[first : first + SLAB], width, config.scale, seed)
        moments = ("exp_avg", "exp_avg_sq") if config.optimizer == "adam" else ("sum",)
        self.state = {name: torch.zeros_like(self.weight) for name in moments}
        if config.optimizer == "adam":
            self.state["step"] = torch.zeros(len(flat_row), dtype=torch.int64, device=device)

    def set_rate(self, factor: float) -> None:
        """Learn with this share of the learning rate from now on, if it is scheduled."""
        self._lr = self._highest * (factor if self._config.scheduled else 1)

    def columns(self) -> dict[str, torch.Tensor]:
        """Return the rows and their optimizer's state by name: what a checkpoint holds."""
        return {"weight": self.weight, **self.state}

    def apply(self, route: Route, gradient: torch.Tensor) -> None:
        """Collective. Send gradients [W, D] of the route's rows to the owners, who add them up and update each row
        once."""
        self.apply_all([(route, gradient)])

    def apply_all(self, pushed: Sequence[tuple[Route, torch.Tensor]]) -> None:
        """Collective. Do what ``apply`` does for several routes and their gradients; owners update a row of several
        routes once, too."""
        totals = [route.push_sum(gradient.contiguous()) for route, gradient in pushed]
        rows, total = _sum_by_row([route.served for route, _ in pushed], totals)
        if len(rows) == 0:  # not before push_sum, which is collective
            return
        state = {name: native.gather_rows(table, rows) for name, table in self.state.items()}
        native.scatter_rows(self.weight, rows, self._updated(native.gather_rows(self.weight, rows), total, state))
        for name, values in state.items():
            native.scatter_rows(self.state[name], rows, values)

    def apply_to_all(self, gradient: torch.Tensor, pushed: Sequence[tuple[Route, torch.Tensor]]) -> None:
        """Collective. Update all rows where they lie, with their gradients [n, D] plus those of some routes, as
        ``apply_all`` takes them. Changes ``gradient``."""
        for route, of_route in pushed:
            total = route.push_sum(of_route.contiguous())
            gradient.index_add_(0, route.served, total)
        self.weight.sub_(self._change(self.weight, gradient, self.state))

    def move(self, gradient: torch.Tensor) -> None:
        """Update all rows with their gradients [n, D]."""
        self.weight = self._updated(self.weight, gradient, self.state)

    def _updated(self, weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        """Rows after a step of the optimizer, which changes their ``state`` in place."""
        return weight - self._change(weight, gradient, state)

    def _change(self, weight: torch.Tensor, gradient: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        """What a step of the optimizer, which changes the rows' ``state`` in place, takes from them."""
        if self._config.weight_decay:
            gradient = gradient + self._config.weight_decay * weight
        step = self._adam if self._config.optimizer == "adam" else self._adagrad
        return step(gradient, state)

    def _adam(self, gradient: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        """Adam (Kingma and Ba, 2015), with bias corrections of each row's own step."""
        state["step"] += 1
        state["exp_avg"].lerp_(gradient, 1 - BETAS[0])
        state["exp_avg_sq"].mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        step = state["step"].to(torch.float64).unsqueeze(1)
        first, second = ((1 - beta**step).to(gradient.dtype) for beta in BETAS)
        scale = (state["exp_avg_sq"] / second).sqrt_().add_(EPS)
        return (state["exp_avg"] / first).mul_(self._lr).div_(scale)

    def _adagrad(self, gradient: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        """Adagrad (Duchi, Hazan, Singer, 2011)."""
        state["sum"].addcmul_(gradient, gradient)
        return (self._lr * gradient).div_(state["sum"].sqrt().add_(ADAGRAD_EPS))


def _sum_by_row(rows: list[torch.Tensor], values: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Add up lists of values [k, D] by their rows [k], which are unique within a list. Returns rows and sums."""
    if len(rows) == 1:
        return rows[0], values[0]
    unique, place = torch.unique(torch.cat(rows), return_inverse=True)
    total = values[0].new_zeros((len(unique), values[0].shape[1]))
    for at, of_list in zip(place.split([len(each) for each in rows]), values, strict=True):
        total[at] += of_list  # list after list: the order, and so the rounding, is always the same
    return unique, total


def _draw(flat_row: np.ndarray, width: int, scale: float, seed: int) -> torch.Tensor:
    """Draw uniform rows [n, width] float64, a function of seed and flat row id."""
    draws = native.random_integers(Random(seed, Stream.EMBEDDING), flat_row, width, RESOLUTION)
    unit = torch.from_numpy(draws).to(torch.float64).mul_(2 / RESOLUTION).sub_(1 - 1 / RESOLUTION)
    return unit.mul_(scale or math.sqrt(3 / width))


class EmbeddingStore(NodeRowStore):
    """The embeddings of some node types, all of one width, as the run loop saves and restores them.

    tables: by node type; first_row: first local row of every type, in the partition's order. shared: the memory with
    the rows, where the ranks of a machine read each other's rows.
    """

    def __init__(self, tables: dict[int, SparseEmbedding], first_row: np.ndarray):
        self.tables, self._first_row = tables, first_row
        self.shared: MachineColumns | None = None

    @property
    def num_learned(self) -> int | None:
        """Number of this rank's embeddings of all types; None without any."""
        return sum(len(table.weight) for table in self.tables.values()) if self.tables else None

    def set_rate(self, factor: float) -> None:
        """Learn the rows with this share of their learning rate from now on."""
        for table in self.tables.values():
            table.set_rate(factor)

    def lie_in(self, shared: MachineColumns) -> None:
        """Collective. Move the rows into memory that ranks share, which has a column for every table."""
        for table, own in zip(self.tables.values(), shared.own, strict=True):
            table.weight = own.copy_(table.weight)
        self.shared = shared
        self.publish()

    def leave(self) -> None:
        """Move the rows back, before the shared memory is freed."""
        for table in self.tables.values():
            table.weight = table.weight.clone()
        self.shared = None

    def publish(self) -> None:
        """Collective. Let the ranks that read this rank's rows see what was written; none of them reads meanwhile."""
        if self.shared is not None:
            self.shared.publish()

    def share(self, channel: Channel) -> None:
        """Collective. Let other ranks see the rows that were put."""
        self.publish()

    def saved(self) -> list[SavedRows]:
        """Return all rows of this rank."""
        if not self.tables:
            return []
        rows = [torch.arange(len(t.weight)) + int(self._first_row[kind]) for kind, t in self.tables.items()]
        columns = [table.columns() for table in self.tables.values()]
        return [SavedRows(torch.cat(rows), {name: torch.cat([c[name] for c in columns]) for name in columns[0]})]

    def prototype(self) -> dict[str, torch.Tensor]:
        """Return the columns with no row in them."""
        first = next(iter(self.tables.values()), None)
        return {} if first is None else {name: column[:0] for name, column in first.columns().items()}

    def put(self, saved: SavedRows) -> None:
        """Set the columns that are there of some of this rank's rows."""
        rows = saved.rows.cpu()
        for kind, table in self.tables.items():
            place = rows - int(self._first_row[kind])
            is_of_type = (place >= 0) & (place < len(table.weight))
            columns = table.columns()
            for name, values in saved.columns.items():
                columns[name][place[is_of_type]] = values[is_of_type.to(values.device)]

    def put_write(self, pieces: list[SavedRows], channel: Channel) -> None:
        """Raise ValueError: no write of embeddings ever waits, so none is saved."""
        raise ValueError("the checkpoint has node memory, which runs on static graphs do not have")
