"""ParMETIS's distributed k-way partitioning, called through ctypes: of ParMETIS itself, or of PT-Scotch's library that
offers the same function (Debian: libptscotch-dev). No wheel carries either.

Karypis and Kumar, "Parallel multilevel k-way partitioning", 1996; Chevalier and Pellegrini, "PT-Scotch", 2008.
N nodes in blocks, the n nodes of a block, C constraints, P parts.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import os
from dataclasses import dataclass
from typing import cast

import numpy as np

from data_tools.partition.blocks import NodeBlocks
from data_tools.partition.pair_graph import PairGraph
from data_tools.team import Ranks

OK = 1
TOLERANCE = 1.03
FUNCTION = "ParMETIS_V3_PartKway"
NUM_OPTIONS = 40  # of METIS_SetDefaultOptions
# PT-Scotch's library names none of those that it needs; errors come first, as several libraries define them.
SCOTCH_NEEDS = ("libptscotcherr.so", "libscotch.so", "libptscotch.so")
PLACES = ("/usr/lib/*/scotch-int{bits}", "/usr/lib/scotch-int{bits}", "/usr/lib/*", "/usr/local/lib", "/usr/lib")
REMEDY = "install libptscotch-dev (Debian, Ubuntu) or ParMETIS, and name its library by --parmetis if it is elsewhere"


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded library; index: the type of its integers; constraints: how many of them it balances at most."""

    path: str
    handle: ctypes.CDLL
    index: np.dtype
    constraints: int


def find_library(path: str | None = None, bits: int = 64) -> str:
    """Find the library: ``path`` if there is one, else, of several, the library whose integers have ``bits`` bits.
    Raises ValueError when there is none."""
    if path is not None:
        if not os.path.isfile(path):
            raise ValueError(f"--parmetis {path}: no such file; {REMEDY}")
        return path
    for name in ("libparmetis.so", "libptscotchparmetisv3.so", "libptscotchparmetis.so"):
        for place in PLACES:
            for library in sorted(glob.glob(os.path.join(place.format(bits=bits), name))):
                return library
    raise ValueError(f"method parmetis: no ParMETIS library is found; {REMEDY}")


def load_library(path: str | None = None, bits: int = 64) -> Library:
    """Load the library, as `find_library` finds it, and check that it speaks the MPI in use. Raises ValueError."""
    path = find_library(path, bits)
    from hpcgnn.comm.foreign import check_one_mpi

    try:
        for name in SCOTCH_NEEDS if "scotch" in os.path.basename(path) else ():
            ctypes.CDLL(os.path.join(os.path.dirname(path), name), ctypes.RTLD_GLOBAL)
        handle = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise ValueError(f"{path}: cannot be loaded: {error}; {REMEDY}") from error
    check_one_mpi(path)
    if not hasattr(handle, FUNCTION):
        raise ValueError(f"{path}: has no function {FUNCTION}; {REMEDY}")
    if "scotch" in os.path.basename(path):
        width = ctypes.CDLL(os.path.join(os.path.dirname(path), "libscotch.so")).SCOTCH_numSizeof()
        return Library(path, handle, np.dtype(f"i{width}"), 1)
    return Library(path, handle, metis_index(handle), np.iinfo(np.int32).max)


def metis_index(handle: ctypes.CDLL) -> np.dtype:
    """Find the integers of METIS by how much its function for default options writes: ParMETIS's are the same."""
    options = np.full(2 * NUM_OPTIONS, 7, np.int32)
    handle.METIS_SetDefaultOptions(ctypes.c_void_p(options.ctypes.data))
    return np.dtype(np.int64 if options[-1] != 7 else np.int32)


def parmetis_partition(
    library: Library,
    blocks: NodeBlocks,
    graph: PairGraph,
    num_parts: int,
    weights: np.ndarray,
    seed: int,
) -> np.ndarray:
    """Collective. Cut by ParMETIS; returns the part [n] int32 of the nodes of this rank's block; ``graph`` and weights
    [n, C] are of the block.

    Raises RuntimeError when the library reports a failure, ValueError for a graph that its integers cannot number.
    """
    # PT-Scotch leaves nodes without weight wherever they fall.
    weights = np.maximum(weights[:, : library.constraints], 1)
    index, num_weights = library.index, weights.shape[1]
    largest = max(blocks.starts[-1], graph.indptr[-1], blocks.team.sum(weights.sum(axis=0)).max())
    if largest > np.iinfo(index).max:
        raise ValueError(
            f"{library.path}: its integers have {8 * index.itemsize} bits, {largest} does not fit; {REMEDY}"
        )
    integers = lambda values: np.ascontiguousarray(values, index)  # noqa: E731
    part = np.zeros(max(1, len(weights)), index)
    cut = np.zeros(1, index)
    arguments = [
        integers(blocks.starts), integers(graph.indptr), integers(graph.neighbor), integers(weights),
        integers(graph.weight), integers([3]), integers([0]), integers([num_weights]), integers([num_parts]),
        np.full(num_weights * num_parts, 1 / num_parts, np.float32), np.full(num_weights, TOLERANCE, np.float32),
        integers([1, 0, seed]), cut, part,
    ]  # fmt: skip
    from hpcgnn.comm.foreign import communicator_address

    start_numbers(library, seed)
    function = getattr(library.handle, FUNCTION)
    function.restype = ctypes.c_int
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in arguments]
    status = function(*pointers, ctypes.c_void_p(communicator_address(cast(Ranks, blocks.team).group)))
    if status != OK:
        raise RuntimeError(
            f"{library.path}: {FUNCTION} returned {status}: {blocks.starts[-1]} nodes, {num_parts} parts"
        )
    return part[: len(weights)].astype(np.int32)


def start_numbers(library: Library, seed: int) -> None:
    """Start PT-Scotch's random numbers anew: they belong to the process, continue from one call to the next, and ignore
    the seed among ParMETIS's options. Other libraries lack the function and need it not."""
    if hasattr(library.handle, "SCOTCH_randomSeed"):
        library.handle.SCOTCH_randomSeed(ctypes.c_int64(seed))
        library.handle.SCOTCH_randomReset()
