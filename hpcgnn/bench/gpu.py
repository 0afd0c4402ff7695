"""Time every kernel of a device against its bound, and exchanges between devices.

A kernel is bound by the bytes that it must move (at the rate of a large copy) or by its flops (at the rate of a large
float32 product). Its time is the median of several calls, each with the caches full of other data. With several ranks,
an all-to-all exchange between devices is timed directly (where MPI takes device memory) and staged through pinned
memory. With `--device emulated` everything runs on host threads, to try the command without a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Final, Literal, get_args

import numpy as np
import torch

from hpcgnn.bench import command
from hpcgnn.bench.kernels import Case, Problems, ProblemSizes
from hpcgnn.comm.together import together
from hpcgnn.comm.world import CommConfig, World, mpi_is_gpu_aware
from hpcgnn.loop import launch
from hpcgnn.native import dispatch

EMULATED: Final = "emulated"
Place = Literal["cuda", "emulated"]
Direct = Literal["auto", "on", "off"]
COPY_BYTES, PRODUCT_SIZE, FLUSH_BYTES = 1 << 30, 8192, 256 << 20


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """Options of the command, in addition to the sizes of the problems. exchange: bytes from each rank to each other
    rank; device: where kernels and exchanges run; gpu_direct: whether exchanges are timed directly; "auto": where MPI
    reports that it takes device memory."""

    repeat: int = 10
    exchange: int = 64 << 20
    device: Place = "cuda"
    gpu_direct: Direct = "auto"
    out: str = ""


# Help of the fields of ProblemSizes.
SIZES = {
    "num_nodes": "number of nodes", "entries": "number of entries of the nodes' histories",
    "roots": "number of roots", "slots": "number of neighbors of a root", "unique": "number of unique nodes of a step",
    "width": "width of rows", "heads": "number of attention heads",
}  # fmt: skip


class Clock:
    """Times calls on a device; ``flush`` bytes are written before each, so that nothing is left in the caches."""

    def __init__(self, device: torch.device, repeat: int, flush: int):
        self._device, self._repeat = device, repeat
        self._flush = torch.empty(flush, dtype=torch.uint8, device=device)

    def __call__(self, call: Callable[[], object]) -> float:
        """Return the median seconds of a call; the first call does not count."""
        call()
        return float(np.median([self._once(call) for _ in range(self._repeat)]))

    def _once(self, call: Callable[[], object]) -> float:
        self._flush.zero_()
        if self._device.type != "cuda":
            now = time.perf_counter()
            call()
            return time.perf_counter() - now
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


def peaks(clock: Clock, device: torch.device, copy: int, product: int) -> dict[str, float]:
    """Measure the bandwidth [B/s] of a copy within the device and the flops [1/s] of a product in float32."""
    source = torch.zeros(copy, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds = clock(lambda: target.copy_(source))
    a = torch.rand(product, product, device=device)
    return {"bandwidth": 2 * copy / seconds, "flops": 2 * product**3 / clock(lambda: a @ a)}


def time_case(case: Case, clock: Clock, peak: dict[str, float]) -> dict[str, float]:
    """Return the seconds of a kernel and of its bound, and the share of the bound that it reaches."""
    bound = max(case.bytes / peak["bandwidth"], case.flops / peak["flops"])
    seconds = clock(case.run)
    return {"seconds": seconds, "bytes": case.bytes, "flops": case.flops, "bound": bound, "share": bound / seconds}


def measure(
    sizes: ProblemSizes, device: torch.device, repeat: int, copy: int = COPY_BYTES, product: int = PRODUCT_SIZE,
    flush: int = FLUSH_BYTES,
) -> dict:  # fmt: skip
    """Measure the peaks of the device and every kernel, by name."""
    clock = Clock(device, repeat, flush)
    peak = peaks(clock, device, copy, product)
    cases = Problems(sizes, device).cases()
    return {"peak": peak, "sizes": asdict(sizes), "kernels": {c.name: time_case(c, clock, peak) for c in cases}}


def time_exchange(world: World, size: int, repeat: int) -> float:
    """Collective. Return the rate [B/s] at which a rank sends, in exchanges of ``size`` bytes with every other rank,
    from and to the memory of its device."""
    channel, seconds, counts = world.channel(), [], np.full(world.size, size, np.int64)
    rows = torch.zeros((world.size * size, 1), dtype=torch.uint8, device=world.device)
    for _ in range(repeat):
        world.barrier()
        begin = time.perf_counter()
        channel.rows(rows, counts, counts)
        command.wait_for(world.device)
        seconds.append(time.perf_counter() - begin)
    channel.close()
    slowest = world.reduce_array(np.array([np.median(seconds)]), "max")[0]
    return (world.size - 1) * size / float(slowest)


def time_ways(options: GpuOptions) -> dict[str, float]:
    """Collective. Time exchanges directly, where MPI takes device memory, and staged; where kernels are emulated,
    between the ranks' own memory."""
    configs = {
        "direct": CommConfig(device="cuda", gpu_direct="on"), "staged": CommConfig(device="cuda", gpu_direct="off")
    }  # fmt: skip
    if options.gpu_direct == "off" or (options.gpu_direct == "auto" and not mpi_is_gpu_aware()):
        del configs["direct"]
    if options.device == EMULATED:
        configs = {"host": CommConfig(device="cpu")}
    worlds = {name: World(config) for name, config in configs.items()}
    return {name: time_exchange(world, options.exchange, options.repeat) for name, world in worlds.items()}


def main(world: World, argv: list[str]) -> int:
    """Collective. Time the kernels on rank 0, then exchanges between all ranks; returns the exit code."""
    sizes, options = launch.on_first_rank(world, "arguments", lambda: _parse(argv))
    with together(world, "find the device"):
        _check_device(options.device)
    result: dict = {"ranks": world.size}
    device = World(CommConfig(device="cpu" if options.device == EMULATED else "cuda")).device
    with together(world, "time the kernels"):
        if world.rank == 0:
            result |= _time_kernels(sizes, device, options.repeat)
    if world.size > 1:
        result["exchanges"] = time_ways(options)
    if world.rank == 0:
        command.report(result, table, options.out)
    world.barrier()
    return launch.EXIT_DONE


def _check_device(place: Place) -> None:
    """Raise ValueError where there is no device, or no build that emulates one."""
    if place == EMULATED and importlib.util.find_spec("hpcgnn_native.emulated") is None:
        raise ValueError("--device emulated needs a build with HPCGNN_EMULATE_CUDA, which tests/setup.sh makes")
    if place == "cuda" and not torch.cuda.is_available():
        raise ValueError("bench gpu needs a CUDA device, torch sees none: run it where there is a GPU")


def _time_kernels(sizes: ProblemSizes, device: torch.device, repeat: int) -> dict:
    """Measure a device and its kernels; on the CPU those that emulate them, whose peaks are small problems'."""
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device)} | measure(sizes, device, repeat)
    with dispatch.emulation():
        return {"device": "host threads"} | measure(sizes, device, repeat, copy=1 << 20, product=64, flush=1 << 10)


def _parse(argv: list[str]) -> tuple[ProblemSizes, GpuOptions]:
    parser = argparse.ArgumentParser("hpcgnn bench gpu", description=__doc__)
    default = GpuOptions()
    for name, value in asdict(ProblemSizes()).items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"{SIZES[name]} (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=default.repeat, help="number of timings (default: %(default)s)")
    parser.add_argument(
        "--exchange",
        type=int,
        default=default.exchange,
        help="bytes that each rank sends to each other (default: %(default)s)",
    )
    parser.add_argument(
        "--device",
        choices=get_args(Place),
        default=default.device,
        help="device that runs the kernels (default: %(default)s)",
    )
    parser.add_argument(
        "--gpu_direct", choices=get_args(Direct), default=default.gpu_direct,
        help='pass device memory directly to MPI; "on": even if the library reports no support (default: %(default)s)',
    )  # fmt: skip
    parser.add_argument("--out", default=default.out, help="JSON file to write the report to (default: none)")
    values = vars(parser.parse_args(argv))
    for name, value in values.items():
        if isinstance(value, int) and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    options = {field.name: values.pop(field.name) for field in fields(GpuOptions)}
    return ProblemSizes(**values), GpuOptions(**options)


def table(result: dict) -> str:
    """Write the result as text."""
    peak = result["peak"]
    lines = [
        f"{result['device']}: copy {peak['bandwidth'] / 1e9:,.0f} GB/s, product {peak['flops'] / 1e12:,.1f} Tflop/s",
        f"{'kernel':<20} {'time':>10} {'moved':>10} {'rate':>10} {'of bound':>9}",
    ]
    for name, case in result["kernels"].items():
        rate = case["bytes"] / case["seconds"] / 1e9
        lines.append(
            f"{name:<20} {1e6 * case['seconds']:7,.0f} us {case['bytes'] / (1 << 20):6,.0f} MiB {rate:5,.0f} GB/s "
            f"{case['share']:8.0%}"
        )
    for name, rate in result.get("exchanges", {}).items():
        lines.append(f"exchange between {result['ranks']} ranks, {name}: {rate / 1e9:,.1f} GB/s a rank")
    return "\n".join(lines)
