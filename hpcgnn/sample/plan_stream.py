"""Plans that are made on a device, or brought to it: on a stream of their own, beside the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from hpcgnn.sample.plan_tensors import tensors_of

Plan = TypeVar("Plan")


class PlanStream:
    """A stream of a CUDA device; on other devices work is done as it comes."""

    def __init__(self, device: torch.device):
        self._device, self._stream = device, None
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # what plans are made from is there
            self._stream = torch.cuda.Stream(device)

    def run(self, make: Callable[[], Plan]) -> Plan:
        """What ``make`` gives, complete; its memory is kept for the work of the default stream."""
        if self._stream is None:
            return make()
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            plan = make()
            self._stream.synchronize()
        for tensor in tensors_of(plan):
            tensor.record_stream(torch.cuda.default_stream(self._device))
        return plan
