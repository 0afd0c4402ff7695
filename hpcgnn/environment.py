"""Variables of the environment that OpenMP, oneDNN and MPI read when they are loaded.

The commands of hpcgnn set them before they load PyTorch. ``import hpcgnn`` in another program leaves the environment
unchanged; a program may call ``set_defaults`` before it imports torch and mpi4py.
"""

from __future__ import annotations

import os
import re
import sys

VARIABLES = {
    # How long idle OpenMP threads spin before they sleep. The default (milliseconds) takes the core from the planning
    # thread and from MPI; sleeping at once costs a wake-up of 0.1 ms per parallel region. About 0.1 ms is the best of
    # both. The OpenMP runtime reads this once, when torch loads it.
    "GOMP_SPINCOUNT": "20000",
    # How many shapes of matrix products oneDNN, and torch's layer above it, keep code and plans for. Sampled batches
    # have other numbers of rows in every step, so the default of 1,024 shapes is filled with ones that never come
    # again: 600 MiB a rank, measured. Both read this when they multiply for the first time.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "LRU_CACHE_CAPACITY": "64",
    # Which components Open MPI tries when windows are made. Ours are shared memory within a machine; where UCX finds no
    # device, its component for windows between machines prints an error for each of them. Read when MPI starts.
    "OMPI_MCA_osc": "^ucx",
}

MODULE = re.compile(r"-[bBdEiIOPqsSuvx]*m(.*)")  # Python's option -m, after others or not


def set_defaults() -> None:
    """Set the variables that are unset; values that the user has set stay."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)


def is_command() -> bool:
    """Whether this process was started as ``python -m hpcgnn...``, whose modules load torch when they are imported."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if found := MODULE.fullmatch(word):
            return (found[1] or next(words, "")).split(".")[0] == "hpcgnn"
        if not word.startswith("-") or word.startswith("-c"):
            return False  # a program, whose options follow
        if word in ("-W", "-X"):
            next(words, "")
    return False
