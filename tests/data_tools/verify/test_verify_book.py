"""Books of partition sets that cannot be read, or whose lists do not fit each other, are told of by name."""

import json
import shutil

import numpy as np
import pytest
from partition_sets import changing_book, replace
from random_graphs import random_graph

from data_tools.graph.book import open_book
from data_tools.graph.findings import Findings
from data_tools.partition.command import partition
from data_tools.partition.step_bytes import snapshot_step
from data_tools.synthetic.snapshots import synthesize_snapshots
from data_tools.verify.command import verify
from data_tools.verify.edges import column_types, part_halo
from data_tools.verify.snapshots import _measured_part
from hpcgnn.graph import files

pytestmark = pytest.mark.serial
RELATION = "edges/a.meets.a"


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Sets of a temporal graph and of snapshots, of two parts each, not to be changed."""
    folder = tmp_path_factory.mktemp("books")
    partition(random_graph(folder / "events.h5", 1), folder / "events", 2, "random")
    synthesize_snapshots(folder / "snapshots.h5", 12, 5, 1)
    partition(folder / "snapshots.h5", folder / "snapshots", 2)
    return folder


def attribute(name, value, group="/"):
    """A change of an attribute."""
    return lambda book: book[group].attrs.__setitem__(name, value)


def column(group, name, change):
    """A change of a list."""
    return lambda book: replace(book[group], name, change(book[group][name][:]))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("snapshots", attribute("num_snapshots", 0), "num_snapshots is 0; run hpcgnn partition again"),
        ("events", attribute("options", "[]"), "options and quality must be mappings; run hpcgnn partition again"),
        ("events", attribute("num_edges", 1 << 50, RELATION), "/edges/a.meets.a has 1125899906842624 edges, parts of"),
        ("events", column("parts", "hash", lambda hashes: hashes[:1]), "/parts/hash: 1 entries, expected 2"),
        ("events", column("nodes/a", "offsets", lambda offsets: offsets[:2]), "shape (2,), expected (3,)"),
        ("events", column("nodes/a", "offsets", lambda offsets: np.r_[1, offsets[1:]]), "ids 1 .. 9, expected 0 .. 9"),
    ],
)
def test_a_book_that_does_not_fit(sets, tmp_path, kind, change, message):
    shutil.copytree(sets / kind, tmp_path / kind)
    with changing_book(tmp_path / kind) as book:
        change(book)
    lines = verify(tmp_path / kind)
    assert any(message in line for line in lines), lines
    with pytest.raises(files.FileFormatError) as caught:
        open_book(tmp_path / kind)
    assert str(caught.value) in lines


def test_columns_of_another_graph(sets, tmp_path):
    shutil.copytree(sets / "events", tmp_path / "events")
    with changing_book(tmp_path / "events") as book:
        replace(book[RELATION], "columns", np.array([b"time", b"warmth"]))
    lines = verify(tmp_path / "events", sets / "events.h5")
    assert any("/edges/a.meets.a/columns: ['time', 'warmth'], but " in line for line in lines), lines


def test_options_of_another_version(sets, tmp_path):
    """They are told of, and measures are not compared."""
    shutil.copytree(sets / "events", tmp_path / "events")
    with changing_book(tmp_path / "events") as book:
        book.attrs["options"] = json.dumps(json.loads(book.attrs["options"]) | {"moon": 1})
    lines = verify(tmp_path / "events", sets / "events.h5")
    assert any("cannot be read" in line and "moon" in line for line in lines), lines


def test_parts_that_cannot_be_read_hold_nothing(sets, tmp_path):
    """Neither columns, nor remote nodes, nor edges between parts."""
    shutil.copytree(sets / "snapshots", tmp_path / "snapshots")
    view, findings = open_book(tmp_path / "snapshots"), Findings(unusable={0, 1})
    assert column_types(view, view.relations[0], None, findings) == []
    files.part_path(tmp_path / "snapshots", 0).write_bytes(b"no part")
    findings = Findings()
    assert part_halo(view, 0, findings) == 0
    assert _measured_part(view, 0, findings) == {}
    assert [line.split(": ")[1] for line in findings.lines] == ["cannot be read"] * 2


def test_steps_of_snapshots_are_told_of_some_numbers_of_ranks(sets):
    view = open_book(sets / "snapshots")
    assert snapshot_step(view, 2)["ranks"] == 2
    with pytest.raises(
        ValueError, match=r"--ranks 3: the book of a snapshot graph has this for 1, 2, 4, \.\.\. ranks only"
    ):
        snapshot_step(view, 3)
