"""Loads the compiled modules with the kernels, without torch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

COMMANDS = ("hpcgnn", "data_tools")
CHECKOUT = Path(__file__).parents[2]  # where the package is that of a clone


def _load():
    """Import the package of the compiled modules. Raises ImportError where there is none, or one of other sources."""
    try:
        package = importlib.import_module("hpcgnn_native")
    except ModuleNotFoundError as error:
        if error.name != "hpcgnn_native":
            raise
        raise ImportError("hpcgnn's native kernels are not installed: run 'pip install .' in a checkout") from error
    if (CHECKOUT / "native" / "package" / "facts.py").exists():
        package.check_source(CHECKOUT)
    return package


try:
    hpcgnn_native = _load()
    _native = hpcgnn_native.kernels
except ImportError as error:
    # A user of ``python -m hpcgnn.X`` is helped by a sentence and not by a traceback.
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name.partition(".")[0] in COMMANDS:
        sys.exit(f"error: {error}")
    raise


def features() -> dict:
    """Return the features of the build: openmp, simd, cuda."""
    return {**_native.features(), "cuda": hpcgnn_native.has_cuda()}


__all__ = ["_native", "features"]
