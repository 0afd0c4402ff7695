"""``python -m hpcgnn.predict run/ --pairs pairs.csv --out scores.csv``: predicts probabilities of events after the end
of the graph. ``--nodes nodes.csv --out embeddings.csv``: embeddings of nodes at such times. Of a run on labels of
events ``--pairs``, or of one on labels of nodes ``--nodes``, gives class and outputs, or the predicted number.

Loads the best epoch, moves node memory through validation and test events, and answers for each (src, dst[, time]) or
(node[, type][, time]) of the file. Ids and times are those of the source data. The suffix of ``--out`` says what is
written: ``.csv``, ``.parquet``, or ``.npz``.

For a run on a static graph: ``python -m hpcgnn.predict run/ --out nodes.csv``: class and outputs, or ``--embeddings``,
of all nodes of the learned type, with all their neighbors; of a run on links ``--pairs pairs.csv``: scores of pairs.

For a run on snapshots: ``python -m hpcgnn.predict run/ --out nodes.csv --snapshots 3``: what is predicted of all nodes
from each of the last three snapshots, after all snapshots before; for runs on links or edges ``--embeddings``.
"""

from __future__ import annotations

import sys

from hpcgnn.comm.world import World
from hpcgnn.kinds import kind_of
from hpcgnn.loop import launch
from hpcgnn.loop.answer_file import check_suffix
from hpcgnn.loop.settings import Sections
from hpcgnn.reopen import command_parser, open_run, parse


def main(world: World, argv: list[str]) -> int:
    """Collective. Predict, and write the answers into a file; returns the exit code."""
    parser = command_parser("hpcgnn predict", __doc__)
    parser.add_argument(
        "--pairs", type=str, default="", help="CSV file of pairs to score: columns src, dst, and time or rel"
    )
    parser.add_argument(
        "--nodes", type=str, default="",
        help="CSV file of nodes: columns node, type (if the graph has several node types) and optionally time",
    )  # fmt: skip
    parser.add_argument(
        "--snapshots", type=int, default=1, help="number of last snapshots to write outputs of; snapshot graphs only"
    )
    parser.add_argument("--embeddings", action="store_true", help="write the embeddings of nodes in place of labels")
    parser.add_argument(
        "--out", type=str, required=True,
        help="file to write (.csv, .parquet or .npz), with the columns src, dst, time and score; or node, type, time "
        "and embedding; or node, class and outputs",
    )  # fmt: skip
    arguments, comm = parse(parser, argv, world)

    def change(config: Sections) -> Sections:
        check_suffix(arguments.out)
        return kind_of(config).check(arguments, config)

    with open_run(arguments.run, arguments.data.path, comm, world, change, arguments.data.stage_to) as (session, _):
        kind_of(session.config).answer(session, arguments)
    return launch.EXIT_DONE


if __name__ == "__main__":
    sys.exit(launch.run(main))
