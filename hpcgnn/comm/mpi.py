"""Starts MPI: the one place that imports mpi4py's MPI, for the other modules of this room."""

from __future__ import annotations

import os

from hpcgnn.comm.launch import launched_tasks

# A process without a launcher has no ranks to share memory with, and Open MPI would leave its segment in /dev/shm when
# it ends. The variable goes again at once: programs that this process starts may have ranks.
_LEAVES_SEGMENTS = "OMPI_MCA_btl"
_is_alone = not launched_tasks()[0] and _LEAVES_SEGMENTS not in os.environ
if _is_alone:
    os.environ[_LEAVES_SEGMENTS] = "^sm"
try:
    from mpi4py import MPI
finally:
    if _is_alone:
        del os.environ[_LEAVES_SEGMENTS]

__all__ = ["MPI"]
