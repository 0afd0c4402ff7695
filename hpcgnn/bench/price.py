"""What steps of many ranks take, from the record of emulated ones: measured computing, and messages by a model.

Exchanges cost what ``hpcgnn.bench.cost`` says. Beyond the numbers of ranks that were emulated, the busiest rank's
computing and bytes go on as powers of the number of ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.bench.cost import Machine
from hpcgnn.bench.emulated import PLAN, STEP, Emulated
from hpcgnn.bench.laws import FITTED_POINTS, SMALLEST, Power
from hpcgnn.comm.emulated import COUNTS, ROWS, SUM, Meeting

STAGES = (PLAN, STEP)
ASSUMPTIONS = (
    "ranks compute as fast as this one does alone, times --speed; those of a node do not slow each other down",
    "alltoallv is pairwise: (R - 1) latency + bytes / bandwidth, bytes being the most that a rank sends or receives; "
    "within a node bytes / copy, without latency",
    "all-reduce is a ring with logarithmic latency: 2 (R - 1) / R bytes / bandwidth + 2 log2(R) latency",
    "links are full duplex, and no congestion is seen",
    "plans are made ahead, for which a rank has a core besides its threads, unless sampling.prefetch is 0: planning "
    "and its exchanges overlap with execution, and a step takes the longer of the two",
    "extrapolated: the busiest rank's computing and bytes are powers of the number of ranks, as many exchanges a step",
)


@dataclass(frozen=True, slots=True)
class Links:
    """How messages travel. machine: latency and bandwidth between nodes; copy: bytes per second from the memory of
    another rank of the node; node_ranks: ranks of a node, in order."""

    machine: Machine
    copy: float
    node_ranks: int

    def seconds(self, meeting: Meeting) -> float:
        """Return what an exchange takes."""
        node = meeting.members // self.node_ranks
        far = int((node[:, None] != node).sum(axis=1).max())  # ranks of other nodes
        if meeting.kind == SUM:
            return self.machine.allreduce(len(node), meeting.num_bytes) if far else 0.0
        if meeting.kind == COUNTS:
            return far * self.machine.latency
        if meeting.kind == ROWS:
            between, within = busiest(meeting, self.node_ranks)
            return far * self.machine.latency + between / self.machine.bandwidth + within / self.copy
        return 2 * math.log2(len(node)) * self.machine.latency if far else 0.0


def busiest(meeting: Meeting, node_ranks: int) -> tuple[int, int]:
    """Return the most bytes that a rank sends or receives in an exchange of rows, between nodes and within one."""
    node = meeting.members // node_ranks
    is_far = node[:, None] != node
    between, within = (np.where(mask, meeting.matrix(), 0) for mask in (is_far, ~is_far))
    return tuple(int(max(part.sum(axis=0).max(), part.sum(axis=1).max())) for part in (between, within))  # type: ignore


@dataclass(frozen=True, slots=True)
class Demand:
    """What a stage of a step needs: seconds that ranks compute and wait for each other; bytes between nodes that a rank
    sends, by the mean and by the busiest of every exchange; the same within nodes for the busiest; exchanges by kind;
    bytes that are summed up."""

    compute: float
    mean: float
    between: float
    within: float
    meetings: dict[str, float]
    summed: float


def demand(emulated: Emulated, stage: str, node_ranks: int, speed: float) -> Demand:
    """Average what the steps need."""
    steps, trace = emulated.steps, emulated.trace
    met = [event for event in trace.events if isinstance(event, Meeting) and event.stage == stage]
    sizes = np.array([busiest(event, node_ranks) for event in met if event.kind == ROWS], float).reshape(-1, 2)
    node = np.arange(trace.size) // node_ranks
    far = np.where(node[:, None] != node, trace.sent(stage), 0).sum()
    meetings: dict[str, float] = {}
    for event in met:
        meetings[event.kind] = meetings.get(event.kind, 0) + len(event.members) / trace.size / steps
    between, within = (sizes.sum(axis=0) / steps).tolist()
    return Demand(
        trace.price(stage, lambda _: 0.0, speed) / steps, float(far) / trace.size / steps, between, within, meetings,
        sum(event.num_bytes for event in met) / steps,
    )  # fmt: skip


def emulated_point(emulated: Emulated, links: Links, speed: float) -> dict[str, Any]:
    """Price the steps of so many ranks as they were recorded."""
    needs = {stage: demand(emulated, stage, links.node_ranks, speed) for stage in STAGES}
    total = {stage: emulated.trace.price(stage, links.seconds, speed) / emulated.steps for stage in STAGES}
    seconds = {stage: {"compute": needs[stage].compute, "exchange": total[stage] - needs[stage].compute}
               for stage in STAGES}  # fmt: skip
    return _point(emulated.trace.size, emulated.batch_size, True, emulated.ahead, needs, seconds)


def extrapolated_point(ranks: int, emulated: list[Emulated], links: Links, speed: float) -> dict[str, Any]:
    """Predict the steps of more ranks than were emulated."""
    fitted = emulated[-FITTED_POINTS:]
    first, last = fitted[0], fitted[-1]
    each = last.batch_size // last.trace.size if last.batch_size > first.batch_size else 0  # seeds of a rank
    sizes = np.array([one.trace.size for one in fitted])
    needs, seconds = {}, {}
    for stage in STAGES:
        known = [demand(one, stage, links.node_ranks, speed) for one in fitted]
        powers = {
            name: Power.fit(sizes, np.array([getattr(need, name) for need in known]))(ranks)
            for name in ("compute", "mean", "between", "within")
        }
        needs[stage] = Demand(**powers, meetings=known[-1].meetings, summed=known[-1].summed)
        seconds[stage] = {"compute": powers["compute"], "exchange": _exchange_seconds(needs[stage], ranks, links)}
    return _point(ranks, each * ranks or last.batch_size, False, last.ahead, needs, seconds)


def _exchange_seconds(need: Demand, ranks: int, links: Links) -> float:
    """Return what the exchanges of a stage take, as ``Links.seconds`` does one by one."""
    machine, several = links.machine, need.meetings.get(ROWS, 0) + need.meetings.get(COUNTS, 0)
    others = sum(count for kind, count in need.meetings.items() if kind not in (ROWS, COUNTS))
    latencies = several * max(0, ranks - links.node_ranks) + 2 * others * math.log2(ranks)
    between = need.between + 2 * (ranks - 1) / ranks * need.summed
    return latencies * machine.latency + between / machine.bandwidth + need.within / links.copy


def _point(ranks: int, batch_size: int, counted: bool, ahead: bool, needs: dict, seconds: dict) -> dict[str, Any]:
    front, behind = (sum(seconds[stage].values()) for stage in (STEP, PLAN))
    return {
        "ranks": ranks, "batch_size": batch_size, "counted": counted,
        "bytes_per_rank": sum(need.mean for need in needs.values()),
        "bytes_busiest": sum(need.between for need in needs.values()), "seconds": seconds[STEP],
        "plan_seconds": seconds[PLAN], "step_seconds": max(front, behind) if ahead else front + behind,
        "bound": "planning" if ahead and behind > front else "execution",
    }  # fmt: skip


def make_report(config: Any, emulated: list[Emulated], sizes: list[int], links: Links, speed: float) -> dict:
    """Predict the steps of ``sizes`` ranks; speed-ups are those of seeds in a second."""
    points = [emulated_point(one, links, speed) for one in emulated]
    several = [one for one in emulated if one.trace.size > 1]
    beyond = [size for size in sizes if size > emulated[-1].trace.size] if len(several) > 1 else []
    points += [extrapolated_point(size, several, links, speed) for size in beyond]
    rates = [point["batch_size"] / max(SMALLEST, point["step_seconds"]) for point in points]
    return {
        "kind": "hpcgnn cost model", "version": 1, "batch_size": config.train.batch_size,
        "node_ranks": links.node_ranks, "threads": config.comm.threads, "steps_counted": emulated[0].steps,
        "assumptions": list(ASSUMPTIONS),
        "points": [point | {"speedup": rate / rates[0]} for point, rate in zip(points, rates, strict=True)],
    }  # fmt: skip
