"""A path that is no partition set, or one of another kind, is refused with the command that helps."""

from __future__ import annotations

import pytest
from random_graphs import random_graph, random_static

from data_tools.partition.command import partition
from data_tools.partition.journal import NAME
from hpcgnn.graph import files

pytestmark = pytest.mark.serial
COMMAND = "hpcgnn partition"


def refusal(folder):
    """What is said about a path."""
    with pytest.raises(files.FileFormatError) as caught:
        files.open_checked(files.book_path(folder), files.BOOK)
    return str(caught.value)


def test_a_graph_file_is_no_partition_set(tmp_path):
    graph = random_static(tmp_path / "g.h5", 1)
    assert f"{graph}: a file, not a partition set" in refusal(graph)
    assert f"{COMMAND} {graph} {tmp_path / 'g-parts'}" in refusal(graph)


def test_a_table_is_converted_first(tmp_path):
    (tmp_path / "events.csv").write_text("src,dst,time\n1,2,3\n")
    assert refusal(tmp_path / "events.csv") == (
        f"{tmp_path / 'events.csv'}: a file, not a partition set; hpcgnn convert makes a graph file of tables, and "
        "hpcgnn partition a partition set of that"
    )


def test_a_folder_without_a_set(tmp_path):
    folder = tmp_path / "p"
    assert f"{folder}: no such folder; make a partition set there: {COMMAND} GRAPH.h5 {folder}" in refusal(folder)
    folder.mkdir()
    assert f"book.h5: no such file, so no partition set is there; make one: {COMMAND} GRAPH.h5 {folder}" in refusal(
        folder
    )
    (folder / NAME).touch()
    assert "unfinished partition set; run the command that writes it again" in refusal(folder)


def test_a_set_of_another_kind(tmp_path):
    for kind, make in (("static", random_static), ("temporal", random_graph)):
        partition(make(tmp_path / f"{kind}.h5", 1), tmp_path / kind, 2, "random")
        with files.open_checked(files.book_path(tmp_path / kind), files.BOOK) as book:
            files.check_kind(book, kind)
            with pytest.raises(
                files.FileFormatError, match=f"kind is '{kind}', this task .*; train with --kind {kind}"
            ):
                files.check_kind(book, "snapshots")
