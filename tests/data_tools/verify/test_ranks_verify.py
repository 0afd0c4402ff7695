"""Verification on several ranks finds what one process finds, and tells it in the same words and order."""

from __future__ import annotations

import shutil

import h5py
import numpy as np
import pytest
from partition_sets import each_column, refresh, replace
from random_graphs import random_graph, random_static
from selection import long_but

from data_tools.partition.command import partition
from data_tools.synthesize import main as synthesize
from data_tools.team import Ranks, SharedError, Team
from data_tools.verify import edges as verify_edges
from data_tools.verify.command import main, verify
from hpcgnn.comm.group import Group
from hpcgnn.graph import files

NUM_PARTS = 5
KINDS = ("temporal", "static", "snapshots")


@pytest.fixture
def team(comm):
    """The ranks of the test."""
    return Ranks(Group(comm))


def make_set(kind, folder):
    """A graph file and its partition set."""
    graph = folder / "graph.h5"
    options = {}
    if kind == "temporal":
        random_graph(graph, seed=4, num_edges=200)
    elif kind == "static":
        random_static(graph, seed=4, sizes=(40, 25, 3), num_edges=200)
        options = {"out_edges": True}
    else:
        synthesize(["--snapshots", "12", "--num_nodes", "40", "--seed", "2", str(graph)])
    partition(graph, folder / "set", NUM_PARTS, "random", **options)


def nothing(folder, kind):
    """A right set."""


def lost_file(folder, kind):
    files.part_path(folder, 3).unlink()


def flipped_bytes(folder, kind):
    for part in (1, 4):
        path = files.part_path(folder, part)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def relation_of(file):
    """The relation with the most edges."""
    return max(file["edges"].values(), key=lambda group: len(group["src"]))


def other_values(folder, kind):
    for part in (0, 2, 4):
        with h5py.File(files.part_path(folder, part), "r+") as file:
            group = relation_of(file)
            name = next(name for name in sorted(group) if name not in ("src", "dst", "row", "indptr", "time", "last"))
            values = group[name][:]
            values[::2] = values[::-1][::2]
            replace(group, name, values)
            group["src"][0] = (group["src"][0] + 1) % 30
    refresh(folder)


def lost_edges(folder, kind):
    for part in (1, 2, 3):
        with h5py.File(files.part_path(folder, part), "r+") as file:
            group = relation_of(file)
            if kind == "temporal":
                each_column(group, lambda values: values[1:])
                continue
            indptr = group["indptr"][:]
            for name in [name for name in group if name != "indptr"]:
                replace(group, name, group[name][1:])
            del group["indptr"]
            group["indptr"] = np.maximum(indptr - 1, 0)
    refresh(folder)


def swapped_nodes(folder, kind):
    for part in (0, 4):
        with h5py.File(files.part_path(folder, part), "r+") as file:
            group = next(iter(file["nodes"].values()))
            group["row"][0] = group["row"][1] - 1 if group["row"][1] > group["row"][0] + 1 else group["row"][0]
    refresh(folder)


DAMAGE = (nothing, lost_file, flipped_bytes, other_values, lost_edges, swapped_nodes)


@pytest.mark.parametrize("kind", long_but(KINDS, lambda kind: kind != "static"))
def test_lines_are_those_of_one_process(team, mpi_tmp_path, monkeypatch, kind):
    monkeypatch.setattr(files, "SLAB_BYTES", 16000)
    monkeypatch.setattr(verify_edges, "MAX_WINDOWS", 4)
    if team.rank == 0:
        make_set(kind, mpi_tmp_path)
    for damage in DAMAGE:
        folder, graph = mpi_tmp_path / damage.__name__, mpi_tmp_path / "graph.h5"
        if team.rank == 0:
            shutil.copytree(mpi_tmp_path / "set", folder)
            damage(folder, kind)
        team.group.barrier()
        for against in (None, graph) if damage in (lost_edges, swapped_nodes) else (graph,):
            expected = verify(folder, against, Team()) if team.rank == 0 else None
            lines = verify(folder, against, team)
            assert lines == team.everyone(expected)[0], damage.__name__
            assert bool(lines) == (damage is not nothing), damage.__name__


def test_the_command_prints_once_and_all_ranks_leave_alike(team, mpi_tmp_path, capsys):
    if team.rank == 0:
        make_set("static", mpi_tmp_path)
    team.group.barrier()
    arguments = [str(mpi_tmp_path / "set"), "--against", str(mpi_tmp_path / "graph.h5")]
    assert main(arguments, team) == 0
    assert ("fine; 5 parts" in capsys.readouterr().out) == (team.rank == 0)
    if team.rank == 0:
        lost_file(mpi_tmp_path / "set", "static")
    team.group.barrier()
    assert main(arguments, team) == 2
    with pytest.raises((ValueError, SharedError), match="no such file"):
        main([arguments[0], "--against", str(mpi_tmp_path / "nowhere.h5")], team)
