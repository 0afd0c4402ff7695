"""Interrupted partitioning: what is finished is taken over, what is half-written is not, and the files are the same."""

import json
import subprocess
import sys
from dataclasses import replace

import h5py
import pytest
from places import HELPERS
from random_graphs import random_graph, random_static

from data_tools.partition import csc as part_csc
from data_tools.partition import journal, memory, partition_set
from data_tools.partition import static as part_static
from data_tools.partition.assignment import METHODS
from data_tools.partition.command import partition
from data_tools.partition.options import Options
from data_tools.team import Team
from data_tools.verify.command import verify
from hpcgnn.graph import files

pytestmark = pytest.mark.serial
KILLED = HELPERS / "killed_partition.py"


@pytest.mark.parametrize(
    ("make", "method"), [(random_graph, "metis"), pytest.param(random_static, "ldg", marks=pytest.mark.long)]
)
def test_a_run_that_was_killed_ends_in_the_same_files(tmp_path, make, method):
    graph = make(tmp_path / "g.h5", 3, sizes=(60, 30, 9), num_edges=400)
    command = [sys.executable, str(KILLED), str(graph), str(tmp_path), method, "10"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    finished = json.loads(result.stdout)
    assert len(finished) == 10
    assert len({tuple(stages) for stages in finished}) > 1  # kills came at different stages


class Stopped(BaseException):
    """Stands for a kill at a place that the test chooses."""


def stop(*_, **__):
    raise Stopped


def hashes(folder):
    """Hash of every file of a folder."""
    return {path.name: files.file_hash(path) for path in folder.iterdir()}


STOPS = [
    (partition_set, "validate"),
    (journal, "write_file"),
    (partition_set, "number_nodes"),
    (partition_set, "clear_folder"),
    (part_static, "write_node_columns"),
    (part_csc.CscTargets, "sort"),
    (part_static, "carry_attributes"),
    (partition_set, "write_book"),
    (journal.Journal, "finish"),
]


@pytest.mark.parametrize(("place", "name"), STOPS, ids=lambda value: getattr(value, "__name__", value))
def test_a_run_goes_on_from_any_stage(tmp_path, monkeypatch, place, name):
    graph = random_static(tmp_path / "g.h5", 3)
    monkeypatch.setattr(memory, "PARTS_AT_ONCE", 2)
    options = {"parts": 5, "method": "hotness"}
    quality = partition(graph, tmp_path / "whole", **options)
    with monkeypatch.context() as patch:
        patch.setattr(place, name, stop)
        with pytest.raises(Stopped):
            partition(graph, tmp_path / "p", **options)
    assert partition(graph, tmp_path / "p", **options) == quality
    assert hashes(tmp_path / "p") == hashes(tmp_path / "whole")


def interrupted(graph, folder, monkeypatch, **options):
    """Partition up to the book."""
    with monkeypatch.context() as patch:
        patch.setattr(partition_set, "write_book", stop)
        with pytest.raises(Stopped):
            partition(graph, folder, **options)


def test_every_file_is_hashed_once(tmp_path, monkeypatch):
    graph, hashed, file_hash = random_static(tmp_path / "g.h5", 3), [], files.file_hash
    monkeypatch.setattr(memory, "PARTS_AT_ONCE", 2)
    monkeypatch.setattr(files, "file_hash", lambda path, *rest: (hashed.append(path), file_hash(path, *rest))[1])
    partition(graph, tmp_path / "p", 5, "random")
    parts = [files.part_path(tmp_path / "p", part) for part in range(5)]
    assert sorted(path for path in hashed if path in parts) == parts
    with h5py.File(files.book_path(tmp_path / "p")) as book:
        assert [digest.decode() for digest in book["parts/hash"]] == [file_hash(path) for path in parts]


def test_finished_stages_are_not_made_again_unless_their_files_changed(tmp_path, monkeypatch):
    graph = random_static(tmp_path / "g.h5", 3)
    monkeypatch.setattr(memory, "PARTS_AT_ONCE", 2)
    partition(graph, tmp_path / "whole", 6, "random")
    interrupted(graph, tmp_path / "p", monkeypatch, parts=6, method="random")
    calls = []
    counted = lambda function, name: lambda *args: calls.append(name) or function(*args)  # noqa: E731
    monkeypatch.setattr(partition_set, "validate", counted(partition_set.validate, "validate"))
    monkeypatch.setattr(part_static, "write_group", counted(part_static.write_group, "group"))
    monkeypatch.setitem(METHODS, "random", replace(METHODS["random"], make=counted(METHODS["random"].make, "assign")))
    for damaged, expected in ((None, []), ("part-3.h5", ["group"]), (journal.ASSIGNMENT, ["assign"])):
        if damaged:
            interrupted(graph, tmp_path / "p", monkeypatch, parts=6, method="random")
            calls.clear()
            path = tmp_path / "p" / damaged
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        partition(graph, tmp_path / "p", 6, "random")
        assert calls == expected
        assert hashes(tmp_path / "p") == hashes(tmp_path / "whole")
        for file in (tmp_path / "p").iterdir():
            file.unlink()


@pytest.mark.parametrize("change", [{"seed": 4}, {"parts": 4}, {"method": "metis"}, {"out_edges": True}])
def test_other_options_start_anew(tmp_path, monkeypatch, change):
    graph = random_static(tmp_path / "g.h5", 3)
    interrupted(graph, tmp_path / "p", monkeypatch, parts=6, method="random")
    options = {"parts": 6, "method": "random", **change}
    partition(graph, tmp_path / "p", **options)
    partition(graph, tmp_path / "whole", **options)
    assert hashes(tmp_path / "p") == hashes(tmp_path / "whole")


def test_another_graph_starts_anew(tmp_path, monkeypatch):
    interrupted(random_static(tmp_path / "g.h5", 3), tmp_path / "p", monkeypatch, parts=6, method="random")
    graph = random_static(tmp_path / "g.h5", 4)
    partition(graph, tmp_path / "p", 6, "random")
    partition(graph, tmp_path / "whole", 6, "random")
    assert hashes(tmp_path / "p") == hashes(tmp_path / "whole")


def test_a_damaged_journal_is_none(tmp_path, monkeypatch):
    graph = random_static(tmp_path / "g.h5", 3)
    interrupted(graph, tmp_path / "p", monkeypatch, parts=6, method="random")
    (tmp_path / "p" / journal.NAME).write_bytes(b'{"inputs_id"')
    partition(graph, tmp_path / "p", 6, "random")
    partition(graph, tmp_path / "whole", 6, "random")
    assert hashes(tmp_path / "p") == hashes(tmp_path / "whole")


PARTITIONER = """
import numpy as np

def parts(graph, weights, num_parts, seed):
    return (np.arange(graph.num_nodes) + {shift}) % num_parts
"""


def test_a_partitioner_that_was_edited_is_called_again(tmp_path, monkeypatch):
    """Its older assignment, and the parts made from it, are not taken over."""
    graph = random_static(tmp_path / "g.h5", 3)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for shift, run in ((0, interrupted), (1, None)):
        (tmp_path / "shifted.py").write_text(PARTITIONER.format(shift=shift))
        sys.modules.pop("shifted", None)
        options = {"parts": 5, "method": "shifted.parts"}
        run(graph, tmp_path / "p", monkeypatch, **options) if run else partition(graph, tmp_path / "p", **options)
    partition(graph, tmp_path / "whole", **options)
    assert hashes(tmp_path / "p") == hashes(tmp_path / "whole")
    sys.modules.pop("shifted")


def set_id(folder):
    """The identity of a set."""
    with h5py.File(files.book_path(folder)) as book:
        return book.attrs["set_id"]


def test_parts_of_a_lost_assignment_are_not_mixed_with_another_one(tmp_path, monkeypatch):
    """Of a method whose answer varies, such as KaMinPar on several threads; and two assignments make two sets."""
    graph, calls, random_parts = random_static(tmp_path / "g.h5", 3), [], METHODS["random"].make
    varying = lambda job: calls.append(0) or (random_parts(job) + len(calls)) % 5  # noqa: E731
    monkeypatch.setitem(METHODS, "random", replace(METHODS["random"], make=varying))
    monkeypatch.setattr(memory, "PARTS_AT_ONCE", 2)
    interrupted(graph, tmp_path / "p", monkeypatch, parts=5, method="random")
    (tmp_path / "p" / journal.ASSIGNMENT).unlink()
    files.part_path(tmp_path / "p", 3).unlink()
    partition(graph, tmp_path / "p", 5, "random")
    assert verify(tmp_path / "p", graph) == []
    partition(graph, tmp_path / "other", 5, "random")
    assert set_id(tmp_path / "p") != set_id(tmp_path / "other")


@pytest.mark.parametrize(("method", "fact"), [("parmetis", "ranks"), ("kaminpar", "threads"), ("metis", None)])
def test_what_an_assignment_depends_on_besides_the_options(method, fact):
    assert list(METHODS[method].depends(Options(method=method), Team())) == ([fact] if fact else [])
