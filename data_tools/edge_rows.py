"""Which rows of a source become edges, in which order and direction.

The rows of a relation are chosen, not copied: self-loops and duplicates are left out, then the rest is sorted by
time, then each edge of an undirected relation is doubled. Columns of any size follow by gathering the chosen rows
slab by slab.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_tools.source_spec import EdgeSpec
from hpcgnn.store.files import FileFormatError, split_relation


@dataclass(frozen=True, slots=True)
class EdgeRows:
    """The edges of a relation: ``rows`` [E] of the source, ``flipped`` [E] where src and dst change places (None:
    nowhere).

    ``notes`` says in words what was left out or doubled.
    """

    rows: np.ndarray
    flipped: np.ndarray | None
    notes: list[str]


def choose_rows(edge: EdgeSpec, file: str, src: np.ndarray, dst: np.ndarray, time: np.ndarray | None) -> EdgeRows:
    """Apply the options of a relation to its rows (src, dst, time: [E]; row ids and stored times).

    Raises FileFormatError, naming file and row, for a self-loop or duplicate where the option is ``error``.
    """
    notes: list[str] = []
    rows = np.arange(len(src))
    homogeneous = len(set(split_relation(edge.relation)[::2])) == 1
    if homogeneous and edge.self_loops != "keep":
        loops = np.flatnonzero(src == dst)
        rows = leave_out(rows, loops, edge.self_loops, "self-loop", f"{file}: ", notes)
    if edge.duplicates != "keep":
        repeated = duplicate_rows(rows, src, dst, time, edge.undirected)
        rows = leave_out(rows, repeated, edge.duplicates, "duplicate edge", f"{file}: ", notes)
    if edge.sort and time is not None:
        rows = rows[np.argsort(time[rows], kind="stable")]
    if not edge.undirected:
        return EdgeRows(rows, None, notes)
    rows, flipped = both_directions(rows, src, dst)
    return EdgeRows(rows, flipped, [*notes, "both directions"])


def leave_out(rows: np.ndarray, bad: np.ndarray, policy: str, what: str, where: str, notes: list[str]) -> np.ndarray:
    """Rows without the bad ones, or FileFormatError if the policy is ``error``. ``bad`` is sorted."""
    if policy == "error" and len(bad):
        raise FileFormatError(
            f"{where}row {bad[0] + 1}: {what} ({len(bad)} in the file); remove them, or set the option to drop or keep"
        )
    if policy == "drop" and len(bad):
        notes.append(f"{len(bad):,} {what}{'' if len(bad) == 1 else 's'} dropped")
    return rows[~np.isin(rows, bad)] if len(bad) else rows


def duplicate_rows(
    rows: np.ndarray, src: np.ndarray, dst: np.ndarray, time: np.ndarray | None, undirected: bool
) -> np.ndarray:
    """Those of ``rows`` whose (src, dst, time) occurred in an earlier row; undirected: in either direction."""
    keys = [np.asarray(src)[rows], np.asarray(dst)[rows]]
    if undirected:
        keys = [np.minimum(*keys), np.maximum(*keys)]
    if time is not None:
        keys.append(np.asarray(time)[rows])
    order = np.lexsort(keys)
    same = np.ones(max(len(order) - 1, 0), bool)
    for key in keys:
        same &= key[order[1:]] == key[order[:-1]]
    # lexsort is stable, so the first of equal rows is the earliest.
    return np.sort(rows[order[1:][same]])


def both_directions(rows: np.ndarray, src: np.ndarray, dst: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row twice, the second time flipped, next to each other; a self-loop once."""
    doubled = np.repeat(rows, 2)
    flipped = np.tile(np.array([False, True]), len(rows))
    keep = ~(flipped & (np.asarray(src)[doubled] == np.asarray(dst)[doubled]))
    return doubled[keep], flipped[keep]
