"""Rows of a CSR in runs that fit into memory."""

from __future__ import annotations

import numpy as np


def run_starts(indptr: np.ndarray, limit: int) -> np.ndarray:
    """First row of every run of a CSR, and their number N [B + 1] int64: a run has at most ``limit`` entries, or is one
    row; indptr [N + 1]."""
    starts, num_rows = [0], len(indptr) - 1
    while starts[-1] < num_rows:
        stop = int(np.searchsorted(indptr, indptr[starts[-1]] + limit, side="right")) - 1
        starts.append(min(max(stop, starts[-1] + 1), num_rows))
    return np.array(starts, np.int64)
