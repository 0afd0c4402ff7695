"""The run file's ``sampling`` section of static graphs."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcgnn.choices import check_choices
from hpcgnn.loop.placement import PLANNERS

WHOLE = "whole"
MODES = ("uniform", "replace", "weighted", "full", "labor", WHOLE)
FULL = -1
SHARDED, REPLICATED, AUTO = "sharded", "replicated", "auto"
IN, OUT = "in", "out"
DIRECTIONS = (IN, OUT)
TOPOLOGIES = (AUTO, SHARDED, REPLICATED)
RANKINGS = ("", "filtered", "full")


@dataclass
class GraphSamplingConfig:
    """Which neighbours a mini-batch sees.

    Attributes:
        fanouts: in-neighbours of a node and relation, the seeds' hop first; one number a layer; -1: all; empty: a
            model without layers.
        relation_fanouts: other numbers for relations by name (src.rel.dst); 0: the relation is not followed.
        mode: "uniform" and "weighted" without replacement, "replace" uniform with replacement, "full" all, "labor"
            draws shared by a batch's nodes, so that they meet in the same neighbours (Balin and Catalyurek, 2023).
            "whole": nothing is sampled, a step is a pass over the whole graph, for as many layers as the model has.
        eval_fanouts: of validation and test; empty: as in training.
        direction: "in": neighbours are the sources of a node's in-edges; "out": the destinations of its out-edges, from
            partition sets made with ``--out-edges``.
        topology: "sharded": owners are asked for neighbours; "replicated": the ranks of a node share one copy of all
            edges and ask nobody; "auto": the second where a copy takes at most a quarter of the memory that every node
            has free. The sample is the same.
        edge_columns: columns of the edges that come with the blocks, for models of one's own.
        prefetch: plans made ahead in the background; 0: none; -1: 3 where ranks have a core (or a GPU) besides their
            compute threads, else none.
        in_flight: plans worked on at the same time, each in a thread of its own; at most prefetch.
        planner: where neighbours are drawn: on the "host", on the "device" (one rank on CUDA, which then holds the
            edges), or "auto": on the device where it can, and half of its free memory takes them.
    """

    fanouts: list[int] = field(default_factory=lambda: [15, 10, 5])
    relation_fanouts: dict[str, list[int]] = field(default_factory=dict)
    mode: str = "uniform"
    eval_fanouts: list[int] = field(default_factory=list)
    direction: str = IN
    topology: str = AUTO
    edge_columns: list[str] = field(default_factory=list)
    prefetch: int = -1
    in_flight: int = 1
    planner: str = "auto"

    def __post_init__(self):
        known = {"mode": MODES, "topology": TOPOLOGIES, "direction": DIRECTIONS, "planner": PLANNERS}
        check_choices("sampling", self, known)
        lists = {"fanouts": self.fanouts, **{f"relation_fanouts.{n}": v for n, v in self.relation_fanouts.items()}}
        if self.eval_fanouts:
            lists["eval_fanouts"] = self.eval_fanouts
        for name, values in lists.items():
            if len(values) != len(self.fanouts):
                raise ValueError(f"sampling.{name} needs {len(self.fanouts)} numbers, one a layer, got {values}")
            if any(value < FULL for value in values):
                raise ValueError(f"sampling.{name} must be -1 (all), 0 (none) or more, got {values}")
        if self.prefetch < -1:
            raise ValueError(f"sampling.prefetch must be at least -1, got {self.prefetch}")
        if self.in_flight < 1:
            raise ValueError(f"sampling.in_flight must be at least 1, got {self.in_flight}")
        if self.in_flight > 1 and 0 <= self.prefetch < self.in_flight:
            raise ValueError(
                f"sampling.in_flight {self.in_flight} needs a sampling.prefetch of at least as many, or -1, got "
                f"{self.prefetch}"
            )

    def check_relations(self, known: list[str]) -> None:
        """Raises ValueError for fanouts of a relation that is none of the graph's."""
        for name in self.relation_fanouts:
            if name not in known:
                raise ValueError(f"sampling.relation_fanouts: no relation {name}; the graph has {', '.join(known)}")


@dataclass
class GraphEvalConfig:
    """Validation and test.

    Attributes:
        batch_size: seeds of a batch; 0: as in training.
        negatives: of link prediction: nodes drawn for an edge, the same in all epochs; 0: as in training, one where it
            has candidates of a whole batch.
        ranking: of link prediction, from exact embeddings, each edge among all nodes instead of drawn ones: "filtered"
            asks for both ends, and leaves out what other edges of the type make true; "full" asks for the destinations
            of a source, those of its training edges left out.
        exact: score with all neighbours, layer by layer over the whole graph, instead of sampled batches.
        chunk: nodes of a rank that such a layer works on at once; bounds memory.
    """

    batch_size: int = 0
    negatives: int = 0
    ranking: str = ""
    exact: bool = False
    chunk: int = 10_000

    def __post_init__(self):
        check_choices("eval", self, {"ranking": RANKINGS})
        if min(self.batch_size, self.negatives) < 0 or self.chunk < 1:
            raise ValueError("eval.batch_size and eval.negatives must be at least 0 and eval.chunk at least 1")
