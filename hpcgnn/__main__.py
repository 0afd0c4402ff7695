"""``hpcgnn COMMAND ...``: all commands, each also ``python -m hpcgnn.COMMAND`` or ``python -m data_tools.COMMAND``;
``hpcgnn --help`` lists them in the order of work."""

from __future__ import annotations

import difflib
import os
import runpy
import signal
import sys

import hpcgnn
from hpcgnn import environment
from hpcgnn.comm.launch import launched_tasks
from hpcgnn.train_help import help_asked_for

# What each command does, in the order of work: those of data_tools, and those of hpcgnn.
TOOLS = {
    "fetch": "download a public data set, checked by its sha256",
    "synthesize": "write a graph file of random events, edges or snapshots",
    "convert": "make a graph file of tables: CSV, parquet, NumPy, OGB, DGL, RDF and others",
    "snapshots": "make a graph file of snapshots, from lists of edges, events or sensors",
    "derive": "add a relation that follows from others, such as items with users in common",
    "split": "choose nodes or edges for training, validation and test",
    "inspect": "show what a graph file or a partition set holds, and what ranks would exchange",
    "partition": "cut a graph file into parts, also under mpirun",
    "append": "add later events and new nodes to a temporal partition set",
    "verify": "check a partition set, alone or against its graph file",
    "stage": "copy a partition set to a disk of each machine",
    "export": "write a graph file, or a part of one, for other programs",
    "export_metis": "write a graph as the text that METIS reads",
    "completion": "print the shell's completion of all commands and options",
    "schema": "write the JSON Schema of run files or graph specs, for editors",
}
RUNS = {
    "train": "train a graph neural network; without options, TGN on built-in events",
    "evaluate": "score a run's best epoch again, by its own or another protocol",
    "predict": "predict links, labels or embeddings with a run's best epoch",
    "export_model": "write the best weights of a run for plain PyTorch",
    "report": "write an HTML page about runs",
    "bench": "time epochs, sampling and kernels",
    "info": "show what this installation can do, or what a run folder holds",
    "jobs": "write job scripts for Slurm, PBS and Flux into a folder",
}
COMMANDS = TOOLS | RUNS


def main() -> int:
    """Run the command that the command line names, under this process's launcher if it has one."""
    environment.set_defaults()
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        return _answer(usage())
    if name == "--version":
        return _answer(f"hpcgnn {hpcgnn.__version__}")
    if name not in COMMANDS:
        return _refuse(unknown(name))
    if name == "train" and (text := help_asked_for(arguments)):
        return _answer(text)
    # Models of one's own (model.class_path) are found in the current folder, as by `python -m`. Not hpcgnn, which is
    # imported already, nor the data tools: in a clone they would be of another version than an installed hpcgnn.
    import data_tools

    if not getattr(sys.flags, "safe_path", False) and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    sys.argv = [f"hpcgnn {name}", *arguments]
    package = data_tools.__name__ if name in TOOLS else hpcgnn.__name__
    runpy.run_module(f"{package}.{name}", run_name="__main__", alter_sys=True)
    raise AssertionError(f"{package}.{name} ends by itself, with its exit code")


def usage() -> str:
    """Write the help: a line for each command."""
    return "\n".join(
        [
            "usage: hpcgnn COMMAND [OPTION ...]",
            "",
            "Graph neural network training as an MPI batch application: mpirun -np 4 hpcgnn train --data.path parts/",
            "",
            "From data to a partition set:",
            *_listed(TOOLS),
            "",
            "From a partition set to answers:",
            *_listed(RUNS),
            "",
            "hpcgnn COMMAND --help lists the options of a command. hpcgnn --version prints the version.",
            "python -m hpcgnn.train and the like, hpcgnn convert and the like are the same programs.",
        ]
    )


def _listed(commands: dict[str, str]) -> list[str]:
    return [f"  {name:14}{text}" for name, text in commands.items()]


def unknown(name: str) -> str:
    """Write a line about a command that does not exist."""
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
