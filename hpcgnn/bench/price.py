"""The time of steps on many ranks, from the record of simulated steps: computing is measured, messages are modeled.

Beyond the simulated numbers of ranks, seconds of computing are extrapolated as a + b / R, and bytes as a power of R.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcgnn.bench.steps import SimulatedSteps
from hpcgnn.bench.trace import COUNTS, PLAN, ROWS, STEP, Meeting

STAGES = (PLAN, STEP)
FITTED_POINTS = 4  # the largest simulated numbers of ranks
SMALLEST = 1e-9
ASSUMPTIONS = (
    "ranks compute as fast as this one does alone, times --speed; those of a machine do not slow each other down",
    "alltoallv is pairwise: (R - 1) latency + bytes / bandwidth, bytes being the most that a rank sends or receives; "
    "within a machine bytes / copy, without latency",
    "all-reduce is a ring with logarithmic latency: 2 (R - 1) / R bytes / bandwidth + 2 log2(R) latency",
    "links are full duplex, and no congestion is seen",
    "plans are made ahead, for which a rank has a core besides its threads, unless sampling.prefetch is 0: planning "
    "and its exchanges overlap with execution, and a step takes the longer of the two",
    "steps of a temporal graph are those in the middle of an epoch, or a whole one; what an epoch begins with, and "
    "validation, are left out",
    "extrapolated to R ranks: seconds of computing are a + b / R, bytes a power of R, as many exchanges a step",
)


def power_law(sizes: Sequence[int], values: Sequence[float], ranks: int) -> float:
    """Extrapolate values of some numbers of ranks by a power through the last two: it falls off with more ranks."""
    first, last = np.maximum(values[-2:], SMALLEST)
    return float(last * (ranks / sizes[-1]) ** (np.log(last / first) / np.log(sizes[-1] / sizes[-2])))


def floor_law(sizes: Sequence[int], values: Sequence[float], ranks: int) -> float:
    """Extrapolate seconds of some numbers of ranks as a + b / R, fitted by least squares, neither negative: work that
    ranks share, and work that each of them does."""
    shared, floor = np.polyfit(1 / np.array(sizes), values, 1)
    if shared < 0 or floor < 0:
        shared, floor = (0.0, values[-1]) if shared < 0 else (values[-1] * sizes[-1], 0.0)
    return float(floor + shared / ranks)


@dataclass(frozen=True, slots=True)
class Links:
    """Speed of messages. latency [s] of a message and bandwidth [B/s] of a rank's link, both between machines. copy
    [B/s]: from the memory of another rank of the machine; machine_ranks: number of ranks of a machine, in order."""

    latency: float
    bandwidth: float
    copy: float
    machine_ranks: int

    def seconds(self, meeting: Meeting) -> float:
        """Return what an exchange takes."""
        machine = meeting.members // self.machine_ranks
        far = int((machine[:, None] != machine).sum(axis=1).max())  # ranks of other machines
        if not far and meeting.kind != ROWS:
            return 0.0
        if meeting.kind == COUNTS:
            return far * self.latency
        if meeting.kind == ROWS:
            return far * self.latency + self.transfer(*(busiest(sent) for sent in self.sent(meeting)))
        return self.reduction(len(machine), meeting.num_bytes, 1)

    def transfer(self, between: float, within: float) -> float:
        """Return what bytes between machines and within one take."""
        return between / self.bandwidth + within / self.copy

    def reduction(self, ranks: int, num_bytes: float, times: float) -> float:
        """Return what reductions of bytes in all take, or other collectives of small messages."""
        return 2 * (ranks - 1) / ranks * num_bytes / self.bandwidth + 2 * times * math.log2(ranks) * self.latency

    def sent(self, meeting: Meeting) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes [m, m] of an exchange of rows between machines, and those within one."""
        machine = meeting.members // self.machine_ranks
        is_far = machine[:, None] != machine
        return np.where(is_far, meeting.matrix(), 0), np.where(is_far, 0, meeting.matrix())


def busiest(sent: np.ndarray) -> int:
    """Return the largest number of bytes that a rank sends or receives, from the bytes by source and destination."""
    return int(max(sent.sum(axis=0).max(), sent.sum(axis=1).max()))


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of a part of a stage in a step. mean: bytes that a rank sends to other machines; between, within: bytes
    of the busiest rank of each exchange, between machines and within one; summed: bytes summed over ranks. exchanges:
    number of exchanges with all ranks; reductions: number of meetings of all ranks with small messages or sums."""

    mean: float = 0.0
    between: float = 0.0
    within: float = 0.0
    summed: float = 0.0
    exchanges: float = 0.0
    reductions: float = 0.0


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of a stage of a step: seconds that ranks compute and wait for each other, and messages by part."""

    compute: float
    messages: dict[str, Messages]


def demand(simulated: SimulatedSteps, stage: str, links: Links, speed: float) -> Demand:
    """Average what the steps need."""
    parts: dict[str, list[Meeting]] = defaultdict(list)
    for meeting in simulated.trace.meetings(stage):
        parts[meeting.part].append(meeting)
    compute = simulated.trace.price(stage, lambda _: 0.0, speed) / simulated.steps
    return Demand(compute, {part: _average(met, simulated, links) for part, met in parts.items()})


def _average(meetings: list[Meeting], simulated: SimulatedSteps, links: Links) -> Messages:
    """Average the messages of some exchanges."""
    sent = [links.sent(meeting) for meeting in meetings if meeting.kind == ROWS]
    shares = [len(meeting.members) / simulated.trace.size for meeting in meetings]
    is_exchange = [meeting.kind in (ROWS, COUNTS) for meeting in meetings]
    totals = (
        sum(int(far.sum()) for far, _ in sent) / simulated.trace.size,
        sum(busiest(far) for far, _ in sent), sum(busiest(near) for _, near in sent),
        sum(meeting.num_bytes for meeting in meetings),
        float(np.dot(shares, is_exchange)), float(np.dot(shares, np.logical_not(is_exchange))),
    )  # fmt: skip
    return Messages(*(total / simulated.steps for total in totals))


def busiest_sender(simulated: SimulatedSteps, links: Links) -> float:
    """Return the bytes between machines that the rank that sends most sends in a step."""
    size = simulated.trace.size
    far, _ = links.sent(Meeting(np.arange(size), STEP, ROWS, simulated.trace.sent()))
    return float(far.sum(axis=1).max()) / simulated.steps


def simulated_point(simulated: SimulatedSteps, links: Links, speed: float) -> dict[str, Any]:
    """Price the steps as they were recorded. The seconds of messages are divided among parts by what their exchanges
    take one by one: some travel while ranks compute."""
    trace, needs, seconds = simulated.trace, {}, {}
    for stage in STAGES:
        need = needs[stage] = demand(simulated, stage, links, speed)
        taken = dict.fromkeys(need.messages, 0.0)
        for meeting in trace.meetings(stage):
            taken[meeting.part] += links.seconds(meeting)
        waited = trace.price(stage, links.seconds, speed) / simulated.steps - need.compute
        scale = waited / max(SMALLEST, sum(taken.values()))
        seconds[stage] = _seconds(need.compute, {part: scale * value for part, value in taken.items()})
    sizes = trace.size, simulated.batch_size, simulated.epoch_steps
    return _point(sizes, True, busiest_sender(simulated, links), simulated.ahead, needs, seconds)


def extrapolated_point(ranks: int, simulated: list[SimulatedSteps], links: Links, speed: float) -> dict[str, Any]:
    """Predict the steps of more ranks than were simulated."""
    fitted = simulated[-FITTED_POINTS:]
    first, last = fitted[0], fitted[-1]
    batch_size, epoch_steps = last.batch_size, last.epoch_steps
    if batch_size > first.batch_size:  # it is that of a rank
        batch_size = batch_size // last.trace.size * ranks
        epoch_steps = -(-epoch_steps * last.batch_size // batch_size)
    sizes, needs, seconds = [one.trace.size for one in fitted], {}, {}

    def power(values: list[float]) -> float:
        return power_law(sizes, values, ranks)

    for stage in STAGES:
        known = [demand(one, stage, links, speed) for one in fitted]
        messages = {
            part: replace(newest, **{
                name: power([getattr(need.messages.get(part, Messages()), name) for need in known])
                for name in ("mean", "between", "within")
            }) for part, newest in known[-1].messages.items()
        }  # fmt: skip
        need = needs[stage] = Demand(floor_law(sizes, [need.compute for need in known], ranks), messages)
        taken = {part: _message_seconds(of_part, ranks, links) for part, of_part in messages.items()}
        seconds[stage] = _seconds(need.compute, taken)
    busiest_bytes = power([busiest_sender(one, links) for one in fitted])
    return _point((ranks, batch_size, epoch_steps), False, busiest_bytes, last.ahead, needs, seconds)


def _message_seconds(messages: Messages, ranks: int, links: Links) -> float:
    """Return what messages of a stage take, as ``Links.seconds`` does one by one."""
    latency = messages.exchanges * max(0, ranks - links.machine_ranks) * links.latency
    reductions = links.reduction(ranks, messages.summed, messages.reductions)
    return latency + links.transfer(messages.between, messages.within) + reductions


def _seconds(compute: float, taken: dict[str, float]) -> dict[str, float]:
    return {"compute": compute} | {f"{part or 'other'} messages": value for part, value in taken.items()}


def _point(
    sizes: tuple[int, int, int], counted: bool, busiest_bytes: float, ahead: bool, needs: dict, seconds: dict
) -> dict[str, Any]:  # fmt: skip
    """Make an entry of the report; sizes: ranks, batch size and steps of an epoch."""
    front, behind = (sum(seconds[stage].values()) for stage in (STEP, PLAN))
    step_seconds = max(front, behind) if ahead else front + behind
    sent = [(part or "other", each.mean) for need in needs.values() for part, each in need.messages.items()]
    return {
        "ranks": sizes[0], "batch_size": sizes[1], "counted": counted,
        "bytes": {name: sum(mean for part, mean in sent if part == name) for name, _ in sent},
        "bytes_per_rank": sum(mean for _, mean in sent), "bytes_busiest": busiest_bytes, "seconds": seconds[STEP],
        "plan_seconds": seconds[PLAN], "step_seconds": step_seconds, "epoch_seconds": sizes[2] * step_seconds,
        "bound": "planning" if ahead and behind > front else "execution",
    }  # fmt: skip


def make_report(config: Any, simulated: list[SimulatedSteps], sizes: list[int], links: Links, speed: float) -> dict:
    """Predict the steps of ``sizes`` ranks; a speed-up compares the seeds or events per second."""
    points = [simulated_point(one, links, speed) for one in simulated]
    several = [one for one in simulated if one.trace.size > 1]
    beyond = [size for size in sizes if size > simulated[-1].trace.size] if len(several) > 1 else []
    points += [extrapolated_point(size, several, links, speed) for size in beyond]
    rates = [point["batch_size"] / max(SMALLEST, point["step_seconds"]) for point in points]
    return {
        "kind": "hpcgnn cost model", "version": 1, "batch_size": config.train.batch_size,
        "machine_ranks": links.machine_ranks, "threads": config.comm.threads, "steps_counted": simulated[0].steps,
        "assumptions": list(ASSUMPTIONS),
        "points": [point | {"speedup": rate / rates[0]} for point, rate in zip(points, rates, strict=True)],
    }  # fmt: skip
