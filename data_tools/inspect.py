"""Show what is in a file or folder of hpcgnn: a graph file, a partition set, its book, one of its parts.

    hpcgnn inspect wikipedia.h5
    hpcgnn inspect parts/ --json
    hpcgnn inspect parts/ --ranks 4 --plot parts.html

To make a further format known, add its functions to `FILES` (by the root attribute ``format``) or `FOLDERS` (by a file
that the folder holds). Only shapes, attributes and first and last times are read, so it is quick for files of any size.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

import h5py

from data_tools.cli import ToolParser, with_exit_code
from data_tools.partition.options import fanouts
from data_tools.partition.plot import plot_set
from data_tools.reports import Report, describe_book, describe_graph, describe_part, describe_set
from data_tools.source.formats.dates import UTC
from hpcgnn.graph import files

Lines = list[str]
REMEDY = "run hpcgnn verify, or write it anew"


def inspect(path: pathlib.Path) -> tuple[Report, Lines]:
    """Make the report on a file or folder and its lines. Raises FileFormatError when it is not of hpcgnn."""
    if path.is_dir():
        for marker, (describe_folder, render_folder) in FOLDERS.items():
            if (path / marker).exists():
                with files.naming(path / marker, REMEDY):
                    report = describe_folder(path)
                    return report, render_folder(report)
        raise files.FileFormatError(f"{path}: not a folder of hpcgnn; it has none of {', '.join(FOLDERS)}")
    if not path.is_file():
        raise files.FileFormatError(f"{path}: no such file or folder")
    try:
        file = h5py.File(path, "r", locking=False)
    except OSError:
        raise files.FileFormatError(f"{path}: not an HDF5 file (or a truncated one), so not one of hpcgnn") from None
    with files.naming(path, REMEDY), file:
        name = file.attrs.get("format")
        if name not in FILES:
            inside = ", ".join(sorted(file)[:8]) or "nothing"
            raise files.FileFormatError(
                f"{path}: an HDF5 file, but not one of hpcgnn: its format is {name!r}, ours are {', '.join(FILES)}; "
                f"it holds {inside}"
            )
        files.check_format(file, name)
        files.check_objects(file)
        describe, render = FILES[name]
        report = describe(file)
        return report, render(report)


def render_head(report: Report) -> Lines:
    """Render the first lines for every format."""
    kind = f", {report['kind']}" if "kind" in report else ""
    written = f"{report.get('created_by', 'unknown')}, version {report['format_version']}"
    lines = [f"{report['path']}: {report['format']}{kind}, {report['bytes']:,} bytes, written by {written}"]
    if "num_snapshots" in report:
        sets = "".join(f"; {name} {first} to {last}" for name, (first, last) in report["splits"].items())
        dates = f" ({report['dates']})" if "dates" in report else ""
        lines.append(f"  {report['num_snapshots']} snapshots{dates}{sets}")
    for source in report.get("sources", []):
        if isinstance(source, str):
            lines.append(f"  from {source}")
            continue
        lines.append(f"  from {files.source_name(source)} ({source['bytes']:,} bytes, sha256 {source['sha256']})")
    if "spec" in report:
        lines.append(f"  read by {json.dumps(report['spec'])}")
    return lines


def render_tables(report: Report) -> Lines:
    """Render node types, relations, histories, out-edges and cache rankings with counts, times and columns."""
    lines = []
    for kind in ("nodes", "edges", "history", "out", "cache"):
        if kind in report:
            lines.append(f"{kind}:" if report[kind] else f"{kind}: none")
        for table in report.get(kind, []):
            times, scale = "", table.get("time_scale")
            if table.get("times"):
                times = ", times {}..{}".format(*table["times"])
                times += f" (source * {scale:g})" if scale not in (None, 1) else ""
                zone = table.get("zone")
                answers = f"; answers in {zone}" if zone not in (None, UTC) else ""
                times += f" ({table['dates']}{answers})" if table.get("dates") else ""
            lines.append(f"  {table['name']}: {table['count']:,}{times}")
            shapes = [f"{name} {shape}".strip() for name, shape in table["columns"].items()]
            if shapes:
                lines.append(f"    {', '.join(shapes)}")
    return lines


def render_table_file(report: Report) -> Lines:
    """Render lines on a graph file or a part."""
    lines = render_head(report)
    if "part" in report:
        lines.append(f"part {report['part']} of {report['num_parts']}, set {report['set_id']}")
    return lines + render_tables(report)


def render_book(report: Report) -> Lines:
    """Render lines on a book: how the set was made and how good it is."""
    options = json.dumps(report["options"], sort_keys=True)
    lines = [
        *render_head(report),
        f"{report['num_parts']} parts of {report.get('source_name')} (sha256 {report.get('source_hash')})",
        f"set {report['set_id']}: method {report.get('method')}, seed {report.get('seed')}, options {options}",
    ]
    return lines + render_quality(report["quality"]) + render_tables(report)


def render_quality(quality: Report) -> Lines:
    """Render the stored measures, one a line, and a table of the measures for fewer ranks than parts."""
    lines = ["quality:"] if quality else ["quality: not stored"]
    for name, value in flatten({key: value for key, value in quality.items() if key != "runs"}).items():
        lines.append(f"  {name}: {value}")
    rows = [flatten(run) for run in quality.get("runs", [])]
    return lines + (["  by number of ranks:", *render_rows(rows)] if rows else [])


def flatten(report: Report) -> Report:
    """Flatten nested mappings to one, with names such as ``balance.events``."""
    flat: Report = {}
    for name, value in report.items():
        inner = flatten(value) if isinstance(value, dict) else None
        flat |= {name: value} if inner is None else {f"{name}.{key}": item for key, item in inner.items()}
    return flat


def render_rows(rows: list[Report]) -> Lines:
    """Render reports of one shape as an aligned table."""
    names = sorted({name: None for row in rows for name in row}, key=lambda name: (name != "ranks", "." in name))
    cells = [names, *([str(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return ["    " + "  ".join(f"{cell:>{w}}" for cell, w in zip(line, widths, strict=True)) for line in cells]


def render_set(report: Report) -> Lines:
    """Render lines on a partition set: its book, then its parts."""
    return [*render_book(report), "parts:", *render_rows(report["parts"])]


# How formats are looked at: a report of plain values (which --json prints), and the lines for people.
FILES = {
    files.GRAPH: (describe_graph, render_table_file),
    files.BOOK: (describe_book, render_book),
    files.PART: (describe_part, render_table_file),
}
FOLDERS = {"book.h5": (describe_set, render_set)}


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = ToolParser("inspect", description="Show what is in a file or folder of hpcgnn.")
    parser.add_argument(
        "paths", nargs="+", type=pathlib.Path, metavar="PATH", help="graph file, partition set, book (book.h5) or part"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON for each path")
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        metavar="HTML",
        help="page of charts of a partition set to write: sizes, balance, cut, remote nodes",
    )
    parser.add_argument(
        "--ranks",
        type=int,
        help="number of ranks: print the bytes that a training step on a partition set is expected to move",
    )
    parser.add_argument("--fanouts", type=fanouts, help="fanouts of the step of --ranks (default: the set's)")
    parser.add_argument("--batch_size", type=int, help="global batch size of the step of --ranks (default: the set's)")
    return parser


@with_exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Inspect what the command line names; returns the exit code (2 for a file of another program)."""
    arguments = make_parser().parse_args(argv)
    for path in arguments.paths:
        report, lines = inspect(path)
        if arguments.ranks is not None:
            from data_tools.partition.step_bytes import predict, render_step  # here, as it loads torch

            with files.naming(path, REMEDY, keep=(ValueError, OSError)):
                step = predict(path, arguments.ranks, arguments.fanouts, arguments.batch_size)
            report, lines = report | {"step": step}, lines + render_step(step)
        if arguments.plot is not None:
            plot_set(path, arguments.plot)
        print(json.dumps(report) if arguments.json else "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
