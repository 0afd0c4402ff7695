"""What does not depend on state is computed for all snapshots of a step at once, so that their exchanges overlap.

n nodes of this rank, k sequences, D columns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from hpcgnn.snapshots.model.frame import Frame, side_by_side
from hpcgnn.snapshots.neighborhood import next_term


class Distinct:
    """The snapshots of several frames, each once. frames: one a graph, of all snapshots with that graph."""

    def __init__(self, frames: list[Frame]):
        self._asked = [[snapshot.number for snapshot in frame.snapshots] for frame in frames]
        by_graph: dict[int, list] = {}
        for snapshot in {s.number: s for frame in frames for s in frame.snapshots}.values():
            by_graph.setdefault(id(snapshot.graph), []).append(snapshot)
        uses = Counter(number for some in self._asked for number in some)
        self.frames = [
            replace(frames[0], snapshots=snapshots, uses=tuple(uses[s.number] for s in snapshots))
            for snapshots in by_graph.values()
        ]
        pairs = enumerate(frame.snapshots for frame in self.frames)
        self._place = {s.number: (group, place) for group, some in pairs for place, s in enumerate(some)}

    def spread(self, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Rows of ``frames`` as rows [n, k, D] of the frames that were given."""
        if all(len(group.snapshots) == 1 for group in self.frames) and all(len(frame) == 1 for frame in self._asked):
            return [rows[self._place[number][0]] for (number,) in self._asked]  # a group's pieces would be joined again
        pieces = [group.unbind(1) for group in rows]
        found = {number: pieces[group][place] for number, (group, place) in self._place.items()}
        return [side_by_side([found[number] for number in frame]) for frame in self._asked]


def start_all(frames: list[Frame], rows: list[torch.Tensor], out: bool = False) -> list[list]:
    """Collective. Begin the exchanges of all frames' rows [n, k, D]."""
    return [frame.start(some, out) for frame, some in zip(frames, rows, strict=True)]


def propagate_all(frames: list[Frame], name: str, rows: list[torch.Tensor], ahead=None, out: bool = False) -> list:
    """Collective. operator @ rows of every frame; all exchanges are under way before the first is waited for, or were
    started ``ahead``."""
    ahead = start_all(frames, rows, out) if ahead is None else ahead
    return [frame.propagate(name, r, some, out) for frame, r, some in zip(frames, rows, ahead, strict=True)]


def attend_all(
    frames: list[Frame], rows: list[torch.Tensor], source: torch.Tensor, target: torch.Tensor
) -> list[torch.Tensor]:
    """Collective. Graph attention in every frame, as ``Frame.attend``, all exchanges under way at once."""
    ahead = start_all(frames, rows)
    return [frame.attend(r, some, source, target) for frame, r, some in zip(frames, rows, ahead, strict=True)]


def smooth_all(frames: list[Frame], name: str) -> list[torch.Tensor]:
    """Collective. operator @ inputs of every frame, formed once in a run where inputs are not learnt."""
    if frames[0].learnt:
        return propagate_all(frames, name, [frame.inputs for frame in frames])
    return [frame.smooth(name) for frame in frames]


class Filter:
    """Polynomials of an operator: rows, and what 1, 2, .. order - 1 steps along the edges make of them, side by side
    [n, k, num_terms D]; both: along out-edges, too."""

    def __init__(self, name: str, order: int, both: bool = False):
        self.name, self.order, self.sides = name, order, (False, True) if both else (False,)
        self.num_terms = 1 + len(self.sides) * (order - 1)

    def of_inputs(self, frames: list[Frame]) -> list[torch.Tensor]:
        """Collective. Of the inputs of every frame; formed once in a run where inputs are not learnt."""
        if frames[0].learnt:
            return self.of_rows(frames, [frame.inputs for frame in frames])
        powers = [(side, power) for side in self.sides for power in range(1, self.order)]
        return [torch.cat([frame.inputs, *[frame.smooth(self.name, *p) for p in powers]], dim=2) for frame in frames]

    def of_rows(self, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Collective. Of rows [n, k, D] of every frame, term by term, all exchanges of a term under way at once."""
        series = {side: [[some] for some in rows] for side in self.sides}
        for _ in range(1, self.order):
            ahead = {side: start_all(frames, [terms[-1] for terms in series[side]], side) for side in self.sides}
            for side, found in series.items():
                last = [terms[-1] for terms in found]
                for terms, some in zip(found, propagate_all(frames, self.name, last, ahead[side], side), strict=True):
                    terms.append(next_term(self.name, some, terms[-2] if len(terms) > 1 else None))
        parts = zip(rows, *series.values(), strict=True)
        return [torch.cat([some, *[term for terms in sides for term in terms[1:]]], dim=2) for some, *sides in parts]


class Convolution:
    """A graph convolution in the place of a ``Filter``: one term, operator @ rows."""

    num_terms = 1

    def of_inputs(self, frames: list[Frame]) -> list[torch.Tensor]:
        """Collective. The input rows of every frame, summed over neighbours."""
        return smooth_all(frames, "gcn")

    def of_rows(self, frames: list[Frame], rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """Collective. Rows of every frame, summed over neighbours."""
        return propagate_all(frames, "gcn", rows)
