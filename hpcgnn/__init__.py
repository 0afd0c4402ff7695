"""Graph neural network training on partitioned graphs, as an MPI batch application."""

import os

__version__ = "0.1.0"

# How long idle OpenMP threads spin before they sleep. The default (milliseconds) takes the core from the planning
# thread and from MPI; sleeping at once costs a wake-up of 0.1 ms per parallel region. About 0.1 ms is the best of both.
# The OpenMP runtime reads this once, when torch loads it, so it cannot wait for the configuration; a value set by the
# user stays.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

# How many shapes of matrix products oneDNN, and torch's layer above it, keep code and plans for. Sampled batches have
# other numbers of rows in every step, so the default of 1,024 shapes is filled with ones that never come again: 600 MiB
# a rank, measured. Both read this when they multiply for the first time; a value set by the user stays.
for variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(variable, "64")

# Which components Open MPI asks when windows are made. Ours are shared memory within a machine; where UCX finds no
# device, its component for windows between machines prints an error for each of them. Read when MPI starts; a value set
# by the user, as by mpirun --mca osc, stays.
os.environ.setdefault("OMPI_MCA_osc", "^ucx")
