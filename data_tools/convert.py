"""Convert source files, such as text, npz, parquet or N-Triples, to a graph file.

    hpcgnn convert --preset jodie --set events=wikipedia.csv.gz wikipedia.h5
    hpcgnn convert --spec my_graph.yaml my_graph.h5
    hpcgnn convert --chunks FOLDER my_graph.h5

A spec, a YAML file described in `data_tools.source.spec`, names the columns that become nodes, edges, times and
features; the presets are specs that come with the package. Exit code 2 and one line on stderr when the input cannot be
used; the output file then does not exist.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from data_tools.cli import ToolParser, add_overwrite, refuse_existing, run_alone, with_exit_code
from data_tools.graph.narrow import add_feature_dtype, check_kind, narrowing
from data_tools.memory import parse_bytes
from data_tools.snapshots import command as snapshots
from data_tools.source.convert_memory import plan_conversion
from data_tools.source.formats.dgl_files import read_graphs
from data_tools.source.formats.ogb_folder import choose_direction
from data_tools.source.formats.pyg_file import load_pyg
from data_tools.source.formats.tables import FORMATS
from data_tools.source.graph_writer import Summary, write_graph
from data_tools.source.object_spec import save_tables
from data_tools.source.objects import of_typed
from data_tools.source.reader import read_edges, read_nodes, unread_columns
from data_tools.source.spec import SourceSpec
from data_tools.source.spec_file import PRESETS, build_spec, load_spec, preset_names, with_ids, with_sorting
from data_tools.source.systems.content import FolderContent, path_beside
from data_tools.source.systems.csv_tables import read_csv
from data_tools.source.systems.folders import read_folder
from data_tools.source.systems.igbh import read_igbh
from data_tools.source.systems.ogb import MAG, TASKS, read_ogb, with_numbers
from data_tools.source.systems.relbench import read_relbench
from data_tools.source.systems.tgb import read_tgb
from hpcgnn.choices import describe_choices
from hpcgnn.graph.durable import naming_disk

# Types and relations beyond this number are summed up in the line that is printed.
NAMED = 8
OGB_CSV = "ogb-node"
SNAPSHOTS = "csv-snapshots"  # a preset without a spec: snapshots have a reader of their own


def convert(spec: SourceSpec, output: pathlib.Path, num_buckets: int = 0, feature_dtype: str | None = None) -> Summary:
    """Read all files of a spec and write the graph file. ``num_buckets``: number of pieces on disk into which ids,
    columns of nodes and the search for duplicates are divided (0: they are in memory); the graph is the same.
    ``feature_dtype``: narrow form of features, a row of FEATURE_DTYPES (None: as they are).

    Raises FileFormatError naming file, column, row, value and remedy for input that cannot be used.
    """
    if feature_dtype:
        check_kind(output, spec.graph_kind)
    output.parent.mkdir(parents=True, exist_ok=True)
    # Beside the output: /tmp may be small, or memory.
    with (
        naming_disk(output.parent),
        tempfile.TemporaryDirectory(prefix=".convert-", dir=output.parent) as folder,
    ):
        spool = pathlib.Path(folder)
        nodes = {node.type: read_nodes(spec, node, spool, num_buckets) for node in spec.nodes}
        spaces = {name: table.space for name, table in nodes.items()}
        read = [read_edges(spec, edge, spaces, spool) for edge in spec.edges]
        for table in nodes.values():
            table.finish(spool)
        edges = [table for relation in read for table in relation.finish(spool)]
        with narrowing(output, feature_dtype) as place:
            return write_graph(place, spec, nodes, edges, spool, num_buckets)


def describe(output: pathlib.Path, summary: Summary) -> str:
    """Say in one line what was written."""
    nodes = describe_counts(summary.nodes, "types")
    edges = describe_counts(summary.edges, "relations")
    times = "; times {}..{}".format(*summary.times) if summary.times else ""
    times += f" ({summary.dates})" if summary.dates else ""
    notes = "".join(f"; {note}" for note in summary.notes)
    return f"{output}: {summary.kind}; nodes: {nodes}; edges: {edges}{times}{notes}"


def describe_counts(counts: dict[str, int], what: str) -> str:
    """List each name with its count, or the sum where there are many."""
    if len(counts) > NAMED:
        return f"{sum(counts.values()):,} in {len(counts)} {what}"
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def make_parser() -> argparse.ArgumentParser:
    """Declare the command line."""
    parser = ToolParser(
        "convert",
        description="Convert source files to a graph file (HDF5).",
        epilog=f"formats of source files: {describe_choices(FORMATS)}",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    names = [*preset_names(), *READERS, SNAPSHOTS]
    source.add_argument("--preset", choices=names, metavar="NAME", help=f"name of a built-in spec: {', '.join(names)}")
    source.add_argument("--spec", type=pathlib.Path, help="spec file (YAML); hpcgnn schema spec lists its keys")
    source.add_argument(
        "--chunks",
        type=pathlib.Path,
        metavar="FOLDER",
        help="folder of csv, npy or parquet chunks with a metadata file (metadata.yaml), "
        "or of chunks of DGL, or of parts of DGL, PyTorch Geometric, graphlearn or ParMETIS",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=PATH",
        dest="assignments",
        help="path of a file that the spec names, or value of a setting; may be repeated",
    )
    parser.add_argument(
        "--ids",
        choices=("int", "string"),
        help="kind of ids of all node types with ids (default: as in the spec)",
    )
    parser.add_argument("--sort", action="store_true", help="sort events by time (stable) if they are not sorted")
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="limit of the peak memory, such as 8GiB; data that does not fit is spilled to disk, and the predicted "
        "peak is printed (default: no limit)",
    )
    add_feature_dtype(parser)
    add_overwrite(parser)
    parser.add_argument("output", type=pathlib.Path, help="graph file to write")
    return parser


def read_assignments(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Split the values of ``--set`` into names and values. Raises ValueError."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ValueError(f"--set {text}: expected NAME=PATH, such as events=wikipedia.csv.gz")
        pairs.append((name, value))
    return pairs


def convert_snapshots(arguments: argparse.Namespace) -> str:
    """Write a snapshot graph of tables, as `hpcgnn snapshots tables` does; returns a line on what was written. Raises
    ValueError for options of other graphs, too."""
    for name in ("ids", "sort", "memory"):
        if getattr(arguments, name):
            raise ValueError(f"--{name}: not with --preset {SNAPSHOTS}; leave it out")
    try:
        return snapshots.write(
            snapshots.read_settings("tables", read_assignments(arguments.assignments), arguments.output)
        )
    except ValueError as error:
        hint = f" (with --preset {SNAPSHOTS}, --NAME VALUE is --set NAME=VALUE)" if "--" in str(error) else ""
        raise ValueError(f"{error}{hint}") from error


def read_source(arguments: argparse.Namespace, unpacked: pathlib.Path) -> FolderContent:
    """Make the spec that the command line names; files that have to be unpacked for it go to the folder
    ``unpacked``."""
    assigned, notes = dict(read_assignments(arguments.assignments)), []
    if arguments.preset in (OGB_CSV, *TASKS) and arguments.preset != MAG and assigned.get("reverse") != "true":
        assigned, note = choose_direction(assigned)
        notes = [note] if note else []
    if arguments.chunks:
        if assigned:
            raise ValueError("--set: a folder of chunks names its files itself")
        content = read_folder(arguments.chunks, unpacked)
    elif arguments.preset in READERS:
        content = READERS[arguments.preset](assigned, unpacked)
    else:
        path = PRESETS / f"{arguments.preset}.yaml" if arguments.preset else arguments.spec
        spec = load_spec(path, assigned)
        content = FolderContent(with_numbers(spec) if arguments.preset == OGB_CSV else spec)
    spec = with_sorting(content.spec, arguments.sort)
    spec = spec if arguments.ids is None else with_ids(spec, arguments.ids)
    return dataclasses.replace(content, spec=spec, notes=notes + content.notes)


def read_pyg(assigned: Mapping[str, str], unpacked: pathlib.Path) -> FolderContent:
    """Make the spec of a graph of PyTorch Geometric in a pt file, whose tables are written to a folder. Raises
    ValueError for settings that there are not."""
    if not {"data"} <= assigned.keys() <= {"data", "fold", "undirected"}:
        raise ValueError("--preset pyg: give --set data=FILE.pt, and --set fold=0 and --set undirected=true if need be")
    tables = load_pyg(assigned["data"], read_fold(assigned))
    options = {"undirected": True} if assigned.get("undirected") == "true" else {}
    spec = build_spec(save_tables(tables, unpacked, options, pathlib.Path(assigned["data"]).name), unpacked, {})
    return FolderContent(spec, tables.notes)


def read_fold(assigned: Mapping[str, str]) -> int:
    """Return the setting ``fold``, 0 without one. Raises ValueError for one that is no number from 0 on."""
    fold = assigned.get("fold", "0")
    if not fold.isdecimal():
        raise ValueError(f"--set fold={fold}: expected the number of a column of the masks, from 0 on")
    return int(fold)


def read_dgl(assigned: Mapping[str, str], unpacked: pathlib.Path) -> FolderContent:
    """Make the spec of a graph in a file of ``dgl.save_graphs``, whose tables are written to a folder. Raises
    ValueError for settings that there are not, and for a number that no graph has."""
    if not {"graph"} <= assigned.keys() <= {"graph", "number", "fold"}:
        raise ValueError("--preset dgl: give --set graph=FILE, and --set number=0 and --set fold=0 if need be")
    path, number = pathlib.Path(assigned["graph"]), assigned.get("number", "0")
    graphs, labels = read_graphs(path)
    if not number.isdecimal() or int(number) >= len(graphs):
        raise ValueError(f"--set number={number}: {path} has {len(graphs)} graphs, counted from 0")
    graph = graphs[int(number)]
    nodes = {kind: (graph.counts[kind], columns) for kind, columns in graph.nodes.items()}
    edges = {key: (each.src, each.dst, each.columns) for key, each in graph.edges.items()}
    tables = of_typed(nodes, edges, read_fold(assigned))
    if labels:
        tables.notes.append(f"not kept: labels of whole graphs: {', '.join(labels)}")
    if len(graphs) > 1:
        tables.notes.append(f"graph {number} of {len(graphs)}; --set number=N reads another one")
    return FolderContent(build_spec(save_tables(tables, unpacked, {}, path.name), unpacked, {}), tables.notes)


# Presets that are no YAML files: each makes the spec of its settings, and unpacks files to a folder if need be.
READERS: dict[str, Callable[[Mapping[str, str], pathlib.Path], FolderContent]] = {
    "csv-static": read_csv,
    **{task: partial(read_ogb, task) for task in TASKS},
    "dgl": read_dgl,
    "igbh": read_igbh,
    "pyg": read_pyg,
    "relbench": read_relbench,
    "tgb": read_tgb,
}


@with_exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Convert with the options of the command line; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    refuse_existing(arguments.output, arguments.overwrite)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    if arguments.preset == SNAPSHOTS:
        print(convert_snapshots(arguments))
        return 0
    with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=arguments.output.parent.resolve()) as unpacked:
        with naming_disk(arguments.output.parent):
            content, num_buckets = read_source(arguments, pathlib.Path(unpacked)), 0
        spec = content.spec
        if content.beside:
            refuse_existing(path_beside(arguments.output, content.beside_what), arguments.overwrite)
        for note in content.notes:
            print(note)
        if arguments.memory:
            memory = parse_bytes(arguments.memory)
            plan = plan_conversion(spec, memory)
            num_buckets = plan.num_buckets
            print(plan.describe(memory), flush=True)
        summary = convert(spec, arguments.output, num_buckets, arguments.feature_dtype)
        unread = {} if content.names_columns else unread_columns(spec)
        for file, names in unread.items():
            if names:
                more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
                print(f"{file}: columns that are not read: {', '.join(names[:NAMED])}{more}")
        print(describe(arguments.output, summary))
        if content.beside:
            try:
                line = content.beside(arguments.output)
            except BaseException:
                arguments.output.unlink()  # alone, it is not what was asked for
                raise
            print(line, end="\n" if line else "")
    return 0


if __name__ == "__main__":
    sys.exit(run_alone(main))
