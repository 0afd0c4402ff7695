"""Predict the seconds of training steps and epochs on 1 to 1,024 ranks.

One process simulates jobs of R ranks of a partition set, for R up to the number of parts. The simulated ranks train as
threads that take turns; their computation is timed, and the bytes they send are counted. For a graph of given sizes it
simulates one of R ranks, for any R. Larger numbers of ranks are extrapolated. The cost of messages comes from a model
of the network, measured at the start (on two ranks or more) or given. Options of `hpcgnn train` (`--kind`,
`--data.path`, ...) choose the training.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcgnn import config as configuration
from hpcgnn.bench import command, plot
from hpcgnn.bench import machine as machines
from hpcgnn.bench.price import Links
from hpcgnn.bench.simulate import GivenGraph, check_simulated, simulate
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.kinds import make_built_in
from hpcgnn.loop import launch
from hpcgnn.report.page import check_page
from hpcgnn.temporal.config import TemporalConfig

SIMULATED_STEPS = 5
GIVEN = {
    "latency": "latency of a message in seconds", "bandwidth": "bandwidth of a rank's link in bytes per second",
    "copy": "bandwidth between ranks of a machine in bytes per second",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """Options of the command, in addition to the configuration. parameters: of the machine, by name; missing ones are
    measured; speed: speed of a rank's computing relative to this machine; per_rank: whether the batch size is per rank.
    graph: sizes of a graph to make up."""

    out: str
    plot: str
    max_ranks: int
    steps: int
    parameters: dict[str, float]
    speed: float
    per_rank: bool
    graph: GivenGraph


def main(world: World, argv: list[str]) -> int:
    """Collective. Simulate and predict on rank 0; the others take part in measuring the network. Returns the exit
    code."""
    config, options = launch.on_first_rank(world, "configuration", lambda: _parse(argv))
    world = World(config.comm)
    machine = _network(world, options.parameters)
    with tempfile.TemporaryDirectory(prefix="hpcgnn-bench-") as folder, together(world, "predict"):
        if world.rank == 0:
            config.comm.threads = world.threads
            report = make_report(config, options, Path(folder), machine)
            command.report(report, table, options.out)
            if options.plot:
                plot.plot(report, Path(options.plot))
    return launch.EXIT_DONE


def _parse(argv: list[str]) -> tuple[Any, ScaleOptions]:
    parser = configuration.parser("hpcgnn bench scale", __doc__, configuration.kind_of(argv))
    parser.add_argument("--out", type=str, default="", help="JSON file to write the report to; default: none")
    parser.add_argument("--plot", type=str, default="", help="page of charts to write (.html); default: none")
    parser.add_argument("--max_ranks", type=int, default=1024, help="largest number of ranks to predict")
    parser.add_argument(
        "--steps", type=int, default=SIMULATED_STEPS,
        help="number of training steps to simulate; on temporal graphs the steps in the middle of an epoch, or all",
    )  # fmt: skip
    parser.add_argument(
        "--num_nodes", type=int, default=0, help="number of nodes of a made-up graph, in place of data.path"
    )
    parser.add_argument("--num_edges", type=int, default=0, help="number of edges or events of the made-up graph")
    parser.add_argument("--width", type=int, default=0, help="width of the features of its nodes or events")
    parser.add_argument(
        "--per_rank", type=bool, default=False, help="whether train.batch_size is the batch size of each rank"
    )
    parser.add_argument(
        "--speed", type=float, default=1.0, help="computing speed of the ranks, relative to this machine"
    )
    for name, text in GIVEN.items():
        parser.add_argument(f"--{name}", type=float, default=None, help=f"{text}; default: measured")
    config, namespace = configuration.parse(parser, argv)
    parameters = {name: getattr(namespace, name) for name in GIVEN if getattr(namespace, name) is not None}
    for name, value in parameters.items():
        if value < 0 or (value == 0 and name != "latency"):
            raise ValueError(f"--{name} must be positive, got {value}")
    if namespace.max_ranks < 1 or namespace.steps < 1 or namespace.speed <= 0:
        raise ValueError("--max_ranks and --steps must be at least 1, --speed positive")
    graph = GivenGraph(namespace.num_nodes, namespace.num_edges, namespace.width)
    check_simulated(config, graph)
    if namespace.plot:
        check_page(Path(namespace.plot))
    return config, ScaleOptions(
        namespace.out, namespace.plot, namespace.max_ranks, namespace.steps, parameters, namespace.speed,
        namespace.per_rank, graph,
    )  # fmt: skip


def _network(world: World, parameters: dict[str, float]) -> dict[str, dict]:
    """Collective. Return value and source of latency, bandwidth and copy."""
    network, source = (
        (machines.ASSUMED, "assumed") if world.size == 1 else (machines.measure_network(world), "measured")
    )
    found = {name: {"value": value, "source": source} for name, value in network.items()}
    if "copy" not in parameters:
        found["copy"] = {"value": machines.measure_copy(), "source": "measured"}
    return found | {name: {"value": value, "source": "given"} for name, value in parameters.items()}


def make_report(config: Any, options: ScaleOptions, folder: Path, machine: dict[str, dict]) -> dict:
    """Simulate jobs and predict steps. machine: value and source of its parameters; folder: for what runs write."""
    graph, data = options.graph, config.data.path or "the built-in graph"
    if graph.nodes:
        edges = "events" if config.KIND == TemporalConfig.KIND else "edges"
        data = f"{graph.nodes:,} nodes and {graph.edges:,} {edges}, made up"
    elif not config.data.path:
        config.data.path = str(folder / "parts")
        make_built_in(config, folder / "parts")
    links = Links(
        **{name: machine[name]["value"] for name in GIVEN}, machine_ranks=max(1, config.comm.ranks_per_machine)
    )
    sizes = sorted({*(1 << k for k in range(options.max_ranks.bit_length())), options.max_ranks})
    report = simulate(config, sizes, options.steps, graph, links, options.speed, options.per_rank, folder)
    speed = {"value": options.speed, "source": "given" if options.speed != 1 else "measured"}
    return report | {"data": data, "machine": machine | {"speed": speed}}


def table(report: dict) -> str:
    """Write the report as text."""
    values, parts = report["machine"], f": {report['parts']} parts" if report["parts"] else ""
    lines = [
        f"{report['data']}{parts}, batch {report['batch_size']}, {report['steps_counted']} steps counted",
        "machine: " + ", ".join(f"{n} {v['value']:.3g} ({v['source']})" for n, v in values.items()),
        f"{'ranks':>6s} {'KiB/rank/step':>14s} {'busiest':>8s} {'step ms':>9s} {'execution':>10s} {'planning':>9s} "
        f"{'epoch s':>9s} {'speed-up':>9s} over {plot.base(report)}",
    ]
    for p in report["points"]:
        front, behind = (1e3 * sum(p[key].values()) for key in ("seconds", "plan_seconds"))
        mark = "" if p["counted"] else "  extrapolated"
        lines.append(
            f"{p['ranks']:6d} {p['bytes_per_rank'] / 1024:14.1f} {p['bytes_busiest'] / 1024:8.1f} "
            f"{1e3 * p['step_seconds']:9.2f} {front:10.2f} {behind:9.2f} {p['epoch_seconds']:9.2f} "
            f"{p['speedup']:9.2f}{mark}"
        )
    return "\n".join(lines)
