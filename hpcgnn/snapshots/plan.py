"""Plans of the steps on snapshots: the snapshots that a step follows, their neighbors, inputs and targets.

k sequences followed at once, L frames of each; n nodes of this rank, F columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hpcgnn.comm.exchange import Channel
from hpcgnn.comm.world import World
from hpcgnn.graph.directory import permute
from hpcgnn.graph.partition import FEATURES
from hpcgnn.native import Random
from hpcgnn.snapshots.graph import SnapshotPartition
from hpcgnn.snapshots.neighborhood import Boundary, Builder, Neighborhood, reversed_edges
from hpcgnn.task.moments import moments

FRESH = "fresh"
REFUSE, LAST = "refuse", "last"


@dataclass(frozen=True, slots=True)
class SnapshotBatches:
    """The steps of a split. targets [S]: the snapshots that each step predicts from; sizes [S]: number of predictions
    of each step on all ranks; updates: number of consecutive steps with the same targets."""

    name: str
    targets: list[list[int]]
    sizes: np.ndarray
    updates: int = 1

    @property
    def num_steps(self) -> int:
        """Number of steps S."""
        return len(self.targets)


def make_batches(
    name: str, snapshots: range, batch_size: int, roots: np.ndarray, shuffle: Random | None = None,
    drop_last: bool = False, updates: int = 1,
) -> SnapshotBatches:  # fmt: skip
    """Make steps of ``batch_size`` snapshots each (0: all), in order of time or shuffled, each ``updates`` times.
    roots: number of predictions made from every snapshot of the graph, on all ranks."""
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
    """One step, or a group's part of it: L may be 0. frames: numbers [L][k] of the snapshots; targets [k or L]: the
    snapshots that predictions are made from; needs: for each target, the goal's plan. blocks: by snapshot, the
    in-neighbors and out-neighbors (None: the model sees none) that the step sees; whole: the same with all neighbors.
    begins, ends: whether it is the first (which reports scores) or the last (which hands the state on) of consecutive
    steps on the same targets."""

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
    """Plans steps. Collective to create and to plan. changed [S] bool: whether a snapshot's edges differ, on any rank,
    from the snapshot before; want(split, epoch, number): plans the goal's targets for a snapshot, collective."""

    def __init__(
        self, config: Any, builder: Builder, changed: np.ndarray, with_out: bool,
        want: Callable[[str, int, int], Any], share: tuple[int, int] = (0, 1), boundary: Boundary | None = None,
    ):  # fmt: skip
        """share: number of this group, and of all groups that split time; boundary: samples the remote nodes that
        training sees, None: it sees all."""
        self._config, self._builder, self._with_out, self._want = config, builder, with_out, want
        (self._group, self._groups), self._boundary = share, boundary
        self._like = np.maximum.accumulate(np.where(changed, np.arange(len(changed)), 0))
        self._built: dict[int, tuple[Neighborhood, Neighborhood | None]] = {}

    def plan(self, batches: SnapshotBatches, epoch: int, step: int) -> SnapshotPlan:
        """Collective. Plan a step with its targets."""
        needs = [self._want(batches.name, epoch, number) for number in self.targets(batches, step)]
        return self._plan(batches, epoch, step, needs)

    def forecast(self, batches: SnapshotBatches, step: int) -> SnapshotPlan:
        """Collective. Plan a step without targets, of which outputs alone are wanted."""
        return self._plan(batches, 0, step, [])

    def targets(self, batches: SnapshotBatches, step: int) -> list[int]:
        """Return this group's part of a step's targets, consecutive ones."""
        targets = batches.targets[step]
        first, last = (len(targets) * place // self._groups for place in (self._group, self._group + 1))
        return targets[first:last]

    def _plan(self, batches: SnapshotBatches, epoch: int, step: int, needs: list[Any]) -> SnapshotPlan:
        """Collective."""
        targets = self.targets(batches, step)
        frames = self.frames(targets) if targets else []
        # Sorted, and a dictionary below: building is collective, so all ranks must come in the same order.
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
        """Return the frames of windows that end at the targets, side by side, or, where state is carried on, a frame
        for each target."""
        if not self._config.window_size:
            return [[number] for number in targets]
        return [[number - back for number in targets] for back in reversed(range(self._config.window_size))]

    def _blocks(self, numbers: list[int]) -> dict[int, tuple[Neighborhood, Neighborhood | None]]:
        """Collective. Build the neighborhoods of snapshots, one for all with the same edges; by the first of these."""
        blocks, built = {}, {} if self._config.routes == FRESH else self._built
        for like in dict.fromkeys(int(self._like[number]) for number in numbers):
            if like not in built:
                build = self._builder.build
                built[like] = build(like), build(like, reverse=True) if self._with_out else None
            blocks[like] = built[like]
        return blocks


def known_values(partition: SnapshotPartition, target: str, unknown: str, reader: str = "inputs.lags") -> np.ndarray:
    """Return the series [n, S, ...] of a target, missing numbers filled in as ``unknown`` says, never by later ones.
    reader: the key that needs them. Raises ValueError where missing numbers are refused."""
    series = partition.series[target]
    known = np.isfinite(series)
    if known.all():
        return series
    if unknown == REFUSE:
        row, number = np.argwhere(~known)[0, :2]
        raise ValueError(
            f"{reader}: {target} of the node in row {partition.flat_row[row]} of the graph file is not known in "
            f"snapshot {number} ({np.count_nonzero(~known)} such numbers at this rank): set inputs.unknown to last or "
            f"zero, or leave {reader} {0 if reader == 'inputs.lags' else 'out'}"
        )
    filled = np.where(known, series, 0)
    if unknown == LAST:
        numbers = np.arange(series.shape[1]).reshape(1, -1, *[1] * (series.ndim - 2))
        newest = np.maximum.accumulate(np.where(known, numbers, 0), axis=1)
        filled = np.take_along_axis(filled, newest, axis=1)
    return filled


class SnapshotInputs:
    """Input features that are not learned: columns of nodes, lags of the target, degrees. target: the column that lags
    are taken from, or empty."""

    def __init__(
        self, config: Any, partition: SnapshotPartition, target: str, dtype: torch.dtype, device: torch.device
    ):
        """Raises ValueError for lags without a target."""
        if config.lags and target not in partition.series:
            raise ValueError(f"inputs.lags needs a column {target or 'target'} of every snapshot, the graph has none")
        self._config, self._partition = config, partition
        self._dtype, self._device = dtype, device
        self._fixed, self._changing = partition.columns.get(FEATURES), partition.series.get(FEATURES)
        self._known = known_values(partition, target, config.unknown) if config.lags else None

    @property
    def first(self) -> int:
        """The first snapshot with as many lags before it as inputs need."""
        return max(0, self._config.lags - 1)

    @property
    def width(self) -> int:
        """Number of columns F."""
        columns = 0 if self._config.degrees == "none" else 2
        columns *= self._config.degree_classes if self._config.degrees == "onehot" else 1
        return columns + sum(piece.shape[1] for piece in self._read(self.first))

    def at(self, number: int, channel: Channel) -> torch.Tensor:
        """Collective where degrees are among the inputs. Form the inputs [n, F] of a snapshot."""
        pieces = self._read(number)
        if self._config.degrees != "none":
            pieces.append(self._degrees(number, channel))
        known = [torch.from_numpy(np.ascontiguousarray(piece)).to(self._dtype) for piece in pieces]
        return torch.cat([torch.empty((self._partition.num_nodes, 0), dtype=self._dtype), *known], 1).to(self._device)

    def moments(self, snapshots: range, channel: Channel, world: World) -> tuple[torch.Tensor, torch.Tensor]:
        """Collective. Compute the mean and the deviation of each column [F] over all nodes in the snapshots."""
        return moments(lambda: (self.at(number, channel).cpu().numpy() for number in snapshots), self.width, world)

    def _read(self, number: int) -> list[np.ndarray]:
        """Read the columns and lags of a snapshot."""
        pieces = [] if self._fixed is None else [self._fixed]
        pieces += [] if self._changing is None else [self._changing[:, number]]
        if self._known is not None:
            lagged = self._known[:, number - self._config.lags + 1 : number + 1]
            pieces.append(lagged.reshape(len(lagged), int(np.prod(lagged.shape[1:], dtype=np.int64))))
        return pieces

    def _degrees(self, number: int, channel: Channel) -> np.ndarray:
        """Collective."""
        edges, nodes = self._partition.edges_at(number), self._partition.num_nodes
        back = reversed_edges(edges, self._partition, channel)
        degree = np.stack([np.bincount(ends, minlength=nodes) for ends in (edges.dst, back.dst)], axis=1)
        if self._config.degrees == "log":
            return np.log1p(degree)
        classes = self._config.degree_classes
        return np.eye(classes)[np.minimum(degree, classes - 1)].reshape(nodes, 2 * classes)
