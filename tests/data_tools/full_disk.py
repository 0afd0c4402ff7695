"""Commands where no file may grow beyond a size; several sizes, comma separated, one after the other.

`full_disk.py bytes graph folder arguments` partitions, alone or on the ranks that mpirun starts, and ends with the exit
code of the last size. `full_disk.py bytes data_tools.X arguments` runs another command, for each size in a process of
its own, and prints its exit codes.
"""

import importlib
import os
import resource
import shutil
import sys

from data_tools.cli import run_command
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


def limited_command(size: int, module: str, arguments: list[str]) -> int:
    """Run a command with files of at most ``size`` bytes; returns its exit code."""
    command = importlib.import_module(module).main
    if (child := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        code = 70  # of a traceback
        try:
            code = run_command(lambda: command(arguments))
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sizes, (name, *rest) = [int(size) for size in sys.argv[1].split(",")], sys.argv[2:]
    if not name.startswith("data_tools."):
        sys.exit(run_team(lambda team: limited(team, sizes, name, *rest)))
    for limit in sizes:
        print(f"exit {limited_command(limit, name, rest)}", file=sys.stderr, flush=True)
