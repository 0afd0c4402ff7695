"""Cut a graph file into a partition set: book.h5 and part-<i>.h5.

Consecutive parts are neighbors, so any number of ranks up to the number of parts can take blocks of them.
"""

from __future__ import annotations

import argparse
import os
import pathlib
from collections.abc import Callable

from data_tools.cli import ToolParser
from data_tools.graph.narrow import add_feature_dtype
from data_tools.graph.source import open_source
from data_tools.memory import parse_bytes
from data_tools.partition.assignment import DEFAULT_PASSES, GIVEN, HOTNESS_CACHE, METHODS, METIS, Job, method_of
from data_tools.partition.blocks import NodeBlocks
from data_tools.partition.journal import Journal
from data_tools.partition.memory import count, make_plan
from data_tools.partition.methods.metis import OBJECTIVES
from data_tools.partition.methods.rebalance import TARGET
from data_tools.partition.options import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_FANOUTS,
    LEAST_PARTS,
    MOST_PARTS,
    PART_NODES,
    default_parts,
    fanouts,
    make_options,
    names,
)  # fmt: skip
from data_tools.partition.partition_set import make_inputs_id, write_set
from data_tools.partition.quality import summary, unmet
from data_tools.partition.weights import CONSTRAINTS, DEFAULT_BALANCE
from data_tools.team import Ranks, Team
from hpcgnn.choices import describe_choices
from hpcgnn.graph import files


def partition(
    path: str | os.PathLike,
    folder: str | os.PathLike,
    parts: int | None = None,
    method: str = METIS,
    balance: tuple[str, ...] | list[str] | None = None,
    seed: int = 0,
    objective: str = "cut",
    overwrite: bool = False,
    passes: int | None = None,
    assignment: str | os.PathLike | None = None,
    memory: int | None = None,
    report: Callable[[str], None] | None = None,
    parmetis: str | None = None,
    feature_dtype: str | None = None,
    team: Team | None = None,
    **static,
) -> dict:
    """Collective. Partition a graph file into ``folder`` and return the quality measures that the book stores.

    parts: their number (default: `options.default_parts`); method: a row of METHODS, or the path of a class
    (`given_parts.user_parts`); assignment: instead, a file with the part of every node (`given_parts.file_parts`).
    balance: names of constraints (default: DEFAULT_BALANCE); objective: cut or volume (metis only); passes: number of
    passes through the nodes (ldg and fennel). memory: bytes that a rank may use (default: a share of the free memory);
    ``report`` prints their use. parmetis: path of its library; feature_dtype: narrow form of features (default: none).
    team: the ranks that share the work (default: this process); static: the further options of StaticOptions. A call
    resumes the finished stages of an interrupted call with the same arguments.

    Raises ValueError for a bad option, an existing set or too little memory, FileFormatError for a file that cannot be
    used; on several ranks all of them raise SharedError.
    """
    folder, team, source = pathlib.Path(folder), team or Team(), None
    if method_of(method).needs_mpi and not isinstance(team, Ranks):
        team = Ranks()  # the library works on the ranks of MPI, even if it is one
    with team.together("open the graph file"):
        source = open_source(path)
    # What HDF5 raises about damaged attributes and datasets; a defect of this program keeps its traceback.
    keep = (ValueError, OSError, MemoryError, TypeError, AttributeError, IndexError)
    with files.naming(path, "write it anew with hpcgnn convert", keep=keep), source.file:
        options = source_hash = facts = None
        with team.together("read the options"):
            parts = default_parts(source.num_nodes) if parts is None else parts
            common = {"parts": parts, "method": method, "seed": seed, "objective": objective, "passes": passes}
            common |= {"feature_dtype": feature_dtype, "balance": None if balance is None else tuple(balance)}
            if assignment is not None:
                common |= {"method": GIVEN if method == METIS else method, "assignment": files.file_hash(assignment)}
            options = make_options(source, common, static)
        row = method_of(options.method)
        plan = make_plan(team, count(team, source, options), options, memory)
        if report and team.rank == 0:
            report("\n".join(plan.lines(" a rank" if isinstance(team, Ranks) else "")))
        with team.together("hash the graph file"):
            if team.rank == 0:
                source_hash, facts = files.file_hash(path), row.depends(options, team)
        source_hash, facts = team.broadcast((source_hash, facts))
        journal = Journal(team, folder, make_inputs_id(source_hash, options, facts), source_hash)
        with team.together("look for an older set"):
            if files.book_path(folder).exists() and not overwrite and not journal.get("cleared"):
                raise ValueError(f"{folder}: holds a partition set already; choose another folder or pass --overwrite")
        blocks = NodeBlocks.even(team, source.num_nodes)
        job = Job(source, options, blocks, folder, plan.work, assignment, parmetis)
        row.check(job)
        return write_set(journal, job)


def make_parser() -> argparse.ArgumentParser:
    """Declare the command line."""
    parser = ToolParser("partition", description=__doc__.splitlines()[0])
    parser.add_argument("graph", help="graph file to read")
    parser.add_argument("folder", help="folder of the partition set to write")
    parser.add_argument(
        "--parts",
        type=int,
        help=f"number of parts (default: 1 for every {PART_NODES:,} nodes, {LEAST_PARTS} to {MOST_PARTS})",
    )
    parser.add_argument(
        "--method", default=METIS, metavar="METHOD",
        help="partitioning method. "
        f"{describe_choices({name: row for name, row in METHODS.items() if not row.needs_file})}; or a custom class or "
        f"function as package.module.name (default: {METIS})",
    )  # fmt: skip
    parser.add_argument(
        "--assignment",
        metavar="FILE",
        help="file that has the part of every node, in place of a method, or a graph file with a column part",
    )
    parser.add_argument(
        "--parmetis",
        metavar="LIBRARY",
        default=argparse.SUPPRESS,
        help="path of the library of ParMETIS or PT-Scotch (default: search for it)",
    )
    parser.add_argument(
        "--balance",
        type=names,
        help=f"constraints to balance, separated by commas. {describe_choices(CONSTRAINTS)}; type:<name>: nodes of one "
        f"type (default: {'; '.join(f'{kind} ' + ','.join(chosen) for kind, chosen in DEFAULT_BALANCE.items())}; also "
        "train for static graphs with a split of nodes)",
    )
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default="cut",
        help=f"objective of METIS. {describe_choices(OBJECTIVES)} (default: cut)",
    )
    parser.add_argument(
        "--passes", type=int, help=f"number of passes over the nodes, for ldg and fennel (default: {DEFAULT_PASSES})"
    )
    add_feature_dtype(parser)
    parser.add_argument("--memory", type=size, help="memory limit, such as 8GiB (default: a share of the free memory)")
    parser.add_argument("--seed", type=int, default=0, help="seed of random numbers (default: 0)")
    parser.add_argument("--overwrite", action="store_true", help="replace the partition set if it exists")
    static = parser.add_argument_group("static graphs", argument_default=argparse.SUPPRESS)
    static.add_argument("--out_edges", action="store_true", help="also store the out-edges of every node")
    static.add_argument(
        "--cache_ranking", type=float, nargs="?", const=HOTNESS_CACHE, metavar="SHARE",
        help="store a ranking of the remote nodes that the training seeds of a part reach most likely, at most this "
        f"share of a type's nodes (default: {HOTNESS_CACHE}); always with method hotness",
    )  # fmt: skip
    static.add_argument(
        "--fanouts", type=fanouts,
        help=f"fanouts for access probabilities (default: {','.join(map(str, DEFAULT_FANOUTS))})",
    )  # fmt: skip
    static.add_argument(
        "--batch_size", type=int, help=f"global batch size for access probabilities (default: {DEFAULT_BATCH_SIZE})"
    )
    return parser


def size(text: str) -> int:
    """Parse bytes; raises ArgumentTypeError for a bad size."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(argv: list[str] | None = None, team: Team | None = None) -> int:
    """Command line: ``hpcgnn partition graph.h5 parts/ --parts 16``, or with ``mpirun -np 4`` before."""
    team = team or Team()
    options = vars(make_parser().parse_args(argv))
    quality = partition(options.pop("graph"), report=print, team=team, **options)
    if team.rank:
        return 0
    print(summary(quality))
    if method_of(options["method"]).balances:
        for line in unmet(quality, TARGET):
            print(line)
    return 0
