"""Export a graph file, or one part of a partition set, to other tools.

    hpcgnn export wikipedia.h5 exported/ --format parquet
    hpcgnn export parts/ exported/ --format pyg --part 0

Row ids (`row`; n_id and e_id of PyTorch Geometric) and original ids (`id`) go along. Exit code 2 and one line on stderr
when the input cannot be used; the folder then does not exist.
"""

from __future__ import annotations

import argparse
import pathlib
import shutil
from collections.abc import Sequence

from data_tools.cli import ToolParser, with_exit_code
from data_tools.export.formats import FORMATS
from data_tools.export.tables import graph_tables, part_tables
from hpcgnn.choices import describe_choices
from hpcgnn.graph import durable, files
from hpcgnn.graph.files import FileFormatError


def export(source: pathlib.Path, output: pathlib.Path, kind: str, part: int | None = None) -> list[str]:
    """Write the folder ``output``; returns the names of its files. Raises FileFormatError for a source that cannot be
    used, and for a folder that is not empty."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileFormatError(f"{output}: exists and is not an empty folder")
    output.parent.mkdir(parents=True, exist_ok=True)
    folder = output.with_name(f".{durable.temporary_name(output.name)}")
    folder.mkdir()
    try:
        with durable.naming_disk(output):
            if source.is_dir():
                if part is None:
                    raise FileFormatError(
                        f"{source}: parts are exported one by one: --part 0; or export the graph file"
                    )
                FORMATS[kind].make(part_tables(source, part), folder)
            else:
                if part is not None:
                    raise FileFormatError(f"{source}: a graph file has no parts; leave out --part")
                with files.open_checked(source, files.GRAPH) as file:
                    FORMATS[kind].make(graph_tables(file), folder)
            names = sorted(path.name for path in folder.iterdir())
            folder.replace(output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return names


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = ToolParser("export", description="Export a graph file or a part of a partition set.")
    parser.add_argument(
        "--format", required=True, choices=FORMATS, dest="kind", help=f"format to write. {describe_choices(FORMATS)}"
    )
    parser.add_argument("--part", type=int, help="number of the part to export; needed for a partition set")
    parser.add_argument("source", type=pathlib.Path, help="graph file, or folder of a partition set")
    parser.add_argument("output", type=pathlib.Path, help="folder to write")
    return parser


@with_exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Export with the options of the command line; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    names = export(arguments.source, arguments.output, arguments.kind, arguments.part)
    print(f"{arguments.output}: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}")
    return 0
