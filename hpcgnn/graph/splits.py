"""The names of the splits, in the order in which time passes through them, and the column that holds them."""

from __future__ import annotations

import numpy as np

SPLITS = ("train", "val", "test")
TRAIN_SPLIT = "train_split"  # the training split, where it is scored as validation is; its metrics begin with train_
NO_SPLIT = -1


def place_of_split(split: str) -> int:
    """Return the place of a split among ``SPLITS``; TRAIN_SPLIT is the first of them."""
    return 0 if split == TRAIN_SPLIT else SPLITS.index(split)


def add_to_split(split: np.ndarray, rows: np.ndarray, name: str, what: str) -> None:
    """Put rows, as numbers [k] or a mask [N] bool, into a set of a column ``split`` [N], in place. Raises ValueError
    that begins with ``what`` for rows that are in another set already."""
    rows = np.flatnonzero(rows) if rows.dtype.kind == "b" else rows
    taken = np.unique(rows[split[rows] != NO_SPLIT])
    if len(taken):
        raise ValueError(
            f"{what}: {len(taken):,} in {name} and in another set, the first one in row {taken[0] + 1} (also in "
            f"{SPLITS[split[taken[0]]]}); a row is in one of {', '.join(SPLITS)}, or in none"
        )
    split[rows] = SPLITS.index(name)
