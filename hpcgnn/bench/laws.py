"""Laws that extrapolate counts beyond the number of parts, fitted to the counts of smaller numbers of ranks.

* totals: U(R) = U_apart - (U_apart - U_1) R^-e: between one rank, where all duplicates meet, and every event on a rank
  of its own. One parameter e.
* local share: the rows that a rank finds at itself, l(R) = c R^-d, at most 1.
* imbalance: the busiest rank over the mean, g(R) = a R^b, at least 1.
* messages of a rank: a power of R, at most R - 1 and at most its rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from hpcgnn.bench.counts import KINDS, RowCounts

FITTED_POINTS = 4  # the largest counted numbers of ranks
SMALLEST = 1e-9


@dataclass(frozen=True, slots=True)
class Power:
    """y = factor R^exponent."""

    factor: float
    exponent: float

    @classmethod
    def fit(cls, ranks: np.ndarray, values: np.ndarray) -> Power:
        """Fit by least squares on logarithms; with one point, a constant."""
        if len(ranks) == 1:
            return cls(float(values[0]), 0.0)
        exponent, log_factor = np.polyfit(np.log(ranks), np.log(np.maximum(values, SMALLEST)), 1)
        return cls(float(np.exp(log_factor)), float(exponent))

    def __call__(self, ranks: int) -> float:
        return self.factor * ranks**self.exponent


@dataclass(frozen=True, slots=True)
class Total:
    """A total that grows from ``one`` (one rank) to ``apart`` (every event alone): the gap closes as R^-exponent."""

    one: float
    apart: float
    exponent: float

    @classmethod
    def fit(cls, ranks: np.ndarray, values: np.ndarray, one: float, apart: float) -> Total:
        """Fit by least squares on the logarithm of the gap, through R = 1."""
        if apart <= one:
            return cls(one, one, 0.0)
        gap = np.log(np.clip((apart - values) / (apart - one), SMALLEST, 1))
        logs = np.log(ranks)
        return cls(one, apart, float(-(gap @ logs) / (logs @ logs)))

    def __call__(self, ranks: int) -> float:
        return self.apart - (self.apart - self.one) * ranks**-self.exponent


@dataclass(frozen=True, slots=True)
class RowDemand:
    """Rows of one kind that cross between R ranks in a step. mean: of a rank; peak: the most that a rank sends or
    receives; messages: ranks that a rank exchanges with."""

    mean: float
    peak: float
    messages: float


@dataclass(frozen=True, slots=True)
class Demand:
    """What one step needs of R ranks. roots, updated: rows that the busiest rank computes with."""

    ranks: int
    counted: bool
    rows: dict[str, RowDemand]
    roots: float
    updated: float


def counted_demand(counts: RowCounts) -> Demand:
    """Average counts over the counted steps."""
    steps = max(1, counts.steps)
    rows = {
        kind: RowDemand(t.remote / steps / counts.size, t.peak / steps, t.pairs / steps / counts.size)
        for kind, t in counts.kinds.items()
    }
    return Demand(counts.size, True, rows, counts.roots.peak / steps, counts.updated.peak / steps)


@dataclass(frozen=True, slots=True)
class KindLaw:
    """The laws of one kind of row."""

    total: Total
    local_share: Power
    imbalance: Power
    messages: Power

    @classmethod
    def fit(cls, counted: list[RowCounts], kind: str, one: RowCounts, apart: RowCounts) -> KindLaw:
        """Fit the laws to the counts of two ranks or more."""
        ranks, tallies = np.array([c.size for c in counted]), [c.kinds[kind] for c in counted]
        steps = np.array([c.steps for c in counted])
        rows = np.array([t.total for t in tallies]) / steps
        remote = np.array([t.remote for t in tallies]) / steps
        peak = np.array([t.peak for t in tallies]) / steps
        total = Total.fit(ranks, rows, one.kinds[kind].total / one.steps, apart.kinds[kind].total / apart.steps)
        local = Power.fit(ranks, 1 - remote / np.maximum(rows, SMALLEST))
        pairs = np.array([t.pairs for t in tallies]) / steps / ranks
        return cls(total, local, Power.fit(ranks, peak * ranks / np.maximum(remote, SMALLEST)), Power.fit(ranks, pairs))

    def __call__(self, ranks: int, events: float) -> RowDemand:
        """Extrapolate; events: of a step, as a rank that has an event at all has its rows."""
        remote = self.total(ranks) * (1 - min(1.0, self.local_share(ranks)))
        mean = remote / ranks
        peak = max(mean * max(1.0, self.imbalance(ranks)), remote / max(ranks, events))
        return RowDemand(mean, peak, min(ranks - 1.0, mean, self.messages(ranks)))


@dataclass(frozen=True, slots=True)
class Laws:
    """The laws of a step's demand beyond the counted numbers of ranks."""

    kinds: dict[str, KindLaw]
    updated: Total
    updated_imbalance: Power
    batch: float
    roles: float
    fitted: list[int]

    @classmethod
    def fit(cls, counts: dict[int, RowCounts], apart: RowCounts) -> Laws | None:
        """Fit all laws; None where fewer than two numbers of ranks above 1 were counted."""
        sizes = sorted(size for size in counts if size > 1)[-FITTED_POINTS:]
        if len(sizes) < 2:
            return None
        chosen, one = [counts[size] for size in sizes], counts[1]
        ranks, steps = np.array(sizes), one.steps
        total = np.array([c.updated.total for c in chosen]) / steps
        peak = np.array([c.updated.peak for c in chosen]) / steps
        updated = Total.fit(ranks, total, one.updated.total / steps, apart.updated.total / steps)
        imbalance = Power.fit(ranks, peak * ranks / np.maximum(total, SMALLEST))
        kinds = {kind: KindLaw.fit(chosen, kind, one, apart) for kind in KINDS}
        return cls(kinds, updated, imbalance, apart.events / steps, one.roots.total / max(1, apart.events), sizes)

    def demand(self, ranks: int) -> Demand:
        """Extrapolate to a number of ranks; the events that a rank handles follow from the spill rule, not from a
        law."""
        rows = {kind: law(ranks, self.batch) for kind, law in self.kinds.items()}
        roots = np.ceil(self.batch / ranks) * self.roles
        updated = self.updated(ranks) / ranks * max(1.0, self.updated_imbalance(ranks))
        return Demand(ranks, False, rows, float(roots), max(1.0, updated))

    def to_dict(self) -> dict:
        """Return plain values, for the report."""
        return asdict(self)
