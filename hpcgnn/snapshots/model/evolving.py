"""EvolveGCN (Pareja et al., EvolveGCN: evolving graph convolutional networks for dynamic graphs, 2020). The matrices of
graph convolutions are the state; a GRU changes them from snapshot to snapshot, as in the authors' program.

n nodes of this rank, k sequences, I input, H hidden, C output, D columns, m rows wanted.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from hpcgnn.nn.aggregation import glorot
from hpcgnn.snapshots.model.frame import Frame, SequenceModel, SequenceSizes, State
from hpcgnn.snapshots.model.recurrent import affine, perceptron, relu
from hpcgnn.snapshots.model.spatial import Distinct, propagate_all, smooth_all

NOBODY = torch.iinfo(torch.int64).max >> 11  # an id, exact in float64, that no row has


def best_rows(frames: list[Frame], rows: list[torch.Tensor], direction: torch.Tensor, num_best: int) -> list:
    """Collective. Choose the m best of every frame's rows [n, k, D] of all ranks: [k, m, D], the best first. The best
    have the largest products with a direction [D] of length 1, of equal ones the lower row id. Each is multiplied by
    tanh of its product; zeros fill up where there are fewer nodes. One exchange for all frames."""
    keys, sent = [], []
    for frame, frame_rows in zip(frames, rows, strict=True):
        for snapshot_rows in frame_rows.unbind(1):
            key, weighed = _own_best(snapshot_rows, frame.snapshots[0].identity, direction, num_best)
            keys.append(key)
            sent.append(weighed)
    best = _choose(torch.stack(keys), torch.stack(sent), frames[0].everyone)
    return list(best.split([frame_rows.shape[1] for frame_rows in rows]))


def _own_best(rows, identity, direction, num_best: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose this rank's best: keys (product, row id) [m, 2] float64, and weighed rows [m, D]."""
    with torch.no_grad():
        score = rows @ direction
        place = torch.arange(len(score), device=score.device)
        if len(score) > num_best:
            place = torch.nonzero(score >= score.topk(num_best).values[-1]).ravel()
        place = place[identity[place].argsort()]
        place = place[score[place].argsort(descending=True, stable=True)][:num_best]
        key = score.new_tensor([-torch.inf, NOBODY], dtype=torch.float64).repeat(num_best, 1)
        key[: len(place), 0], key[: len(place), 1] = score[place].double(), identity[place].double()
    best = rows[place]
    weighed = best * torch.tanh(best @ direction).unsqueeze(1)
    return key, torch.nn.functional.pad(weighed, (0, 0, 0, num_best - len(place)))


def _choose(keys: torch.Tensor, rows: torch.Tensor, everyone) -> torch.Tensor:
    """Collective. Choose the best [p, m, D] of all ranks for p problems; keys [p, m, 2] and rows [p, m, D] are this
    rank's."""
    if everyone is None:
        return rows
    exchanges = everyone.start(keys.flatten(0, 1)), everyone.start(rows.flatten(0, 1))  # both before one is awaited
    keys, candidates = (
        everyone.finish(exchange).view(-1, *sent.shape).transpose(0, 1).flatten(1, 2)  # [R p m, .] as [p, R m, .]
        for exchange, sent in zip(exchanges, (keys, rows), strict=True)
    )
    # By row id first, then stable by score: equal scores stay in order of row id, wherever the nodes are.
    order = keys[..., 1].argsort(dim=1)
    order = order.gather(1, keys[..., 0].gather(1, order).argsort(dim=1, descending=True, stable=True))
    order = order[:, : rows.shape[1], None].expand(-1, -1, rows.shape[2])
    return candidates.gather(1, order)


class MatrixGRU(nn.Module):
    """W' = (1 - z) W + z tanh(U_c X + V_c (r W) + B_c), z and r = sigmoid(U X + V W + B)."""

    def __init__(self, rows: int, columns: int):
        super().__init__()
        self.given, self.kept = nn.Parameter(_squares(3, rows)), nn.Parameter(_squares(2, rows))
        self.candidate, self.bias = nn.Parameter(_squares(1, rows)), nn.Parameter(torch.zeros(3 * rows, columns))

    def forward(self, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Evolve the matrix. inputs and weight [k, I, O]; returns [k, I, O]."""
        rows = weight.shape[1]
        gates = self.given @ inputs + self.bias
        update, reset = torch.sigmoid(gates[:, : 2 * rows] + self.kept @ weight).chunk(2, dim=1)
        candidate = torch.tanh(gates[:, 2 * rows :] + self.candidate @ (reset * weight))
        return torch.lerp(weight, candidate, update)


def _squares(count: int, rows: int) -> torch.Tensor:
    """Make matrices [rows, rows], one below the other [count rows, rows]."""
    return glorot(count, rows, rows).detach().flatten(0, 1)


class EvolveGCN(SequenceModel):
    """Layers one behind the other: each forms the matrices of all frames, then the convolutions of all frames, their
    exchanges under way together."""

    def __init__(self, config: Any, sizes: SequenceSizes):
        super().__init__(config, sizes)
        widths = list(itertools.pairwise([sizes.inputs, *[config.hidden] * config.layers]))
        self.initial = nn.ParameterList(glorot(*pair) for pair in widths)
        self.evolve = nn.ModuleList(MatrixGRU(*pair) for pair in widths)
        self.output = nn.Linear(config.hidden, sizes.outputs)

    def shared_state(self) -> State:
        """Return the layers' matrices."""
        return {f"weight{number}": value for number, value in enumerate(self.initial)}

    def forward(self, frames: list[Frame], state: State) -> tuple[list[torch.Tensor], State]:
        shown = self.shown(frames)
        rows, state = [frame.inputs for frame in shown], dict(state)
        for number in range(len(self.evolve)):
            weights = self.matrices(number, frames, rows, state[f"weight{number}"])
            state[f"weight{number}"] = weights[-1]
            if number == len(self.evolve) - 1:
                shown, rows = self.asked(shown), self.asked(rows)
            rows = self._convolve(number, shown, rows, weights[-len(shown) :])
        return rows, state

    def shown(self, frames: list[Frame]) -> list[Frame]:
        """Return the frames whose hidden rows are needed, the last ones."""
        raise NotImplementedError

    def matrices(self, number: int, frames: list[Frame], rows: list, weight: torch.Tensor) -> list[torch.Tensor]:
        """Collective. Form a layer's matrices [k or 1, I, O] of all frames, from its rows [n, k, I] and the matrix
        before them."""
        raise NotImplementedError

    def _convolve(self, number: int, frames: list[Frame], rows: list, weights: list) -> list[torch.Tensor]:
        """Collective. Form a layer's hidden rows [n, k, H], or, after the last one, outputs [n, k, C]."""
        is_last = number == len(self.evolve) - 1
        if number == 0:
            every = Distinct(frames)
            smoothed = every.spread(smooth_all(every.frames, "gcn"))
            last = self.output if is_last else None
            return [_product(below, weight, True, last) for below, weight in zip(smoothed, weights, strict=True)]
        trios = zip(frames, rows, weights, strict=True)
        sent = [_product(frame.drop(below, number, self.config.dropout), weight) for frame, below, weight in trios]
        hidden = [relu(sums) for sums in propagate_all(frames, "gcn", sent)]
        return [self.output(frame_rows) for frame_rows in hidden] if is_last else hidden


def _product(
    rows: torch.Tensor, weight: torch.Tensor, rectify: bool = False, output: nn.Module | None = None
) -> torch.Tensor:
    """Compute rows [n, k, I] @ weight [k or 1, I, O], rectified if asked for, and given to ``output`` if there is
    one."""
    if len(weight) == 1 and isinstance(output, nn.Linear):
        return perceptron(rows, weight[0], output)
    if len(weight) == 1:
        products = affine(rows, weight[0], rectify=rectify)
    else:
        products = torch.bmm(rows.transpose(0, 1), weight).transpose(0, 1)
        products = torch.relu(products) if rectify else products
    return products if output is None else output(products)


class EvolveGCNO(EvolveGCN):
    """EvolveGCN-O: the GRU's input is the matrix itself, so that all sequences have one."""

    def shown(self, frames: list[Frame]) -> list[Frame]:
        return self.asked(frames)

    def matrices(self, number: int, frames: list[Frame], rows: list, weight: torch.Tensor) -> list[torch.Tensor]:
        matrices = [weight[:1]]
        for _ in frames:
            matrices.append(self.evolve[number](matrices[-1], matrices[-1]))
        return matrices[1:]


class EvolveGCNH(EvolveGCN):
    """EvolveGCN-H: the GRU's input is the summary of a snapshot. The summary is the best rows of all ranks, one for
    each column of the matrix (Cangea et al., Toward sparse hierarchical graph classifiers, 2018)."""

    def __init__(self, config: Any, sizes: SequenceSizes):
        super().__init__(config, sizes)
        self.score = nn.ParameterList(glorot(len(initial), 1) for initial in self.initial)

    def shown(self, frames: list[Frame]) -> list[Frame]:
        return frames

    def matrices(self, number: int, frames: list[Frame], rows: list, weight: torch.Tensor) -> list[torch.Tensor]:
        direction, matrices = self.score[number].flatten(), [weight]
        for summary in best_rows(frames, rows, direction / direction.norm(), weight.shape[2]):
            matrices.append(self.evolve[number](summary.transpose(1, 2), matrices[-1]))
        return matrices[1:]
