"""Plans of the steps on snapshots: which are followed, from where, their input rows, and what predictions are for.

k sequences followed at once, L frames of each; n nodes of this rank, F columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.graph.directory import permute
from hpcgnn.graph.partition import FEATURES
from hpcgnn.native import Random
from hpcgnn.snapshots.config import FRESH, LAST, REFUSE, SnapshotInputConfig, SnapshotSamplingConfig
from hpcgnn.snapshots.graph import SnapshotPartition
from hpcgnn.snapshots.neighborhood import Boundary, Builder, Neighborhood, reversed_edges


@dataclass(frozen=True, slots=True)
class SnapshotBatches:
    """The steps of a split: targets [S] of lists of snapshots that predictions are made from; sizes [S]: what is
    predicted in each on all ranks; updates: so many steps in a row have the same targets."""

    name: str
    targets: list[list[int]]
    sizes: np.ndarray
    updates: int = 1

    @property
    def num_steps(self) -> int:
        """S."""
        return len(self.targets)


def make_batches(
    name: str, snapshots: range, batch_size: int, roots: np.ndarray, shuffle: Random | None = None,
    drop_last: bool = False, updates: int = 1,
) -> SnapshotBatches:  # fmt: skip
    """Make steps of ``batch_size`` snapshots each (0: all), in order of time or shuffled, each ``updates`` times;
    roots: what every snapshot of the graph predicts on all ranks."""
    numbers = np.arange(snapshots.start, snapshots.stop)
    if shuffle is not None:
        numbers = numbers[np.argsort(permute(np.arange(len(numbers)), len(numbers), shuffle))]
    size = batch_size or max(1, len(numbers))
    targets = [numbers[first : first + size].tolist() for first in range(0, len(numbers), size)]
    if drop_last and len(targets) > 1 and len(targets[-1]) < size:
        targets.pop()
    targets = [step for step in targets for _ in range(updates)]
    return SnapshotBatches(name, targets, np.array([int(roots[step].sum()) for step in targets], np.int64), updates)


@dataclass(slots=True)
class SnapshotPlan:
    """One step, or a group's part of it: L may be 0. frames: numbers [L][k] of the snapshots; targets [k or L]: those
    that predictions are made from; needs: by target, what the goal wants of it; blocks: by snapshot, in-neighbours and
    out-neighbours (None: not asked for), those that the step sees; whole: all of them. begins, ends: whether it is the
    first, the last of the steps in a row on the same targets: that tells scores, that hands the state on."""

    split: str
    epoch: int
    step: int
    batch_size: int
    frames: list[list[int]]
    targets: list[int]
    needs: list[Any]
    blocks: dict[int, tuple[Neighborhood, Neighborhood | None]]
    whole: dict[int, tuple[Neighborhood, Neighborhood | None]]
    begins: bool = True
    ends: bool = True
    final: bool = True


class SnapshotPlanner:
    """Collective to create and to plan. changed [S] bool: whether a snapshot's edges differ, on any rank, from those of
    the one before; want(split, epoch, number): what the goal wants of a target, collective."""

    def __init__(
        self, config: SnapshotSamplingConfig, builder: Builder, changed: np.ndarray, with_out: bool,
        want: Callable[[str, int, int], Any], share: tuple[int, int] = (0, 1), boundary: Boundary | None = None,
    ):  # fmt: skip
        """share: of all groups that split time between them, the number of this one; boundary: what training leaves of
        the ghosts, None: all."""
        self._config, self._builder, self._with_out, self._want = config, builder, with_out, want
        (self._group, self._groups), self._boundary = share, boundary
        self._like = np.maximum.accumulate(np.where(changed, np.arange(len(changed)), 0))
        self._built: dict[int, tuple[Neighborhood, Neighborhood | None]] = {}

    def plan(self, batches: SnapshotBatches, epoch: int, step: int) -> SnapshotPlan:
        """Collective. Plan a step with what the goal needs of its targets."""
        return self._plan(
            batches, epoch, step, [self._want(batches.name, epoch, n) for n in self.targets(batches, step)]
        )

    def forecast(self, batches: SnapshotBatches, step: int) -> SnapshotPlan:
        """Collective. Plan a step whose predictions are compared with nothing."""
        return self._plan(batches, 0, step, [])

    def targets(self, batches: SnapshotBatches, step: int) -> list[int]:
        """Return this group's part of the targets of a step, which follow each other."""
        targets = batches.targets[step]
        first, last = (len(targets) * place // self._groups for place in (self._group, self._group + 1))
        return targets[first:last]

    def _plan(self, batches: SnapshotBatches, epoch: int, step: int, needs: list[Any]) -> SnapshotPlan:
        """Collective."""
        targets = self.targets(batches, step)
        frames = self.frames(targets) if targets else []
        numbers = sorted({number for frame in frames for number in frame})
        blocks = whole = self._blocks(numbers)
        if self._boundary is not None and batches.name == "train":
            sample = self._boundary.sample
            blocks = {
                like: (sample(into, epoch, step, like), out and sample(out, epoch, step, like))
                for like, (into, out) in whole.items()
            }
        return SnapshotPlan(
            batches.name, epoch, step, int(batches.sizes[step]), frames, targets, needs,
            {number: blocks[self._like[number]] for number in numbers},
            {number: whole[self._like[number]] for number in numbers},
            step % batches.updates == 0, (step + 1) % batches.updates == 0,
        )  # fmt: skip

    def frames(self, targets: list[int]) -> list[list[int]]:
        """Return windows that end at the targets, side by side, or the targets one after the other."""
        if not self._config.history:
            return [[number] for number in targets]
        return [[number - back for number in targets] for back in reversed(range(self._config.history))]

    def _blocks(self, numbers: list[int]) -> dict[int, tuple[Neighborhood, Neighborhood | None]]:
        """Collective. Build neighbourhoods, by the first snapshot with the same edges."""
        blocks, built = {}, {} if self._config.routes == FRESH else self._built
        for like in dict.fromkeys(int(self._like[number]) for number in numbers):
            if like not in built:
                build = self._builder.build
                built[like] = build(like), build(like, reverse=True) if self._with_out else None
            blocks[like] = built[like]
        return blocks


def _known_lags(partition: SnapshotPartition, target: str, unknown: str) -> np.ndarray:
    """Return the series [n, S, ...] of a target, numbers that are not known filled in as ``unknown`` says: never by
    later ones. Raises ValueError for such numbers where it refuses them."""
    series = partition.series[target]
    known = np.isfinite(series)
    if known.all():
        return series
    if unknown == REFUSE:
        row, number = np.argwhere(~known)[0, :2]
        raise ValueError(
            f"inputs.lags: {target} of the node in row {partition.flat_row[row]} of the graph file is not known in "
            f"snapshot {number} ({np.count_nonzero(~known)} such numbers at this rank): set inputs.unknown to last or "
            "zero, or leave inputs.lags 0"
        )
    filled = np.where(known, series, 0)
    if unknown == LAST:
        numbers = np.arange(series.shape[1]).reshape(1, -1, *[1] * (series.ndim - 2))
        newest = np.maximum.accumulate(np.where(known, numbers, 0), axis=1)
        filled = np.take_along_axis(filled, newest, axis=1)
    return filled


class SnapshotInputs:
    """What is known of the nodes without learning. target: the column that lags are taken of, or empty."""

    def __init__(
        self, config: SnapshotInputConfig, partition: SnapshotPartition, target: str, dtype: torch.dtype,
        device: torch.device,
    ):  # fmt: skip
        """Raises ValueError for lags without a target."""
        if config.lags and target not in partition.series:
            raise ValueError(f"inputs.lags needs a column {target or 'target'} of every snapshot, the graph has none")
        self._known = _known_lags(partition, target, config.unknown) if config.lags else None
        self._config, self._partition = config, partition
        self._dtype, self._device = dtype, device
        self._fixed = partition.columns.get(FEATURES)
        self._changing = partition.series.get(FEATURES)

    @property
    def first(self) -> int:
        """The first snapshot whose inputs are known."""
        return max(0, self._config.lags - 1)

    @property
    def width(self) -> int:
        """F."""
        widths = [self._fixed.shape[1]] if self._fixed is not None else []
        widths += [self._changing.shape[2]] if self._changing is not None else []
        if self._known is not None:
            widths.append(self._config.lags * int(np.prod(self._known.shape[2:], dtype=int)))
        widths.append({"none": 0, "log": 2, "onehot": 2 * self._config.degree_classes}[self._config.degrees])
        return sum(widths)

    def at(self, number: int, channel: Channel) -> torch.Tensor:
        """Collective where degrees are among the inputs. Form the inputs [n, F] of a snapshot."""
        nodes, pieces = self._partition.num_nodes, []
        if self._fixed is not None:
            pieces.append(self._fixed)
        if self._changing is not None:
            pieces.append(self._changing[:, number])
        if self._known is not None:
            lagged = self._known[:, number - self._config.lags + 1 : number + 1]
            pieces.append(lagged.reshape(nodes, int(np.prod(lagged.shape[1:], dtype=np.int64))))
        if self._config.degrees != "none":
            pieces.append(self._degrees(number, channel))
        if not pieces:
            return torch.empty((nodes, 0), dtype=self._dtype, device=self._device)
        return torch.cat([torch.from_numpy(np.ascontiguousarray(p)).to(self._dtype) for p in pieces], 1).to(
            self._device
        )

    def _degrees(self, number: int, channel: Channel) -> np.ndarray:
        """Collective."""
        edges, nodes = self._partition.edges_at(number), self._partition.num_nodes
        back = reversed_edges(edges, self._partition, channel)
        degree = np.stack([np.bincount(ends, minlength=nodes) for ends in (edges.dst, back.dst)], axis=1)
        if self._config.degrees == "log":
            return np.log1p(degree)
        classes = self._config.degree_classes
        return np.eye(classes)[np.minimum(degree, classes - 1)].reshape(nodes, 2 * classes)
