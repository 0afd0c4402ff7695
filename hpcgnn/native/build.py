"""The extension module with the kernels."""

from hpcgnn.native_build import _native, features

__all__ = ["_native", "features"]
