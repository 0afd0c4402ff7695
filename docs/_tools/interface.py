"""The page of the Python interface: what mkdocstrings is to write, module by module."""

from __future__ import annotations

import ast
import re

from source import module_path

# Modules that a training loop, a model or a partitioner of a user's program imports.
MODULES = {
    "Graphs and loaders": (
        "hpcgnn.temporal.loader", "hpcgnn.temporal.graph", "hpcgnn.static.graph", "hpcgnn.static.loader",
        "hpcgnn.static.link_loader", "hpcgnn.static.batches", "hpcgnn.static.pyg", "hpcgnn.snapshots.loader",
    ),
    "Ranks and exchanges": (
        "hpcgnn.comm.world", "hpcgnn.comm.route", "hpcgnn.comm.gradients", "hpcgnn.comm.together", "hpcgnn.comm.timers",
    ),
    "What a rank holds": (
        "hpcgnn.temporal.memory", "hpcgnn.temporal.mail", "hpcgnn.graph.book", "hpcgnn.static.features",
    ),
    "Models": (
        "hpcgnn.temporal.model.model", "hpcgnn.static.model.models", "hpcgnn.static.model.blocks",
        "hpcgnn.snapshots.model", "hpcgnn.snapshots.model.frame", "hpcgnn.snapshots.model.spatial",
        "hpcgnn.snapshots.model.batch_norm", "hpcgnn.snapshots.step", "hpcgnn.task.labels",
    ),
    "Configuration": (
        "hpcgnn.config", "hpcgnn.loop.settings", "hpcgnn.temporal.config", "hpcgnn.static.config",
        "hpcgnn.snapshots.config", "hpcgnn.keys", "hpcgnn.environment",
    ),
}  # fmt: skip

HEAD = """# Python API

The classes and functions of a training loop, a loader, a model or a partitioner in a program of yours;
[library.md](library.md) and [own_model.md](own_model.md) show them at work. Where a docstring has the word
*Collective*, all ranks make the call, in the same order.
"""


def api_page() -> str:
    """Write the page, in the language of mkdocstrings."""
    lines = [HEAD]
    for title, names in MODULES.items():
        lines += [f"## {title}", ""]
        for name in names:
            module_path(name)
            lines += [f"::: {name}", ""]
    return "\n".join(lines)


def docstring(name: str) -> str:
    """Read a module's docstring as Markdown. Raises FileNotFoundError."""
    text = ast.get_docstring(ast.parse(module_path(name).read_text(encoding="utf-8"))) or ""
    return re.sub(r"::$", ":", text.replace("``", "`"), flags=re.MULTILINE)
