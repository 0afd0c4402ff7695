"""The options of a partition set, which depends on these options and its source alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from data_tools.graph.narrow import check_kind
from data_tools.graph.source import Source
from data_tools.partition.assignment import METHODS, METIS, method_of
from data_tools.partition.methods.metis import OBJECTIVES
from data_tools.partition.weights import STRETCHES, check_split, constraints, default_balance
from hpcgnn.choices import check_choice

DEFAULT_FANOUTS = (15, 10, 5)
DEFAULT_BATCH_SIZE = 1024
PART_NODES, LEAST_PARTS, MOST_PARTS = 1000, 4, 64


def default_parts(num_nodes: int) -> int:
    """Choose the number of parts of a graph: one for every PART_NODES nodes, LEAST_PARTS to MOST_PARTS; of a tiny graph
    one for every four nodes at most."""
    return max(1, min(MOST_PARTS, num_nodes // 4, max(LEAST_PARTS, num_nodes // PART_NODES)))


@dataclass(frozen=True, slots=True)
class Options:
    """Options of every kind of graph. method: a row of METHODS, or the path of a class or function. passes: number of
    passes through the nodes, for streamed methods only (None: DEFAULT_PASSES); assignment: hash of the file that the
    method ``given`` reads; feature_dtype: narrow form of features in the parts, a row of FEATURE_DTYPES (None: as they
    are in the graph file)."""

    parts: int = 64
    method: str = METIS
    balance: tuple[str, ...] = ()
    seed: int = 0
    objective: str = "cut"
    passes: int | None = None
    assignment: str | None = None
    feature_dtype: str | None = None

    def __post_init__(self):
        if self.parts < 1:
            raise ValueError(f"parts={self.parts}: at least one part is needed")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: must not be negative")
        check_choice("objective", self.objective, OBJECTIVES)
        row = method_of(self.method)
        if self.passes is not None and (self.passes < 1 or not row.has_passes):
            streamed = " and ".join(name for name, method in METHODS.items() if method.has_passes)
            raise ValueError(f"passes={self.passes}, method={self.method}: a positive number, for {streamed}")
        if self.objective not in row.objectives:
            raise ValueError(f"objective={self.objective}: method {self.method} minimizes the cut; use --method metis")
        if len(set(self.balance)) != len(self.balance):
            raise ValueError(f"balance={','.join(self.balance)}: a constraint is named twice")

    def check(self, source: Source) -> None:
        """Raise ValueError unless the graph allows the method and the balance."""
        if "." not in self.method:  # else the path of a class
            check_choice("method", self.method, [name for name, row in METHODS.items() if source.kind in row.kinds])
        if method_of(self.method).needs_file != (self.assignment is not None):
            raise ValueError(f"method={self.method}: needs --assignment FILE, which no other method takes")
        for name in self.balance:
            check_choice("balance", name, constraints(source))
        if self.feature_dtype is not None:
            check_kind(source.path, source.kind)

    def described(self) -> dict[str, Any]:
        """List the options by name, as books have them."""
        listed = asdict(self)
        return listed if self.feature_dtype else {key: value for key, value in listed.items() if key != "feature_dtype"}


@dataclass(frozen=True, slots=True)
class StaticOptions(Options):
    """Further options of static graphs.

    out_edges: store out-edges too. cache_ranking: share of a type's nodes that the cache ranking of a part holds at
    most; 0: none is stored. fanouts (-1: all neighbors) from the seeds outwards and batch_size (seeds of a global
    batch): the sampling that access probabilities are computed for.
    """

    out_edges: bool = False
    cache_ranking: float = 0.0
    fanouts: tuple[int, ...] = DEFAULT_FANOUTS
    batch_size: int = DEFAULT_BATCH_SIZE

    def __post_init__(self):
        Options.__post_init__(self)
        if not 0 <= self.cache_ranking <= 1:
            raise ValueError(f"cache_ranking={self.cache_ranking}: expected a share of the nodes, 0 .. 1")
        if any(fanout < -1 for fanout in self.fanouts):
            raise ValueError(f"fanouts={','.join(map(str, self.fanouts))}: a fanout is -1 (all neighbors), 0 or more")
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size}: at least one seed is needed")


def make_options(source: Source, common: dict, further: dict) -> Options:
    """Check the options for a graph and return them; further: options of static graphs only."""
    is_temporal = source.kind == "temporal"
    if further and is_temporal:
        raise ValueError(f"{', '.join(further)}: for static graphs only, {source.path} is temporal")
    balance = default_balance(source) if common["balance"] is None else common["balance"]
    if not is_temporal:
        further = {**method_of(common["method"]).further, **further}
    options = (Options if is_temporal else StaticOptions)(**{**common, "balance": balance, **further})
    options.check(source)
    for name in STRETCHES:
        if name in balance and not is_temporal:
            check_split(source, name)
    return options


def names(text: str) -> tuple[str, ...]:
    """Split a comma-separated list into its items."""
    return tuple(name for name in text.split(",") if name)


def fanouts(text: str) -> tuple[int, ...]:
    """Parse the integers of a comma-separated list."""
    return tuple(int(name) for name in names(text))
