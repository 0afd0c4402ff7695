"""A command of data_tools where no file may grow beyond a size: `limited_command.py bytes,bytes,... module arguments`,
with one size after the other, each in a process of its own; prints its exit code after each."""

import importlib
import os
import resource
import sys

from data_tools.cli import run_command


def limited(size: int, module: str, arguments: list[str]) -> int:
    """Run the command with files of at most ``size`` bytes; returns its exit code."""
    main = importlib.import_module(module).main
    if (child := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        code = 70  # of a traceback
        try:
            code = run_command(lambda: main(arguments))
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    for limit in sys.argv[1].split(","):
        print(f"exit {limited(int(limit), sys.argv[2], sys.argv[3:])}", file=sys.stderr, flush=True)
