"""Partition sets of temporal graphs: exactly what the format says, for any graph, method and slab size."""

import json
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
from partition_sets import assert_same_content, content
from random_graphs import random_graph, write_graph

from data_tools.graph import source as graph_source
from data_tools.partition import memory
from data_tools.partition import temporal as part_writer
from data_tools.partition.assignment import METHODS, Method
from data_tools.partition.command import main, make_parser, partition
from data_tools.partition.methods.metis import silent_output
from data_tools.partition.options import default_parts
from data_tools.partition.quality import unmet
from data_tools.synthesize import synthesize_events
from data_tools.verify.command import verify
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError

pytestmark = pytest.mark.serial

SIZES = [(9, 7, 0), (1, 1, 1), (30, 0, 2), (40, 25, 3)]


def check_against_plain_loops(graph, folder, num_parts):
    """Recompute a whole set node by node and event by event; returns the number of cut events."""
    parts = content(folder, num_parts)
    place, base = {}, 0  # (type, row) -> (part, global id)
    local = [[] for _ in range(num_parts)]  # (type, row) of each part in local order
    with h5py.File(graph) as source, h5py.File(files.book_path(folder)) as book:
        for name in files.node_types(source):
            columns, offsets = source["nodes"][name], book["nodes"][name]["offsets"][:]
            assert offsets[0] == base
            for part, data in enumerate(parts):
                rows = data[f"nodes/{name}/row"]
                assert offsets[part + 1] - offsets[part] == len(rows)
                assert sorted(set(rows.tolist())) == rows.tolist()
                for column in columns:
                    np.testing.assert_array_equal(data[f"nodes/{name}/{column}"], columns[column][:][rows])
                for position, row in enumerate(rows.tolist()):
                    assert (name, row) not in place
                    place[name, row] = part, offsets[part] + position
                    local[part].append((name, row))
            base += source["nodes"][name].attrs["num_nodes"]
            assert offsets[-1] == base
        assert len(place) == base
        return sum(check_relation(source["edges"][name], name, parts, place, local) for name in source["edges"])


def check_relation(columns, name, parts, place, local):
    """Events and history of one relation; returns the number of cut events."""
    src_type, _, dst_type = files.split_relation(name)
    events = {key: dataset[:] for key, dataset in columns.items()}
    ends = [((src_type, u), (dst_type, v)) for u, v in zip(events["src"].tolist(), events["dst"].tolist(), strict=True)]
    for part, data in enumerate(parts):
        rows = [row for row, pair in enumerate(ends) if part in (place[pair[0]][0], place[pair[1]][0])]
        prefix = f"edges/{name}/"
        assert data[prefix + "row"].tolist() == rows
        assert data[prefix + "src"].tolist() == [place[ends[row][0]][1] for row in rows]
        assert data[prefix + "dst"].tolist() == [place[ends[row][1]][1] for row in rows]
        for key in events.keys() - {"src", "dst"}:
            np.testing.assert_array_equal(data[prefix + key], events[key][rows])
        lists = [[k for k, row in enumerate(rows) if node in ends[row]] for node in local[part]]
        assert data[f"history/{name}/event"].tolist() == [k for one in lists for k in one]
        assert data[f"history/{name}/indptr"].tolist() == np.cumsum([0, *map(len, lists)]).tolist()
    return sum(place[u][0] != place[v][0] for u, v in ends)


@pytest.mark.parametrize("method", ["random", "metis"])
@pytest.mark.parametrize("num_parts", [1, 2, 5, 40])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_random_graphs_are_partitioned_exactly(tmp_path, method, num_parts, sizes):
    graph = random_graph(tmp_path / "g.h5", seed=num_parts, sizes=sizes)
    quality = partition(graph, tmp_path / "p", num_parts, method, balance=("nodes", "degree", "train"))
    cut = check_against_plain_loops(graph, tmp_path / "p", num_parts)
    with h5py.File(graph) as file:
        total = sum(len(group["src"]) for group in file["edges"].values())
    assert quality["cut"] == cut
    assert quality["replication"] == pytest.approx((total + cut) / max(1, total), abs=1e-6)


@pytest.mark.parametrize("method", ["random", "metis"])
def test_slabs_and_open_files_do_not_change_the_content(tmp_path, monkeypatch, method):
    graph = random_graph(tmp_path / "g.h5", seed=1, sizes=(40, 25, 3), num_edges=300)
    partition(graph, tmp_path / "one", 6, method)
    monkeypatch.setattr(graph_source, "SLAB_BYTES", 100)
    monkeypatch.setattr(memory, "PARTS_AT_ONCE", 4)
    monkeypatch.setattr(part_writer, "HISTORY_BYTES", 1 << 40)  # one node at a time
    partition(graph, tmp_path / "two", 6, method)
    assert_same_content(content(tmp_path / "one", 6), content(tmp_path / "two", 6))


@pytest.mark.parametrize("method", ["random", "metis"])
def test_the_same_inputs_give_the_same_bytes(tmp_path, method):
    graph = random_graph(tmp_path / "g.h5", seed=2, sizes=(40, 25, 3))
    for name in ("one", "two"):
        partition(graph, tmp_path / name, 4, method, seed=7)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["book.h5", *(f"part-{part}.h5" for part in range(4))]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_book_describes_its_files(tmp_path):
    graph = random_graph(tmp_path / "g.h5", seed=3)
    partition(graph, tmp_path / "p", 3, "random", seed=5)
    with files.open_checked(files.book_path(tmp_path / "p"), files.BOOK) as book:
        assert book.attrs["source_hash"] == files.file_hash(graph)
        assert book.attrs["source_name"] == "g.h5"
        assert json.loads(book.attrs["options"])["seed"] == 5
        assert files.node_types(book) == ["a", "b", "c"]
        assert files.relations(book) == ["a.meets.a", "a.likes.b"]
        assert book["edges/a.meets.a/columns"][:].tolist() == [b"feat", b"tag", b"time"]
        for part in range(3):
            path = files.part_path(tmp_path / "p", part)
            assert book["parts/hash"][part].decode() == files.file_hash(path)
            assert book["parts/bytes"][part] == path.stat().st_size
            with files.open_checked(path, files.PART) as file:
                assert file.attrs["set_id"] == book.attrs["set_id"]
                assert (file.attrs["part"], file.attrs["num_parts"]) == (part, 3)


def test_the_set_id_depends_on_source_and_options(tmp_path):
    ids = set()
    for name, seed, parts, method in (
        ("a", 0, 2, "random"),
        ("b", 1, 2, "random"),
        ("c", 0, 3, "random"),
        ("d", 0, 2, "metis"),
    ):
        graph = random_graph(tmp_path / "g.h5", seed=0)
        partition(graph, tmp_path / name, parts, method, seed=seed)
        with h5py.File(files.book_path(tmp_path / name)) as book:
            ids.add(book.attrs["set_id"])
    partition(random_graph(tmp_path / "g.h5", seed=9), tmp_path / "e", 2, "random")
    with h5py.File(files.book_path(tmp_path / "e")) as book:
        ids.add(book.attrs["set_id"])
    assert len(ids) == 5


def test_a_random_part_depends_on_the_node_alone(tmp_path):
    for name, sizes in (("small", (20, 10, 1)), ("large", (200, 30, 5))):
        partition(random_graph(tmp_path / f"{name}.h5", 0, sizes), tmp_path / name, 4, "random")
    small, large = content(tmp_path / "small", 4), content(tmp_path / "large", 4)
    for one, other in zip(small, large, strict=True):
        rows = other["nodes/a/row"]
        assert one["nodes/a/row"].tolist() == rows[rows < 20].tolist()


def test_random_parts_are_even(tmp_path):
    synthesize_events(tmp_path / "g.h5", 10, 20_000, 100, seed=1)
    quality = partition(tmp_path / "g.h5", tmp_path / "p", 8, "random", balance=("nodes",))
    assert quality["balance"]["nodes"] < 1.06


def test_runs_of_parts_are_measured_as_the_ranks_take_them(tmp_path):
    graph = random_graph(tmp_path / "g.h5", seed=4, sizes=(60, 40, 0), num_edges=400)
    quality = partition(graph, tmp_path / "p", 6, "random", balance=("nodes",))
    assert [run["ranks"] for run in quality["runs"]] == [1, 2, 4]
    assert quality["runs"][0]["cut"] == 0
    sizes = [sum(len(part[f"nodes/{name}/row"]) for name in "abc") for part in content(tmp_path / "p", 6)]
    runs = [sizes[0], sum(sizes[1:3]), sizes[3], sum(sizes[4:])]
    assert quality["runs"][2]["balance"]["nodes"] == pytest.approx(max(runs) / np.mean(runs), abs=1e-4)


def test_metis_beats_random_on_a_graph_with_groups(tmp_path):
    synthesize_events(tmp_path / "g.h5", 20_000, 800, 200, seed=1)
    metis = partition(tmp_path / "g.h5", tmp_path / "m", 8, "metis")
    hashed = partition(tmp_path / "g.h5", tmp_path / "r", 8, "random")
    assert metis["cut"] < 0.8 * hashed["cut"]
    assert not unmet(metis, 1.1001)


def test_wikipedia_is_cut_little_and_balanced(tmp_path, shared_data):
    from data_tools.convert import main as convert

    events = shared_data("wikipedia/wikipedia.csv.gz")
    assert convert(["--preset", "jodie", "--set", f"events={events}", str(tmp_path / "w.h5")]) == 0
    quality = partition(tmp_path / "w.h5", tmp_path / "p", 16)
    assert quality["events"] == 157_474
    assert quality["cut_fraction"] < 0.11
    assert quality["runs"][1]["cut_fraction"] < 0.05
    assert not unmet(quality, 1.1001)


def test_an_existing_set_is_kept_unless_overwritten(tmp_path):
    graph = random_graph(tmp_path / "g.h5", seed=5)
    partition(graph, tmp_path / "p", 4, "random")
    before = files.file_hash(files.book_path(tmp_path / "p"))
    with pytest.raises(ValueError, match="--overwrite"):
        partition(graph, tmp_path / "p", 2, "random")
    assert files.file_hash(files.book_path(tmp_path / "p")) == before
    partition(graph, tmp_path / "p", 2, "random", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["book.h5", "part-0.h5", "part-1.h5"]


def test_a_failure_leaves_no_book_and_the_next_call_goes_on(tmp_path, monkeypatch):
    graph = random_graph(tmp_path / "g.h5", seed=5)
    partition(graph, tmp_path / "p", 2, "random")
    before = files.file_hash(files.book_path(tmp_path / "p"))

    def fail(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(part_writer, "write_history", fail)
        with pytest.raises(OSError, match="disk full"):
            partition(graph, tmp_path / "p", 2, "random", overwrite=True)
    assert {path.name for path in (tmp_path / "p").iterdir()} == {"partition.json", "partition.npy"}
    partition(graph, tmp_path / "p", 2, "random")
    assert {path.name for path in (tmp_path / "p").iterdir()} == {"book.h5", "part-0.h5", "part-1.h5"}
    assert files.file_hash(files.book_path(tmp_path / "p")) == before


def spoil(path, change):
    """Change an open graph file."""
    with h5py.File(path, "r+") as file:
        change(file)


def set_row(dataset, row, value):
    """A change of one row."""

    def change(file):
        file[dataset][row] = value

    return change


def drop(name):
    """A change that removes a dataset or group."""

    def change(file):
        del file[name]

    return change


def shorten(file):
    """One column loses a row."""
    values = file["edges/a.likes.b/time"][:-1]
    del file["edges/a.likes.b/time"]
    file["edges/a.likes.b/time"] = values


def retype(file, name):
    """A column becomes one of fractions."""
    values = file[name][:].astype(float)
    del file[name]
    file[name] = values


BAD_INPUT = {
    "src out of range": (set_row("edges/a.meets.a/src", 3, 9), r"/edges/a.meets.a/src, row 3: id 9 is outside 0..8"),
    "dst negative": (set_row("edges/a.likes.b/dst", 7, -1), r"/edges/a.likes.b/dst, row 7: id -1 is outside 0..6"),
    "time decreasing": (set_row("edges/a.meets.a/time", 39, -5), r"/edges/a.meets.a/time, row 39: time -5 comes after"),
    "nan feature": (set_row("edges/a.meets.a/feat", (4, 1), np.nan), r"/edges/a.meets.a/feat, row 4: NaN or infinite"),
    "infinite node feature": (set_row("nodes/b/feat", (2, 0), np.inf), r"/nodes/b/feat, row 2: NaN or infinite"),
    "missing time": (drop("edges/a.likes.b/time"), r"/edges/a.likes.b/time is missing; a temporal graph needs it"),
    "missing nodes": (drop("nodes"), r"group /nodes is missing"),
    "missing type": (drop("nodes/c"), None),
    "missing endpoint type": (drop("nodes/b"), r"type_id must be 0, 1"),
    "another kind": (
        lambda file: file.attrs.modify("kind", "mesh"),
        "kind is 'mesh', expected one of temporal",
    ),
    "no such type": (lambda file: file.move("edges/a.likes.b", "edges/a.likes.x"), "node type 'x' is not in /nodes"),
    "fractions of ids": (lambda file: retype(file, "edges/a.likes.b/src"), r"/src has dtype float64 and shape \(20,\)"),
    "no count": (lambda file: file["edges/a.likes.b"].attrs.pop("num_edges"), "attribute num_edges is missing"),
    "short column": (shorten, r"/edges/a.likes.b/time has shape \(19,\), expected 20 rows"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_refused_by_name(tmp_path, case):
    change, message = BAD_INPUT[case]
    graph = random_graph(tmp_path / "g.h5", seed=6)
    spoil(graph, change)
    if message is None:
        partition(graph, tmp_path / "p", 2, "random")
        return
    with pytest.raises(FileFormatError, match=message) as caught:
        partition(graph, tmp_path / "p", 2, "random")
    assert "g.h5" in str(caught.value)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("column", ["row", "text"])
def test_columns_that_cannot_be_kept_are_refused(tmp_path, column):
    graph = random_graph(tmp_path / "g.h5", seed=6)
    spoil(
        graph, lambda file: file["nodes/a"].create_dataset(column, data=["x"] * 9 if column == "text" else np.arange(9))
    )
    with pytest.raises(FileFormatError, match=f"/nodes/a/{column} .*cannot be a column"):
        partition(graph, tmp_path / "p", 2, "random")


def test_other_kinds_are_refused_clearly(tmp_path):
    nodes = {"v": {"id": np.arange(3)}}
    edges = {("v", "to", "v"): {"src": np.array([0, 1]), "dst": np.array([1, 2])}}
    graph = write_graph(tmp_path / "g.h5", nodes, edges, "snapshots")
    for count in (None, 0, 1 << 25):
        if count is not None:
            spoil(graph, lambda file, count=count: file.attrs.update(num_snapshots=count))
        with pytest.raises(FileFormatError, match="a snapshot graph needs the attribute num_snapshots"):
            partition(graph, tmp_path / "p", 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parts": 0}, "parts=0"),
        ({"method": "magic"}, "method must be one of metis, random"),
        ({"balance": ("weight",)}, "balance must be one of nodes, .* got 'weight'"),
        ({"balance": ("time", "time")}, "named twice"),
        ({"objective": "x"}, "objective must be one of cut, volume"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        partition(random_graph(tmp_path / "g.h5", 0), tmp_path / "p", **options)


def test_a_row_more_is_a_method_more(tmp_path, monkeypatch, capsys):
    def striped(job):
        return (np.asarray(job.blocks.own) % job.options.parts).astype(np.int32)

    def law(counts, options, work, window):
        return 123 << 20

    row = Method(striped, "dealt out in the order of rows", law, holds_pairs=False, objectives=("cut",), balances=False)
    monkeypatch.setitem(METHODS, "striped", row)
    graph = random_graph(tmp_path / "g.h5", seed=7, sizes=(60, 40, 0), num_edges=400)
    assert main([str(graph), str(tmp_path / "p"), "--parts", "4", "--method", "striped"]) == 0
    printed = capsys.readouterr().out
    assignment = next(line.split() for line in printed.splitlines() if line.startswith("  assignment"))
    assert int(assignment[1]) >= 123
    assert "balance of" not in printed  # which is said of methods that are to balance
    assert verify(tmp_path / "p", graph) == []
    with files.open_checked(files.book_path(tmp_path / "p"), files.BOOK) as book:
        assert book.attrs["method"] == "striped"
    with pytest.raises(ValueError, match="method striped minimizes the cut"):
        partition(graph, tmp_path / "q", 4, "striped", objective="volume")
    with pytest.raises(ValueError, match=r"given, striped, got 'magic'"):
        partition(graph, tmp_path / "q", 4, "magic")
    assert '"striped": dealt out in the order of rows' in " ".join(make_parser().format_help().split())


def test_command_line_prints_the_quality(tmp_path, capsys):
    graph = random_graph(tmp_path / "g.h5", seed=7, sizes=(60, 40, 0), num_edges=400)
    assert main([str(graph), str(tmp_path / "p"), "--parts", "4", "--balance", "nodes,events"]) == 0
    printed = capsys.readouterr().out.splitlines()
    lines = printed[printed.index("600 events in 4 parts") :]
    assert lines[1].split() == ["ranks", "cut", "fraction", "volume", "replic.", "nodes", "events"]
    assert [line.split()[0] for line in lines[2:5]] == ["1", "2", "4"]


@pytest.mark.launcher
def test_the_command_tells_bad_input_in_one_line(tmp_path):
    (tmp_path / "g.h5").write_bytes(b"not HDF5")
    command = [sys.executable, "-m", "data_tools.partition", str(tmp_path / "g.h5"), str(tmp_path / "p")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error:")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("num_nodes", "parts"), [(0, 1), (5, 1), (15, 3), (246, 4), (4000, 4), (9227, 9), (10**5, 64), (10**9, 64)]
)
def test_the_number_of_parts_suits_the_graph(num_nodes, parts):
    assert default_parts(num_nodes) == parts


@pytest.mark.parametrize(("num_parts", "nodes", "events"), [(64, (200, 46), 2000), (16, (40, 30), 3)])
def test_what_cannot_be_balanced_is_said_in_a_line_or_two(tmp_path, capfd, num_parts, nodes, events):
    """METIS has nothing to add."""
    synthesize_events(tmp_path / "g.h5", events, *nodes, seed=1)
    assert main([str(tmp_path / "g.h5"), str(tmp_path / "p"), "--parts", str(num_parts)]) == 0
    printed = capfd.readouterr().out
    assert "***" not in printed
    lines = [line for line in printed.splitlines() if line.startswith("balance of")]
    assert 1 <= len(lines) <= 2
    assert any("ask for fewer" in line or " can be even" in line for line in lines), lines


def test_metis_leaves_the_output_as_it_was(capfd):
    with silent_output():
        os.write(1, b"advice")
    os.write(1, b"kept")
    assert capfd.readouterr().out == "kept"
