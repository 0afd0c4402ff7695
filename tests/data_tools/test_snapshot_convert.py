"""Converters of snapshot graphs: tiny files by hand, and the counts of the real sets."""

import gzip
import io
import json
import pathlib
import re
import shutil
import tarfile
import tempfile
import zipfile

import h5py
import numpy as np
import pytest

from data_tools.snapshots import text as snapshot_text
from data_tools.snapshots.command import main

pytestmark = pytest.mark.serial


def convert(capsys, *arguments) -> str:
    """The line that the converter prints; it must succeed."""
    assert main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments) -> str:
    """The line on stderr; there is no output file."""
    assert main([str(argument) for argument in arguments]) == 2
    assert not pathlib.Path(arguments[-1]).exists()
    return capsys.readouterr().err


def snapshots_of(path, *columns):
    """Sorted (snapshot, src, dst, columns) of all edges, nodes by their ids."""
    with h5py.File(path) as file:
        edges, nodes = file["edges/node.to.node"], file["nodes/node"]
        ids = nodes["id"][:] if "id" in nodes else np.arange(nodes.attrs["num_nodes"])
        first = edges["first"][:]
        last = edges["last"][:] if "last" in edges else first
        rows = zip(ids[edges["src"][:]], ids[edges["dst"][:]], *(edges[name][:] for name in columns), strict=True)
        return sorted((number, *row) for row, a, b in zip(rows, first, last, strict=True) for number in range(a, b + 1))


def test_lists(tmp_path, capsys):
    """A header, a snapshot without edges, edges that stay; numbers from 3 on."""
    source = tmp_path / "list.csv"
    source.write_text("snapshot,u,v\n3,10,20\n3,20,20\n5,10,20\n6,10,20\n6,10,30\n")
    line = convert(capsys, "lists", source, tmp_path / "g.h5")
    assert "3 nodes, 4 snapshots, 5 edges in all" in line
    expected = [(0, 10, 20), (0, 20, 20), (2, 10, 20), (3, 10, 20), (3, 10, 30)]
    assert snapshots_of(tmp_path / "g.h5") == expected
    convert(capsys, "lists", source, "--undirected", tmp_path / "u.h5")
    assert snapshots_of(tmp_path / "u.h5") == sorted(expected + [(n, v, u) for n, u, v in expected if u != v])


@pytest.mark.parametrize("text", ["1.0,0,1\n1.0,1,2\n2.0,0,1\n", '"1","0","1"\n"1","1","2"\n"2","0","1"\n'])
def test_a_first_row_of_numbers_is_no_header(tmp_path, capsys, text):
    """Fractions, as pandas writes whole numbers beside missing ones, and quotes: the first row was left out."""
    (tmp_path / "list.csv").write_text(text)
    convert(capsys, "lists", tmp_path / "list.csv", tmp_path / "g.h5")
    assert snapshots_of(tmp_path / "g.h5") == [(0, 0, 1), (0, 1, 2), (1, 0, 1)]


def test_lists_with_weights_names_and_given_nodes(tmp_path, capsys):
    source = tmp_path / "list.txt.gz"
    source.write_bytes(gzip.compress(b"# made by hand\n0 b a 0.5\n0 b a 1.5\n1 a c 2\n"))
    convert(capsys, "lists", source, "--ids", "string", tmp_path / "g.h5")
    assert snapshots_of(tmp_path / "g.h5", "weight") == [(0, b"b", b"a", 0.5), (0, b"b", b"a", 1.5), (1, b"a", b"c", 2)]
    convert(capsys, "lists", source, "--ids", "string", "--merge", tmp_path / "m.h5")
    assert snapshots_of(tmp_path / "m.h5", "weight") == [(0, b"b", b"a", 2), (1, b"a", b"c", 2)]
    source.write_bytes(gzip.compress(b"0 1 2\n"))
    assert "5 nodes" in convert(capsys, "lists", source, "--num_nodes", "5", tmp_path / "n.h5")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("0,1,2\n0,1,x\n", (), "row 2: 'x' is not an integer id"),
        ("0,1,2\n0,1,7\n", ("--num_nodes", "5"), "row 2: no node 7"),
        ("0,1\n", (), "row 1 has 2 fields, expected 3 or 4"),
        ("0,1,2\n0,1\n", (), "row 2 has 2 fields instead of 3"),
        ("0,1,2,1\n0,1,2,nan\n", (), "row 2: the weight is missing"),
        ("0,1,2\n1254192988,1,2\n1254192989,1,2\n", (), "are they times?"),
        ("", (), "no rows, so no snapshots"),
    ],
)
def test_lists_that_cannot_be_used(tmp_path, capsys, text, options, message):
    source = tmp_path / "list.csv"
    source.write_text(text)
    error = refused(capsys, "lists", source, *options, tmp_path / "g.h5")
    assert message in error
    assert "list.csv" in error


def write_facts(folder, train, valid, test):
    folder.mkdir()
    for name, rows in {"train": train, "valid": valid, "test": test}.items():
        (folder / f"{name}.txt").write_text("".join("\t".join(map(str, row)) + "\t-1\n" for row in rows))
    return folder


def test_quadruples(tmp_path, capsys):
    folder = write_facts(tmp_path / "facts", [(0, 1, 2, 48), (0, 0, 2, 24)], [(1, 3, 0, 72)], [(1, 3, 0, 120)])
    (folder / "stat.txt").write_text("7 4")
    (folder / "relation2id.txt").write_text("gives\t1\ntakes back\t0\n")
    line = convert(capsys, "quadruples", folder, tmp_path / "g.h5")
    assert "7 nodes, 5 snapshots, 4 edges" in line
    assert "train 0 to 1; val 2 to 2; test 4 to 4" in line
    assert snapshots_of(tmp_path / "g.h5", "rel") == [(0, 0, 2, 0), (1, 0, 2, 1), (2, 1, 0, 3), (4, 1, 0, 3)]
    with h5py.File(tmp_path / "g.h5") as file:
        assert json.loads(file["edges/node.to.node/rel"].attrs["names"]) == ["takes back", "gives"]
        assert json.loads(file.attrs["splits"]) == {"train": [0, 1], "val": [2, 2], "test": [4, 4]}
    assert "9 snapshots" in convert(capsys, "quadruples", folder, "--step", "12", tmp_path / "s.h5")
    (folder / "relation2id.txt").write_text("gives\t1\n")
    assert "relation2id.txt: relations are not numbered" in refused(capsys, "quadruples", folder, tmp_path / "x.h5")
    (folder / "relation2id.txt").unlink()
    assert "not a multiple of 5" in refused(capsys, "quadruples", folder, "--step", "5", tmp_path / "x.h5")
    late = write_facts(tmp_path / "late", [(0, 0, 2, 96)], [(1, 3, 0, 72)], [])
    assert "sets must follow each other" in refused(capsys, "quadruples", late, tmp_path / "x.h5")
    (late / "test.txt").unlink()
    assert "test.txt: no such file" in refused(capsys, "quadruples", late, tmp_path / "x.h5")


def test_names_of_entities_are_the_ids_of_nodes(tmp_path, capsys):
    """The second column of a line is the number; further columns, as YAGO's dates, are skipped."""
    folder = write_facts(tmp_path / "facts", [(0, 1, 2, 0)], [(1, 0, 0, 1)], [])
    names = folder / "entity2id.txt"
    names.write_text("K\u00f6ln\t2\t1913-##-##\t####\nBonn\t0\t-\t-\nBerlin (city)\t1\t-\t-\n")
    assert "3 nodes, 2 snapshots" in convert(capsys, "quadruples", folder, tmp_path / "g.h5")
    with h5py.File(tmp_path / "g.h5") as file:
        assert [name.decode() for name in file["nodes/node/id"][:]] == ["Bonn", "Berlin (city)", "K\u00f6ln"]
    (folder / "stat.txt").write_text("4 2")
    error = refused(capsys, "quadruples", folder, tmp_path / "x.h5")
    assert "entity2id.txt has 3 names for 4 entities; mend it, or remove it" in error
    (folder / "stat.txt").unlink()
    names.write_text("Bonn\t0\nBerlin\t1\nBonn\t2\n")
    line = convert(capsys, "quadruples", folder, tmp_path / "n.h5")
    assert "entity2id.txt has the name 'Bonn' 2 times: the ids of nodes are their numbers" in line
    with h5py.File(tmp_path / "n.h5") as file:
        assert "id" not in file["nodes/node"]
    names.write_text("Bonn\t0\nBerlin\t1\nHof\t1\n")
    assert "entity2id.txt: entities are not numbered" in refused(capsys, "quadruples", folder, tmp_path / "x.h5")


def test_contacts(tmp_path, capsys):
    archive = tmp_path / "days.tgz"
    with tarfile.open(archive, "w:gz") as file:
        for name, text in {"day_2.txt": "50\t8\t9\n", "day_1.txt": "5\t7\t8\n25\t8\t7\n25\t7\t9\n"}.items():
            item = tarfile.TarInfo(name)
            item.size = len(text)
            file.addfile(item, io.BytesIO(text.encode()))
    assert "3 nodes, 2 snapshots, 6 edges" in convert(capsys, "contacts", archive, tmp_path / "g.h5")
    expected = [(0, 7, 8, 2), (0, 7, 9, 1), (0, 8, 7, 2), (0, 9, 7, 1), (1, 8, 9, 1), (1, 9, 8, 1)]
    assert snapshots_of(tmp_path / "g.h5", "weight") == expected
    assert "8 edges" in convert(capsys, "contacts", archive, "--keep", tmp_path / "k.h5")
    archive.write_bytes(archive.read_bytes()[:60])
    assert "not a readable archive" in refused(capsys, "contacts", archive, tmp_path / "x.h5")


@pytest.mark.parametrize("suffix", ["zip", "tgz"])
def test_archives_are_unpacked_beside_the_output_and_bounded(tmp_path, capsys, monkeypatch, suffix):
    """A zip of 1.4 MB filled the system's temporary folder with 901 MB."""
    archive, day = tmp_path / f"days.{suffix}", b"20 1 2\n" * 40_000
    if suffix == "zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for number in range(10):
                file.writestr(f"day{number}.txt", day)
    else:
        with tarfile.open(archive, "w:gz") as file:
            for number in range(10):
                item = tarfile.TarInfo(f"day{number}.txt")
                item.size = len(day)
                file.addfile(item, io.BytesIO(day))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    assert "10 snapshots" in convert(capsys, "contacts", archive, tmp_path / "out" / "g.h5")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["g.h5"]
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    message = refused(capsys, "contacts", archive, tmp_path / "x.h5")
    assert "unpacked it has 2,800,000 bytes, 1,000,000 are free beside the output" in message
    monkeypatch.setattr(snapshot_text, "SMALL_BYTES", 1_000_000)
    message = refused(capsys, "contacts", archive, tmp_path / "x.h5")
    assert re.search(r"days\.\w+: more than [\d,]+ bytes, \d+ times its size, are packed in it", message)
    assert not list(tmp_path.glob(".unpacked-*"))


def test_contacts_are_in_order_of_the_numbers_in_their_names(tmp_path, capsys):
    (tmp_path / "days").mkdir()
    for day in (1, 2, 10):
        (tmp_path / "days" / f"day{day}.txt").write_text(f"20 {day} {day + 1}\n")
    convert(capsys, "contacts", tmp_path / "days", tmp_path / "g.h5")
    assert [row[:3] for row in snapshots_of(tmp_path / "g.h5") if row[1] < row[2]] == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 10, 11),
    ]


def test_speeds(tmp_path, capsys):
    speeds, near = tmp_path / "speed.csv", tmp_path / "adj.csv"
    speeds.write_text("70,60\n10,40\n20,8\n5,30\n")
    near.write_text("1,0.5\n0,1\n")
    assert "2 nodes, 3 snapshots, 9 edges in all; stored as 3 rows" in convert(
        capsys, "speeds", speeds, near, tmp_path / "g.h5", "--header", "names"
    )
    with h5py.File(tmp_path / "g.h5") as file:
        target = file["nodes/node/target"]
        assert target[:].tolist() == [[0.25, 0.5, 0.125], [1, np.float32(0.2), 0.75]]
        assert (target.attrs["scale"], target.attrs["per_snapshot"]) == (40, True)
        assert file["nodes/node/id"][:].tolist() == [70, 60]
    assert snapshots_of(tmp_path / "g.h5", "weight")[:3] == [(0, 60, 60, 1), (0, 70, 60, 0.5), (0, 70, 70, 1)]
    near.write_text("1,0.5,3\n0,1,2\n")
    assert "adj.csv: 2 rows of 3 numbers, but speed.csv has 2 sensors" in refused(
        capsys, "speeds", speeds, near, tmp_path / "x.h5", "--header", "names"
    )
    (tmp_path / "more.csv").write_text("s1,s2,s3\n1.5,2\n3,4\n")
    near.write_text("1,0.5\n0,1\n")
    assert "more.csv: the first line has 3 names, but the rows have 2 numbers" in refused(
        capsys, "speeds", tmp_path / "more.csv", near, tmp_path / "x.h5"
    )
    speeds.write_text("70,60\n10,40\n20,x\n")
    assert "speed.csv: column #1, row 2: 'x' is not a number" in refused(
        capsys, "speeds", speeds, near, tmp_path / "x.h5", "--header", "names"
    )


def speeds_of(capsys, tmp_path, text, *options):
    """What is said, ids (None: none) and numbers [N, S] of sensors with all weights 1."""
    width = len(text.splitlines()[-1].split(","))
    (tmp_path / "s.csv").write_text(text)
    (tmp_path / "a.csv").write_text("\n".join([",".join(["1"] * width)] * width))
    path = tmp_path / "speeds.h5"
    path.unlink(missing_ok=True)
    said = convert(capsys, "speeds", tmp_path / "s.csv", tmp_path / "a.csv", path, "--raw", *options)
    with h5py.File(path) as file:
        nodes = file["nodes/node"]
        return said, nodes["id"][:].tolist() if "id" in nodes else None, nodes["target"][:].tolist()


@pytest.mark.parametrize(("first", "options", "ids"), [
    ("a,b", (), [b"a", b"b"]),
    ('"a","b,c"', (), [b"a", b"b,c"]),
    ("7,8", (), [7, 8]),
    ("7,8", ("--header", "none"), None),
    ("7.5,8", (), None),
    ("7,7", (), None),
    ("7,", (), None),
    ("7,NA", ("--missing", "NA"), None),
    ("7.5,8", ("--header", "names"), [b"7.5", b"8"]),
])  # fmt: skip
def test_the_first_line_of_speeds_is_names_where_it_can_be(tmp_path, capsys, first, options, ids):
    """Numbers that no names can be are measurements, and no row is lost."""
    said, found, target = speeds_of(capsys, tmp_path, f"{first}\n1.5,2\n3,4\n", *options)
    assert found == ids
    assert ("no line of names: nodes are numbered" in said) == (ids is None)
    assert np.array(target).T.tolist()[-2:] == [[1.5, 2], [3, 4]]
    assert len(target[0]) == 2 + (ids is None)


def test_speeds_that_are_missing_are_not_known(tmp_path, capsys):
    """Empty cells, nan, and what an option names, also the number 0 as it is written."""
    text = "a,b,c\n0,,nan\n 0.0 ,-,3\n1,-1,2\n"
    said, _, target = speeds_of(capsys, tmp_path, text, "--missing", "-", "--missing", "0")
    nan = np.nan
    assert np.array_equal(target, [[nan, nan, 1], [nan, nan, -1], [nan, 3, 2]], equal_nan=True)
    assert "5 of 9 measurements are missing" in said
    _, _, target = speeds_of(capsys, tmp_path, text.replace("-,", "9,"))
    assert np.array_equal(target, [[0, 0, 1], [nan, 9, -1], [nan, 3, 2]], equal_nan=True)


@pytest.mark.parametrize(("text", "near", "reason"), [
    ("7,8\n1,2\n", "1,1\n1,1\n", "s.csv: the first line, 7, 8, may be names or measurements"),
    ("a,a\n1.5,2\n", "1,1\n1,1\n", "s.csv: the name of column 2 is 'a', as column 1 has; every sensor needs"),
    ("a,\n1.5,2\n", "1,1\n1,1\n", "s.csv: the name of column 2 is none; every sensor needs"),
    ("a,b\n1.5,inf\n", "1,1\n1,1\n", "s.csv: column #1, row 1: inf does not fit into float32; mend the row"),
    ("a,b\n1.5,2\n2024-01-01,2\n", "1,1\n1,1\n", "header and comment (line 3); hpcgnn snapshots tables"),
    ("a,b\n1.5,2\n", "1,1\n1,\n", "a.csv: row 2: the weight to node 1 is missing (empty or nan); write it, 0 where"),
])  # fmt: skip
def test_speeds_that_are_refused(tmp_path, capsys, text, near, reason):
    (tmp_path / "s.csv").write_text(text)
    (tmp_path / "a.csv").write_text(near)
    assert reason in refused(capsys, "speeds", tmp_path / "s.csv", tmp_path / "a.csv", tmp_path / "x.h5")


def test_a_list_without_a_weight_is_refused_by_a_remedy_that_there_is(tmp_path, capsys):
    """There is no spec, so no fill can be declared; quotes are taken off."""
    (tmp_path / "e.csv").write_text('0,"a,1",b,1\n0,b,c,\n')
    said = refused(capsys, "lists", tmp_path / "e.csv", tmp_path / "x.h5", "--ids", "string")
    assert "e.csv: row 2: the weight is missing (empty or nan); write it" in said


def test_hidden_files_of_a_folder_are_no_snapshots(tmp_path, capsys):
    (tmp_path / "days").mkdir()
    for name in ("day1.txt", "day2.txt"):
        (tmp_path / "days" / name).write_text("1 0 1\n2 1 2\n")
    (tmp_path / "days" / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    assert "3 nodes, 2 snapshots" in convert(capsys, "contacts", tmp_path / "days", tmp_path / "g.h5")
    with h5py.File(tmp_path / "g.h5") as file:
        assert [source["name"] for source in json.loads(file.attrs["sources"])] == ["day1.txt", "day2.txt"]


def tennis_step(edges, counts):
    known = [[0, 0.0], [60, 0.55], [2, 1.0]]
    return {"edges": edges, "weights": [1] * len(edges), "y": counts, "X": known}


def test_sets_of_pytorch_geometric_temporal(tmp_path, capsys):
    path = tmp_path / "set.json"
    covid = {"edge_index": {"0": [[0, 1]], "1": []}, "edge_weight": {"0": [3.5], "1": []}}
    path.write_text(json.dumps({"edge_mapping": covid, "time_periods": 2, "y": [[1, 5], [3, 5]]}))
    assert "2 nodes, 2 snapshots, 1 edges" in convert(capsys, "pygt", path, tmp_path / "g.h5")
    assert snapshots_of(tmp_path / "g.h5", "weight") == [(0, 0, 1, 3.5)]
    with h5py.File(tmp_path / "g.h5") as file:
        assert np.allclose(file["nodes/node/target"], [[-1, 1], [0, 0]])
    convert(capsys, "pygt", path, "--raw", tmp_path / "raw.h5")
    with h5py.File(tmp_path / "raw.h5") as file:
        assert file["nodes/node/target"][:].tolist() == [[1, 3], [5, 5]]

    steps = {"0": tennis_step([[0, 1]], [0, 1, 9]), "1": tennis_step([[0, 1], [2, 0]], [3, 0, 0])}
    path.write_text(json.dumps({**steps, "time_periods": 2}))
    convert(capsys, "pygt", path, tmp_path / "t.h5")
    assert snapshots_of(tmp_path / "t.h5") == [(0, 0, 1), (1, 0, 1), (1, 2, 0)]
    with h5py.File(tmp_path / "t.h5") as file:
        assert np.allclose(file["nodes/node/target"][:], np.log1p([[0, 3], [1, 0], [9, 0]]))
        assert [np.flatnonzero(row).tolist() for row in file["nodes/node/feat"][:, 1]] == [[0, 5], [4, 10], [2, 15]]

    path.write_text(json.dumps({"FX": [[1, 2], [3, 4], [5, 6]], "edges": [[0, 1], [1, 1]]}))
    assert "3 snapshots, 6 edges in all; stored as 2 rows" in convert(capsys, "pygt", path, tmp_path / "c.h5")
    path.write_text(json.dumps({"FX": [[1, 2]]}))
    assert "set.json: not as the set with key FX is" in refused(capsys, "pygt", path, tmp_path / "x.h5")
    path.write_text("[1]")
    assert "none of the keys" in refused(capsys, "pygt", path, tmp_path / "x.h5")
    path.write_text("{")
    assert "not JSON" in refused(capsys, "pygt", path, tmp_path / "x.h5")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("lists vgrnn/enron10.csv.gz --num_nodes 184", "184 nodes, 11 snapshots, 2392 edges"),
        ("lists vgrnn/dblp.csv.gz --num_nodes 315", "315 nodes, 10 snapshots, 2552 edges"),
        ("lists vgrnn/fb.csv.gz --num_nodes 663 --undirected", "663 nodes, 9 snapshots, 23394 edges"),
        ("pygt pygt/twitter_tennis_rg17.json.gz", "1000 nodes, 120 snapshots, 40839 edges"),
        ("pygt pygt/twitter_tennis_uo17.json.gz", "1000 nodes, 112 snapshots, 43387 edges"),
        ("pygt pygt/england_covid.json.gz", "129 nodes, 61 snapshots, 82529 edges"),
        ("pygt pygt/chickenpox.json.gz", "20 nodes, 521 snapshots, 53142 edges in all; stored as 102 rows"),
        ("pygt pygt/montevideo_bus.json.gz", "675 nodes, 744 snapshots, 513360 edges in all; stored as 690 rows"),
        ("speeds tgcn-los/los_speed.csv.gz tgcn-los/los_adj.csv.gz", "207 nodes, 2016 snapshots, 5711328"),
        ("quadruples icews14", "7128 nodes, 365 snapshots, 90730 edges"),
        ("quadruples yago-tkg", "10623 nodes, 189 snapshots, 201089 edges"),
        ("contacts sg-infectious/sg_infectious_contact_list.tgz --keep", "69 snapshots, 831824 edges"),
    ],
)
def test_real_sets(tmp_path, capsys, shared_data, command, expected):
    name, *sources = command.split()
    paths = [source if source.startswith("--") or source.isdigit() else shared_data(source) for source in sources]
    assert expected in convert(capsys, name, *paths, tmp_path / "g.h5")
