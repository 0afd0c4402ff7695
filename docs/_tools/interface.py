"""The page of the Python interface: what mkdocstrings is to write, module by module."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import partial

from source import module_path

# Modules that a training loop, a model or a partitioner of a user's program imports.
MODULES = {
    "Runs": ("hpcgnn.runs", "hpcgnn.loop.callbacks"),
    "Graph files": ("data_tools.objects",),
    "Graphs and loaders": (
        "hpcgnn.temporal.loader", "hpcgnn.temporal.graph", "hpcgnn.static.graph", "hpcgnn.static.loader",
        "hpcgnn.static.link_loader", "hpcgnn.static.batches", "hpcgnn.static.exact", "hpcgnn.static.pyg",
        "hpcgnn.static.sampling.neighbors", "hpcgnn.static.servers.loop", "hpcgnn.snapshots.loader",
    ),
    "Ranks and exchanges": (
        "hpcgnn.comm.world", "hpcgnn.comm.route", "hpcgnn.comm.gradients", "hpcgnn.comm.together", "hpcgnn.comm.timers",
    ),
    "State of a rank": (
        "hpcgnn.temporal.memory", "hpcgnn.temporal.mail", "hpcgnn.graph.book", "hpcgnn.static.features",
        "hpcgnn.static.node_embedding",
    ),
    "Models": (
        "hpcgnn.temporal.model.model", "hpcgnn.static.model.models", "hpcgnn.static.model.blocks",
        "hpcgnn.snapshots.model", "hpcgnn.snapshots.model.frame", "hpcgnn.snapshots.model.spatial",
        "hpcgnn.snapshots.model.batch_norm", "hpcgnn.snapshots.step", "hpcgnn.task.labels",
        "hpcgnn.task.metrics",
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


def pages() -> dict[str, Callable[[], str]]:
    """Name the pages of the interface, and what writes each, in the language of mkdocstrings."""
    parts = {f"api/{title.lower().replace(' ', '_')}.md": partial(part_page, title) for title in MODULES}
    return {"api.md": api_page, **parts}


def api_page() -> str:
    """Write the page that lists all modules."""
    lines = [HEAD, "| Module | Content |", "|---|---|"]
    for title, names in MODULES.items():
        page = f"api/{title.lower().replace(' ', '_')}.md"
        lines += [f"| [`{name}`]({page}#{name}) | {first_sentence(name)} |" for name in names]
    return "\n".join(lines) + "\n"


def part_page(title: str) -> str:
    """Write the page of some modules."""
    return "\n\n".join([f"# Python API: {title.lower()}", *(f"::: {name}" for name in MODULES[title])]) + "\n"


def first_sentence(module: str) -> str:
    """Read what a module is."""
    text = " ".join(docstring(module).split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", text)[0].replace("|", "\\|")


def docstring(name: str) -> str:
    """Read a module's docstring as Markdown. Raises FileNotFoundError."""
    text = ast.get_docstring(ast.parse(module_path(name).read_text(encoding="utf-8"))) or ""
    return re.sub(r"::$", ":", text.replace("``", "`"), flags=re.MULTILINE)
