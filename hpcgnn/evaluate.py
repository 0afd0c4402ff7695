"""``python -m hpcgnn.evaluate run/``: validation and test of a run's best epoch, on any number of ranks."""

from __future__ import annotations

import json
import sys

from hpcgnn.comm.world import World
from hpcgnn.run import launch
from hpcgnn.run.logs import without_nan
from hpcgnn.run.replay import command_parser, open_run, parse
from hpcgnn.run.scoring import run_split, split_metrics


def main(world: World, argv: list[str]) -> int:
    """Collective. Prints one JSON object on rank 0."""
    parser = command_parser("python -m hpcgnn.evaluate", __doc__)
    arguments, comm = parse(parser, argv, world)
    with open_run(arguments.run, arguments.data.path, comm, world) as (session, progress):
        result = {"kind": "evaluate", "epoch": progress.epoch, "ranks": world.size}
        for split in ("val", "test"):
            metrics = split_metrics(session, split, run_split(session, split))
            result |= {f"{split}_{name}": value for name, value in metrics.items()}
    if world.rank == 0:
        print(json.dumps(without_nan(result)))
    return launch.EXIT_DONE


if __name__ == "__main__":
    sys.exit(launch.run(main))
