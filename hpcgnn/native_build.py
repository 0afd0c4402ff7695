"""The extension module with the kernels, loaded without torch."""

from __future__ import annotations

try:
    from hpcgnn import _native
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError(
        "hpcgnn's native kernels are not built: run 'pip install .' "
        "(in a checkout: 'pip install --no-build-isolation -e .')"
    ) from error


def features() -> dict:
    """What the build contains: openmp, simd, cuda."""
    return dict(_native.features())
