"""``python -m hpcgnn.predict run/ --pairs pairs.csv --out scores.csv``: probabilities of events after the end of the
graph.

Loads the best epoch, moves node memory through validation and test events, and scores each (src, dst[, time]) of the
file. Ids are those of the source data.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from hpcgnn.comm.world import World
from hpcgnn.run import launch
from hpcgnn.run.launch import together
from hpcgnn.run.pairs import read_pairs, score_pairs, write_scores
from hpcgnn.run.replay import command_parser, open_run, parse
from hpcgnn.run.scoring import run_split
from hpcgnn.sample.splits import event_times


def main(world: World, argv: list[str]) -> int:
    """Collective."""
    parser = command_parser("python -m hpcgnn.predict", __doc__)
    parser.add_argument("--pairs", type=str, required=True, help="CSV with columns src, dst and optionally time")
    parser.add_argument("--out", type=str, required=True, help="CSV to write: src, dst, time, score")
    arguments, comm = parse(parser, argv, world)
    with open_run(arguments.run, arguments.data.path, comm, world) as (session, _):
        last = int(event_times(session.partition, np.array([session.partition.num_events - 1]), world)[0])
        pairs = launch.on_first_rank(world, "read the pairs", lambda: read_pairs(arguments.pairs, last))
        for split in ("val", "test"):
            run_split(session, split)
        scores = score_pairs(session, pairs)
    with together(world, "write the scores"):
        if world.rank == 0:
            Path(arguments.out).parent.mkdir(parents=True, exist_ok=True)
            write_scores(arguments.out, pairs, scores)
            print(f"{arguments.out}: {len(pairs)} scores")
    return launch.EXIT_DONE


if __name__ == "__main__":
    sys.exit(launch.run(main))
