"""Graph neural network training on partitioned graphs, as an MPI batch application."""

import os

from hpcgnn import former_names

__version__ = "0.1.0"

# How long idle OpenMP threads spin before they sleep. The default (milliseconds) takes the core from the planning
# thread and from MPI; sleeping at once costs a wake-up of 0.1 ms per parallel region. About 0.1 ms is the best of both.
# The OpenMP runtime reads this once, when torch loads it, so it cannot wait for the configuration; a value set by the
# user stays.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

former_names.install()
