"""Partitions where no file may grow beyond a size: `full_disk.py bytes folder arguments`, alone or on the ranks that
mpirun starts; several sizes, comma separated, one after the other. Ends with the exit code of the last one.
"""

import resource
import shutil
import sys

from data_tools.partition.command import main
from data_tools.team import Team, run_team


def limited(team: Team, sizes: list[int], graph: str, folder: str, *arguments: str) -> int:
    """Partition under every limit, each time into an empty folder but the last."""
    for index, size in enumerate(sizes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        try:
            code = main([graph, folder, *arguments], team)
        except (OSError, ValueError) as error:
            if index == len(sizes) - 1:
                raise
            print(f"{size}: {error}")
        else:
            print(f"{size}: exit code {code}")
        if index < len(sizes) - 1 and team.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    return code


if __name__ == "__main__":
    limits, *rest = sys.argv[1:]
    sys.exit(run_team(lambda team: limited(team, [int(size) for size in limits.split(",")], *rest)))
