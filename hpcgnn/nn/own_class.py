"""The user's own code, by its path: model classes, functions, and what is wrong with them."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

PACKAGE = Path(__file__).resolve().parents[1]
INSIDE = (nn.RNNBase, nn.MultiheadAttention)  # have dropout of their own
KEYED = (
    "dropout that is keyed by nodes: hpcgnn.static.model.models.drop, drop of a snapshot model's Frame, or on temporal "
    "graphs hpcgnn.native.dropout_mask"
)


@contextmanager
def named_errors(class_path: str, key: str = "model.class_path") -> Iterator[None]:
    """Turn an exception of the custom class in the block into a one-line ValueError with the line of the class's code.
    A ValueError or OSError that this package raises stays unchanged. Empty ``class_path``: the class is not a custom
    one; key: that names it."""
    try:
        yield
    except Exception as error:
        if not class_path or (isinstance(error, (ValueError, OSError)) and _is_of_package(error)):
            raise
        raise ValueError(f"{key} {class_path!r}: {in_one_line(error)}") from error


def _is_of_package(error: Exception) -> bool:
    """Whether this package raised an exception, in words that name what is wrong."""
    return PACKAGE in Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve().parents


def in_one_line(error: Exception) -> str:
    """Describe an exception of the user's code, with the line of code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if "site-packages" not in frame.filename]  # not within torch
    place = (outside or frames)[-1]
    return f"{type(error).__name__}: {' '.join(str(error).split())} [{Path(place.filename).name}:{place.lineno}]"


@contextmanager
def with_remedy(class_path: str) -> Iterator[None]:
    """Add to an exception of a step with the custom class where its interface is described, for the message that ends
    the job. Empty ``class_path``: the class is not a custom one."""
    try:
        yield
    except Exception as error:
        if class_path:
            error.remedy = (  # type: ignore[attr-defined]
                f"model.class_path {class_path!r}: docs/own_model.md lists its methods, their arguments and results"
            )
        raise


def found_at(path: str, key: str, form: str) -> Any:
    """Return what a dotted path names: the value of a ``key``, package.module.``form``. Raises ValueError."""
    module, _, name = path.rpartition(".")
    if not module:
        raise ValueError(f"{key} {path!r}: no module is named; it is package.module.{form}, its folder on PYTHONPATH")
    with named_errors(path, key):
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"{key} {path!r}: {error}; it is package.module.{form}, its folder on PYTHONPATH"
            ) from error


def own_class(class_path: str) -> type[nn.Module]:
    """Return the class that ``model.class_path`` names. Raises ValueError."""
    model_class = found_at(class_path, "model.class_path", "Class")
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise ValueError(f"model.class_path {class_path!r} is no torch.nn.Module")
    return model_class


def check_parts(model: nn.Module, class_path: str) -> None:
    """Refuse parts of the user's own model whose results depend on which rows lie on a rank. Raises ValueError."""
    for name, part in model.named_modules():
        remedy = ""
        if isinstance(part, _BatchNorm):
            remedy = "torch.nn.LayerNorm, or on snapshots hpcgnn.snapshots.model.batch_norm.BatchNorm"
        elif (isinstance(part, _DropoutNd) and part.p > 0) or (isinstance(part, INSIDE) and part.dropout > 0):
            remedy = KEYED
        if remedy:
            kind = type(part).__name__
            raise ValueError(
                f"model.class_path {class_path!r}: {name or 'the model'} is a torch.nn.{kind}, whose results depend on "
                f"which rows lie on a rank; take {remedy}"
            )
