"""Where tests run the CUDA kernels: on a device, or on host threads."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch

from hpcgnn.native import dispatch

ON_DEVICE, EMULATED = "cuda", "emulated"


class Device:
    """Used by ``with device:`` around the calls that are to take the CUDA kernels; what these are compared with is
    computed before."""

    def __init__(self, name: str):
        self.name = name
        self.target = "cuda" if name == ON_DEVICE else "cpu"

    def put(self, array):
        """A copy of a tensor or an array there; None stays None."""
        if array is None:
            return None
        if isinstance(array, np.ndarray):
            array = torch.from_numpy(np.ascontiguousarray(array))
        return array.detach().to(self.target, copy=True)

    def put_all(self, *arrays) -> list:
        """Of each, as ``put``."""
        return [self.put(array) for array in arrays]

    def __enter__(self) -> Device:
        self._context = dispatch.emulation() if self.name == EMULATED else nullcontext()
        self._context.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._context.__exit__(*error)

    def assert_same(self, results, expected) -> None:
        """Results there and the CPU's: equal dtypes, equal bit for bit."""
        for mine, theirs in zip(results, expected, strict=True):
            theirs = torch.as_tensor(theirs)
            assert mine.device.type == self.target
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine.cpu(), theirs)
