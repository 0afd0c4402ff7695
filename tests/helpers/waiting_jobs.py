"""Jobs that wait for commands: `mpirun -np 2 python tests/helpers/waiting_jobs.py SOCKET` does one after the other.

For tests of what commands do; how they start and how a job dies is seen only where each has a job of its own.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Client, Connection
from pathlib import Path

import pytest

START_SECONDS = 600  # on a machine that does much else
# At most, between two looks of a rank that waits: blocking MPI calls would take a core from the tests.
IDLE_SECONDS = 0.05


class Job:
    """One mpirun; ``close`` ends it."""

    def __init__(self, mpirun, ranks: int):
        self._mpirun, self._ranks = mpirun, ranks
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hpcgnn-job-"))
            self._printed = stack.enter_context(open(f"{folder}/printed", "w+"))
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(f"{folder}/socket")
            listener.listen()
            listener.settimeout(START_SECONDS)
            options = {"stdout": self._printed, "stderr": subprocess.STDOUT}
            self._process = mpirun.popen(ranks, Path(__file__), listener.getsockname(), **options)
            stack.callback(self._end)
            self._connection = stack.enter_context(self._accept(listener))
            self.close = stack.pop_all().close

    def _accept(self, listener: socket.socket) -> Connection:
        try:
            return Connection(listener.accept()[0].detach())
        except TimeoutError:
            self._mpirun.kill(self._process)
            self._fail(f"did not start within {START_SECONDS} s")

    def run(self, command: list[str], timeout: float):
        """How a command ended, a run_commands.Ended; the test fails if that is not told."""
        self._connection.send(command)
        try:
            if self._connection.poll(timeout):
                return self._connection.recv()
        except EOFError:
            self._fail(f"ended with {command}")
        self._mpirun.kill(self._process)
        self._fail(f"ran past {timeout} s with {command}")

    def hang_up(self) -> None:
        """No command comes any more: the ranks leave."""
        self._connection.close()

    def _end(self) -> None:
        """Wait for mpirun, which the closed connection ends; kill it if it stays."""
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._mpirun.kill(self._process)
            self._process.wait()

    def _fail(self, what: str) -> None:
        self._printed.seek(0)
        pytest.fail(f"a job of {self._ranks} ranks {what}\n{self._printed.read()}")


class Jobs:
    """Jobs of any number of ranks, started when first needed; one that a test failed in is not used again."""

    def __init__(self, mpirun):
        self._mpirun, self._jobs = mpirun, {}

    def __call__(self, ranks: int, *command, check: bool = True, timeout: float = 1000):
        """How a command such as "train", "--train.epochs=1" ended on so many ranks; with ``check`` it may not fail."""
        job = self._jobs.pop(ranks, None) or Job(self._mpirun, ranks)
        words = [str(word) for word in command]
        try:
            ended = job.run(words, timeout)
        except BaseException:
            job.close()
            raise
        self._jobs[ranks] = job
        assert not (check and ended.returncode), (words, ended)
        return ended

    def close(self) -> None:
        """End them all, side by side."""
        for job in self._jobs.values():
            job.hang_up()
        while self._jobs:
            self._jobs.popitem()[1].close()


def serve(address: str) -> None:
    """Collective. Run the commands that come over a socket, until it is closed."""
    from mpi4py import MPI
    from run_commands import run_caught

    connection = Client(address) if MPI.COMM_WORLD.rank == 0 else None
    while (command := _next(MPI.COMM_WORLD, connection)) is not None:
        ended = run_caught(*command)
        if connection:
            connection.send(ended)


def _next(comm, connection: Connection | None) -> list[str] | None:
    """Collective. The next command, or None."""
    command = None
    if connection:
        try:
            command = connection.recv()
        except EOFError:
            pass
    request, pause = comm.Ibarrier(), 0.001
    while not request.Test():
        time.sleep(pause)
        pause = min(2 * pause, IDLE_SECONDS)
    return comm.bcast(command)


if __name__ == "__main__":
    serve(sys.argv[1])
