"""The user's own model, by class path."""

from __future__ import annotations

import importlib

from torch import nn


def own_class(class_path: str) -> type[nn.Module]:
    """Return the class that ``model.class_path`` names. Raises ValueError."""
    module, _, name = class_path.rpartition(".")
    try:
        model_class = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"model.class_path {class_path!r}: {error}; it is package.module.Class, its folder on PYTHONPATH"
        ) from error
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise ValueError(f"model.class_path {class_path!r} is no torch.nn.Module")
    return model_class
