"""The library with ParMETIS's interface that tests use."""

from __future__ import annotations

from pathlib import Path

import pytest
from mpi4py import MPI

from data_tools.partition.methods.parmetis import find_library


def parmetis_library() -> str:
    """Its path; skips, on all ranks alike, without one that speaks the MPI in use."""
    try:
        path = find_library()
    except ValueError:
        pytest.skip("needs a library of ParMETIS, such as Debian's libptscotch-dev has")
    if MPI.get_vendor()[0] == "MPICH" and b"libmpi.so.40" in Path(path).read_bytes():
        pytest.skip("needs a ParMETIS that is built for the MPI in use")
    return path
