"""The compiled kernels of hpcgnn, a package of their own, so that a source folder of hpcgnn never hides them.

``kernels`` is the module of the CPU kernels for this processor: each processor of x86-64-v3 runs one build of them,
those with AVX-512 another. ``cuda`` is the module of the CUDA kernels, None where there is none. Both are loaded when
they are first asked for; a process loads one build only, as all have types of the same names.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from hpcgnn_native import base
from hpcgnn_native.build import BUILDS, BUILT_ON, BUILT_ON_SETS, COMPILER, SOURCE
from hpcgnn_native.facts import processor, source_digest

__all__ = ["BUILDS", "BUILT_ON", "COMPILER", "SOURCE", "check_source", "choose", "has_cuda", "processor", "use"]

NATIVE = "native"  # the build for the very processor that compiled it
ANY = "any"  # the build for every processor of an architecture without levels
# Of an instruction set that the compiler uses by itself; others, such as those of virtualisation, do not matter.
COMPILED_FOR = ("sse", "ssse", "avx", "fma", "bmi", "f16c", "gfni", "vaes", "vpclmulqdq", "sve", "asimd", "amx")


def choose(levels: list[str]) -> str:
    """The name of the best build for a processor of these levels, lowest first. Raises ImportError where none runs."""
    usable = [name for name in (*levels, ANY, NATIVE) if name in BUILDS]
    if not usable:
        raise ImportError(
            f"hpcgnn's kernels were built for {', '.join(BUILDS)}, which this processor ({processor()[0]}) cannot run: "
            "build them on this machine with "
            "'pip install --config-settings=cmake.define.HPCGNN_NATIVE_ARCH=ON .' in a checkout"
        )
    return usable[-1]


def check_native(sets: list[str]) -> None:
    """Refuse a build for another processor, with other instruction sets. Raises ImportError."""
    lacking = sorted(name for name in set(BUILT_ON_SETS.split()) - set(sets) if name.startswith(COMPILED_FOR))
    if lacking:
        raise ImportError(
            f"hpcgnn's kernels were built with HPCGNN_NATIVE_ARCH on {BUILT_ON}; this processor ({processor()[0]}) "
            f"lacks {', '.join(lacking)}: build them without that option, or on this machine"
        )


def use(name: str) -> ModuleType:
    """Load a build of the CPU kernels by its name as ``kernels``, which must not be loaded yet. Raises ImportError."""
    if name not in BUILDS:
        raise ImportError(f"no build {name!r} of hpcgnn's kernels; there are: {', '.join(BUILDS)}")
    if name == NATIVE:
        check_native(processor()[1])
    globals()["kernels"] = importlib.import_module(f"hpcgnn_native.{name}")
    return globals()["kernels"]


def check_source(checkout: Path) -> None:
    """Refuse modules that were built from other sources than those in a checkout. Raises ImportError."""
    if source_digest(checkout) != SOURCE:
        raise ImportError(
            f"hpcgnn's kernels in {Path(__file__).parent} were built from other sources than those in {checkout}: "
            f"{_repair(checkout)}"
        )


def _repair(checkout: Path) -> str:
    """The command that builds the modules anew, as they were installed."""
    from importlib import metadata

    try:
        editable = '"editable": true' in (metadata.distribution("hpcgnn").read_text("direct_url.json") or "")
    except metadata.PackageNotFoundError:
        editable = False
    return f"run 'pip install {'-e ' if editable else ''}.' in {checkout}"


def has_cuda() -> bool:
    """Whether there are CUDA kernels."""
    return importlib.util.find_spec("hpcgnn_native.cuda") is not None


def __getattr__(name: str):
    if name == "kernels":
        return use(choose(base.processor_levels()))
    if name == "cuda":
        globals()[name] = importlib.import_module("hpcgnn_native.cuda") if has_cuda() else None
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
