"""Starts MPI: the one place that imports mpi4py's MPI, for the other modules of this room."""

from __future__ import annotations

import os
import sys

from hpcgnn import environment
from hpcgnn.comm.launch import launched_tasks, local_rank_for_gpu

# Read by Open MPI when it starts, and taken away at once: the environment stays the user's, and programs that this
# process starts may have ranks. A process without a launcher has no ranks to share memory with, and Open MPI would
# leave its segment in /dev/shm when it ends.
_for_now = {"OMPI_MCA_osc": environment.VARIABLES["OMPI_MCA_osc"]}
if not launched_tasks()[0]:
    _for_now["OMPI_MCA_btl"] = "^sm"
# An MPI that takes the memory of GPUs opens a context, and chooses a network card, by the GPU that a rank has when it
# starts. A program without torch, such as a tool, uses no GPU.
_local_rank, _torch = local_rank_for_gpu(), sys.modules.get("torch")
if _local_rank is not None and _torch is not None and _torch.cuda.is_available():
    _torch.cuda.set_device(_local_rank % _torch.cuda.device_count())
_for_now = {name: value for name, value in _for_now.items() if name not in os.environ}
os.environ.update(_for_now)
try:
    from mpi4py import MPI
finally:
    for name in _for_now:
        del os.environ[name]

__all__ = ["MPI"]
