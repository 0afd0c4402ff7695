"""Graph neural network training on partitioned graphs, as an MPI batch application.

    from hpcgnn import convert, from_edges

make graph files of objects in memory (see ``data_tools.objects``).
"""

from typing import Any

from hpcgnn import environment

__version__ = "0.1.0"

OF_TOOLS = {"convert": "convert_object", "from_edges": "from_edges"}  # of data_tools.objects, loaded when used

if environment.is_command():
    environment.set_defaults()


def __getattr__(name: str) -> Any:
    if name in OF_TOOLS:
        from data_tools import objects

        return getattr(objects, OF_TOOLS[name])
    raise AttributeError(f"module 'hpcgnn' has no attribute {name!r}")
