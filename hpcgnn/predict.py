"""Predict with the best epoch of a run, on any number of ranks.

A run on links scores pairs (`--pairs`). A run on labels writes classes, or numbers, with the outputs of the model, for
the nodes in a file (`--nodes`) or for all nodes. `--top_k` writes the best answers of links, or the most probable
classes. `--embeddings` writes embeddings. A temporal run answers for the time after its last event, or for the times in
the file. A run on snapshots writes outputs of the last snapshots (`--snapshots`).

Files of questions are CSV, packed by gzip or not, or Parquet. Ids and times are the ids and times of the source data.
The suffix of `--out` chooses the format: .csv, .parquet, .npz.

    mpirun -np 4 hpcgnn predict run/ --pairs pairs.csv --out scores.csv
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import jsonargparse

from hpcgnn.choices import check_choice
from hpcgnn.comm.world import World
from hpcgnn.kinds import kind_of
from hpcgnn.loop import launch
from hpcgnn.loop.answer_file import check_out
from hpcgnn.loop.settings import Sections
from hpcgnn.loop.source_times import DATES, NUMBERS
from hpcgnn.reopen import command_parser, open_run, parse, provenance


def make_parser() -> jsonargparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = command_parser("hpcgnn predict", __doc__)
    parser.add_argument(
        "--task", type=str, default="",
        help="task of a run with several, by its name in task.more, that answers; empty: the main one",
    )  # fmt: skip
    parser.add_argument(
        "--pairs", type=str, default="", help="file of pairs to score: columns src, dst, and time or rel"
    )
    parser.add_argument(
        "--nodes", type=str, default="",
        help="file of nodes: columns node, type (if the graph has several node types) and optionally time",
    )  # fmt: skip
    parser.add_argument(
        "--snapshots", type=int, default=1, help="number of last snapshots to write outputs of; snapshot graphs only"
    )
    parser.add_argument(
        "--top_k", type=int, default=0,
        help="number of best answers to write for each query of a run on links (with --pairs: of best edge types), or "
        "of most probable classes for each node or pair; 0: all is written as it is",
    )  # fmt: skip
    parser.add_argument(
        "--sources", type=str, default="",
        help="file of the sources of --top_k: column src, and rel where there are edge types; default: all nodes",
    )  # fmt: skip
    parser.add_argument(
        "--destinations", type=str, default="",
        help="file of destinations, column dst, in place of --sources: --top_k then finds their best sources",
    )  # fmt: skip
    parser.add_argument("--new_only", action="store_true", help="leave known edges out of the answers of --top_k")
    parser.add_argument(
        "--known", type=str, default="all",
        help="edges that --new_only leaves out: all, or train, which are edges of the training split",
    )  # fmt: skip
    parser.add_argument(
        "--probabilities",
        action="store_true",
        help="write probabilities in place of outputs of classes, or of scores of links that task.loss binary learned",
    )
    parser.add_argument(
        "--times", type=str, default=DATES,
        help="form of times in the answers: dates, where the times of the graph come from dates, or numbers",
    )  # fmt: skip
    parser.add_argument(
        "--embeddings", action="store_true",
        help="write the embeddings of nodes in place of labels or scores: of the nodes in --nodes, or of all",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=str, required=True,
        help="file to write (.csv, .parquet or .npz), with the columns src, dst, time and score; or node, type, time "
        "and embedding; or node, class and outputs",
    )  # fmt: skip
    return parser


def main(world: World, argv: list[str]) -> int:
    """Collective. Predict, and write the answers into a file; returns the exit code."""
    arguments, comm = parse(make_parser(), argv, world)

    def change(config: Sections) -> Sections:
        check_out(arguments.out)
        check_choice("--times", arguments.times, (DATES, NUMBERS))
        if arguments.task:
            check_choice("--task", arguments.task, ("", *config.task.further))
        return kind_of(config).check(arguments, config)

    with open_run(arguments.run, arguments.data.path, comm, world, change, arguments.data.stage_to) as (session, done):
        read = partial(provenance, Path(arguments.run), session, done)
        session.provenance = launch.on_first_rank(session.world, "read where the graph comes from", read)
        kind_of(session.config).answer(session, arguments)
    return launch.EXIT_DONE


if __name__ == "__main__":
    sys.exit(launch.run(main))
