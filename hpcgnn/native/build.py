"""Loads the compiled modules with the kernels, without torch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

COMMANDS = ("hpcgnn", "data_tools")
CHECKOUT = Path(__file__).parents[2]  # where the package is that of a clone


def _load():
    """The package of the compiled modules. Raises ImportError where there is none, or not one of these sources."""
    try:
        package = importlib.import_module("hpcgnn_native")
    except ModuleNotFoundError as error:
        if error.name != "hpcgnn_native":
            raise
        raise ImportError("hpcgnn's native kernels are not installed: run 'pip install .' in a checkout") from error
    if (CHECKOUT / "native" / "package" / "facts.py").exists():
        package.check_source(CHECKOUT)
    return package


def _starts_command() -> bool:
    """Whether this is imported by ``python -m hpcgnn.X``, whose user is helped by a sentence and not by a traceback."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.partition(".")[0] in COMMANDS


try:
    hpcgnn_native = _load()
    _native = hpcgnn_native.kernels
except ImportError as error:
    if _starts_command():
        sys.exit(f"error: {error}")
    raise


def features() -> dict:
    """What the build contains: openmp, simd, cuda."""
    return {**_native.features(), "cuda": hpcgnn_native.has_cuda()}


__all__ = ["_native", "features"]
