"""How a command ends: exit codes and words for what its main function raises, in one process."""

import argparse
import os
from functools import partial

import pytest

from hpcgnn.comm.launch import BATCH_JOBS, launched_by_batch_system
from hpcgnn.comm.world import DistributedError, World
from hpcgnn.loop import launch

pytestmark = pytest.mark.serial


def raising(error):
    """A main function that raises."""

    def main(world, argv):
        raise error

    return main


def staged(error):
    """An error that the watchdog has added a stage to."""
    error.stage = "train, step 3"
    return error


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (DistributedError("no such file", user_error=True), launch.EXIT_USER, "error: no such file\n"),
        (DistributedError("no space", user_error=False), launch.EXIT_FAILURE, "error: no space\n"),
        (ValueError("of one rank"), launch.EXIT_FAILURE, "ValueError: of one rank"),
        (staged(OSError("broken")), launch.EXIT_FAILURE, ", train, step 3:\n"),
        (SystemExit(0), launch.EXIT_FAILURE, "hpcgnn: rank 0 of 1 on "),
        (KeyboardInterrupt(), launch.EXIT_INTERRUPTED, "interrupted\n"),
    ],
)
def test_errors_have_exit_codes(capsys, error, code, words):
    assert launch.run(raising(error), []) == code
    assert words in capsys.readouterr().err


def test_an_error_before_there_are_ranks(capsys, monkeypatch):
    """Of the launcher, as where every process takes itself for rank 0."""
    monkeypatch.setattr(World, "check_singleton", partial(raising(ValueError("8 tasks")), None, []))
    assert launch.run(raising(AssertionError), []) == launch.EXIT_USER
    assert capsys.readouterr().err == "error: 8 tasks\n"
    monkeypatch.setattr(World, "check_singleton", partial(raising(OSError("no MPI")), None, []))
    assert launch.run(raising(AssertionError), []) == launch.EXIT_FAILURE
    assert capsys.readouterr().err.startswith("hpcgnn: start-up:\n")


@pytest.mark.parametrize(("argument", "code"), [("--help", launch.EXIT_DONE), ("--strange", launch.EXIT_USER)])
def test_parsers_that_end_by_themselves(capsys, argument, code):
    """On the first rank, which the others have to be told of."""

    def main(world, argv):
        launch.on_first_rank(world, "command line", lambda: argparse.ArgumentParser().parse_args(argv))
        raise AssertionError

    assert launch.run(main, [argument]) == code
    assert ("wrong arguments (see --help)" in capsys.readouterr().err) == (code == launch.EXIT_USER)


def test_what_nobody_reads_is_dropped():
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        assert launch._is_read(stream)
        os.close(reader)
        assert not launch._is_read(stream)
        stream.write("lost")
        launch._drop_unread(stream)
        stream.write("lost, too")
        stream.flush()


@pytest.mark.parametrize(("size", "code"), [(1, launch.EXIT_UNREAD), (2, launch.EXIT_FAILURE)])
def test_what_nobody_reads_ends_one_rank_alone(monkeypatch, size, code):
    """Others would wait for it."""

    def main(world, argv):
        world.size = size
        raise BrokenPipeError

    monkeypatch.setattr(launch, "_is_read", lambda stream: False)
    aborted = []
    monkeypatch.setattr(World, "abort", lambda world, code: aborted.append(code))
    assert launch.run(main, []) == code
    assert aborted == [code] * (size - 1)


@pytest.mark.parametrize("variable", BATCH_JOBS)
def test_jobs_of_a_batch_system(monkeypatch, variable):
    for name in BATCH_JOBS:
        monkeypatch.delenv(name, raising=False)
    assert not launched_by_batch_system()
    monkeypatch.setenv(variable, "7")
    assert launched_by_batch_system()
