"""What a partition set depends on besides its source."""

from __future__ import annotations

from dataclasses import dataclass

OBJECTIVES = ("cut", "volume")
DEFAULT_FANOUTS = (15, 10, 5)
DEFAULT_BATCH_SIZE = 1024
STREAMED = ("ldg", "fennel")
METIS, PARMETIS, HOTNESS = "metis", "parmetis", "hotness"
GIVEN = "given"  # the method of an assignment from a file
OUT_OF_CORE = ("random", *STREAMED, GIVEN)  # methods that do not hold all edges
DEFAULT_PASSES = 10  # over the nodes, of a streamed method; more gain little
HOTNESS_CACHE = 0.2  # share of the nodes in the cache ranking that comes with the method hotness


@dataclass(frozen=True, slots=True)
class Options:
    """Options of every kind of graph. passes: over the nodes, of streamed methods only (None: DEFAULT_PASSES);
    assignment: hash of the file that the method given reads."""

    parts: int = 64
    method: str = METIS
    balance: tuple[str, ...] = ()
    seed: int = 0
    objective: str = "cut"
    passes: int | None = None
    assignment: str | None = None

    def __post_init__(self):
        if self.parts < 1:
            raise ValueError(f"parts={self.parts}: at least one part is needed")
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: must not be negative")
        check_choice("objective", self.objective, OBJECTIVES)
        if self.passes is not None and (self.passes < 1 or self.method not in STREAMED):
            raise ValueError(
                f"passes={self.passes}, method={self.method}: a positive number, for {' and '.join(STREAMED)}"
            )
        if self.objective != "cut" and self.method in (*STREAMED, "kaminpar"):
            raise ValueError(f"objective={self.objective}: the method {self.method} knows the objective cut only")
        if self.objective != "cut" and self.method == PARMETIS:
            raise ValueError(f"objective={self.objective}: method {PARMETIS} minimises the cut; use --method metis")
        if len(set(self.balance)) != len(self.balance):
            raise ValueError(f"balance={','.join(self.balance)}: a constraint is named twice")

    def check(self, methods, constraints) -> None:
        """Raise ValueError unless method and balance are among those that the graph at hand allows."""
        if "." not in self.method:  # else the path of a class
            check_choice("method", self.method, methods)
        if (self.method == GIVEN) != (self.assignment is not None):
            raise ValueError(f"method={self.method}: needs --assignment FILE, which no other method takes")
        for name in self.balance:
            check_choice("balance", name, constraints)


@dataclass(frozen=True, slots=True)
class StaticOptions(Options):
    """Further options of static graphs.

    out_edges: store out-edges too. cache_ranking: share of a type's nodes that the cache ranking of a part holds at
    most; 0: none is stored. fanouts (-1: all neighbours) from the seeds outwards and batch_size (seeds of a global
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
            raise ValueError(f"fanouts={','.join(map(str, self.fanouts))}: a fanout is -1 (all neighbours), 0 or more")
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size}: at least one seed is needed")


def check_choice(option: str, value: str, choices) -> None:
    """Raise ValueError unless value is one of the choices."""
    if value not in choices:
        raise ValueError(f"{option}={value!r}: expected one of {', '.join(choices)}")


def names(text: str) -> tuple[str, ...]:
    """Split a comma-separated list into its items."""
    return tuple(name for name in text.split(",") if name)


def fanouts(text: str) -> tuple[int, ...]:
    """Parse the integers of a comma-separated list."""
    return tuple(int(name) for name in names(text))
