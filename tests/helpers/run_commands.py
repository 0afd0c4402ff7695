"""Commands one after the other in this process, as starting each for itself takes seconds.

A command is a list such as ["train", "--train.epochs=1"]; ["interrupted", POINT, NUMBER, RANK, SIGNAL, ...] trains as
interrupted_train.py does.
"""

from __future__ import annotations

import csv
import io
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import interrupted_train
import sample_digest
from mpi4py import MPI

from data_tools import stage
from data_tools.partition import command as partition
from data_tools.team import Ranks
from data_tools.verify import command as verify
from hpcgnn import evaluate, export_model, info, predict, train
from hpcgnn.bench import __main__ as bench
from hpcgnn.loop import launch


def change_folder(world, argv: list[str]) -> int:
    """Paths of the commands that follow, and models of one's own, are in this folder."""
    os.chdir(argv[0])
    if argv[0] not in sys.path:
        sys.path.insert(0, argv[0])
    return launch.EXIT_DONE


def asked_for(**changes):
    """The arguments of predict, with changes."""
    arguments = predict.make_parser().parse_args(["run", "--out=out.csv"])
    for name, value in changes.items():
        arguments[name] = value
    return arguments


def asked(read: Callable[[str], Any], **columns) -> Any:
    """Collective. What ``read`` makes of a file with these columns, which each rank writes for itself."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "questions.csv"
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
        return read(str(path))


def on_team(main):
    """A data tool that works on several ranks, as one of the commands here."""
    return lambda world, argv: main(argv, Ranks())


MAINS = {
    "train": train.main, "evaluate": evaluate.main, "predict": predict.main, "info": info.main,
    "bench": bench.main, "export_model": export_model.main,
    "digest": sample_digest.main, "interrupted": interrupted_train.main,
    "chdir": change_folder, "verify": on_team(verify.main), "stage": on_team(stage.main),
    "partition": on_team(partition.main),
}  # fmt: skip


@dataclass
class Ended:
    """How a command ended: its exit code, and what all ranks printed, in order of ranks."""

    returncode: int
    stdout: str
    stderr: str


class Copied(io.StringIO):
    """Keeps what is written to stderr, and writes it there too, as a job that aborts comes to no end of its command."""

    def write(self, text: str) -> int:
        sys.__stderr__.write(text)
        return super().write(text)


def run(commands: list[list[str]]) -> int:
    """Collective. The exit code of the first command that fails, or 0."""
    for name, *arguments in commands:
        code = launch.run(MAINS[name], arguments)
        if code:
            print(f"{name} {' '.join(arguments)} ended with {code}", file=sys.stderr)
            return code
    return launch.EXIT_DONE


def run_caught(name: str, *arguments: str) -> Ended | None:
    """Collective. How a command ended, on rank 0."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(Copied()) as err:
        code = launch.run(MAINS[name], list(arguments))
    everyone = MPI.COMM_WORLD.gather((code, out.getvalue(), err.getvalue()))
    if everyone is None:
        return None
    codes, outs, errs = zip(*everyone, strict=True)
    assert len(set(codes)) == 1, codes
    return Ended(codes[0], "".join(outs), "".join(errs))
