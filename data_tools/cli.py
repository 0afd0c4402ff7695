"""Turns the errors of every command of this folder into one line on stderr and an exit code, never a traceback."""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
from collections.abc import Callable
from typing import Any, ParamSpec

from data_tools.progress import ProgressLine
from hpcgnn.comm.launch import launched_tasks

P = ParamSpec("P")
HYPHENATED = re.compile(r"--[a-z]+(-[a-z]+)+(?==|$)")


class ToolParser(argparse.ArgumentParser):
    """The command line of a tool, ``name``. In names of options hyphens mean the same as underscores."""

    def __init__(self, name: str = "", **options: Any):
        if "description" in options:
            options["description"] = options["description"].replace("``", "")  # the marks of code
        super().__init__(**({"prog": f"hpcgnn {name}"} if name else {}) | options)

    def parse_known_args(self, args=None, namespace=None):
        """As argparse's."""
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args([HYPHENATED.sub(_underscored, word) for word in words], namespace)


def _underscored(match: re.Match[str]) -> str:
    return f"--{match[0][2:].replace('-', '_')}"


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Declare the option of a command that writes one file."""
    parser.add_argument("--overwrite", action="store_true", help="replace the output file if it exists")


def refuse_existing(output: str | os.PathLike, overwrite: bool, source: str | os.PathLike | None = None) -> None:
    """Raise ValueError for an output that is there already, unless it may be overwritten, or is the file ``source``
    that it is made of."""
    if overwrite or not os.path.lexists(output):
        return
    if source is None or not os.path.exists(source) or not os.path.samefile(output, source):
        raise ValueError(f"{os.fspath(output)}: exists already; choose another name or pass --overwrite")


def run_command(main: Callable[[], int]) -> int:
    """Run ``main`` and return its exit code; 2 for the user's input, 1 for the system's refusal, 130 for Ctrl-C.

    ValueError (FileFormatError is one) means bad input; OSError means a full disk, a missing permission and the like,
    MemoryError too little memory.
    Any other exception is a defect of the program and keeps its traceback.
    """
    try:
        with ProgressLine():
            return main()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output (head, less) has left; without this, flushing stdout at exit would complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except MemoryError as error:
        text = f"out of memory{f' ({error})' if str(error) else ''}"
        print(f"error: {text}; --memory, where a command has it, a larger machine or more ranks help", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def run_alone(main: Callable[[], int]) -> int:
    """Run ``main`` as `run_command` does, unless a launcher started copies of this command, which is one process: they
    would write the same file."""
    variable, tasks = launched_tasks()
    if tasks > 1:
        print(
            f"error: this command is one process, but a launcher started {tasks} of it ({variable}={tasks}): start it "
            "without mpirun, srun or torchrun",
            file=sys.stderr,
        )
        return 2
    return run_command(main)


def with_exit_code(main: Callable[P, int]) -> Callable[P, int]:
    """Decorate the ``main`` of a command so that errors become the exit codes of `run_command`."""

    @functools.wraps(main)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> int:
        return run_command(lambda: main(*args, **kwargs))

    return guarded
