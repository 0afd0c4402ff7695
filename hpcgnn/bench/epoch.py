"""Time epochs of a temporal model by stage, with bytes moved and memory.

Options are the options of `hpcgnn train`; without a data path it uses the built-in synthetic events. The first epoch
warms up; each later epoch, or round of epochs with `--train.parallel_epochs`, is reported. `--peer pyg` adds the time
of PyTorch Geometric for the same epoch, on one rank. `hpcgnn bench scale --help`: a cost model of many ranks.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from hpcgnn import config as configuration
from hpcgnn.bench import command, peer_pyg
from hpcgnn.bench.command import TimingOptions
from hpcgnn.comm.world import World
from hpcgnn.loop.session import Session
from hpcgnn.loop.trainer import Trainer
from hpcgnn.temporal.config import TemporalConfig
from hpcgnn.temporal.session import open_session

STAGES = ("negatives", "compute", "exchange", "write-back", "gradient sum", "optimizer")


def main(world: World, argv: list[str]) -> int:
    """Collective. Time epochs and report them; returns the exit code."""
    return command.run(world, argv, _parse, measure, table)


def _parse(argv: list[str], world: World) -> tuple[TemporalConfig, TimingOptions]:
    parser = configuration.parser("hpcgnn bench", __doc__)
    config, options = command.parse(parser, argv, world, ("repeat", 3, "epochs"), "pyg", peer_on_device=True)
    if options.peer == "pyg" and config.train.parallel_epochs > 1:
        raise ValueError("--peer pyg compares single epochs: leave train.parallel_epochs 1")
    if options.peer == "pyg":
        command.check_installed("--peer pyg", "torch-geometric")
    return config, options


def measure(config: TemporalConfig, folder: Path, options: TimingOptions, world: World) -> dict:
    """Collective. Measure what the command reports."""
    path = command.graph_path(config, folder, world)
    with command.training(open_session, config, path, folder, world) as (session, trainer):
        first_epochs = [number * config.train.parallel_epochs for number in range(options.count + 1)]
        epochs = [_epoch(session, trainer, epoch) for epoch in first_epochs][1:]
    result = _summary(session, epochs)
    if options.peer == "pyg":
        result["pyg_epoch_seconds"] = peer_pyg.epoch_seconds(session)
    return result


def _epoch(session: Session, trainer: Trainer, epoch: int) -> dict[str, float]:
    """Collective. Train an epoch; returns its seconds, in all and by stage, and this rank's bytes and new pages."""
    for timers in (session.timers, session.plan_timers):
        timers.clear()
    trainer.start_epoch(epoch)
    session.memory.reset()
    command.wait_for_all(session.world)
    begin, sent, pages = time.perf_counter(), session.sent_bytes(), command.page_faults()
    with session.plans("train", epoch) as plans:
        waited = 0.0
        ready = time.perf_counter()
        for plan in plans:
            waited += time.perf_counter() - ready
            trainer.train_step(plan)
            ready = time.perf_counter()
    session.memory.settle()
    command.wait_for_all(session.world)
    result = {
        "seconds": time.perf_counter() - begin, "wait for plan": waited, "bytes": session.sent_bytes() - sent,
        "pages": command.page_faults() - pages,
    }  # fmt: skip
    return (
        result
        | {stage: session.timers.seconds[stage] for stage in STAGES}
        | {"plan (background)": session.plan_timers.seconds["plan"]}
    )


def _summary(session: Session, epochs: list[dict[str, float]]) -> dict:
    """Collective. Take medians over the epochs; stages are averaged over ranks."""
    world, config = session.world.job, session.config
    names = list(epochs[0])
    own_values = np.array([[epoch[name] for name in names] for epoch in epochs], float)
    values = world.allgather_array(own_values)  # [R, E, names]
    sent = np.median(values[:, :, names.index("bytes")], axis=1).max()
    median = dict(zip(names, np.median(values, axis=1).mean(axis=0), strict=True))
    seconds = values[:, :, names.index("seconds")].max(axis=0)
    batches, at_once = session.batches["train"], config.train.parallel_epochs
    steps, events = batches.num_steps, int(batches.sizes.sum()) * at_once
    parameters = sum(p.numel() for p in session.model.parameters())
    return {
        "ranks": world.size, "threads": world.threads, "device": world.device.type, "precision": config.train.precision,
        "update_at": config.memory.update_at, "batch_size": config.train.batch_size, "events": events, "steps": steps,
        "parallel_epochs": at_once, "groups": session.world.num_groups,
        "epoch_seconds": float(np.median(seconds)), "epoch_seconds_best": float(seconds.min()),
        "samples_per_second": events / float(np.median(seconds)),
        "stages": {n: median[n] for n in (*STAGES, "wait for plan", "plan (background)")},
        "bytes_sent_per_rank_and_step": median["bytes"] / max(1, steps),
        "bytes_sent_by_busiest_rank_and_step": float(sent) / max(1, steps),
        "gradient_bytes_per_step": parameters * (8 if config.train.precision == "float64" else 4),
        "pages_per_step": median["pages"] / max(1, steps), "peak_memory_mib": command.peak_memory(world),
    }  # fmt: skip


def table(result: dict) -> str:
    """Write the result as text."""
    total, count = result["epoch_seconds"], result["parallel_epochs"]
    what = "epoch" if count == 1 else f"{count} epochs at once ({result['groups']} groups of ranks)"
    lines = [
        f"{result['ranks']} ranks x {result['threads']} threads, {result['device']}, {result['precision']}, batch "
        f"{result['batch_size']}, memory updated at {result['update_at']}",
        f"{what} of {result['events']} events in {result['steps']} steps: {total:.2f} s "
        f"(best {result['epoch_seconds_best']:.2f} s), "
        f"{result['samples_per_second']:.0f} events/s",
    ]
    lines += [
        f"  {name:18s} {seconds:7.2f} s  {100 * seconds / total:5.1f} %" for name, seconds in result["stages"].items()
    ]
    peaks = result["peak_memory_mib"]
    lines.append(
        f"sent per rank and step: {result['bytes_sent_per_rank_and_step'] / 1024:.1f} KiB in exchanges "
        f"({result['bytes_sent_by_busiest_rank_and_step'] / 1024:.1f} KiB by the busiest), "
        f"{result['gradient_bytes_per_step'] / 1024:.1f} KiB of gradients to sum; "
        f"peak memory per rank {min(peaks):.0f} to {max(peaks):.0f} MiB, "
        f"{result['pages_per_step']:.1f} new pages a rank and step"
    )
    if "pyg_epoch_seconds" in result:
        seconds = result["pyg_epoch_seconds"]
        lines.append(f"PyG, same events, batch and threads: {seconds:.2f} s, {seconds / total:.2f} times as long")
    return "\n".join(lines)
