"""Measures what a machine gives: its network by exchanges, its flops by a product, overheads by real steps."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from hpcgnn.bench.cost import step_flops
from hpcgnn.bench.counts import RowCounts, SampledStep, sample_steps
from hpcgnn.bench.laws import Demand, counted_demand
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.logs import RunLog
from hpcgnn.loop.session import Session
from hpcgnn.loop.trainer import Trainer
from hpcgnn.temporal.config import RunConfig
from hpcgnn.temporal.session import open_session

# Where one rank can measure no network: a common 100 Gb/s fabric.
ASSUMED = {"latency": 2e-6, "bandwidth": 12.5e9}
SMALL_BYTES, LARGE_BYTES, COPIED_BYTES = 8, 1 << 22, 1 << 26
REPEATS = 20
PRODUCT_SIZE = 512
STEPS, SKIPPED, SHRINK = 30, 5, 8  # real steps to time, not counting the first ones, with whole and with small batches


def open_alone(config: RunConfig, path: str, threads: int) -> Session:
    """Open a session of this rank only, on the CPU, without plans ahead."""
    world = World.alone(CommConfig(device="cpu", threads=threads))
    config = replace(config, sampling=replace(config.sampling, prefetch=0))
    return open_session(config, path, world, Watchdog(world, 0))


def measure_network(world: World) -> dict[str, float]:
    """Collective, on two ranks or more. Measure latency and bandwidth of a rank in exchanges of all with all."""
    peers = world.size - 1
    small, large = (_exchange_seconds(world, nbytes) for nbytes in (SMALL_BYTES, LARGE_BYTES))
    latency = small / peers
    return {"latency": latency, "bandwidth": peers * LARGE_BYTES / max(large - small, 1e-9)}


def _exchange_seconds(world: World, nbytes: int) -> float:
    channel, counts = world.channel(), np.full(world.size, nbytes, np.int64)
    rows, seconds = torch.zeros((world.size * nbytes, 1), dtype=torch.uint8), []
    for _ in range(REPEATS):
        world.barrier()
        begin = time.perf_counter()
        channel.rows(rows, counts, counts)
        seconds.append(time.perf_counter() - begin)
    channel.close()
    return float(world.reduce_array(np.array([np.median(seconds)]), "max")[0])


def measure_flops() -> float:
    """Measure the flops per second of this rank's threads in a float32 product."""
    a = torch.rand(PRODUCT_SIZE, PRODUCT_SIZE)
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - begin)
    return 2 * PRODUCT_SIZE**3 / float(np.median(seconds))


def measure_copy() -> float:
    """Measure the bytes per second that a thread copies from memory to memory."""
    rows, out, seconds = np.ones(COPIED_BYTES, np.uint8), np.empty(COPIED_BYTES, np.uint8), []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        out[:] = rows
        seconds.append(time.perf_counter() - begin)
    return COPIED_BYTES / float(np.median(seconds))


def calibrate(config: RunConfig, path: str, threads: int, flops: float) -> dict[str, float]:
    """Measure efficiency, overhead and planning cost with real steps of this rank, of whole and of small batches."""
    whole = config.train.batch_size
    sizes = [whole, max(1, whole // SHRINK)]
    work: list[float] = []
    seconds: list[float] = []
    roots: list[float] = []
    planning: list[float] = []
    for size in sizes:
        session = open_alone(replace(config, train=replace(config.train, batch_size=size)), path, threads)
        timed = _timed_steps(session, threads)
        nodes = session.partition.book.num_nodes
        demands = [_demand_of(step, nodes) for step in sample_steps(session, np.arange(len(timed)))][SKIPPED:]
        work.append(float(np.mean([step_flops(config, session.partition.edge_width, demand) for demand in demands])))
        roots.append(float(np.mean([demand.roots for demand in demands])))
        plan, step = np.median(timed[SKIPPED:], axis=0)
        planning.append(plan)
        seconds.append(step)
    overhead, per_flop = _line(work, seconds)
    plan_overhead, plan_root = _line(roots, planning)
    return {
        "efficiency": 1 / (per_flop * flops), "overhead": overhead, "plan_root": plan_root,
        "plan_overhead": plan_overhead,
    }  # fmt: skip


def _timed_steps(session: Session, threads: int) -> np.ndarray:
    """Time the first training steps: seconds [steps, 2] of planning and of execution."""
    torch.set_num_threads(threads)
    timed, ready = [], time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as folder:
        trainer = Trainer(session, Path(folder), RunLog(Path(folder) / "log", 0), StopRequest())
        with session.plans("train", 0) as plans:
            for plan in plans:
                planned = time.perf_counter()
                trainer.train_step(plan)
                done = time.perf_counter()
                timed.append((planned - ready, done - planned))
                ready = done
                if len(timed) == STEPS + SKIPPED:
                    break
        trainer.close()
    if len(timed) <= SKIPPED:
        raise ValueError(f"{len(timed)} training steps are too few to time: give --flops, --efficiency and --overhead")
    return np.array(timed)


def _demand_of(step: SampledStep, num_nodes: int) -> Demand:
    """Return what a step needs of one rank, which owns all nodes."""
    counts, nobody = RowCounts(1), np.zeros(num_nodes, bool)
    counts.add(step, np.zeros(step.num_events, np.int64), lambda ids: np.zeros(len(ids), np.int64), nobody, True)
    return counted_demand(counts)


def _line(x: list[float], y: list[float]) -> tuple[float, float]:
    """Compute intercept and slope through two points (large, small), neither negative."""
    slope = (y[0] - y[1]) / (x[0] - x[1]) if x[0] > x[1] and y[0] > y[1] else y[0] / max(x[0], 1e-9)
    return max(0.0, y[0] - slope * x[0]), slope
