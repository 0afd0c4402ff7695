"""Time epochs of training on snapshots by stage, with the bytes they move.

Options are the options of `hpcgnn train --kind snapshots`; without a data path it uses the built-in synthetic graph.
The first epoch warms up. Epochs are timed twice: with exchanges during computation, and with exchanges that are
waited for at once. The difference is the hidden time. `--peer pygt` adds the time of PyTorch Geometric Temporal for
such epochs (T-GCN and EvolveGCN-O on one rank), its cells in a plain loop.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcgnn import config as configuration
from hpcgnn.bench import command, peer_pygt
from hpcgnn.bench.command import TimingOptions
from hpcgnn.comm.halo import HALO_WAIT
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import World
from hpcgnn.loop.session import Session
from hpcgnn.loop.trainer import Trainer
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.snapshots.graph import SnapshotPartition
from hpcgnn.snapshots.session import open_session

STAGES = ("compute", HALO_WAIT, "gradient sum", "optimizer")
# Kinds whose hidden rows travel once for every convolution but the first, forward and backward.
STACKED = ("gcn", "tgcn", "evolvegcn_o")


def main(world: World, argv: list[str]) -> int:
    """Collective. Time epochs and report them; returns the exit code."""
    return command.run(world, argv, _parse, measure, table)


def _parse(argv: list[str], world: World) -> tuple[SnapshotConfig, TimingOptions]:
    parser = configuration.parser("hpcgnn bench snapshots", __doc__, SnapshotConfig.KIND)
    config, options = command.parse(parser, argv, world, ("epochs", 3, "epochs"), "pygt")
    if config.comm.time_groups > 1:
        raise ValueError("comm.time_groups: the benchmark has all ranks split the nodes; leave it 1")
    if options.peer == "pygt":
        peer_pygt.check(config)
    return config, options


def measure(config: SnapshotConfig, folder: Path, options: TimingOptions, world: World) -> dict:
    """Collective. Measure what the command reports."""
    path = command.graph_path(config, folder, world)
    result = _epochs(config, path, folder, options.count, world)
    if world.size > 1:
        blocking = replace(config, comm=replace(config.comm, overlap=False))
        at_once = _epochs(blocking, path, folder, options.count, world)
        result["halo_wait_without_overlap"] = at_once["stages"][HALO_WAIT]
        result["halo_wait_least_without_overlap"] = at_once["halo_wait_least"]
        result["epoch_seconds_without_overlap"] = at_once["epoch_seconds"]
    if options.peer == "pygt":
        with Watchdog(world, 0) as watchdog:
            result["pygt_epoch_seconds"] = peer_pygt.epoch_seconds(
                open_session(config, path, world, watchdog), options.count
            )
    return result


def _epochs(config: SnapshotConfig, path: str, folder: Path, epochs: int, world: World) -> dict:
    """Collective. Time epochs and take medians over them; stages are averaged over ranks, bytes summed over them."""
    names = ("epoch", "plan", *STAGES)
    with command.training(open_session, config, path, folder, world) as (session, trainer):
        own_values = [_epoch(session, trainer, epoch) for epoch in range(epochs + 1)]
    table = world.allgather_array(np.array(own_values[1:]))  # [R, epochs, names + bytes]
    seconds, sent = table[:, :, :-1], table[:, :, -1].sum(axis=0)
    slowest = seconds[:, :, 0].max(axis=0)
    return {
        "ranks": world.size, "threads": world.threads, "device": world.device.type, "model": config.model.kind,
        "precision": config.train.precision, "snapshots": len(session.loaders["train"].snapshots),
        "epoch_seconds": float(np.median(slowest)), "epoch_seconds_best": float(slowest.min()),
        "stages": dict(zip(names, np.median(seconds, axis=1).mean(axis=0).tolist(), strict=True)),
        "halo_wait_least": float(np.median(seconds, axis=1)[:, names.index(HALO_WAIT)].min()),
        "row_bytes_sent": float(np.median(sent)), "row_bytes_expected": _expected(session, world),
        "peak_memory_mib": command.peak_memory(world),
    }  # fmt: skip


def _epoch(session: Session, trainer: Trainer, epoch: int) -> list[float]:
    """Collective. Train an epoch; returns its seconds, the seconds of its stages, and the bytes of rows that this rank
    sent."""
    session.timers.clear()
    session.plan_timers.clear()
    trainer.start_epoch(epoch)
    session.memory.reset()
    command.wait_for_all(session.world)
    sent, begin = session.graph.channel.sent_bytes, time.perf_counter()
    with session.plans("train", epoch) as plans:
        for plan in plans:
            trainer.train_step(plan)
    command.wait_for_all(session.world)
    seconds = [time.perf_counter() - begin, session.plan_timers.seconds["plan"]]
    seconds += [session.timers.seconds[stage] for stage in STAGES]
    return [*seconds, session.graph.channel.sent_bytes - sent]


def _expected(session: Session, world: World) -> float | None:
    """Collective. Compute from the partition alone how many bytes of hidden rows an epoch should send; None where that
    is not known."""
    config = session.config
    is_stacked = config.model.kind in STACKED and config.task.kind == "regression" and session.memory.learned is None
    if not is_stacked or config.sampling.window_size or config.sampling.by_part:
        return None
    halo = sum(halo_rows(session.partition, number) for number in session.loaders["train"].snapshots)
    width = config.model.hidden * session.dtype.itemsize
    return float(world.total(halo) * width * (config.model.layers - 1) * 2)


def halo_rows(partition: SnapshotPartition, number: int) -> int:
    """Count the halo of this rank in a snapshot: nodes of other ranks with edges to this rank's nodes."""
    src = np.unique(partition.edges_at(number).src)
    owner, _ = partition.book.locate(src)
    return int((owner != partition.rank).sum())


def table(result: dict) -> str:
    """Write the result as text."""
    total, peaks, expected = result["epoch_seconds"], result["peak_memory_mib"], result["row_bytes_expected"]
    lines = [
        f"{result['ranks']} ranks x {result['threads']} threads, {result['device']}, {result['model']}, "
        f"{result['precision']}, {result['snapshots']} snapshots an epoch",
        f"epoch: {total:.3f} s (best {result['epoch_seconds_best']:.3f} s)",
    ]
    stages = {name: seconds for name, seconds in result["stages"].items() if name != "epoch"}
    lines += [f"  {name:14s} {seconds:7.3f} s  {100 * seconds / total:5.1f} %" for name, seconds in stages.items()]
    comparison = "" if expected is None else f", expected {expected / 1024:.1f} KiB"
    lines.append(
        f"rows sent per epoch by all ranks: {result['row_bytes_sent'] / 1024:.1f} KiB{comparison}; peak memory per "
        f"rank {min(peaks):.0f} to {max(peaks):.0f} MiB"
    )
    if "halo_wait_without_overlap" in result:
        lines.append(
            f"exchanges waited for at once: epoch {result['epoch_seconds_without_overlap']:.3f} s, waiting "
            f"{result['halo_wait_without_overlap']:.3f} s"
        )
        lines.append(
            f"the rank that waits least, for rows alone, not for a rank that computes longer: "
            f"{result['halo_wait_least']:.4f} s, at once {result['halo_wait_least_without_overlap']:.4f} s"
        )
    if "pygt_epoch_seconds" in result:
        peer = result["pygt_epoch_seconds"]
        lines.append(
            f"PyTorch Geometric Temporal, such epochs with as many threads: {peer:.2f} s, {peer / total:.1f} times as "
            "long"
        )
    return "\n".join(lines)
