"""``hpcgnn COMMAND ...``, the same as ``python -m hpcgnn.COMMAND ...``; ``hpcgnn --help`` lists the commands."""

from __future__ import annotations

import difflib
import os
import runpy
import signal
import sys

import hpcgnn
from hpcgnn.comm.launch import launched_tasks

COMMANDS = {
    "train": "train a graph neural network; without options, TGN on built-in events",
    "evaluate": "score a run's best epoch again, by its own or another protocol",
    "predict": "predict links, labels or embeddings with a run's best epoch",
    "info": "say what this installation can do, or what a run folder holds",
    "bench": "time epochs, sampling and kernels",
    "report": "write an HTML page about runs",
    "jobs": "write job scripts for Slurm, PBS and Flux into a folder",
}
TOOLS = (
    "convert", "derive", "export", "fetch", "inspect", "partition", "snapshots", "split", "stage", "synthesize",
    "verify",
)  # fmt: skip


def main() -> int:
    """Run the command that the command line names, under this process's launcher if it has one."""
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        return _answer(usage())
    if name == "--version":
        return _answer(f"hpcgnn {hpcgnn.__version__}")
    if name not in COMMANDS:
        return _refuse(unknown(name))
    # Models of one's own (model.class_path) are found in the current folder, as by `python -m`. Not hpcgnn, which is
    # imported already, nor the data tools: in a clone they would be of another version than an installed hpcgnn.
    import data_tools  # noqa: F401

    if not getattr(sys.flags, "safe_path", False) and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    sys.argv = [f"hpcgnn {name}", *arguments]
    runpy.run_module(f"hpcgnn.{name}", run_name="__main__", alter_sys=True)
    raise AssertionError(f"hpcgnn.{name} ends by itself, with its exit code")


def usage() -> str:
    """Write the help: a line for each command."""
    lines = [f"  {name:10}{text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: hpcgnn COMMAND [OPTION ...]",
            "",
            "Graph neural network training as an MPI batch application: mpirun -np 4 hpcgnn train --data.path parts/",
            "",
            *lines,
            "",
            "hpcgnn COMMAND --help lists the options of a command; python -m hpcgnn.COMMAND is the same program.",
            "hpcgnn --version prints the version.",
            "Graphs are converted and partitioned by python -m data_tools.convert, data_tools.partition and others.",
        ]
    )


def unknown(name: str) -> str:
    """Write a line about a command that does not exist, or is a tool of the data."""
    if name in TOOLS:
        return f"no command {name!r}: it is python -m data_tools.{name}"
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    return f"no command {name!r}" + (f"; did you mean {close[0]}?" if close else f"; there are {', '.join(COMMANDS)}")


def _answer(text: str) -> int:
    """Print a text once; returns exit code 0."""
    if launched_tasks()[1] == 1:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # behind `| head` it ends without a word
        print(text)
        return 0
    from hpcgnn.loop import launch

    return launch.run(lambda world, _: launch.on_first_rank(world, "command line", lambda: print(text)) or 0)


def _refuse(message: str) -> int:
    """Print once what is wrong with the command line; returns exit code 2."""
    if launched_tasks()[1] == 1:
        print(f"error: {message}", file=sys.stderr)
        return 2
    # Together: a launcher ends all ranks when the first one leaves with an error, maybe before rank 0 has said why.
    from hpcgnn.loop import launch

    def refuse():
        raise ValueError(message)

    return launch.run(lambda world, _: launch.on_first_rank(world, "command line", refuse))


if __name__ == "__main__":
    sys.exit(main())
