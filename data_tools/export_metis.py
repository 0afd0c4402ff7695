"""Write the graph that METIS and ParMETIS are to partition, from a graph file, as the text that their programs read.

Line 1 + i is node i: the types of nodes one after the other, each in the order of its rows. The parts
that the programs write are taken by ``hpcgnn partition ... --assignment FILE``.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys

import numpy as np

from data_tools.cli import ToolParser, add_overwrite, refuse_existing, run_alone
from data_tools.graph.checks import validate
from data_tools.graph.source import open_source
from data_tools.partition.assignment import METIS
from data_tools.partition.blocks import NodeBlocks
from data_tools.partition.methods.metis_file import row_slabs, write_metis
from data_tools.partition.options import make_options, names
from data_tools.partition.spool import build_row_graph
from data_tools.partition.weights import node_weights
from data_tools.team import Team
from hpcgnn.graph import durable

SPOOL_BYTES = 256 << 20


def export(path: str | os.PathLike, output: str | os.PathLike, balance: tuple[str, ...] | None = None) -> str:
    """Write ``output``; returns a line on it. balance: constraints (default: as partition has them).

    Needs memory for a few numbers a node; the edges go by way of the disk. Raises ValueError for a bad constraint,
    FileFormatError for a file that cannot be used.
    """
    source, output = open_source(path), pathlib.Path(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with source.file:
        options = make_options(source, {"method": METIS, "balance": balance}, {})
        validate(source)
        blocks = NodeBlocks.even(Team(), source.num_nodes)
        graph = build_row_graph(source, blocks, output.parent, SPOOL_BYTES, by_degree=False)
        weights = node_weights(source, options.balance or ("nodes",), graph.degrees(), blocks)
        temporary = output.with_name(durable.temporary_name(output.name))
        num_pairs = int(graph.indptr[-1]) // 2
        try:
            with durable.naming_disk(output):
                write_metis(temporary, num_pairs, row_slabs(graph), np.stack(list(weights.values()), axis=1))
                durable.commit(temporary, output)
        finally:
            temporary.unlink(missing_ok=True)
        return f"{output}: {source.num_nodes} nodes, {num_pairs} pairs, weights {', '.join(weights)}"


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = ToolParser("export_metis", description=__doc__.splitlines()[0])
    parser.add_argument("graph", help="graph file to read")
    parser.add_argument("output", help="text file to write")
    parser.add_argument(
        "--balance",
        type=names,
        help="constraints to balance, separated by commas (default and choices: see hpcgnn partition --help)",
    )
    add_overwrite(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Command line: ``hpcgnn export_metis graph.h5 graph.metis``."""
    args = make_parser().parse_args(argv)
    refuse_existing(args.output, args.overwrite)
    print(export(args.graph, args.output, args.balance))
    return 0


if __name__ == "__main__":
    sys.exit(run_alone(main))
