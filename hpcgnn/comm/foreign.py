"""Passes a Group's communicator to C libraries that use MPI themselves."""

from __future__ import annotations

import os
from pathlib import Path

from hpcgnn.comm.group import Group, mpi_library
from hpcgnn.comm.mpi import MPI

MAPS = Path("/proc/self/maps")


def communicator_address(group: Group) -> int:
    """Return the address of the group's MPI_Comm, for an argument ``MPI_Comm *``."""
    return MPI._addressof(group.mpi)


def check_one_mpi(library: str) -> None:
    """Raise ValueError for a library that loaded another MPI into the process: a call of it would crash.

    Nothing is checked where the system does not say what is loaded.
    """
    if not MAPS.exists():
        return
    loaded = {os.path.realpath(line.split()[-1]) for line in MAPS.read_text().splitlines() if "/libmpi" in line}
    mpi = sorted(path for path in loaded if os.path.basename(path).startswith(("libmpi.so", "libmpich.so")))
    if len(mpi) > 1:
        raise ValueError(
            f"{library} is built for another MPI than mpi4py ({mpi_library()}): "
            f"{' and '.join(mpi)} are loaded; install one that is built for mpi4py's, or mpi4py for the library's"
        )
