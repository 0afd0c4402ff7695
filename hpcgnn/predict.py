"""``python -m hpcgnn.predict run/ --pairs pairs.csv --out scores.csv``: predicts probabilities of events after the end
of the graph. ``--nodes nodes.csv --out embeddings.csv`` (or ``.npz``): embeddings of nodes at such times.

Loads the best epoch, moves node memory through validation and test events, and answers for each (src, dst[, time]) or
(node[, type][, time]) of the file. Ids are those of the source data.

For a run on a static graph: ``python -m hpcgnn.predict run/ --out nodes.csv`` (or ``.npz``): class and outputs, or
``--embeddings``, of all nodes of the learnt type, with all their neighbours.

For a run on snapshots: ``python -m hpcgnn.predict run/ --out nodes.csv --snapshots 3``: the model's outputs for all
nodes at the last three snapshots, after all snapshots before: predictions, or for runs on links embeddings.
"""

from __future__ import annotations

import sys

from hpcgnn.comm.world import World
from hpcgnn.kinds import kind_of
from hpcgnn.loop import launch
from hpcgnn.loop.settings import Sections
from hpcgnn.reopen import command_parser, open_run, parse


def main(world: World, argv: list[str]) -> int:
    """Collective. Predict, and write the answers into a file; returns the exit code."""
    parser = command_parser("python -m hpcgnn.predict", __doc__)
    parser.add_argument("--pairs", type=str, default="", help="CSV with columns src, dst and optionally time")
    parser.add_argument(
        "--nodes", type=str, default="",
        help="CSV with columns node, type (of graphs with several) and optionally time",
    )  # fmt: skip
    parser.add_argument("--snapshots", type=int, default=1, help="of snapshot graphs: outputs at so many last ones")
    parser.add_argument("--embeddings", action="store_true", help="of static graphs: embeddings in place of outputs")
    parser.add_argument(
        "--out", type=str, required=True,
        help="CSV to write: src, dst, time, score, or node, type, time and the embedding, or node, class and outputs; "
        ".npz: arrays of the same",
    )  # fmt: skip
    arguments, comm = parse(parser, argv, world)

    def change(config: Sections) -> Sections:
        return kind_of(config).check(arguments, config)

    with open_run(arguments.run, arguments.data.path, comm, world, change, arguments.data.stage_to) as (session, _):
        kind_of(session.config).answer(session, arguments)
    return launch.EXIT_DONE


if __name__ == "__main__":
    sys.exit(launch.run(main))
