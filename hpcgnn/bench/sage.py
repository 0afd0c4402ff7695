"""Time training steps on a static graph by stage, with the bytes they move.

Options are the options of `hpcgnn train --kind static`; without a data path it uses the built-in synthetic graph. The
first step warms up. The default is GraphSAGE with 3 layers, hidden width 256 and 1,024 seeds; any model works. Steps
are planned one by one, so that stages are apart. With `--sampling.prefetch` above 0 they are planned ahead, as in
training; the stage "plan" is then the time that a step waits. `--peer pyg` adds the time of PyTorch Geometric, on one
rank: of steps of GraphSAGE, or, with `--model.kind rgat`, of forward and backward passes on the same batches.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn import config as configuration
from hpcgnn.bench import command, peer_pyg_sage
from hpcgnn.bench.command import TimingOptions
from hpcgnn.bench.peers import pyg_rgat
from hpcgnn.comm.world import World
from hpcgnn.graph.columns import stored_dtype
from hpcgnn.loop.session import Session
from hpcgnn.loop.trainer import Trainer
from hpcgnn.static.config import StaticConfig
from hpcgnn.static.features import FEATURE
from hpcgnn.static.plan import GraphPlan
from hpcgnn.static.session import open_session

STAGES = ("exchange", "compute", "gradient sum", "optimizer")
PEERS = SAGE, RGAT = "sage", "rgat"  # values of model.kind that PyG is timed with
DEFAULTS = ["--model.hidden=256", "--train.batch_size=1024", "--train.lr=0.001"]


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A timed step of this rank. seconds: by stage; edges, nodes: numbers of sampled ones; sent: bytes of rows that
    this rank sent; asked: bytes of rows that it requests from others. pages: new pages of the process; between: bytes
    that it sent to other machines, without gradients; wire: bytes that the network of this rank's machine has sent.
    plan_cpu: seconds of CPU time that planning took, of all threads."""

    seconds: dict[str, float]
    edges: int
    nodes: int
    sent: int
    asked: int
    pages: int
    between: int
    wire: int
    plan_cpu: float


def main(world: World, argv: list[str]) -> int:
    """Collective. Time steps and report them; returns the exit code."""
    return command.run(world, argv, _parse, measure, table)


def _parse(argv: list[str], world: World) -> tuple[StaticConfig, TimingOptions]:
    parser = configuration.parser("hpcgnn bench sage", __doc__, StaticConfig.KIND)
    counted = ("steps", 10, "steps")
    config, options = command.parse(parser, [*DEFAULTS, *argv], world, counted, "pyg", peer_on_device=True)
    if config.comm.sampling_servers:
        raise ValueError("comm.sampling_servers: the benchmark draws and trains on the same ranks; leave it 0")
    if config.train.full_graph:
        raise ValueError("train.full_graph: the benchmark times steps of mini-batches; leave it out")
    if options.peer == "pyg" and config.model.kind not in PEERS:
        raise ValueError(f"--peer pyg compares model.kind {' or '.join(PEERS)}, not {config.model.kind}")
    if options.peer == "pyg":
        (pyg_rgat if config.model.kind == RGAT else peer_pyg_sage).check_installed()
    return config, options


def measure(config: StaticConfig, folder: Path, options: TimingOptions, world: World) -> dict:
    """Collective. Measure what the command reports."""
    path = command.graph_path(config, folder, world)
    config.sampling.prefetch = max(0, config.sampling.prefetch)
    if not config.sampling.prefetch:
        config.sampling.in_flight = 1
    before = command.proportional_memory(world)
    with command.training(open_session, config, path, folder, world) as (session, trainer):
        steps = list(itertools.islice(_steps(session, trainer), options.count + 1))[1:]
        held = command.proportional_memory(world) - before
    result = _summary(session, steps) | {"memory_of_all_ranks_mib": held}
    if options.peer == "pyg" and config.model.kind == RGAT:
        result |= pyg_rgat.compare(session, options.count)
    elif options.peer == "pyg":
        result["pyg_step_seconds"] = peer_pyg_sage.step_seconds(session)
    return result


def _steps(session: Session, trainer: Trainer) -> Iterator[TimedStep]:
    """Collective. Train and time step after step, epoch after epoch."""
    row_bytes = [stored_dtype(t).itemsize * t.shape[1] if (t := rows.tables.get(FEATURE)) is not None else 0
                 for rows in session.graph.rows]  # fmt: skip
    world = session.world
    machine = world.machine()
    is_far = ~np.isin(np.arange(world.size), machine.allgather(world.rank))
    machine.Free()
    for epoch in itertools.count():
        trainer.start_epoch(epoch)
        with _plans(session, epoch) as plans:
            for _ in range(session.batches["train"].num_steps):
                session.timers.clear()
                command.wait_for_all(world)
                sent, between, wire = session.graph.channel.sent_bytes, _sent_to(session)[is_far].sum(), _wire_bytes()
                begin, pages, cpu = time.perf_counter(), command.page_faults(), time.process_time()
                plan = next(plans)
                planned, cpu = time.perf_counter(), time.process_time() - cpu
                trainer.train_step(plan)
                command.wait_for_all(world)
                seconds = {"step": time.perf_counter() - begin, "plan": planned - begin}
                yield TimedStep(
                    seconds | {stage: session.timers.seconds[stage] for stage in STAGES},
                    sum(len(adjacency.source) for block in plan.batch.blocks for adjacency in block.relations),
                    sum(plan.batch.blocks[0].num_src), session.graph.channel.sent_bytes - sent,
                    sum(fetch.num_asked * width for fetch, width in zip(plan.fetches, row_bytes, strict=True)),
                    command.page_faults() - pages, _sent_to(session)[is_far].sum() - between, _wire_bytes() - wire,
                    cpu,
                )  # fmt: skip


@contextlib.contextmanager
def _plans(session: Session, epoch: int) -> Iterator[Iterator[GraphPlan]]:
    """Collective. Yield the plans of an epoch: made ahead, or each when its turn comes."""
    if session.config.sampling.prefetch:
        with session.plans("train", epoch) as plans:
            yield iter(plans)
    else:
        batches, sampler = session.batches["train"], session.loaders["train"].samplers[0]
        yield (sampler.plan(batches, epoch, step) for step in range(batches.num_steps))


def _sent_to(session: Session) -> np.ndarray:
    """Count bytes sent so far by destination, [R]."""
    return np.sum([channel.sent() for channel in session.channels()], axis=0)


def _wire_bytes() -> int:
    """Count the bytes that this machine's networks have sent so far, but for that to itself."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split(":")[1].split()[8]) for line in lines if line.split(":")[0].strip() != "lo")


def _summary(session: Session, steps: list[TimedStep]) -> dict:
    """Collective. Take medians over the steps; stages are averaged over ranks, counts summed over them."""
    world, config = session.world, session.config
    names = list(steps[0].seconds)
    seconds = world.allgather_array(np.array([[s.seconds[name] for name in names] for s in steps]))  # [R, steps, names]
    columns = [[s.edges, s.nodes, s.sent, s.asked, s.pages, s.between, s.wire] for s in steps]
    counts = world.allgather_array(np.array(columns)).sum(axis=0)
    edges, nodes, sent, asked, pages, between, wire = np.median(counts, axis=0).tolist()
    slowest = seconds[:, :, names.index("step")].max(axis=0)
    return {
        "ranks": world.size, "threads": world.threads, "device": world.device.type, "model": config.model.kind,
        "precision": config.train.precision, "seeds": config.train.batch_size, "steps": len(steps),
        "step_seconds": float(np.median(slowest)), "step_seconds_best": float(slowest.min()),
        "stages": dict(zip(names, np.median(seconds, axis=1).mean(axis=0).tolist(), strict=True)),
        "sampled_edges": edges, "input_nodes": nodes, "row_bytes_sent": sent, "row_bytes_expected": asked,
        "bytes_between_machines": between, "wire_bytes": wire / world.size, "plans_ahead": config.sampling.prefetch,
        "hit_rate": session.graph.tables.hit_rate(), "predicted_hit_rate": session.graph.tables.predicted_hits,
        "pages_per_step": pages / world.size,
        "plan_cpu_seconds": float(np.mean(world.allgather_array(np.array([s.plan_cpu for s in steps])))),
        "peak_memory_mib": command.peak_memory(world),
    }  # fmt: skip


def table(result: dict) -> str:
    """Write the result as text."""
    total, peaks = result["step_seconds"], result["peak_memory_mib"]
    lines = [
        f"{result['ranks']} ranks x {result['threads']} threads, {result['device']}, {result['model']}, "
        f"{result['precision']}, {result['seeds']} seeds a step",
        f"step: {total:.3f} s (best {result['step_seconds_best']:.3f} s) over {result['steps']} steps; "
        f"{result['sampled_edges']:.0f} edges sampled, {result['input_nodes']:.0f} input rows",
    ]
    stages = {name: seconds for name, seconds in result["stages"].items() if name != "step"}
    lines += [f"  {name:14s} {seconds:7.3f} s  {100 * seconds / total:5.1f} %" for name, seconds in stages.items()]
    if not result["plans_ahead"]:
        lines.append(f"planning, CPU time of a rank: {1000 * result['plan_cpu_seconds']:.2f} ms a step")
    rows = f"expected {result['row_bytes_expected'] / 1024:.1f} KiB"
    if not result["plans_ahead"]:
        rows = f"{result['row_bytes_sent'] / 1024:.1f} KiB, {rows}"
    lines.append(
        f"rows sent per step by all ranks: {rows}; found among copies {result['hit_rate']:.3f}, predicted "
        f"{result['predicted_hit_rate']:.3f}; peak memory per rank {min(peaks):.0f} to {max(peaks):.0f} MiB, "
        f"{result['pages_per_step']:.0f} new pages a rank and step; all ranks hold "
        f"{result['memory_of_all_ranks_mib']:.0f} MiB more than before they opened the run"
    )
    if "pyg_step_seconds" in result:
        seconds = result["pyg_step_seconds"]
        lines.append(f"PyG, such steps with as many threads: {seconds:.2f} s, {seconds / total:.1f} times as long")
    if "pyg_compute_seconds" in result:
        for name in ("compute_cpu_seconds", "compute_seconds"):
            ours, theirs = result[name], result[f"pyg_{name}"]
            what = "CPU time" if "cpu" in name else "seconds"
            lines.append(
                f"forward and backward, {what}: {ours:.2f}, PyG {theirs:.2f}, {theirs / ours:.1f} times as much"
            )
    return "\n".join(lines)
