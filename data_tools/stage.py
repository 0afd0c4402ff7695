"""Copy a partition set to a disk of each machine, checked; training finds it there with ``--data.stage_to`` of the
same folder."""

from __future__ import annotations

import argparse
import sys

from data_tools.cli import ToolParser
from data_tools.team import Ranks, SharedError, Team, run_team


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = ToolParser("stage", description=__doc__.replace("\n", " "))
    parser.add_argument("folder", help="folder of the partition set to copy")
    parser.add_argument("stage_to", help="folder on a disk of each machine to copy to")
    return parser


def main(argv: list[str] | None = None, team: Team | None = None) -> int:
    """Command line: ``hpcgnn stage parts/ /local/scratch``; with mpirun or srun before it every rank
    stages the parts that it would train on."""
    args = make_parser().parse_args(argv)
    from hpcgnn.comm.group import DistributedError
    from hpcgnn.graph.stage import stage

    ranks = team if isinstance(team, Ranks) else Ranks()
    try:
        staged = stage(args.folder, args.stage_to, ranks.group)
    except DistributedError as error:
        raise SharedError(str(error), error.user_error) from error
    everyone = ranks.everyone((staged.files, staged.bytes))
    if ranks.rank == 0:
        copied, size = (sum(column) for column in zip(*everyone, strict=True))
        print(f"{staged.folder}: {copied} files copied, {size} bytes; what else is needed was there")
    return 0


if __name__ == "__main__":
    sys.exit(run_team(lambda team: main(team=team)))
