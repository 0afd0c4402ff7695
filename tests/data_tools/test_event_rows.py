"""The order of the events of several relations: by time, then relation, then row, as NumPy sorts them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from data_tools import append
from data_tools.convert import main as convert
from data_tools.export.command import export
from data_tools.graph.book import open_book
from data_tools.graph.checks import validate
from data_tools.graph.source import open_source
from data_tools.partition.command import partition
from data_tools.snapshots.windows import WindowOptions, read_windows
from data_tools.source import event_rows
from data_tools.verify.command import verify
from hpcgnn.graph import files

pytestmark = pytest.mark.serial

NAMES, COUNTS = ("a", "b", "c"), (70, 1, 45)
SPEC = """
files:
  a: {header: none, columns: [src, dst, time]}
  b: {header: none, columns: [src, dst, time]}
  c: {header: none, columns: [src, dst, time, more]}
nodes:
  - type: user
  - type: post
edges:
  - {relation: user.a.post, file: a, src: src, dst: dst, time: time}
  - {relation: post.b.user, file: b, src: src, dst: dst, time: time}
  - {relation: user.c.user, file: c, src: src, dst: dst, time: time, sort: true}
"""


@pytest.fixture
def tables() -> list[np.ndarray]:
    """Source, destination and time of every relation; many times are equal, also in different relations."""
    rng = np.random.default_rng(2)
    found = [np.stack([*rng.integers(0, 9, (2, n)), np.sort(rng.integers(3, 20, n))], axis=1) for n in COUNTS]
    found[2] = found[2][::-1]
    return found


def write_source(folder: Path, tables, spec: str = SPEC) -> list[str]:
    """The arguments of convert."""
    for name, table in zip(NAMES, tables, strict=True):
        more = [",7"] * len(table) if name == "c" else [""] * len(table)
        lines = [",".join(map(str, row)) + end for row, end in zip(table.tolist(), more, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    (folder / "spec.yaml").write_text(spec)
    sources = [word for name in NAMES for word in ("--set", f"{name}={folder / name}.csv")]
    return ["--spec", str(folder / "spec.yaml"), *sources, str(folder / "graph.h5")]


def expected_rows(times: list[np.ndarray]) -> list[np.ndarray]:
    number = np.repeat(np.arange(len(times)), [len(time) for time in times])
    row = np.concatenate([np.arange(len(time)) for time in times])
    place = np.empty(len(row), np.int64)
    place[np.lexsort((row, number, np.concatenate(times)))] = np.arange(len(row))
    return [place[number == relation] for relation in range(len(times))]


@pytest.mark.parametrize("slab", [16, 1 << 20])
def test_events_are_numbered_in_the_order_of_all_relations(tables, tmp_path, monkeypatch, slab):
    """Two events a slab or all of them; the checks of a graph file find the same numbers, and its copies have them."""
    monkeypatch.setattr(event_rows, "SLAB_BYTES", slab)
    assert convert(write_source(tmp_path, tables)) == 0
    with h5py.File(tmp_path / "graph.h5") as file:
        names = files.relations(file)
        times = [file["edges"][name]["time"][:] for name in names]
        found = [file["edges"][name]["event"][:] for name in names]
    assert names == ["user.a.post", "post.b.user", "user.c.user"]
    for rows, expected in zip(found, expected_rows(times), strict=True):
        assert np.array_equal(rows, expected)
    partition(tmp_path / "graph.h5", tmp_path / "parts", 3, "random")
    assert verify(tmp_path / "parts", tmp_path / "graph.h5") == []


def test_wrong_numbers_are_refused(tables, tmp_path):
    convert(write_source(tmp_path, tables))
    with h5py.File(tmp_path / "graph.h5", "r+") as file:
        column = file["edges/user.c.user/event"]
        before = int(column[4])
        column[4] = before + 1
    with (
        open_source(tmp_path / "graph.h5").file as file,
        pytest.raises(
            files.FileFormatError, match=rf"user.c.user/event, row 4: event row {before + 1}, expected {before}"
        ),
    ):
        validate(open_source(file.filename))


def test_one_relation_has_no_such_column(tables, tmp_path):
    one = SPEC[: SPEC.index("  - {relation: post.b.user")]
    assert convert([*write_source(tmp_path, tables, one)[:4], str(tmp_path / "one.h5")]) == 0
    with h5py.File(tmp_path / "one.h5") as file:
        assert set(file["edges/user.a.post"]) == {"src", "dst", "time"}


def test_other_commands_leave_the_column_out(tables, tmp_path):
    """Snapshots have no such column, and what export writes is converted to the same graph."""
    convert(write_source(tmp_path, tables))
    assert set(read_windows(tmp_path / "graph.h5", WindowOptions(windows=3, merge=False)).edges) == {"rel"}
    export(tmp_path / "graph.h5", tmp_path / "tables", "parquet")
    assert convert(["--chunks", str(tmp_path / "tables"), str(tmp_path / "again.h5")]) == 0
    with h5py.File(tmp_path / "graph.h5") as one, h5py.File(tmp_path / "again.h5") as other:
        for name in files.relations(one):
            for key in ("src", "dst", "time", "event"):
                assert np.array_equal(one["edges"][name][key][:], other["edges"][name][key][:])


def test_times_in_different_units_have_no_order(tables, tmp_path, capsys):
    spec = SPEC.replace(
        "file: b, src: src, dst: dst, time: time", "file: b, src: src, dst: dst, time: time, time_scale: 10"
    )
    assert convert(write_source(tmp_path, tables, spec)) == 2
    error = capsys.readouterr().err
    assert "the times of the relations have different units (/edges/user.a.post: numbers * 1, /edges/post.b" in error
    assert not (tmp_path / "graph.h5").exists()


def test_a_column_of_that_name(tables, tmp_path, capsys):
    spec = SPEC.replace("sort: true}", "sort: true, columns: {event: {column: more, dtype: int64}}}")
    assert convert(write_source(tmp_path, tables, spec)) == 2
    assert "/edges/user.c.user: the column event is for the order of all events: rename it" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["random", "metis"])
def test_append_numbers_events_among_all_relations(tables, tmp_path, method):
    """Every column of every part is what it is in a set of all events with the same parts. The first new events happen
    at the last time of the set; one relation has no new event, and nodes are new in two of them."""
    last = 14  # time of the set
    tables[1][:, 2] = 5
    tables[0][:40, 2], tables[0][40:, 2] = np.minimum(tables[0][:40, 2], last), np.maximum(tables[0][40:, 2], last)
    tables[0][38:42, 2] = last
    is_old = [np.arange(COUNTS[0]) < 40, *(table[:, 2] <= last for table in tables[1:])]
    for number in (0, 2):
        late = np.flatnonzero(~is_old[number])[::3]
        tables[number][late, 0] = 20 + np.arange(len(late)) % 4
    folders = {name: tmp_path / name for name in ("old", "new", "all")}
    chosen = {"old": is_old, "new": [~mask for mask in is_old], "all": [slice(None)] * 3}
    for name, folder in folders.items():
        folder.mkdir()
        options = write_source(folder, [table[rows] for table, rows in zip(tables, chosen[name], strict=True)])
        assert name == "new" or convert(options) == 0
    partition(folders["old"] / "graph.h5", tmp_path / "parts", 3, method)
    append.append(tmp_path / "parts", {name: str(folders["new"] / f"{name}.csv") for name in NAMES})
    book = open_book(tmp_path / "parts")
    part = [np.empty(node_type.num_nodes, np.int64) for node_type in book.types]
    for node_type, of_type in zip(book.types, part, strict=True):
        of_type[book.node_column(node_type, "row")] = np.repeat(np.arange(3), np.diff(node_type.offsets))
    np.save(tmp_path / "same.npy", np.concatenate(part))
    partition(folders["all"] / "graph.h5", tmp_path / "whole", 3, assignment=tmp_path / "same.npy")
    assert verify(tmp_path / "parts") == []
    for number in range(3):
        with (
            h5py.File(book.part_path(number)) as ours,
            h5py.File(files.part_path(tmp_path / "whole", number)) as theirs,
        ):
            columns = []
            theirs.visititems(lambda name, item, into=columns: into.append(name) if hasattr(item, "dtype") else None)
            assert len(columns) > 20
            for name in columns:
                assert np.array_equal(ours[name][:], theirs[name][:]), name
