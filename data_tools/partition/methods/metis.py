"""METIS with several balance constraints.

pymetis carries METIS, but its Python function takes one constraint only. The functions of the library are called here
through ctypes: Karypis and Kumar, "Multilevel algorithms for multi-constraint graph partitioning", 1998. N nodes, C
constraints, A adjacency entries, P parts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymetis._internal as internal

from data_tools.partition.pair_graph import PairGraph
from hpcgnn.choices import Part

OK = 1
NUM_OPTIONS = 40


@dataclass(frozen=True)
class Objective(Part):
    """A row of OBJECTIVES. make: the function of the library; number: METIS's of the objective; are_near: consecutive
    parts are neighbors, as the graph is bisected again and again."""

    make: Callable[..., Any]
    number: int
    are_near: bool


OBJECTIVES = {
    "cut": Objective(lambda library: library.METIS_PartGraphRecursive, "minimize the edges between parts", 0, True),
    "volume": Objective(
        lambda library: library.METIS_PartGraphKway, "minimize communication, (node, other part) pairs", 1, False
    ),
}


def metis_partition(
    graph: PairGraph,
    num_parts: int,
    weights: np.ndarray,
    tolerance: float = 1.03,
    seed: int = 0,
    objective: str = "cut",
) -> np.ndarray:
    """Cut a graph by METIS; returns the part per node [N] int32.

    weights: [N, C] non-negative integers; every column with a positive sum is balanced to ``tolerance`` (max / mean).
    objective: the name of a row of OBJECTIVES. Raises RuntimeError when METIS fails.
    """
    weights = np.ascontiguousarray(weights[:, weights.sum(axis=0) > 0])
    if num_parts == 1 or graph.num_nodes == 0:
        return np.zeros(graph.num_nodes, np.int32)
    if weights.shape[1] == 0:
        weights = np.ones((graph.num_nodes, 1), np.int64)
    index = np.int64 if internal._idx_type_width() == 64 else np.int32
    arrays = [np.ascontiguousarray(a, index) for a in (graph.indptr, graph.neighbor, graph.weight, weights)]
    return call_metis(arrays, num_parts, tolerance, seed, objective).astype(np.int32)


def call_metis(arrays: list[np.ndarray], num_parts: int, tolerance: float, seed: int, objective: str) -> np.ndarray:
    """Call the library; arrays: indptr, neighbor, adjacency weights, node weights [N, C], all of METIS' index type."""
    library = ctypes.CDLL(internal.__file__)
    indptr, neighbor, adjacency_weight, weights = arrays
    index, num_nodes, num_weights = indptr.dtype, len(indptr) - 1, weights.shape[1]
    options = np.zeros(NUM_OPTIONS, index)
    library.METIS_SetDefaultOptions(pointer(options))
    where = internal.options_indices  # type: ignore[attr-defined]
    options[where.OBJTYPE], options[where.SEED], options[where.NUMBERING] = OBJECTIVES[objective].number, seed, 0
    function: Any = OBJECTIVES[objective].make(library)
    function.restype = ctypes.c_int
    result, cut = np.zeros(num_nodes, index), np.zeros(1, index)
    sizes = np.array([num_nodes, num_weights, num_parts], index)
    bounds = np.full(num_weights, tolerance, np.float32)
    head = [sizes[0:], sizes[1:], indptr, neighbor, weights, None, adjacency_weight, sizes[2:]]
    tail = [None, bounds, options, cut, result]
    with silent_output():
        status = function(*(pointer(array) for array in head + tail))
    if status != OK:
        raise RuntimeError(f"METIS returned {status}: {num_nodes} nodes, {num_weights} constraints, {num_parts} parts")
    return result


@contextlib.contextmanager
def silent_output() -> Iterator[None]:
    """Keep the output of a library from the terminal, such as METIS' advice about parts that are too many: the measures
    of a partition say more about it."""
    flush = ctypes.CDLL(None).fflush
    sys.stdout.flush()
    flush(None)
    try:
        kept = os.dup(1)
    except OSError:  # nothing is printed to a closed file
        yield
        return
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
        flush(None)
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def pointer(array: np.ndarray | None) -> ctypes.c_void_p | None:
    """Return the address of an array's data."""
    return None if array is None else ctypes.c_void_p(array.ctypes.data)
