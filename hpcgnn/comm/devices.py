"""GPUs of ranks: which one a rank takes, who shares it, what is free in its memory, and what to say where it is full.

G GPUs of a machine, which all its ranks see.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import torch

PCI = Path("/sys/bus/pci/devices")
WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+ ?\w+)")  # in the message of torch
GIB = 1 << 30
SMALLER = "a smaller train.batch_size (or eval.batch_size, eval.nodes_per_pass), or more GPUs"


class DeviceRoom:
    """The memory of a rank's device. ranks: how many ranks share a GPU, at most; what the rank places there is noted by
    name, to be named where the memory is full."""

    def __init__(self, device: torch.device, ranks: int = 1):
        self.device, self.ranks = device, ranks
        self._placed: dict[str, tuple[int, str]] = {}

    def free(self) -> int:
        """Count the free bytes of the GPU that are this rank's: an equal share, as the others that share it look at the
        same time; 0 on a CPU."""
        return torch.cuda.mem_get_info(self.device)[0] // self.ranks if self.device.type == "cuda" else 0

    def takes(self, size: int) -> bool:
        """Whether ``size`` bytes fit into half of this rank's free memory; on a CPU they always do."""
        return self.device.type != "cuda" or size <= self.free() // 2

    def note(self, name: str, size: int, remedy: str = "") -> None:
        """Note that the rank places ``size`` bytes on a GPU. name: of what they are; remedy: the setting that places
        them elsewhere, if one does."""
        if self.device.type == "cuda" and size:
            self._placed[name] = size, remedy

    def explain(self, error: BaseException) -> str:
        """Describe, in a line, an error of torch that a GPU's memory is full; empty: it is another error."""
        if not isinstance(error, torch.OutOfMemoryError):
            return ""
        wanted = WANTED.search(str(error))
        parts = [f"out of memory on {self._name()}: {wanted[1] if wanted else 'more memory'} wanted"]
        with contextlib.suppress(RuntimeError, AssertionError):  # a GPU may be lost, and a test has none
            free, total = torch.cuda.mem_get_info(self.device)
            parts[0] += f", {_gib(free)} of {_gib(total)} free"
        placed = sorted(self._placed.items(), key=lambda item: -item[1][0])
        if placed:
            parts.append(f"the rank places there {', '.join(f'{name} {_gib(size)}' for name, (size, _) in placed)}")
        if self.ranks > 1:
            parts.append(f"{self.ranks} ranks share the GPU")
        elsewhere = [remedy for _, (_, remedy) in placed if remedy][:1]
        return f"{'; '.join(parts)}; use {', or '.join([*elsewhere, SMALLER])}"

    def _name(self) -> str:
        with contextlib.suppress(RuntimeError, AssertionError):
            return f"{self.device} ({torch.cuda.get_device_properties(self.device).name})"
        return str(self.device)


def gpu_of(device: torch.device) -> str:
    """Return the UUID of a GPU; empty for a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def is_slice(device: torch.device) -> bool:
    """Whether a device is a slice of a GPU (MIG), which shares the GPU with other slices. NCCL refuses two slices of
    one GPU."""
    return device.type == "cuda" and bool(re.search(r"\bMIG\b", torch.cuda.get_device_properties(device).name))


def choose_gpus(cores: Sequence[set[int]], near: Sequence[set[int]]) -> list[int]:
    """Choose a GPU for each rank of a machine: the first free one near its cores, else the first free one. Where there
    are more ranks than GPUs, they take them in turn. cores: of each rank, in the order of local ranks; near [G]: cores
    near each GPU, empty where that is unknown."""
    if len(cores) > len(near):
        return [rank % len(near) for rank in range(len(cores))]
    free = list(range(len(near)))
    chosen = []
    for own in cores:
        chosen.append(min(free, key=lambda gpu, own=own: not own & near[gpu]))  # type: ignore[misc]
        free.remove(chosen[-1])
    return chosen


def cores_near(index: int) -> set[int]:
    """Read which cores are near a GPU, from Linux' files about its PCI slot; an empty set where it is unknown."""
    properties = torch.cuda.get_device_properties(index)
    numbers = [getattr(properties, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
    if None in numbers:  # an older torch
        return set()
    domain, bus, slot = numbers
    try:
        return _listed((PCI / f"{domain:04x}:{bus:02x}:{slot:02x}.0" / "local_cpulist").read_text())
    except (OSError, ValueError):
        return set()


def _listed(text: str) -> set[int]:
    """Read a list of cores such as 0-15,64-79."""
    ranges = (piece.partition("-") for piece in text.strip().split(",") if piece)
    return {core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)}


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"
