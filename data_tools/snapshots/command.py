"""Convert source files to a snapshot graph file: one node set, edges of several snapshots.

    python -m data_tools.snapshots lists enron10.csv.gz enron10.h5 --nodes 184 --undirected
    python -m data_tools.snapshots pygt england_covid.json.gz covid.h5
    python -m data_tools.snapshots quadruples icews14/ icews.h5
    python -m data_tools.snapshots speeds los_speed.csv.gz los_adj.csv.gz los.h5
    python -m data_tools.snapshots contacts sg_infectious_contact_list.tgz infectious.h5
    python -m data_tools.snapshots windows events.h5 windows.h5 --windows 100

Edges that stay through several snapshots are stored once, with the first and the last of these, where that takes fewer
bytes. Exit code 2 and one line on stderr when the input cannot be used; the output file then does not exist.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence

from data_tools.cli import add_overwrite, refuse_existing, with_exit_code
from data_tools.snapshots.facts import read_quadruples
from data_tools.snapshots.graph import SnapshotGraph, write_snapshots
from data_tools.snapshots.parallel_edges import merge_parallel
from data_tools.snapshots.pygt import read_json
from data_tools.snapshots.speeds import HEADERS, read_speeds
from data_tools.snapshots.text import both_directions, read_contacts, read_lists
from data_tools.snapshots.windows import WindowOptions, read_windows
from hpcgnn.graph import files


def make_parser() -> argparse.ArgumentParser:
    """Declare the command line."""
    parser = argparse.ArgumentParser(prog="python -m data_tools.snapshots", description=__doc__.splitlines()[0])
    formats = parser.add_subparsers(dest="format", required=True, metavar="FORMAT")

    def add(name: str, text: str, *sources: str) -> argparse.ArgumentParser:
        command = formats.add_parser(name, help=text, description=text)
        for source in sources:
            command.add_argument(source, type=pathlib.Path)
        command.add_argument("output", type=pathlib.Path, help="the graph file to write")
        add_overwrite(command)
        command.set_defaults(sources=sources)
        return command

    command = add("lists", "rows snapshot,u,v or snapshot,u,v,weight", "edges")
    command.add_argument("--nodes", type=int, help="ids are rows 0 .. NODES-1; default: the ids found")
    command.add_argument("--ids", choices=("int", "string"), default="int")
    command.add_argument("--undirected", action="store_true", help="store both directions")
    command.add_argument("--merge", action="store_true", help="merge parallel edges of a snapshot, weights are summed")
    command = add("pygt", "a JSON set of PyTorch Geometric Temporal", "json")
    command.add_argument("--raw", action="store_true", help="numbers as they are, not standardised or encoded")
    command = add("quadruples", "a folder with train, valid and test: rows s r o t", "folder")
    command.add_argument("--nodes", type=int, help="number of entities; default: as stat.txt says, else those found")
    command.add_argument("--step", type=int, help="time from one snapshot to the next; default: what fits all times")
    command = add("speeds", "measurements of sensors and weights between them", "speeds", "adjacency")
    command.add_argument("--raw", action="store_true", help="measurements as they are, not divided by their maximum")
    command.add_argument(
        "--header", choices=HEADERS, default="auto", help="whether the first line of measurements is names"
    )
    command.add_argument(
        "--missing", action="append", default=[], metavar="VALUE",
        help="stands for a measurement that is not there, as empty cells and nan do; may be repeated",
    )  # fmt: skip
    command = add("contacts", "a folder or archive of lists t i j, one a snapshot", "archive")
    command.add_argument("--keep", action="store_true", help="keep parallel edges instead of counting them in weight")
    command = add("windows", "windows over the events of a temporal graph file", "graph")
    command.add_argument("--windows", type=int, default=0, help="so many, of equally many events")
    command.add_argument("--events", type=int, default=0, help="events of a window")
    command.add_argument("--length", type=float, default=0, help="time of a window, in the source's unit")
    command.add_argument("--stride", type=float, default=0, help="events or time from one window to the next")
    command.add_argument("--cumulative", action="store_true", help="every window begins with the first event")
    command.add_argument("--keep", action="store_true", help="keep parallel edges instead of counting them in weight")
    command.add_argument(
        "--reduce", action="append", default=[], metavar="COLUMN=HOW", help="of merged edges: sum, mean or last"
    )
    command.add_argument("--undirected", action="store_true", help="store both directions")
    return parser


def read(args: argparse.Namespace) -> SnapshotGraph:
    """Read the sources that the command line names."""
    if args.format == "pygt":
        return read_json(args.json, args.raw)
    if args.format == "quadruples":
        return read_quadruples(args.folder, args.nodes, args.step)
    if args.format == "speeds":
        return read_speeds(args.speeds, args.adjacency, not args.raw, args.header, args.missing)
    if args.format == "contacts":
        args.output.parent.mkdir(parents=True, exist_ok=True)
        return read_contacts(args.archive, not args.keep, args.output.parent)
    if args.format == "windows":
        reduce = dict(text.partition("=")[::2] for text in args.reduce)
        options = WindowOptions(
            args.windows, args.events, args.length, args.stride, args.cumulative, not args.keep, reduce
        )
        return read_windows(args.graph, options, args.undirected)
    graph = read_lists(args.edges, args.ids, args.nodes)
    graph = both_directions(graph) if args.undirected else graph
    return merge_parallel(graph, {"weight": "sum"} if "weight" in graph.edges else {}) if args.merge else graph


@with_exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Convert as the command line says; returns the exit code."""
    args = make_parser().parse_args(argv)
    refuse_existing(args.output, args.overwrite)
    paths = [getattr(args, name) for name in args.sources]
    graph = read(args)
    sources = [
        {"name": path.name, "bytes": path.stat().st_size, "sha256": files.file_hash(path)}
        for source in paths
        for path in (sorted(source.iterdir()) if source.is_dir() else [source])
        if path.is_file() and not path.name.startswith(".")
    ]
    print(write_snapshots(args.output, graph, sources, paths[0].name))
    return 0
