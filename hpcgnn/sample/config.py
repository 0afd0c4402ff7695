"""How neighbours, negatives and batches are sampled."""

from __future__ import annotations

from dataclasses import dataclass

from hpcgnn.choices import check_choices
from hpcgnn.loop.placement import PLANNERS
from hpcgnn.sample.negatives import POOLS

STRATEGIES = ("recent", "uniform", "window")
BATCH_BY = ("events", "time")


@dataclass
class SamplingConfig:
    """Neighbours, negatives, batches.

    Attributes:
        fanout: neighbours a root (and, with several layers, a neighbour).
        strategy: "recent", "uniform" (without replacement), or "window": uniform among the events of the last
            ``window`` units of time.
        window: width of a time window, in the data's unit.
        windows: consecutive windows a root is sampled in, each ``window`` wide (DySAT's snapshots).
        boundary_half_life: neighbours in another part are kept with probability 2^-(age // boundary_half_life)
            (StarryGL's boundary decay); 0: always kept.
        negatives: negative destinations an event.
        negative_pool: "destinations" (nodes that occur as one) or "all" nodes.
        in_batch_neighbors: whether earlier events of the same batch are visible as neighbours.
        batch_by: "events", or "time" to keep equal times in one batch.
        chunks: with c > 1 the first batch of a training epoch is cut to a random number of c-ths of a batch, so that
            epochs see different batches (TGL's random chunk scheduling).
        prefetch: plans made ahead in the background; 0: none; -1: 3 where ranks have a core (or a GPU) besides their
            compute threads, else none.
        planner: where plans are made: on the "host", on the "device" (one rank on CUDA, which then holds the graph),
            or "auto": on the device where that is possible and half of its free memory takes the graph.
    """

    fanout: int = 10
    strategy: str = "recent"
    window: int = 0
    windows: int = 1
    boundary_half_life: int = 0
    negatives: int = 1
    negative_pool: str = "destinations"
    in_batch_neighbors: bool = True
    batch_by: str = "events"
    chunks: int = 1
    prefetch: int = -1
    planner: str = "auto"

    def __post_init__(self):
        if self.fanout < 1 or self.negatives < 1 or self.prefetch < -1 or self.chunks < 1:
            raise ValueError(
                "sampling.fanout, sampling.negatives and sampling.chunks must be at least 1, prefetch at least -1"
            )
        check_choices(
            "sampling",
            self,
            {"strategy": STRATEGIES, "negative_pool": POOLS, "batch_by": BATCH_BY, "planner": PLANNERS},
        )
        self._check_windows()
        if self.chunks > 1 and self.batch_by == "time":
            raise ValueError("sampling.chunks > 1 cuts batches by events: use sampling.batch_by events")

    def _check_windows(self) -> None:
        if self.windows < 1 or self.window < 0 or self.boundary_half_life < 0:
            raise ValueError("sampling.windows must be at least 1, window and boundary_half_life at least 0")
        if self.strategy == "window" and self.window == 0:
            raise ValueError("sampling.strategy window needs sampling.window, its width in the data's unit of time")
        if self.strategy != "window" and (self.windows > 1 or self.window > 0):
            raise ValueError(f"sampling.window and windows belong to strategy window, not {self.strategy}")
