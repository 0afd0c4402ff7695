"""Events and nodes appended to a temporal partition set, against a set of all events that is cut the same way."""

from __future__ import annotations

import os
import shutil

import h5py
import numpy as np
import pytest

from data_tools import append as command
from data_tools.convert import main as convert
from data_tools.graph.book import open_book
from data_tools.partition.command import partition
from data_tools.verify.command import verify
from hpcgnn.graph import files

pytestmark = pytest.mark.serial

PARTS = 4
SPEC = """
files: {events: {}}
nodes: [{type: user, ids: string}, {type: item}]
edges:
  - {relation: user.rates.item, file: events, src: user, dst: item, time: time,
     columns: {label: {column: word, classes: true}, feat: x}}
"""
OLD, ALL = 300, 420


def write_rows(path, first, last):
    """Rows of a csv file. From row 300 on some users and items are new, users' ids are longer, and no
    label is a."""
    rng, rows = np.random.default_rng(2), []
    for row in range(ALL):
        user, item, word, x = (
            rng.integers(30),
            rng.integers(12),
            rng.choice(["a", "b", "c"] if row < OLD else ["b", "c"]),
            rng.random(),
        )
        is_new = row >= OLD and row % 7 == 0
        name = f"v{100 + row}" if is_new else f"u{user:02}"
        rows.append(f"{name},{item + 12 * (row >= OLD and row % 5 == 0)},{10 * (row // 3)},{word},{x:.3f}")
    path.write_text("\n".join(["user,item,time,word,x", *rows[first:last], ""]))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the spec, the three csv files, and a set of the first 300 events."""
    folder = tmp_path_factory.mktemp("append")
    (folder / "spec.yaml").write_text(SPEC)
    for name, first, last in (("old", 0, OLD), ("new", OLD, ALL), ("all", 0, ALL)):
        write_rows(folder / f"{name}.csv", first, last)
    for name in ("old", "all"):
        assert (
            convert(["--spec", f"{folder}/spec.yaml", "--set", f"events={folder}/{name}.csv", f"{folder}/{name}.h5"])
            == 0
        )
    partition(folder / "old.h5", folder / "parts", PARTS)
    return folder


@pytest.fixture
def parts(made, tmp_path):
    return shutil.copytree(made / "parts", tmp_path / "parts")


def contents(path):
    """All columns of a file by path, with their attributes."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.update({name: (item[()], dict(item.attrs))} if hasattr(item, "dtype") else {})
        )
    return found


def parts_of_nodes(book):
    """The part of every node by row id, the types one after the other."""
    pieces = []
    for node_type in book.types:
        part = np.empty(node_type.num_nodes, np.int64)
        part[book.node_column(node_type, "row")] = np.repeat(np.arange(PARTS), np.diff(node_type.offsets))
        pieces.append(part)
    return pieces


def test_equal_to_a_set_of_all_events(made, parts, tmp_path):
    """Every column of every part, and no node of the old set has moved."""
    before = parts_of_nodes(open_book(parts))
    assert command.main([str(parts), str(made / "new.csv"), "--graph", str(tmp_path / "grown.h5")]) == 0
    book = open_book(parts)
    after = parts_of_nodes(book)
    for old, new in zip(before, after, strict=True):
        assert np.array_equal(old, new[: len(old)])
        assert len(new) > len(old)
    np.save(tmp_path / "same.npy", np.concatenate(after))
    partition(made / "all.h5", tmp_path / "all", PARTS, assignment=tmp_path / "same.npy")
    for part in range(PARTS):
        ours, theirs = contents(book.part_path(part)), contents(files.part_path(tmp_path / "all", part))
        assert ours.keys() == theirs.keys()
        for name, (values, attributes) in theirs.items():
            assert ours[name][0].dtype == values.dtype, name
            assert np.array_equal(ours[name][0], values), name
            assert ours[name][1] == attributes, name
    assert verify(parts) == []
    assert verify(parts, tmp_path / "grown.h5") == []
    sources = files.read_origin(parts)["sources"]
    assert [source["name"] for source in sources] == ["old.csv", "new.csv"]
    assert sources[1]["sha256"] == files.file_hash(made / "new.csv")
    assert len(list(parts.iterdir())) == PARTS + 1


def test_new_nodes_follow_their_first_partner(made, parts):
    """By a loop over the new events."""
    before = parts_of_nodes(open_book(parts))
    assert command.main([str(parts), str(made / "new.csv")]) == 0
    after = parts_of_nodes(open_book(parts))
    users, items = (dict(enumerate(part.tolist())) for part in before)
    sizes = np.bincount(np.concatenate(before), minlength=PARTS)
    with h5py.File(made / "all.h5") as file:
        group = file["edges/user.rates.item"]
        for src, dst in zip(group["src"][OLD:].tolist(), group["dst"][OLD:].tolist(), strict=True):
            part = users.get(src, items.get(dst, int(sizes.argmin())))
            for known, row in ((users, src), (items, dst)):
                if row not in known:
                    known[row] = part
                    sizes[part] += 1
    assert [users[row] for row in range(len(users))] == after[0].tolist()
    assert [items[row] for row in range(len(items))] == after[1].tolist()


@pytest.mark.parametrize("stop", [0, PARTS, PARTS + 1, 2 * PARTS])
def test_a_kill_leaves_the_old_set_or_the_new_one(made, parts, monkeypatch, stop):
    """At every rename and removal; the next call finds a whole set, and cleans up."""

    class Killed(BaseException):
        pass

    steps = [0]

    def counted(function):
        def call(*arguments, **options):
            source = os.fspath(arguments[0])
            if "part-" in source or source.endswith("book.h5"):
                steps[0] += 1
                if steps[0] > stop:
                    raise Killed
            return function(*arguments, **options)

        return call

    commit, unlink, made_set = command.durable.commit, command.pathlib.Path.unlink, command.replace_set

    def replace(*arguments):
        monkeypatch.setattr(command.durable, "commit", counted(commit))
        monkeypatch.setattr(command.pathlib.Path, "unlink", counted(unlink))
        made_set(*arguments)

    monkeypatch.setattr(command, "replace_set", replace)
    monkeypatch.setattr(command.shutil, "rmtree", lambda *_, **__: None)  # as a kill would
    with pytest.raises(Killed):
        command.append(parts, {"": str(made / "new.csv")})
    monkeypatch.undo()
    book = open_book(parts)
    assert book.num_edges == (OLD if stop <= PARTS else ALL)
    assert [line for line in verify(parts) if "does not belong to this set" not in line] == []
    command.remove_leftovers(book)
    assert verify(parts) == []
    assert len(list(parts.iterdir())) == PARTS + 1


REFUSED = {
    "earlier": ("v1,3,0,a,0.5\n", "last event is at time 990, the first one of the new file at 0"),
    "word": ("v1,3,2000,d,0.5\n", "the class 'd' is not among the set's, a, b, c"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(parts, tmp_path, name, capsys):
    """And the set stays as it was."""
    row, message = REFUSED[name]
    (tmp_path / "bad.csv").write_text("user,item,time,word,x\n" + row)
    before = {path.name: path.read_bytes() for path in parts.iterdir()}
    assert command.main([str(parts), str(tmp_path / "bad.csv")]) == 2
    assert message in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in parts.iterdir()} == before


def test_files_that_the_spec_does_not_have_are_refused(made, parts, capsys):
    assert command.main([str(parts), "--set", f"edges={made}/new.csv"]) == 2
    assert "made of the files events: give --set events=PATH" in capsys.readouterr().err
    assert command.main([str(parts)]) == 2
    assert "give the file with the new events" in capsys.readouterr().err
