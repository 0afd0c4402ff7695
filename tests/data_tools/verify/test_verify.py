"""Verification accepts every right set and finds every planted error, even when hashes were made to fit it."""

import json
import re
import shutil
import subprocess
import sys

import h5py
import numpy as np
import pytest
from partition_sets import change_quality, changing_book, each_column, offsets_of, refresh, replace
from random_graphs import random_graph
from selection import long_but

from data_tools.partition.command import partition
from data_tools.synthesize import synthesize_events
from data_tools.verify import rows as verify_rows
from data_tools.verify.command import main, verify
from hpcgnn.graph import files

pytestmark = pytest.mark.serial

NUM_PARTS = 4


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A graph file and its partition set, not to be changed: (graph, folder)."""
    folder = tmp_path_factory.mktemp("verify")
    graph = random_graph(folder / "g.h5", seed=1, sizes=(40, 25, 3), num_edges=200)
    partition(graph, folder / "p", NUM_PARTS, "random")
    return graph, folder / "p"


@pytest.fixture
def planted(made, tmp_path):
    """A copy that may be spoilt: (graph, folder)."""
    shutil.copytree(made[1], tmp_path / "p")
    return made[0], tmp_path / "p"


def row_where(file, condition):
    """First position in the events of a.meets.a for which condition(src, dst) holds."""
    edges = file["edges/a.meets.a"]
    return int(np.argmax(condition(edges["src"][:], edges["dst"][:])))


def test_right_sets_pass(made, capsys):
    graph, folder = made
    assert main([str(folder)]) == 0
    assert "fine; 4 parts, 68 nodes, 300 events" in capsys.readouterr().out
    assert main([str(folder), "--against", str(graph)]) == 0


@pytest.mark.parametrize("seed", long_but(range(12), lambda seed: seed < 4))
def test_random_sets_pass(tmp_path, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    sizes = tuple(int(size) for size in rng.integers(0, 30, 3))
    graph = random_graph(tmp_path / "g.h5", seed, sizes, num_edges=int(rng.integers(0, 100)))
    num_parts, method = int(rng.choice([1, 2, 7, 35])), ["random", "metis"][seed % 2]
    partition(graph, tmp_path / "p", num_parts, method, balance=("nodes", "events"))
    monkeypatch.setattr(files, "SLAB_BYTES", int(rng.choice([200, 5000, 1 << 26])))
    assert verify(tmp_path / "p") == []
    assert verify(tmp_path / "p", graph) == []


def test_synthetic_events_pass(tmp_path):
    synthesize_events(tmp_path / "g.h5", 5000, 300, 60, seed=1, feature_dim=3)
    partition(tmp_path / "g.h5", tmp_path / "p", 8)
    assert verify(tmp_path / "p", tmp_path / "g.h5") == []


def test_wikipedia_passes(tmp_path, shared_data):
    from data_tools.convert import main as convert

    events = shared_data("wikipedia/wikipedia.csv.gz")
    convert(["--preset", "jodie", "--set", f"events={events}", str(tmp_path / "w.h5")])
    partition(tmp_path / "w.h5", tmp_path / "p", 16, "random")
    assert verify(tmp_path / "p", tmp_path / "w.h5") == []


# Each of these changes part 1 (or the book) of a set; the message must then be found without the graph file.


def changed_time(file, offsets):
    file["edges/a.meets.a/time"][5] += 1000


def swapped_rows(file, offsets):
    each_column(file["edges/a.meets.a"], lambda values: values[np.r_[1, 0, 2 : len(values)]])


def wrong_feature(file, offsets):
    row = row_where(file, lambda src, dst: (src < offsets[1]) | (dst < offsets[1]))
    file["edges/a.meets.a/feat"][row, 2] += 1


def lost_event(file, offsets):
    each_column(file["edges/a.meets.a"], lambda values: np.delete(values, 3, axis=0))


def doubled_event(file, offsets):
    each_column(file["edges/a.meets.a"], lambda values: np.insert(values, 3, values[3], axis=0))


def foreign_event(file, offsets):
    edges = file["edges/a.meets.a"]
    edges["src"][4] = edges["dst"][4] = offsets[3]


def other_endpoint(file, offsets):
    row = row_where(file, lambda src, dst: (src >= offsets[1]) & (src < offsets[2]) & (dst < offsets[1]))
    src = file["edges/a.meets.a/src"][row]
    file["edges/a.meets.a/src"][row] = src + 1 if src + 1 < offsets[2] else src - 1


def endpoint_of_another_type(file, offsets):
    file["edges/a.likes.b/dst"][2] = 0


def event_row_out_of_range(file, offsets):
    rows = file["edges/a.meets.a/row"]
    rows[len(rows) - 1] = 10_000


def node_row_out_of_order(file, offsets):
    rows = file["nodes/a/row"]
    rows[0], rows[1] = rows[1], rows[0]


def node_of_another_part(file, offsets):
    rows = file["nodes/a/row"][:]
    foreign = np.setdiff1d(np.arange(rows[0] + 1, rows[0] + 3), rows)
    file["nodes/a/row"][0] = foreign[0] if len(foreign) else rows[0] - 1


def lost_node(file, offsets):
    each_column(file["nodes/a"], lambda values: values[:-1])


def wrong_history_entry(file, offsets):
    event = file["history/a.meets.a/event"]
    event[0] = event[0] + 1


def history_out_of_range(file, offsets):
    file["history/a.meets.a/event"][0] = 100_000


def history_out_of_order(file, offsets):
    indptr, event = file["history/a.meets.a/indptr"][:], file["history/a.meets.a/event"]
    start = indptr[np.argmax(np.diff(indptr) > 1)]
    event[start], event[start + 1] = event[start + 1], event[start]


def lost_history_entry(file, offsets):
    group = file["history/a.meets.a"]
    replace(group, "event", group["event"][:-1])
    indptr = group["indptr"][:]
    replace(group, "indptr", np.minimum(indptr, indptr[-1] - 1))


def wrong_indptr(file, offsets):
    file["history/a.meets.a/indptr"][3] += 1


def indptr_decreasing(file, offsets):
    file["history/a.meets.a/indptr"][3] = 10_000


def short_indptr(file, offsets):
    group = file["history/a.meets.a"]
    replace(group, "indptr", group["indptr"][:-1])


def missing_column(file, offsets):
    del file["edges/a.meets.a/tag"]


def additional_column(file, offsets):
    file["nodes/a/extra"] = np.zeros(len(file["nodes/a/row"]))


def other_dtype(file, offsets):
    replace(file["edges/a.meets.a"], "time", file["edges/a.meets.a/time"][:].astype(np.int32))


def short_column(file, offsets):
    replace(file["nodes/a"], "feat", file["nodes/a/feat"][:-1])


def missing_group(file, offsets):
    del file["history/a.likes.b"]


def another_set(file, offsets):
    file.attrs["set_id"] = "0" * 64


def another_part(file, offsets):
    file.attrs["part"] = 2


def another_version(file, offsets):
    file.attrs["format_version"] = 99


PLANTED = {
    changed_time: "/edges/a.meets.a/time: row 6: ",
    swapped_rows: "/edges/a.meets.a/row: row 1: ",
    wrong_feature: "/edges/a.meets.a/feat: row ",
    lost_event: "/history/a.meets.a",
    doubled_event: "/edges/a.meets.a/row: row 4: ",
    foreign_event: "/edges/a.meets.a/row: row 4: neither endpoint of the event is in this part",
    other_endpoint: "/edges/a.meets.a/src: row ",
    endpoint_of_another_type: "/edges/a.likes.b/dst: row 2: 0 is outside 40..64 of type 'b'",
    event_row_out_of_range: "10000 is outside 0..199",
    node_row_out_of_order: "/nodes/a/row: row 1: ",
    node_of_another_part: "/nodes/a",
    lost_node: "/nodes/a/row: ",
    wrong_history_entry: "/history/a.meets.a/event: row ",
    history_out_of_range: "/history/a.meets.a/event: row 0: 100000 is outside",
    history_out_of_order: "/history/a.meets.a/event: row ",
    lost_history_entry: "entries, expected",
    wrong_indptr: "/history/a.meets.a/event: row ",
    indptr_decreasing: "/history/a.meets.a/indptr: row 4: ",
    short_indptr: "/history/a.meets.a/indptr: ",
    missing_column: "/edges/a.meets.a/tag: found nothing",
    additional_column: "/nodes/a/extra: found",
    other_dtype: "/edges/a.meets.a/time: found ('<i4', ())",
    short_column: "/nodes/a/feat: ",
    missing_group: "/history: relations",
    another_set: "attribute set_id",
    another_part: "attribute part is",
    another_version: "version 99",
}


@pytest.mark.parametrize("change", PLANTED, ids=lambda change: change.__name__)
def test_planted_errors_are_found_by_content_alone(planted, change):
    graph, folder = planted
    offsets = offsets_of(folder)
    with h5py.File(files.part_path(folder, 1), "r+") as file:
        change(file, offsets)
    assert any("sha256" in line or "bytes, expected" in line for line in verify(folder))
    refresh(folder)
    for against in (None, graph):
        lines = verify(folder, against)
        assert not any("sha256" in line for line in lines)
        assert any(PLANTED[change] in line for line in lines), lines
        assert any("part-1.h5" in line for line in lines) or change is node_of_another_part


def test_only_the_graph_file_gives_away_a_value_that_one_part_holds(planted):
    graph, folder = planted
    with h5py.File(files.part_path(folder, 2), "r+") as file:
        file["nodes/a/feat"][3, 1] += 0.5
    refresh(folder)
    assert verify(folder) == []
    (line,) = verify(folder, graph)
    assert line.startswith(str(files.part_path(folder, 2)))
    assert "/nodes/a/feat: row 3: " in line


def test_a_node_moved_to_another_part_is_found(planted):
    graph, folder = planted
    moved = {}
    with h5py.File(files.part_path(folder, 0), "r+") as file:
        for name in list(file["nodes/a"]):
            values = file["nodes/a"][name][:]
            moved[name] = values[-1:]
            replace(file["nodes/a"], name, values[:-1])
    with h5py.File(files.part_path(folder, 1), "r+") as file:
        place = int(np.searchsorted(file["nodes/a/row"][:], moved["row"][0]))
        for name in list(file["nodes/a"]):
            replace(file["nodes/a"], name, np.insert(file["nodes/a"][name][:], place, moved[name], axis=0))
    with changing_book(folder) as book:
        book["nodes/a/offsets"][1] -= 1
    refresh(folder)
    assert any("/history/" in line for line in verify(folder))
    assert any("/edges/a.meets.a/src: row " in line for line in verify(folder, graph))


def test_an_event_lost_in_both_parts_is_found(planted):
    _, folder = planted
    for part in range(NUM_PARTS):
        with h5py.File(files.part_path(folder, part), "r+") as file:
            keep = file["edges/a.meets.a/row"][:] != 17
            each_column(file["edges/a.meets.a"], lambda values, keep=keep: values[keep])
    refresh(folder)
    assert any("/edges/a.meets.a: row 17: the event is in no part" in line for line in verify(folder))


def test_a_lost_copy_is_found_even_if_the_history_fits(planted):
    _, folder = planted
    offsets = offsets_of(folder)
    with h5py.File(files.part_path(folder, 1), "r+") as file:
        position = row_where(file, lambda src, dst: (src >= offsets[1]) & (src < offsets[2]) & (dst < offsets[1]))
        row = int(file["edges/a.meets.a/row"][position])
        each_column(file["edges/a.meets.a"], lambda values: np.delete(values, position, axis=0))
        group = file["history/a.meets.a"]
        indptr, event = group["indptr"][:], group["event"][:]
        entry = int(np.argmax(event == position))
        replace(group, "indptr", indptr - (indptr > entry))
        event = np.delete(event, entry)
        replace(group, "event", event - (event > position).astype(event.dtype))
    refresh(folder)
    (line,) = (line for line in verify(folder) if "missing" in line)
    assert line.startswith(str(files.part_path(folder, 1)))
    assert f"row {row}: the event is missing" in line


def test_wrong_offsets_in_the_book_are_found(planted):
    _, folder = planted
    with changing_book(folder) as book:
        book["nodes/a/offsets"][2] += 1
    assert any("part-1.h5: /nodes/a/" in line for line in verify(folder))
    with changing_book(folder) as book:
        book["nodes/a/offsets"][2] = 10_000
    assert any("/nodes/a/offsets: row 3: " in line for line in verify(folder))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("quality", '{"cut": 1}', "quality: cut is 1"),
        ("source_hash", "0" * 64, "source_hash"),
        ("kind", "meshes", "not supported yet by verify"),
        ("kind", "snapshots", "attributes are missing: num_snapshots"),
        ("quality", "{", "cannot be read"),
    ],
)
def test_wrong_attributes_of_the_book_are_found(planted, name, value, message):
    graph, folder = planted
    with changing_book(folder) as book:
        book.attrs[name] = value
    assert any(message in line for line in verify(folder, graph))


def test_missing_truncated_and_left_over_files_are_found(planted, capsys):
    _, folder = planted
    files.part_path(folder, 1).unlink()
    with files.part_path(folder, 2).open("r+b") as file:
        file.truncate(3000)
    shutil.copy(files.part_path(folder, 3), files.part_path(folder, 9))
    assert main([str(folder)]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert any("part-1.h5: no such file" in line for line in lines)
    assert any("part-2.h5: 3000 bytes, expected" in line for line in lines)
    assert any("part-9.h5: does not belong" in line for line in lines)
    # Rows that may be in the files that are gone are not reported as lost.
    assert not any("in no part" in line or "missing;" in line for line in lines)


def test_a_part_of_another_set_is_found(planted, tmp_path):
    graph, folder = planted
    partition(graph, tmp_path / "other", NUM_PARTS, "random", seed=1)
    shutil.copy(files.part_path(tmp_path / "other", 2), files.part_path(folder, 2))
    lines = verify(folder)
    assert any("part-2.h5: " in line and "expected" in line for line in lines)
    refresh(folder)
    assert any("part-2.h5: attribute set_id" in line for line in verify(folder))


def test_another_graph_file_is_refused(planted, tmp_path):
    _, folder = planted
    other = random_graph(tmp_path / "other.h5", seed=2, sizes=(40, 25, 4))
    lines = verify(folder, other)
    assert any("source_hash" in line for line in lines)
    assert any("/nodes: " in line for line in lines)


@pytest.mark.parametrize("seed", range(60))
def test_a_flipped_bit_anywhere_is_found(planted, seed):
    graph, folder = planted
    rng = np.random.default_rng(seed)
    path = sorted(folder.iterdir())[1 + int(rng.integers(NUM_PARTS))]
    data = bytearray(path.read_bytes())
    data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)
    assert any(f"{path.name}: sha256" in line for line in verify(folder, graph))


def test_no_book_is_no_set(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "book.h5: cannot be read" in capsys.readouterr().out


def test_many_bad_rows_are_counted_not_listed(planted):
    graph, folder = planted
    with h5py.File(files.part_path(folder, 1), "r+") as file:
        file["edges/a.meets.a/feat"][:] = 0
    refresh(folder)
    lines = [line for line in verify(folder, graph) if "/edges/a.meets.a/feat" in line]
    assert len(lines) == 4
    assert "more rows like these" in lines[-1]


def test_values_are_compared_bit_by_bit():
    left = np.array([[0.0, np.nan], [1.0, 2.0]])
    right = np.array([[-0.0, np.nan], [1.0, 2.0]])
    assert verify_rows.same_rows(left, left).tolist() == [True, True]
    assert verify_rows.same_rows(left, right).tolist() == [False, True]
    assert verify_rows.same_rows(np.zeros((2, 0)), np.zeros((2, 0))).tolist() == [True, True]


@pytest.mark.launcher
def test_the_command_ends_with_2_when_there_is_no_graph_file(made, tmp_path):
    command = [sys.executable, "-m", "data_tools.verify", str(made[1]), "--against", str(tmp_path / "none.h5")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "none.h5: no such file" in done.stderr


@pytest.mark.parametrize("name", ["cut", "cut_fraction", "replication", "events", "ranks"])
def test_wrong_measures_in_the_book_are_found(planted, name):
    _, folder = planted
    with changing_book(folder) as book:
        book.attrs["quality"] = json.dumps({**json.loads(book.attrs["quality"]), name: -1})
    (line,) = verify(folder)
    assert f"quality: {name} is -1" in line


@pytest.mark.parametrize("attributes", [{"names": "x"}, {}], ids=["another", "none"])
def test_attributes_of_columns_are_compared(tmp_path, attributes):
    """With those of the graph file, or of another part."""
    graph = random_graph(tmp_path / "g.h5", 1)
    with h5py.File(graph, "r+") as file:
        file["edges/a.meets.a/feat"].attrs["names"] = ["one", "two"]
        file["nodes/a/feat"].attrs["scale"] = np.arange(3)
    partition(graph, tmp_path / "p", 3, "random")
    assert verify(tmp_path / "p") == verify(tmp_path / "p", graph) == []
    with h5py.File(files.part_path(tmp_path / "p", 1), "r+") as file:
        del file["edges/a.meets.a/feat"].attrs["names"]
        file["edges/a.meets.a/feat"].attrs.update(attributes)
    refresh(tmp_path / "p")
    for against in (None, graph):
        (line,) = verify(tmp_path / "p", against)
        assert "/edges/a.meets.a/feat: attribute names is" in line
        assert "part-1.h5" in line
        assert "['one', 'two']" in line


def test_the_unit_of_time_is_compared(planted):
    graph, folder = planted
    with changing_book(folder) as book:
        book["edges/a.meets.a"].attrs["time_scale"] = 1000.0
    (line,) = verify(folder, graph)
    assert "/edges/a.meets.a: time_scale is 1000.0, but" in line


@pytest.mark.parametrize(
    ("path", "value", "name"),
    [
        (("balance", "events"), 7.5, "balance.events is 7.5"),
        (("ideal", "events"), 7.5, "ideal.events is 7.5"),
        (("volume",), 3, "volume is 3"),
        (("runs", 1, "balance", "events"), 7.5, r"runs\[1\].balance.events is 7.5"),
        (("runs", 1, "cut"), 3, r"runs\[1\].cut is 3"),
        (("runs", 1, "volume"), 3, r"runs\[1\].volume is 3"),
    ],
)
def test_all_measures_are_compared_with_the_graph_file(planted, path, value, name):
    graph, folder = planted
    change_quality(folder, path, value)
    (line,) = verify(folder, graph)
    assert re.search(f"quality: {name}, the parts have", line)


@pytest.mark.parametrize("group", ["nodes/a", "edges/a.meets.a"])
def test_a_first_part_that_lacks_a_group_is_a_problem(planted, group):
    """No part is taken as the measure of others before it is found to be whole."""
    _, folder = planted
    with h5py.File(files.part_path(folder, 0), "r+") as file:
        del file[group]
    refresh(folder)
    assert any(group in line for line in verify(folder))
