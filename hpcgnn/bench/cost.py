"""Predicts the seconds of a step on R ranks from what it needs of them and what the machine gives.

alltoallv, pairwise: (R - 1) latency + bytes / bandwidth, of the rank that sends or receives most. all-reduce, ring
with logarithmic latency: 2 (R - 1) / R bytes / bandwidth + 2 log2(R) latency. Compute: overhead + flops of the busiest
rank / (flops per second x efficiency).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcgnn.bench.exchanges import StepExchange
from hpcgnn.bench.laws import Demand
from hpcgnn.temporal.config import RunConfig

COUNT_BYTES = 8  # of each row count that two ranks agree on
BACKWARD = 2  # a product's gradients are two products of its size

ASSUMPTIONS = (
    "a step ends with its slowest rank: every stage costs what the busiest rank needs, and no two overlap",
    "alltoallv is pairwise: (R - 1) latency + bytes / bandwidth, bytes being the most that a rank sends or receives",
    "all-reduce is a ring with logarithmic latency: 2 (R - 1) / R bytes / bandwidth + 2 log2(R) latency",
    "links are full duplex, and neither congestion nor the difference between nodes and sockets is seen: no two ranks "
    "share memory",
    "with plans made ahead, planning and its exchanges overlap with execution: a step takes the longer of the two",
    "compute is overhead + flops / (flops per second x efficiency), flops being the products of the default TGN, "
    "forward and backward, as if no two roots shared a node and no products were joined; the overhead does not shrink "
    "with ranks",
    "with memory.hot_nodes only numbers of ranks up to the number of parts are predicted",
    "counts are means over the counted training steps of epoch 0; negatives, drawn once an epoch, are left out",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """latency [s] of a message, bandwidth [B/s] of a rank's link, flops [1/s] of a rank's products, efficiency: share
    of it that a step attains; overhead [s] of a step; plan_root, plan_overhead [s] of planning per root and step."""

    latency: float
    bandwidth: float
    flops: float
    efficiency: float = 1.0
    overhead: float = 0.0
    plan_root: float = 0.0
    plan_overhead: float = 0.0

    def alltoallv(self, ranks: int, nbytes: float) -> float:
        """Return the seconds of an exchange."""
        return (ranks - 1) * self.latency + nbytes / self.bandwidth if ranks > 1 else 0.0

    def allreduce(self, ranks: int, nbytes: float) -> float:
        """Return the seconds of a sum over ranks."""
        if ranks == 1:
            return 0.0
        return 2 * (ranks - 1) / ranks * nbytes / self.bandwidth + 2 * math.log2(ranks) * self.latency


def step_flops(config: RunConfig, edge_width: int, demand: Demand) -> float:
    """Count the flops of the busiest rank's products, forward and backward: updater per row with mail, the rest per
    root."""
    model, slots = config.model, config.sampling.fanout
    width, key = model.memory_dim, model.memory_dim + edge_width + model.time_dim
    updater = 3 * width * (2 * width + edge_width + model.time_dim + width)
    projections = 2 * model.heads * key * width + width * model.embed_dim
    attention = 2 * slots * model.heads * key
    decoder = model.embed_dim**2
    per_root = projections + attention + decoder
    return 2 * (1 + BACKWARD) * (demand.updated * updater + demand.roots * per_root)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for all numbers of ranks. gradient_bytes: of the all-reduce; overlap: plans are made ahead."""

    config: RunConfig
    edge_width: int
    exchanges: list[StepExchange]
    gradient_bytes: int
    overlap: bool


def predict(demand: Demand, setting: Setting, machine: Machine) -> dict:
    """Predict bytes, messages and seconds of a step: ``seconds`` of the stages of execution, ``plan_seconds`` of
    planning in the background."""
    ranks = demand.ranks
    flops = step_flops(setting.config, setting.edge_width, demand)
    seconds = {"compute": flops / (machine.flops * machine.efficiency), "overhead": machine.overhead}
    plan = {"sampling": machine.plan_overhead + machine.plan_root * demand.roots}
    nbytes, peaks, messages = {}, {}, {}
    for exchange in setting.exchanges:
        rows, name = demand.rows[exchange.kind], exchange.name
        nbytes[name], peaks[name] = rows.mean * exchange.width, rows.peak * exchange.width
        messages[name] = rows.messages
        stage = plan if exchange.planned else seconds
        stage[name] = machine.alltoallv(ranks, peaks[name])
        if exchange.agrees:
            plan["counts"] = plan.get("counts", 0.0) + machine.alltoallv(ranks, COUNT_BYTES * (ranks - 1))
    seconds["all-reduce"] = machine.allreduce(ranks, setting.gradient_bytes)
    front, behind = sum(seconds.values()), sum(plan.values())
    total = max(front, behind) if setting.overlap else front + behind
    return {
        "ranks": ranks, "counted": demand.counted, "flops_peak": flops, "bytes": nbytes, "bytes_peak": peaks,
        "bytes_per_rank": sum(nbytes.values()), "messages": messages, "seconds": seconds, "plan_seconds": plan,
        "step_seconds": total, "bound": "planning" if behind > front else "execution",
    }  # fmt: skip
