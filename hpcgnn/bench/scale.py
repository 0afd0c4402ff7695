"""``python -m hpcgnn.bench scale``: predicts the seconds of a training step on 1 to 1,024 ranks by a cost model.

What a step needs of R ranks is found from a partition set by one process, for R up to the number of parts, and
extrapolated by fitted laws. On temporal graphs its rows are counted; of other kinds, R ranks train as threads that
take turns, and what each computes is timed; or, of a graph whose sizes are given, one of R ranks, for any R. What the
machine gives is measured at the start (its network on two ranks or more), or given. Options of hpcgnn.train
(``--kind``, ``--data.path``, ...) say what is trained."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcgnn import config as configuration
from hpcgnn.bench import command, plot
from hpcgnn.bench import machine as machines
from hpcgnn.bench.cost import ASSUMPTIONS, Machine, Setting, predict
from hpcgnn.bench.counts import count
from hpcgnn.bench.exchanges import check_modelled, exchanges, gradient_bytes, sent_bytes
from hpcgnn.bench.laws import Laws, counted_demand
from hpcgnn.bench.price import Links
from hpcgnn.bench.simulate import GivenGraph, check_simulated, simulate
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.kinds import make_built_in
from hpcgnn.loop import launch
from hpcgnn.loop.session import Session
from hpcgnn.temporal.config import RunConfig

SIMULATED_STEPS = 5
SMALL = 8  # every number of ranks up to here, then powers of two
GIVEN = {
    "latency": "seconds of a message", "bandwidth": "bytes per second of a rank's link",
    "copy": "bytes per second between ranks of a node", "flops": "flops per second of a rank's products",
    "efficiency": "share of the flops that a step attains",
    "overhead": "seconds of a step that more ranks do not shorten", "plan_root": "seconds of planning per root",
    "plan_overhead": "seconds of planning per step",
}  # fmt: skip
CALIBRATED = ("efficiency", "overhead", "plan_root", "plan_overhead")


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """What the command takes besides the configuration. parameters: of the machine, by name; others are measured;
    speed: how many times as fast as here ranks compute; per_rank: the batch is that of a rank; graph: sizes of one to
    make up."""

    out: str
    plot: str
    max_ranks: int
    steps: int
    overlap: bool
    parameters: dict[str, float]
    speed: float = 1.0
    per_rank: bool = False
    graph: GivenGraph = field(default_factory=GivenGraph)


def main(world: World, argv: list[str]) -> int:
    """Collective. Count and predict on rank 0; the others take part in measuring the network. Returns the exit code."""
    config, options = launch.on_first_rank(world, "configuration", lambda: _parse(argv))
    world = World(config.comm)
    values, sources = _network(world, options.parameters)
    write = _predict_and_write if config.KIND == RunConfig.KIND else _simulate_and_write
    with tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as folder, together(world, "predict"):
        if world.rank == 0:
            write(config, options, Path(folder), world.threads, values, sources)
    return launch.EXIT_DONE


def _parse(argv: list[str]) -> tuple[RunConfig, ScaleOptions]:
    parser = configuration.parser("python -m hpcgnn.bench scale", __doc__, configuration.kind_of(argv))
    parser.add_argument("--out", type=str, default="", help="JSON file to write")
    parser.add_argument("--plot", type=str, default="", help="picture to write (.png, .pdf, .svg)")
    parser.add_argument("--max_ranks", type=int, default=1024, help="largest number of ranks to predict")
    parser.add_argument(
        "--steps", type=int, default=0,
        help=f"training steps to count, evenly spread; 0: all; of kinds without time, 0: {SIMULATED_STEPS}",
    )  # fmt: skip
    parser.add_argument("--nodes", type=int, default=0, help="of a graph to make up, in place of data.path")
    parser.add_argument("--edges", type=int, default=0, help="of it")
    parser.add_argument("--width", type=int, default=0, help="features of a node of it")
    parser.add_argument("--per_rank", type=bool, default=False, help="train.batch_size is of a rank, not of all ranks")
    parser.add_argument("--speed", type=float, default=1.0, help="how many times as fast as here ranks compute")
    for name, text in GIVEN.items():
        parser.add_argument(f"--{name}", type=float, default=None, help=f"{text}; default: measured")
    config, namespace = configuration.parse(parser, argv)
    parameters = {name: getattr(namespace, name) for name in GIVEN if getattr(namespace, name) is not None}
    for name, value in parameters.items():
        if value < 0 or (value == 0 and name in ("bandwidth", "copy", "flops", "efficiency")):
            raise ValueError(f"--{name} must be positive, got {value}")
    if namespace.max_ranks < 1 or namespace.steps < 0 or namespace.speed <= 0:
        raise ValueError("--max_ranks must be at least 1, --steps at least 0, --speed positive")
    is_temporal = config.KIND == RunConfig.KIND
    graph = GivenGraph(namespace.nodes, namespace.edges, namespace.width)
    others = {"copy": "copy" in parameters, "nodes": graph != GivenGraph(), "per_rank": namespace.per_rank,
              "speed": namespace.speed != 1}  # fmt: skip
    if not is_temporal:
        others = {name: name in parameters for name in ("flops", *CALIBRATED)}
    for name in (name for name, is_given in others.items() if is_given):
        raise ValueError(f"--{name} says nothing in the cost model of kind {config.KIND}")
    if is_temporal:
        check_modelled(config)
    else:
        check_simulated(config, graph)
    overlap = config.sampling.prefetch != 0
    if namespace.plot:
        command.check_installed("--plot", "matplotlib")
    out, picture, max_ranks, steps = namespace.out, namespace.plot, namespace.max_ranks, namespace.steps
    further = namespace.speed, namespace.per_rank, graph
    return config, ScaleOptions(out, picture, max_ranks, steps, overlap, parameters, *further)


def _network(world: World, parameters: dict[str, float]) -> tuple[dict[str, float], dict[str, str]]:
    """Collective. Return latency and bandwidth, and where each of them comes from."""
    network, source = (
        (machines.ASSUMED, "assumed") if world.size == 1 else (machines.measure_network(world), "measured")
    )
    names = ("latency", "bandwidth")
    return (
        {name: parameters.get(name, network[name]) for name in names},
        {name: "given" if name in parameters else source for name in names},
    )


def _predict_and_write(config, options: ScaleOptions, folder: Path, threads: int, values: dict, sources: dict) -> None:
    path = config.data.path or str(folder / "parts")
    if not config.data.path:
        make_built_in(config, Path(path))
    session = machines.open_alone(config, path, threads)
    compute_values, compute_sources = _compute(config, path, threads, options.parameters)
    report = make_report(session, options, Machine(**values, **compute_values), sources | compute_sources)
    command.report(report, table, options.out)
    if options.plot:
        plot.plot(report, options.plot)


def _simulate_and_write(config, options: ScaleOptions, folder: Path, threads: int, values: dict, sources: dict) -> None:
    graph, data = options.graph, config.data.path or "the built-in graph"
    if graph.nodes:
        data = f"{graph.nodes:,} nodes and {graph.edges:,} edges, made up"
    elif not config.data.path:
        config.data.path = str(folder / "parts")
        make_built_in(config, folder / "parts")
    config.comm.threads = threads
    copy, source = options.parameters.get("copy", 0.0), "given"
    if not copy:
        copy, source = machines.measure_copy(), "measured"
    links = Links(Machine(**values, flops=1.0), copy, max(1, config.comm.node_ranks))
    sizes = sorted({*_powers_of_two(options.max_ranks), options.max_ranks})
    steps = options.steps or SIMULATED_STEPS
    report = simulate(config, sizes, steps, graph, links, options.speed, options.per_rank, folder)
    machine = values | {"copy": copy, "speed": options.speed}
    told = sources | {"copy": source, "speed": "given" if options.speed != 1 else "measured"}
    report |= {"data": data, "machine": {n: {"value": machine[n], "source": told[n]} for n in machine}}
    command.report(report, table, options.out)
    if options.plot:
        plot.plot(report, options.plot)


def _compute(config, path: str, threads: int, parameters: dict[str, float]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the machine's parameters of computing and planning, and where each of them comes from."""
    values = {name: parameters[name] for name in ("flops", *CALIBRATED) if name in parameters}
    missing = [name for name in CALIBRATED if name not in values]
    measured = machines.measure_flops() if missing or "flops" not in values else 0.0
    all_measured = {"flops": measured}
    if missing:  # efficiency is of this machine's products, whatever flops are given for another one
        all_measured |= machines.calibrate(config, path, threads, measured)
    return all_measured | values, dict.fromkeys(all_measured, "measured") | dict.fromkeys(values, "given")


def make_report(session: Session, options: ScaleOptions, machine: Machine, sources: dict[str, str]) -> dict:
    """Count with a session of one rank, extrapolate and predict."""
    config, book, batches = session.config, session.partition.book, session.batches["train"]
    parts = book.offsets.shape[1] - 1
    num_counted = min(options.steps or batches.num_steps, batches.num_steps)
    steps = np.unique(np.linspace(0, batches.num_steps - 1, num_counted).round().astype(np.int64))
    most = options.max_ranks
    sizes = {*range(1, SMALL + 1), *_powers_of_two(parts), parts}
    counts, apart = count(session, sorted(size for size in sizes if size <= min(parts, most)), steps)
    laws: Any = None if config.memory.hot_nodes else Laws.fit(counts, apart)
    beyond = sorted(size for size in {*_powers_of_two(most), most} if size > parts) if laws else []
    demands = [counted_demand(c) for c in counts.values()] + [laws.demand(size) for size in beyond]
    setting = Setting(
        config, session.partition.edge_width, exchanges(session), gradient_bytes(session), options.overlap
    )
    points = [predict(demand, setting, machine) for demand in demands]
    for point, counted in zip(points, counts.values(), strict=False):
        busiest: Any = sum(sent_bytes(setting.exchanges, counted, planned) for planned in (True, False))
        point["bytes_busiest"] = float(busiest.max()) / len(steps)
    for point in points:
        point["speedup"] = points[0]["step_seconds"] / point["step_seconds"]
    return {
        "kind": "hpcgnn cost model", "version": 1, "data": config.data.path or "synthetic events",
        "batch_size": config.train.batch_size, "update_at": config.memory.update_at, "parts": parts,
        "steps_counted": len(steps), "assumptions": list(ASSUMPTIONS),
        "machine": {n: {"value": v, "source": sources[n]} for n, v in dataclasses.asdict(machine).items()},
        "widths": {e.name: e.width for e in setting.exchanges} | {"all-reduce": setting.gradient_bytes},
        "laws": laws.to_dict() if laws else None, "points": points,
    }  # fmt: skip


def _powers_of_two(most: int) -> list[int]:
    return [1 << k for k in range(most.bit_length())]


def table(report: dict) -> str:
    """Write the report as text."""
    values, parts = report["machine"], f": {report['parts']} parts" if report["parts"] else ""
    lines = [
        f"{report['data']}{parts}, batch {report['batch_size']}, {report['steps_counted']} steps counted",
        "machine: " + ", ".join(f"{n} {v['value']:.3g} ({v['source']})" for n, v in values.items()),
        f"{'ranks':>6s} {'KiB/rank/step':>14s} {'busiest':>8s} {'step ms':>9s} {'execution':>10s} {'planning':>9s} "
        f"{'speed-up':>9s} over {plot.base(report)}",
    ]
    for p in report["points"]:
        front, behind = (1e3 * sum(p[key].values()) for key in ("seconds", "plan_seconds"))
        mark = "" if p["counted"] else "  extrapolated"
        busiest = f"{p['bytes_busiest'] / 1024:.1f}" if p["counted"] else ""
        lines.append(
            f"{p['ranks']:6d} {p['bytes_per_rank'] / 1024:14.1f} {busiest:>8s} {1e3 * p['step_seconds']:9.2f} "
            f"{front:10.2f} {behind:9.2f} {p['speedup']:9.2f}{mark}"
        )
    return "\n".join(lines)
