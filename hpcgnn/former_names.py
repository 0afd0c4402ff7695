"""Keeps modules importable by the names that earlier versions gave them, so that programs of users still run.

A former name stands for its successor, module and all: what is imported by either name is the same object.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Packages that are gone, and modules with their successors: all that docs/ of an earlier version names.
PACKAGES = ("hpcgnn.sample", "hpcgnn.store", "hpcgnn.run")
SUCCESSORS = {
    "hpcgnn.loader": ("hpcgnn.temporal.loader",),
    "hpcgnn.graph_loader": ("hpcgnn.static.loader", "hpcgnn.static.graph", "hpcgnn.static.batches"),
    "hpcgnn.link_loader": ("hpcgnn.static.link_loader", "hpcgnn.static.batches"),
    "hpcgnn.static_graph": ("hpcgnn.static.graph",),
    "hpcgnn.pyg": ("hpcgnn.static.pyg",),
    "hpcgnn.nn.config": ("hpcgnn.temporal.config",),
    "hpcgnn.nn.graph_config": ("hpcgnn.static.config",),
    "hpcgnn.nn.temporal": ("hpcgnn.temporal.model.model",),
    "hpcgnn.nn.graph_models": ("hpcgnn.static.model.models",),
    "hpcgnn.nn.message_blocks": ("hpcgnn.static.model.blocks",),
    "hpcgnn.nn.batch_norm": ("hpcgnn.snapshots.model.batch_norm",),
    "hpcgnn.nn.sequence_model": ("hpcgnn.snapshots.model.frame",),
    "hpcgnn.nn.snapshot": ("hpcgnn.snapshots.model.frame",),
    "hpcgnn.run.settings": ("hpcgnn.loop.settings",),
    "hpcgnn.sample.config": ("hpcgnn.temporal.config",),
    "hpcgnn.sample.delivery": ("hpcgnn.temporal.mail",),
    "hpcgnn.sample.graph_neighbors": ("hpcgnn.static.sampling.neighbors",),
    "hpcgnn.static.rows": ("hpcgnn.static.features",),
    "hpcgnn.store.book": ("hpcgnn.graph.book",),
    "hpcgnn.store.features": ("hpcgnn.static.features", "hpcgnn.static.config"),
    "hpcgnn.store.files": ("hpcgnn.graph.files",),
    "hpcgnn.store.memory": ("hpcgnn.temporal.memory",),
}


class FormerNames(MetaPathFinder, Loader):
    """Finds modules by their former names, with a warning that gives the present one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of a module of SUCCESSORS or PACKAGES, None for any other."""
        if fullname in SUCCESSORS or fullname in PACKAGES:
            return ModuleSpec(fullname, self, is_package=fullname in PACKAGES)
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Fill a former module with the public names of its successors."""
        successors = SUCCESSORS.get(module.__name__, ())
        for name in reversed(successors):
            present = vars(importlib.import_module(name))
            vars(module).update({key: value for key, value in present.items() if not key.startswith("_")})
        if successors:
            warnings.warn(f"{module.__name__} is {' and '.join(successors)} now", DeprecationWarning, stacklevel=2)


def install() -> None:
    """Let Python ask for former names after everything else."""
    sys.meta_path.append(FormerNames())
