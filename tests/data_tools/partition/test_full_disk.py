"""A disk that fills while a set is written: one line, exit code 1, nothing that looks complete, and no crash."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from random_graphs import random_static

from data_tools.partition.command import partition
from data_tools.partition.journal import NAME
from data_tools.synthesize import main as synthesize
from data_tools.verify.command import verify
from hpcgnn.graph import files

PROGRAM = Path(__file__).parent.with_name("full_disk.py")
KINDS = {
    "temporal": ["--events=20000", "--features=8"],
    "static": ["--static", "--num_nodes=1500", "--num_edges=60000", "--features=20"],
    "snapshots": ["--snapshots=6", "--num_nodes=1500"],
}
OPTIONS = ["--parts=3", "--method=random"]


@pytest.fixture(params=KINDS)
def graph(request, tmp_path):
    """A graph file of each kind."""
    path = tmp_path / "g.h5"
    assert synthesize([str(path), *KINDS[request.param]]) == 0
    return path


def sizes_of(graph, folder, count):
    """Random limits, less than the largest file of a set."""
    partition(graph, folder, 3, "random")
    largest = max(path.stat().st_size for path in folder.iterdir())
    return [int(random.Random(7 + place).uniform(place, place + 1) * 0.99 * largest / count) for place in range(count)]


def holds_no_set(folder):
    """Whether a folder has no book, nor parts that a journal does not know."""
    return not files.book_path(folder).exists() and ((folder / NAME).exists() or not list(folder.glob("part-*.h5")))


@pytest.mark.serial
def test_a_file_that_cannot_grow_ends_the_run_in_one_line(graph, tmp_path):
    """With every size the error comes from another place; the program ends as usual, and later it resumes."""
    folder, sizes = tmp_path / "p", sizes_of(graph, tmp_path / "whole", 10)
    limits = ",".join(map(str, sizes))
    command = [sys.executable, str(PROGRAM), limits, str(graph), str(folder), *OPTIONS]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert result.returncode == 1, result.stderr
    (line,) = result.stderr.splitlines()
    assert "File too large; make room there" in line
    assert str(folder) in line
    refusals = [text for text in result.stdout.splitlines() if text.partition(":")[0].isdigit()]
    assert len(refusals) == len(sizes) - 1
    assert all(str(folder) in text and "exit code" not in text for text in refusals), refusals
    assert holds_no_set(folder)
    partition(graph, folder, 3, "random")
    assert verify(folder, graph) == []


@pytest.mark.launcher
def test_ranks_end_together_where_a_file_cannot_grow(graph, tmp_path, mpirun):
    """Whether the rank that fails writes parts, or scratch files by itself."""
    for size in sizes_of(graph, tmp_path / "whole", 2):
        result = mpirun(2, str(PROGRAM), str(size), str(graph), str(tmp_path / "p"), *OPTIONS, check=False)
        assert result.returncode not in (0, 139), result.stderr
        assert "File too large; make room there" in result.stderr
        assert "Traceback" not in result.stderr
        assert holds_no_set(tmp_path / "p")


@pytest.mark.launcher
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk_ends_the_run_and_keeps_what_is_finished(small_disk, tmp_path, mpirun, ranks):
    """After room was made the run goes on from there."""
    graph, folder = tmp_path / "g.h5", small_disk / "p"
    synthesize([str(graph), *KINDS["static"]])
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize - 400_000))
    command = ["-m", "data_tools.partition", str(graph), str(folder), "--parts=8", "--method=random"]
    result = mpirun(ranks, *command, check=False)
    assert result.returncode == 1, result.stderr
    assert "No space left on device; make room there" in result.stderr
    assert str(folder) in result.stderr
    assert holds_no_set(folder)
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=30m", str(small_disk)], check=True)
    mpirun(ranks, *command)
    assert verify(folder, graph) == []


@pytest.mark.serial
def test_a_write_that_takes_some_of_the_bytes_is_continued(tmp_path, monkeypatch):
    """As at the end of a quota; the edges of a bucket were sorted by what the file had there."""
    pwrite = os.pwrite
    partition(random_static(tmp_path / "g.h5", 3), tmp_path / "whole", 3, "random")
    monkeypatch.setattr(os, "pwrite", lambda descriptor, content, place: pwrite(descriptor, content[:11], place))
    partition(tmp_path / "g.h5", tmp_path / "p", 3, "random")
    assert verify(tmp_path / "p", tmp_path / "g.h5") == []
