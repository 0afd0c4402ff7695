"""The ranks that a command runs on: this process alone, or the ranks that an MPI launcher started.

R ranks. MPI is loaded only where there are several, or where a library needs it.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from data_tools.cli import run_command
from data_tools.memory import mebibytes
from hpcgnn.comm.launch import launched_tasks


class SharedError(Exception):
    """An error that all ranks leave with; ``user_error`` when the user's input caused it."""

    def __init__(self, message: str, user_error: bool):
        super().__init__(message)
        self.user_error = user_error


class Team:
    """The ranks of a command: here one, this process. The docstrings of the methods describe several ranks; here each
    method works on this one."""

    rank, size = 0, 1

    def everyone(self, value: Any) -> list:
        """Collective. Return one picklable object a rank [R], on every rank."""
        return [value]

    def broadcast(self, value: Any, rank: int = 0) -> Any:
        """Collective. Return a picklable object of one rank, on every rank."""
        return value

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Collective. Add up over ranks, elementwise, on every rank."""
        return values

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Collective. Take the maximum over ranks, elementwise, on every rank."""
        return values

    def exchange(self, rows: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Collective. Send rows [n, ...], grouped by rank, counts [R] of them; returns the received rows, by source,
        and how many came from each."""
        return rows, counts

    def send(self, ranks: np.ndarray, *columns: np.ndarray) -> list[np.ndarray]:
        """Collective. Send row i of the columns [n, ...] to rank ranks[i]; returns the columns of the received rows, by
        source and in the order that they had there."""
        return list(columns)

    def look_up(self, ranks: np.ndarray, places: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Collective. Return the values [n, ...] that lie at places [n] of the arrays ``values`` [k, ...] of ranks
        [n]."""
        return values[places]

    def ranks_on_machine(self) -> int:
        """Collective. Count the ranks on this rank's machine."""
        return 1

    def agree(self, error: Exception | None, stage: str) -> None:
        """Collective. Raise on all ranks the error that any rank brings."""
        if error is not None:
            raise error

    @contextlib.contextmanager
    def together(self, stage: str):
        """Collective. Run local code; a ValueError or OSError on any rank is raised on all."""
        error = None
        try:
            yield
        except (ValueError, OSError) as caught:
            error = caught
        self.agree(error, stage)

    def share(self, start: int, stop: int) -> tuple[int, int]:
        """Return this rank's contiguous share of start .. stop - 1."""
        length = stop - start
        return start + length * self.rank // self.size, start + length * (self.rank + 1) // self.size


class Ranks(Team):
    """Collective to create. The ranks of an MPI job; group: their `Group`."""

    def __init__(self, group=None):
        from hpcgnn.comm.group import Group

        self.group = group or Group()
        self.rank, self.size = self.group.rank, self.group.size

    def everyone(self, value: Any) -> list:
        """Collective. Gather one object a rank [R], pickled, on every rank."""
        return self.group.allgather(value)

    def broadcast(self, value: Any, rank: int = 0) -> Any:
        """Collective. Send an object of one rank to all."""
        return self.group.broadcast(value, rank)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Collective. All-reduce by addition."""
        return self.group.reduce_array(values)

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Collective. All-reduce by maximum."""
        return self.group.reduce_array(values, "max")

    def exchange(self, rows: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Collective. Exchange rows between all ranks."""
        return self.group.exchange(rows, counts)

    def send(self, ranks: np.ndarray, *columns: np.ndarray) -> list[np.ndarray]:
        """Collective. Sort the rows by their ranks, and exchange every column."""
        order, counts = np.argsort(ranks, kind="stable"), np.bincount(ranks, minlength=self.size)
        return [self.exchange(column[order], counts)[0] for column in columns]

    def look_up(self, ranks: np.ndarray, places: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Collective. Send the places to the ranks that have the values, and these back."""
        order, counts = np.argsort(ranks, kind="stable"), np.bincount(ranks, minlength=self.size)
        requested, num_requested = self.exchange(places[order], counts)
        answers, _ = self.exchange(values[requested], num_requested)
        ordered = np.empty_like(answers)
        ordered[order] = answers
        return ordered

    def ranks_on_machine(self) -> int:
        """Collective. Count the ranks on this rank's machine."""
        return self.group.ranks_on_machine()

    def agree(self, error: Exception | None, stage: str) -> None:
        """Collective. Raise SharedError on all ranks where any rank brings an error."""
        from hpcgnn.comm.group import DistributedError

        try:
            self.group.agree(error, stage)
        except DistributedError as caught:
            raise SharedError(str(caught), caught.user_error) from error

    def end(self) -> None:
        """End all ranks at once."""
        self.group.abort(1)


def check_scratch(team: Team, num_bytes: int) -> None:
    """Collective. Raise ValueError where the system's folder of temporary files has less room than the ranks of this
    machine need of the bytes that all ranks write together."""
    on_machine = team.ranks_on_machine()
    with team.together("look for room"):
        folder, needed = tempfile.gettempdir(), num_bytes * on_machine // team.size
        if needed > (free := shutil.disk_usage(folder).free):
            raise ValueError(
                f"{folder}: scratch files need about {mebibytes(needed)} there, and {mebibytes(free)} are "
                "free; set TMPDIR to a folder on a disk with more room (a folder in memory takes it from the job)"
            )


def launched_team() -> Team:
    """Collective. Return the ranks that a launcher started, or this process alone."""
    return Ranks() if launched_tasks()[1] > 1 else Team()


def run_team(main: Callable[[Team], int]) -> int:
    """Run a command on one rank or several, with the exit codes of `run_command`. One rank prints an error that all
    share, and the exit code is the same on all. A rank that fails alone ends all."""

    def run() -> int:
        team = launched_team()
        try:
            return main(team)
        except SharedError as error:
            if team.rank == 0:
                print(f"error: {error}", file=sys.stderr)
            return 2 if error.user_error else 1
        except BrokenPipeError:
            raise
        except BaseException as error:
            if isinstance(team, Ranks) and team.size > 1:
                if isinstance(error, (OSError, MemoryError)):
                    print(f"error: {str(error) or 'out of memory'} [rank {team.rank} of {team.size}]", file=sys.stderr)
                else:
                    traceback.print_exc()
                team.end()
            raise

    return run_command(run)
