"""Sums over neighbors that do not depend on state, for all snapshots of a step at once, so that exchanges overlap.

n nodes of this rank, k sequences, D columns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from hpcgnn.snapshots.model.frame import Frame, side_by_side
from hpcgnn.snapshots.neighborhood import next_term


class Distinct:
    """The snapshots of several frames, each once. frames: snapshots with the same neighbors are in one frame."""

    def __init__(self, frames: list[Frame]):
        self._numbers = [[snapshot.number for snapshot in frame.snapshots] for frame in frames]
        by_neighbors: dict[int, list] = {}
        for snapshot in {s.number: s for frame in frames for s in frame.snapshots}.values():
            by_neighbors.setdefault(id(snapshot.neighbors), []).append(snapshot)
        uses = Counter(number for numbers in self._numbers for number in numbers)
        self.frames = [
            replace(frames[0], snapshots=snapshots, uses=tuple(uses[s.number] for s in snapshots))
            for snapshots in by_neighbors.values()
        ]
        self._place = {
            snapshot.number: (group, place)
            for group, frame in enumerate(self.frames)
            for place, snapshot in enumerate(frame.snapshots)
        }

    def spread(self, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Turn rows of ``frames`` into rows [n, k, D] of the frames that were given."""
        if {len(frame.snapshots) for frame in self.frames} | set(map(len, self._numbers)) == {1}:
            return [rows[self._place[number][0]] for (number,) in self._numbers]  # nothing to cut and to join again
        pieces = [group.unbind(1) for group in rows]
        by_number = {number: pieces[group][place] for number, (group, place) in self._place.items()}
        return [side_by_side([by_number[number] for number in numbers]) for numbers in self._numbers]


def start_all(frames: list[Frame], rows: list[torch.Tensor], out: bool = False) -> list[list]:
    """Collective. Begin the exchanges of all frames' rows [n, k, D]."""
    return [frame.start(frame_rows, out) for frame, frame_rows in zip(frames, rows, strict=True)]


def propagate_all(frames: list[Frame], name: str, rows: list[torch.Tensor], ahead=None, out: bool = False) -> list:
    """Collective. Return operator @ rows of every frame. ahead: the exchanges, where they were started before."""
    # All exchanges start before the first is waited for: started frame by frame, none would hide behind another's sums.
    ahead = start_all(frames, rows, out) if ahead is None else ahead
    trios = zip(frames, rows, ahead, strict=True)
    return [frame.propagate(name, frame_rows, exchanges, out) for frame, frame_rows, exchanges in trios]


def attend_all(
    frames: list[Frame], rows: list[torch.Tensor], source: torch.Tensor, target: torch.Tensor
) -> list[torch.Tensor]:
    """Collective. Sum neighbors' rows by attention (``Frame.attend``) in every frame, all exchanges under way at
    once."""
    trios = zip(frames, rows, start_all(frames, rows), strict=True)
    return [frame.attend(frame_rows, exchanges, source, target) for frame, frame_rows, exchanges in trios]


def smooth_all(frames: list[Frame], name: str) -> list[torch.Tensor]:
    """Collective. Return operator @ inputs of every frame, formed once in a run where inputs are not learned."""
    if frames[0].learned:
        return propagate_all(frames, name, [frame.inputs for frame in frames])
    return [frame.smooth(name) for frame in frames]


class Filter:
    """Forms polynomials of an operator: rows, and their sums over 1, 2, .. order - 1 steps along the edges, side by
    side [n, k, num_terms D]; both: along out-edges, too."""

    def __init__(self, name: str, order: int, both: bool = False):
        self.name, self.order, self.sides = name, order, (False, True) if both else (False,)
        self.num_terms = 1 + len(self.sides) * (order - 1)

    def of_inputs(self, frames: list[Frame]) -> list[torch.Tensor]:
        """Collective. Filter the inputs of every frame, once in a run where inputs are not learned."""
        if frames[0].learned:
            return self.of_rows(frames, [frame.inputs for frame in frames])
        powers = [(side, power) for side in self.sides for power in range(1, self.order)]
        return [torch.cat([frame.inputs, *[frame.smooth(self.name, *p) for p in powers]], dim=2) for frame in frames]

    def of_rows(self, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Collective. Filter rows [n, k, D] of every frame, term by term, all exchanges of a term under way at once."""
        series = {side: [[frame_rows] for frame_rows in rows] for side in self.sides}
        for _ in range(1, self.order):
            ahead = {side: start_all(frames, [terms[-1] for terms in series[side]], side) for side in self.sides}
            for side, of_frames in series.items():
                last = [terms[-1] for terms in of_frames]
                products = propagate_all(frames, self.name, last, ahead[side], side)
                for terms, product in zip(of_frames, products, strict=True):
                    terms.append(next_term(self.name, product, terms[-2] if len(terms) > 1 else None))
        further = [[term for terms in sides for term in terms[1:]] for sides in zip(*series.values(), strict=True)]
        return [torch.cat([first, *terms], dim=2) for first, terms in zip(rows, further, strict=True)]


class Convolution:
    """Takes the place of a ``Filter`` with one term, a graph convolution: operator @ rows."""

    num_terms = 1

    def of_inputs(self, frames: list[Frame]) -> list[torch.Tensor]:
        """Collective. Sum the inputs of every frame over neighbors."""
        return smooth_all(frames, "gcn")

    def of_rows(self, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Collective. Sum rows of every frame over neighbors."""
        return propagate_all(frames, "gcn", rows)
