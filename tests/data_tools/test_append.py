"""Events and nodes appended to a temporal partition set, against a set of all events that is cut the same way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from data_tools import append as command
from data_tools.convert import main as convert
from data_tools.graph.book import open_book
from data_tools.graph.leftovers import LOCK
from data_tools.new_nodes import place_nodes
from data_tools.partition.command import partition
from data_tools.verify.command import main as verify_main
from data_tools.verify.command import verify
from hpcgnn.graph import files
from hpcgnn.graph.narrow import read_encoding

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


@pytest.mark.parametrize("limit", ["1", "1.1", "100"])
def test_new_nodes_follow_their_first_partner(made, parts, limit):
    """Up to a load, by a loop over the new events that counts everything again for each of them."""
    before = parts_of_nodes(open_book(parts))
    assert command.main([str(parts), str(made / "new.csv"), "--imbalance", limit]) == 0
    after = parts_of_nodes(open_book(parts))
    part = {(kind, row): int(place) for kind in (0, 1) for row, place in enumerate(before[kind])}
    with h5py.File(made / "all.h5") as file:
        group = file["edges/user.rates.item"]
        events = [
            ((0, src), (1, dst)) for src, dst in zip(group["src"][:].tolist(), group["dst"][:].tolist(), strict=True)
        ]
    mean = [len(after[0]) + len(after[1]), 2 * ALL]

    def shares(place, assigned):
        nodes = sum(part == place for part in assigned.values())
        return [PARTS * count / total for count, total in zip((nodes, entries(place, assigned)), mean, strict=True)]

    def entries(place, assigned):
        return sum(assigned.get(end) == place for event in events for end in event)

    for event in events[OLD:]:
        new = [end for end in event if end not in part]
        places = [part[end] for end in event if end in part]
        if places and max(shares(places[0], part | dict.fromkeys(new, places[0]))) > float(limit):
            places = []
        if new:
            least = min(range(PARTS), key=lambda place: max(shares(place, part)))
            part |= dict.fromkeys(new, places[0] if places else least)
    for kind in (0, 1):
        assert [part[kind, row] for row in range(len(after[kind]))] == after[kind].tolist()


def test_new_nodes_do_not_pile_up():
    """A thousand new nodes meet one node; without a limit all of them would follow it."""
    part, new = np.r_[np.arange(40) % PARTS, np.full(1000, -1)], 40 + np.arange(1000)
    placed = place_nodes(part, new, np.zeros(1000, np.int64), np.full(PARTS, 20))
    assert np.array_equal(placed[:40], part[:40])
    assert np.bincount(placed).tolist() == [10, 344, 343, 343]  # part 0 has half of all history entries as it is
    several = place_nodes(part, new, np.arange(1000) % 8, np.full(PARTS, 20))
    sizes, entries = np.bincount(several), np.bincount(several[40:]) + np.full(PARTS, 270)
    assert max(sizes.max() / sizes.mean(), entries.max() / entries.mean()) <= 1.1
    unlimited = place_nodes(part, new, np.zeros(1000, np.int64), np.full(PARTS, 20), 1e9)
    assert (unlimited[40:] == 0).all()


def test_in_several_steps(made, parts, tmp_path):
    """Equal to one step where new nodes find the same parts; each step has an edition."""
    whole = shutil.copytree(parts, tmp_path / "whole")
    for number, (first, last) in enumerate([(OLD, 330), (330, 331), (331, ALL)]):
        new = write_rows(tmp_path / f"{number}.csv", first, last)
        assert command.main([str(parts), str(new), "--imbalance", "100"]) == 0
        assert open_book(parts).edition == number + 1
        assert verify(parts) == []
    assert command.main([str(whole), str(made / "new.csv"), "--imbalance", "100"]) == 0
    one, other = open_book(parts), open_book(whole)
    assert (one.num_nodes, one.num_edges) == (other.num_nodes, other.num_edges)
    # Row ids differ where a step lists its new nodes in another order; names do not.
    for node_type in one.types:
        assert sorted(one.node_column(node_type, "id")) == sorted(other.node_column(node_type, "id"))


def test_one_append_at_a_time(made, parts, tmp_path, capsys, monkeypatch):
    """A second one is refused while the first runs, and changes nothing; a lock that a kill left keeps nobody out."""
    (parts / LOCK).touch()
    made_set, answers = command.replace_set, []

    def replace(*arguments):
        before = sorted(path.name for path in parts.iterdir())
        answers.append(command.main([str(parts), str(made / "new.csv")]))
        assert sorted(path.name for path in parts.iterdir()) == before
        made_set(*arguments)

    monkeypatch.setattr(command, "replace_set", replace)
    assert command.main([str(parts), str(made / "new.csv")]) == 0
    assert answers == [2]
    assert "another append to this set is running; wait for its end" in capsys.readouterr().err
    assert open_book(parts).num_edges == ALL
    assert not (parts / LOCK).exists()


def test_a_set_that_changed_meanwhile_is_left_alone(made, parts, tmp_path, monkeypatch):
    """As on a file system without locks, or by partition --overwrite."""
    made_set = command.replace_set

    def replace(book, scratch):
        shutil.copy(tmp_path / "other" / "book.h5", parts / "book.h5")
        made_set(book, scratch)

    partition(made / "old.h5", tmp_path / "other", PARTS, "random")
    monkeypatch.setattr(command, "replace_set", replace)
    with pytest.raises(files.FileFormatError, match="another set has taken its place meanwhile: append again"):
        command.append(parts, {"": str(made / "new.csv")})
    assert open_book(parts).set_id == open_book(tmp_path / "other").set_id


def test_killed_at_random_moments(made, parts, tmp_path):
    """By the system; what is left is the old set or the new one, and the next append ends in the new one."""
    program, sources = Path(__file__).with_name("killed_append.py"), (parts, made / "new.csv", tmp_path)
    words = [sys.executable, *map(str, (program, *sources, 12))]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert set(json.loads(ended.stdout.splitlines()[-1])) >= {"old"}


@pytest.mark.parametrize("stop", [0, PARTS, PARTS + 1, 2 * PARTS])
def test_a_kill_leaves_the_old_set_or_the_new_one(made, parts, tmp_path, monkeypatch, capsys, stop):
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
    capsys.readouterr()
    assert verify_main([str(parts)]) == 0
    printed = capsys.readouterr().out
    assert f"{book.num_edges} events" in printed
    assert "of an append that was stopped, or still runs; the set is whole without them, and the next hpcgnn" in printed
    later = write_rows(tmp_path / "later.csv", 417, ALL)
    assert command.main([str(parts), str(made / "new.csv" if stop <= PARTS else later)]) == 0
    assert verify(parts) == []
    assert len(list(parts.iterdir())) == PARTS + 1
    assert verify_main([str(parts)]) == 0
    assert "stopped" not in capsys.readouterr().out


def test_other_strangers_are_problems(parts):
    """A part beyond the last one is of no edition of this set."""
    shutil.copy(parts / "part-0.h5", parts / f"part-{PARTS}.h5")
    assert any("does not belong to this set of 4 parts; remove it" in line for line in verify(parts))


REFUSED = {
    "earlier": ("v1,3,0,a,0.5\n", "last event is at time 990, the first one of the new file at 0"),
    "low": ("v1,3,2000,b,0.5\n", "--imbalance 0.9: must be at least 1"),
    "word": ("v1,3,2000,d,0.5\n", "the class 'd' is not among the set's, a, b, c"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(parts, tmp_path, name, capsys):
    """And the set stays as it was."""
    row, message = REFUSED[name]
    (tmp_path / "bad.csv").write_text("user,item,time,word,x\n" + row)
    before = {path.name: path.read_bytes() for path in parts.iterdir()}
    options = ["--imbalance", "0.9"] if name == "low" else []
    assert command.main([str(parts), str(tmp_path / "bad.csv"), *options]) == 2
    assert message in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in parts.iterdir()} == before


def test_files_that_the_spec_does_not_have_are_refused(made, parts, capsys):
    assert command.main([str(parts), "--set", f"edges={made}/new.csv"]) == 2
    assert "made of the files events: give --set events=PATH" in capsys.readouterr().err
    assert command.main([str(parts)]) == 2
    assert "give the file with the new events" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["float16", "uint8"])
def test_new_events_take_the_narrow_form_of_the_set(made, tmp_path, name):
    """Old numbers stay as they are; a number beyond the levels of the set is refused, and the set stays."""
    options = ["--spec", str(made / "spec.yaml"), "--feature_dtype", name]
    assert convert([*options, "--set", f"events={made / 'old.csv'}", str(tmp_path / "old.h5")]) == 0
    partition(tmp_path / "old.h5", tmp_path / "parts", PARTS)
    with h5py.File(tmp_path / "old.h5") as file:
        old = file["edges/user.rates.item/feat"]
        codes, encoding = old[()], read_encoding(old)
    lines = (made / "new.csv").read_text().splitlines()
    last = ",".join([*lines[-1].split(",")[:-1], "1e6"])
    inside = [line for line in lines[1:-1] if 0.1 < float(line.split(",")[-1]) < 0.9]
    (tmp_path / "far.csv").write_text("\n".join([lines[0], *inside, last, ""]))
    before = files.book_path(tmp_path / "parts").read_bytes()
    with pytest.raises(files.FileFormatError, match=f"feat, row {len(inside)}, column 0: 1e.06 is beyond {name}"):
        command.append(tmp_path / "parts", {"events": str(tmp_path / "far.csv")})
    assert files.book_path(tmp_path / "parts").read_bytes() == before
    (tmp_path / "new.csv").write_text("\n".join([lines[0], *inside, ""]))
    command.append(tmp_path / "parts", {"events": str(tmp_path / "new.csv")}, tmp_path / "all.h5")
    assert verify(tmp_path / "parts", tmp_path / "all.h5") == []
    with h5py.File(tmp_path / "all.h5") as file:
        feat = file["edges/user.rates.item/feat"]
        assert read_encoding(feat) == encoding
        assert np.array_equal(feat[: len(codes)], codes)
        values = np.array([[float(line.split(",")[-1])] for line in inside], np.float32)
        assert np.array_equal(feat[len(codes) :], encoding.encode(values))
