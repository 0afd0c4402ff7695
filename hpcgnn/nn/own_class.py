"""The user's own model, by class path."""

from __future__ import annotations

import importlib

from torch import nn


def own_class(class_path: str) -> type[nn.Module]:
    """The class that ``model.class_path`` names. Raises ValueError."""
    module, _, name = class_path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"model.class_path {class_path!r}: {error}; it is package.module.Class, its folder on PYTHONPATH"
        ) from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(f"model.class_path {class_path!r} is no torch.nn.Module")
    return found
