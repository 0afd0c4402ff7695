"""Graph neural network training on partitioned graphs, as an MPI batch application."""

from hpcgnn import environment

__version__ = "0.1.0"

if environment.is_command():
    environment.set_defaults()
