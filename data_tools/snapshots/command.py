"""Convert source files to a snapshot graph file: one node set, edges of several snapshots.

    hpcgnn snapshots lists enron10.csv.gz enron10.h5 --num_nodes 184 --undirected
    hpcgnn snapshots pygt england_covid.json.gz covid.h5
    hpcgnn snapshots quadruples icews14/ icews.h5
    hpcgnn snapshots speeds los_speed.csv.gz los_adj.csv.gz los.h5
    hpcgnn snapshots tables roads.csv traffic.h5 --series speeds.csv
    hpcgnn snapshots contacts sg_infectious_contact_list.tgz infectious.h5
    hpcgnn snapshots windows events.h5 windows.h5 --windows 100

Edges that stay through several snapshots are stored once, with their first and last snapshot, where that takes fewer
bytes. Exit code 2 and one line on stderr when the input cannot be used; the output file then does not exist.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import h5py

from data_tools.cli import ToolParser, add_overwrite, refuse_existing, with_exit_code
from data_tools.snapshots.facts import read_quadruples
from data_tools.snapshots.graph import SnapshotGraph, write_snapshots
from data_tools.snapshots.parallel_edges import REDUCE, merge_parallel
from data_tools.snapshots.pygt import read_json
from data_tools.snapshots.speeds import HEADERS, read_speeds
from data_tools.snapshots.tables import TableOptions, read_tables
from data_tools.snapshots.text import both_directions, read_contacts, read_lists
from data_tools.snapshots.windows import WindowOptions, read_windows
from data_tools.source.formats.text_stream import UTF8
from data_tools.source.schema import one_of
from hpcgnn.choices import Part
from hpcgnn.graph import files


@dataclass(frozen=True)
class SnapshotFormat(Part):
    """A row of FORMATS. make: reads a graph, with the options of the command line; sources: names of the paths that it
    is read from; options: options of the command line, by flag; further: names of options that are paths."""

    make: Callable[[argparse.Namespace], SnapshotGraph]
    sources: tuple[str, ...]
    options: dict[str, dict[str, Any]]
    further: tuple[str, ...] = ()


def lists_of(args: argparse.Namespace) -> SnapshotGraph:
    """Read lists of edges."""
    graph = read_lists(args.edges, args.ids, args.num_nodes)
    graph = both_directions(graph) if args.undirected else graph
    return merge_parallel(graph, {"weight": "sum"} if "weight" in graph.edges else {}) if args.merge else graph


def contacts_of(args: argparse.Namespace) -> SnapshotGraph:
    """Read lists of contacts, which an archive may hold."""
    args.output.parent.mkdir(parents=True, exist_ok=True)
    return read_contacts(args.archive, not args.keep, args.output.parent)


def windows_of(args: argparse.Namespace) -> SnapshotGraph:
    """Read windows of events."""
    reduce = dict(text.partition("=")[::2] for text in args.reduce)
    options = WindowOptions(args.windows, args.events, args.length, args.stride, args.cumulative, not args.keep, reduce)
    return read_windows(args.graph, options, args.undirected)


def tables_of(args: argparse.Namespace) -> SnapshotGraph:
    """Read tables of edges, values and nodes."""
    fill = {
        name if equals else "": how if equals else name
        for name, equals, how in (text.partition("=") for text in args.fill)
    }
    feat = args.feat.split(",") if args.feat else []
    options = TableOptions(
        args.time, args.node, args.src, args.dst, args.weight, args.target, args.label, feat, fill, args.missing,
        args.dates, args.zone, args.step, not args.raw, args.delimiter, args.encoding,
    )  # fmt: skip
    graph = read_tables(args.edges, args.series, args.nodes, options)
    graph = both_directions(graph) if args.undirected else graph
    return merge_parallel(graph, {"weight": "sum"} if "weight" in graph.edges else {}) if args.merge else graph


def option(text: str, **settings: Any) -> dict[str, Any]:
    """Declare an option; without settings it has no value."""
    return {"help": text, **(settings or {"action": "store_true"})}


SOURCES = {
    "edges": "file of edges to read", "json": "JSON file to read", "folder": "folder to read",
    "speeds": "file of measurements to read", "adjacency": "file of edge weights to read",
    "archive": "folder or archive to read", "graph": "temporal graph file to read", "output": "graph file to write",
}  # fmt: skip
KEEP = {"--keep": option("keep parallel edges instead of merging them and counting them in the column weight")}
UNDIRECTED = {"--undirected": option("store each edge in both directions")}
LISTS = {
    "--num_nodes": option("number of nodes: ids are rows 0 .. NUM_NODES-1 (default: the ids in the file)", type=int),
    "--ids": option("kind of ids (default: int)", choices=("int", "string"), default="int"),
    "--merge": option("merge parallel edges of a snapshot and sum their weights"),
}
QUADRUPLES = {
    "--num_nodes": option("number of entities (default: as in stat.txt, else the largest id + 1)", type=int),
    "--step": option("time from one snapshot to the next (default: the largest step that fits all times)", type=int),
}
MISSING = "value that marks a missing measurement, in addition to empty cells and nan; may be repeated"
SPEEDS = {
    "--raw": option("keep measurements unchanged (default: divide by their maximum)"),
    "--header": option(
        "whether the first line of measurements has names (default: auto)", choices=HEADERS, default="auto"
    ),
    "--missing": option(MISSING, action="append", default=[], metavar="VALUE"),
}
HOW = f"how to merge a column of parallel edges: {' or '.join(REDUCE)}; may be repeated"
WINDOWS = {
    "--windows": option("number of windows, with equal numbers of events", type=int, default=0),
    "--events": option("number of events in each window", type=int, default=0),
    "--length": option("length of each window in time, in the source's unit", type=float, default=0),
    "--stride": option("events or time from one window to the next (default: no overlap)", type=float, default=0),
    "--cumulative": option("begin every window with the first event"),
    "--reduce": option(HOW, action="append", default=[], metavar="COLUMN=HOW"),
}
NAME = {"default": "", "metavar": "COLUMN"}
TABLES = {
    "--series": option("table of values, with a row per node and time, or per time", type=pathlib.Path, metavar="FILE"),
    "--nodes": option("table of all nodes, with a row per node", type=pathlib.Path, metavar="FILE"),
    "--time": option("column of times, also of edges (default: time; of a row per time, the first column)", **NAME),
    "--node": option("column of the ids of nodes (default: node)", default="node", metavar="COLUMN"),
    "--src": option("column of the source of an edge (default: src)", default="src", metavar="COLUMN"),
    "--dst": option("column of the destination of an edge (default: dst)", default="dst", metavar="COLUMN"),
    "--weight": option("column of the weight of an edge (default: weight, if there is such a column)", **NAME),
    "--target": option("column of numbers to predict", **NAME),
    "--label": option("column of classes", **NAME),
    "--feat": option("columns of features, separated by commas", default="", metavar="COLUMNS"),
    "--fill": option(
        "in place of a missing value of a feature, or of any: forward (the node's last value), a number, or both, such "
        "as forward,0; may be repeated", action="append", default=[], metavar="[COLUMN=]HOW",
    ),
    "--dates": option("form of dates, such as %%d.%%m.%%Y (default: ISO 8601)", default="", metavar="FORM"),
    "--zone": option("time zone of dates that name none (default: UTC)", default="UTC"),
    "--step": option("time between two snapshots, of dates in seconds (default: as in the table)", type=int, default=0),
    "--delimiter": option(
        "delimiter of the columns of text, one character or whitespace (default: by the first line)", default="",
        metavar="MARK",
    ),
    "--encoding": option("encoding of text, such as latin-1 (default: utf-8)", default=UTF8, metavar="NAME"),
    "--missing": SPEEDS["--missing"],
    "--raw": option("keep the target unchanged (default: divide by its largest value)"),
    "--merge": LISTS["--merge"],
}  # fmt: skip
RAW = {"--raw": option("keep numbers unchanged (default: standardize or encode them)")}
FORMATS = {
    "lists": SnapshotFormat(
        lists_of, "lists of edges, with rows snapshot,u,v or snapshot,u,v,weight", ("edges",), LISTS | UNDIRECTED
    ),
    "pygt": SnapshotFormat(
        lambda args: read_json(args.json, args.raw), "JSON data set of PyTorch Geometric Temporal", ("json",), RAW
    ),
    "quadruples": SnapshotFormat(
        lambda args: read_quadruples(args.folder, args.num_nodes, args.step),
        "folder with the files train, valid and test, with rows s r o t (facts)", ("folder",), QUADRUPLES,
    ),
    "speeds": SnapshotFormat(
        lambda args: read_speeds(args.speeds, args.adjacency, not args.raw, args.header, args.missing),
        "measurements of sensors, and the weights of the edges between them", ("speeds", "adjacency"), SPEEDS,
    ),
    "tables": SnapshotFormat(
        tables_of, "table of edges, with series of values and a table of nodes", ("edges",), TABLES | UNDIRECTED,
        ("series", "nodes"),
    ),
    "contacts": SnapshotFormat(
        contacts_of, "folder or archive with a list of contacts t i j for each snapshot", ("archive",), KEEP
    ),
    "windows": SnapshotFormat(
        windows_of, "windows over the events of a temporal graph file", ("graph",), WINDOWS | KEEP | UNDIRECTED
    ),
}  # fmt: skip


def make_parser() -> argparse.ArgumentParser:
    """Declare the command line."""
    parser = ToolParser("snapshots", description=__doc__.splitlines()[0])
    formats = parser.add_subparsers(dest="format", required=True, metavar="FORMAT")
    for name, row in FORMATS.items():
        command = formats.add_parser(name, help=row.says, description=row.says)
        for path in (*row.sources, "output"):
            command.add_argument(path, type=pathlib.Path, help=SOURCES[path])
        add_overwrite(command)
        for option, settings in row.options.items():
            command.add_argument(option, **settings)
    return parser


class SettingsParser(argparse.ArgumentParser):
    """Raises ValueError instead of leaving."""

    def error(self, message: str) -> NoReturn:
        """Raise ValueError with the message."""
        raise ValueError(message)


def read_settings(name: str, settings: Sequence[tuple[str, str]], output: pathlib.Path) -> argparse.Namespace:
    """Make the arguments of format ``name`` from settings, pairs of a name and a value: each names a source, or is an
    option without its hyphens. Raises ValueError for settings that do not exist or are missing."""
    row, words = FORMATS[name], []
    parser = SettingsParser(add_help=False, allow_abbrev=False)
    for source in row.sources:
        parser.add_argument(f"--{source}", type=pathlib.Path, help="path of a source file of the format")
    for flag, options in row.options.items():
        parser.add_argument(flag, **options)
    for key, value in settings:
        one_of("--set", key, (*row.sources, *(flag.removeprefix("--") for flag in row.options)))
        if row.options.get(f"--{key}", {}).get("action") == "store_true":
            one_of(f"--set {key}", value, ("true", "false"))
            words += [f"--{key}"] if value == "true" else []
        else:
            words.append(f"--{key}={value}")
    args = parser.parse_args(words, argparse.Namespace(format=name, output=output))
    if missing := [source for source in row.sources if getattr(args, source) is None]:
        raise ValueError(f"files.{missing[0]} has no path; pass --set {missing[0]}=PATH")
    return args


@with_exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Convert with the options of the command line; returns the exit code."""
    args = make_parser().parse_args(argv)
    refuse_existing(args.output, args.overwrite)
    print(write(args))
    return 0


def write(args: argparse.Namespace) -> str:
    """Write the graph file of a format's arguments; returns a line on what was written."""
    row = FORMATS[args.format]
    paths = [path for name in (*row.sources, *row.further) if (path := getattr(args, name)) is not None]
    graph = row.make(args)
    sources = [
        description
        for source in paths
        for path in (sorted(source.iterdir()) if source.is_dir() else [source])
        if path.is_file() and not path.name.startswith(".")
        for description in _describe(path)
    ]
    options = [option.removeprefix("--") for option in row.options]
    spec = {"format": args.format, **{name: getattr(args, name) for name in options if getattr(args, name)}}
    return write_snapshots(args.output, graph, sources, paths[0].name, spec)


def _describe(path: pathlib.Path) -> list[dict | str]:
    """Describe a source file and, of a graph file, the files that it was made from."""
    own = {"name": path.name, "bytes": path.stat().st_size, "sha256": files.file_hash(path)}
    if not h5py.is_hdf5(path):
        return [own]
    with h5py.File(path) as file:
        return [own, *(files.json_attribute(file, "sources") or [])]
