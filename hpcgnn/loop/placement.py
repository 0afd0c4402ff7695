"""Says whether plans can be made on a device: it must run the kernels and have room for the graph."""

from __future__ import annotations

from typing import Literal

import torch

from hpcgnn.native.dispatch import on_cuda

Planner = Literal["auto", "host", "device"]


def other_device(device: torch.device) -> str:
    """Say why a device cannot make plans; empty: it can."""
    if on_cuda(torch.empty(0, device=device)):
        return ""
    return f"comm.device is {device.type}, plans are made on CUDA devices"


def leaves_room(size: int, device: torch.device) -> bool:
    """Say whether so many bytes fit into half of the device's free memory."""
    return device.type != "cuda" or size <= torch.cuda.mem_get_info(device)[0] // 2
