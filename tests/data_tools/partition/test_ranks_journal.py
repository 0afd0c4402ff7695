"""Interrupted partitioning on several ranks: what is finished is taken over, by any number of ranks, and the files are
those of an undisturbed run."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
from places import HELPERS
from random_graphs import random_graph, random_static

from data_tools.partition import assignment, memory, partition_set, static
from data_tools.partition.blocks import NodeBlocks
from data_tools.partition.command import partition
from data_tools.partition.journal import ASSIGNMENT, NAME, Journal, read_notes
from data_tools.partition.partition_set import missing_groups
from data_tools.team import Ranks, Team
from hpcgnn.comm.group import Group
from hpcgnn.graph import files

KILLED = HELPERS / "killed_ranks.py"
PARTS = 6


@pytest.fixture
def team(comm):
    """The ranks of the test."""
    return Ranks(Group(comm))


class Stopped(BaseException):
    """Stands for a kill at a place that the test chooses."""


def stop(*_, **__):
    raise Stopped


def hashes(folder):
    """Hash of every file of a folder."""
    return {path.name: files.file_hash(path) for path in folder.iterdir()}


def rank_0(team, function, *arguments):
    """What a function returns on rank 0, on all ranks."""
    return team.broadcast(function(*arguments) if team.rank == 0 else None)


def shared_set(team, graph, folder, **options):
    """Partition on the ranks of a team."""
    return partition(graph, folder, PARTS, team=team, **options)


@pytest.fixture
def graph(team, mpi_tmp_path, monkeypatch):
    """A static graph; part files are written one at a time."""
    monkeypatch.setattr(memory, "PARTS_AT_ONCE", 1)
    return rank_0(team, random_static, mpi_tmp_path / "g.h5", 3)


def stop_at_second(function):
    """The function, but a stop instead of its second call."""
    calls = []

    def stopped(*arguments):
        calls.append(arguments)
        return function(*arguments) if len(calls) == 1 else stop()

    return stopped


STOPS = [
    (partition_set, "validate", stop),
    (partition_set, "number_nodes", stop),
    (partition_set, "measure", stop),
    (Journal, "note_parts", None),
    (Journal, "finish", stop),
]


@pytest.mark.parametrize(("place", "name", "instead"), STOPS, ids=lambda value: getattr(value, "__name__", value))
def test_other_ranks_go_on_from_any_stage(team, mpi_tmp_path, monkeypatch, graph, place, name, instead):
    """All ranks stop; then rank 0 goes on alone."""
    options, folder = {"method": "ldg", "passes": 1}, mpi_tmp_path / "p"
    quality = shared_set(team, graph, mpi_tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, instead or stop_at_second(getattr(place, name)))
        with pytest.raises(Stopped):
            shared_set(team, graph, folder, **options)
    team.group.barrier()
    if team.rank == 0:
        assert shared_set(Team(), graph, folder, **options) == quality
        assert hashes(folder) == hashes(mpi_tmp_path / "whole")


def interrupted(patches, run, *arguments, **options):
    """Run up to the book; all ranks stop together."""
    with patches.context() as patch:
        patch.setattr(Journal, "finish", stop)
        patch.setattr(partition_set, "write_book", lambda *_: None)
        with pytest.raises(Stopped):
            run(*arguments, **options)


def test_finished_stages_are_not_made_again_unless_their_files_changed(team, mpi_tmp_path, monkeypatch, graph):
    folder, options = mpi_tmp_path / "p", {"method": "random"}
    shared_set(team, graph, mpi_tmp_path / "whole", **options)
    calls = []
    counted = lambda function, name: lambda *args: calls.append(name) or function(*args)  # noqa: E731
    monkeypatch.setattr(partition_set, "validate", counted(partition_set.validate, "validate"))
    monkeypatch.setattr(partition_set, "shuffle", counted(partition_set.shuffle, "shuffle"))
    monkeypatch.setattr(static, "write_group", counted(static.write_group, "part"))
    methods = assignment.METHODS
    monkeypatch.setitem(methods, "random", replace(methods["random"], make=counted(methods["random"].make, "assign")))
    for damaged, expected in ((None, set()), ("part-3.h5", {"shuffle", "part"}), (ASSIGNMENT, {"assign"})):
        interrupted(monkeypatch, shared_set, team, graph, folder, **options)
        team.group.barrier()
        if team.rank == 0 and damaged:
            path = folder / damaged
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        team.group.barrier()
        calls.clear()
        shared_set(team, graph, folder, **options)
        assert set().union(*team.everyone(set(calls))) == expected
        assert sum(some.count("part") for some in team.everyone(calls)) == (damaged == "part-3.h5")
        assert rank_0(team, hashes, folder) == rank_0(team, hashes, mpi_tmp_path / "whole")
        team.group.barrier()
        if team.rank == 0:
            for file in folder.iterdir():
                file.unlink()
        team.group.barrier()


def test_one_process_goes_on_where_ranks_stopped_and_the_other_way_round(team, mpi_tmp_path, monkeypatch, graph):
    one, other = mpi_tmp_path / "one", mpi_tmp_path / "other"
    interrupted(monkeypatch, shared_set, team, graph, one, method="random")
    if team.rank == 0:
        partition(graph, mpi_tmp_path / "whole", PARTS, "random")
        journal = Journal(Team(), one, read_notes(one / NAME)["inputs_id"], "")
        assert journal.assignment(NodeBlocks.even(Team(), 3)).dtype == np.int32
        partition(graph, one, PARTS, "random")
        with monkeypatch.context() as patch:
            patch.setattr(partition_set, "write_book", stop)
            with pytest.raises(Stopped):
                partition(graph, other, PARTS, "random")
    team.group.barrier()
    shared_set(team, graph, other, method="random")
    for folder in (one, other):
        assert rank_0(team, hashes, folder) == rank_0(team, hashes, mpi_tmp_path / "whole")


@pytest.mark.serial
def test_missing_groups():
    assert list(missing_groups(range(3, 3), {})) == []
    assert list(missing_groups(range(0, 150), {})) == [range(0, 64), range(64, 128), range(128, 150)]
    assert list(missing_groups(range(2, 8), {4: "", 7: ""})) == [range(2, 4), range(5, 7)]


@pytest.mark.launcher
def test_ranks_that_were_killed_end_in_the_same_files(mpirun, tmp_path):
    graph = random_graph(tmp_path / "g.h5", 3, sizes=(60, 30, 9), num_edges=400)
    arguments = ["--parts", str(PARTS), "--method", "ldg", "--passes", "2"]
    run = lambda ranks, seconds, folder, **more: mpirun(  # noqa: E731
        ranks, str(KILLED), str(seconds), str(graph), str(tmp_path / folder), *arguments, **more
    )
    took = float(run(3, 0, "whole").stdout.split()[-1])
    moments = random.Random(1)
    for kill in range(2):
        folder = tmp_path / f"p{kill}"
        run(2 + kill, moments.uniform(0.1, 0.9 * took), folder.name, check=False)
        if (folder / NAME).exists() or not files.book_path(folder).exists():
            run(3 - kill, 0, folder.name)
        assert hashes(folder) == hashes(tmp_path / "whole")


@pytest.mark.launcher
@pytest.mark.parametrize("make", [random_graph, pytest.param(random_static, marks=pytest.mark.nightly)])
def test_one_rank_that_was_killed_leaves_nothing_that_looks_complete(mpirun, tmp_path, make):
    """At random moments, either rank; the same command then ends in the same files, as does one process."""
    graph = make(tmp_path / "g.h5", 3, sizes=(60, 30, 9), num_edges=400)
    arguments = [str(graph), str(tmp_path / "p"), "--parts", str(PARTS), "--method", "ldg", "--passes", "2"]
    whole = [str(graph), str(tmp_path / "whole"), *arguments[2:]]
    took, moments = float(mpirun(2, str(KILLED), "0", *whole).stdout.split()[-1]), random.Random(2)
    for kill in range(5):
        seconds = moments.uniform(kill, kill + 1) * 0.9 * took / 5
        mpirun(2, str(KILLED), f"{seconds},{kill % 2}", *arguments, check=False)
        if not files.book_path(tmp_path / "p").exists():
            mpirun(1 + kill % 2, str(KILLED), "0", *arguments)
        assert hashes(tmp_path / "p") == hashes(tmp_path / "whole")
        shutil.rmtree(tmp_path / "p")
