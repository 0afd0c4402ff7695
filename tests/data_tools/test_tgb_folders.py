"""Folders of the Temporal Graph Benchmark become temporal graphs with TGB's numbers of nodes. Files have the columns
that tgb/utils/pre_process.py (github.com/shenyangHuang/TGB, 3b83e5c) reads; expected values come from plain loops."""

from __future__ import annotations

import csv
import math
import pickle
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from convert_sources import assignments, refused

from data_tools.convert import main
from hpcgnn.graph import files

pytestmark = pytest.mark.serial
EDGES = "edges/node.to.node"


def write_rows(path: Path, header: str, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        file.write(header + "\n")
        csv.writer(file, lineterminator="\n").writerows(rows)


def converted(folder: Path, **settings) -> h5py.File:
    output = folder.parent / "graph.h5"
    words = assignments({"folder": folder, **settings})
    assert main(["--preset", "tgb", *words, "--overwrite", str(output)]) == 0
    return h5py.File(output)


def events(file: h5py.File, *columns: str) -> list[tuple]:
    return list(zip(*(file[f"{EDGES}/{name}"][:].tolist() for name in columns), strict=True))


def met(rows, *columns: int) -> dict:
    """Numbers of the ids in some columns, in the order of rows."""
    numbers: dict = {}
    for row in rows:
        for column in columns:
            numbers.setdefault(row[column], len(numbers))
    return numbers


def test_destinations_follow_behind_sources(tmp_path, capsys):
    """The form of tgbl-wiki; the newest version of the list is read, and TGB's negatives are named."""
    rows = [(0, 1, 3.0, 0, 0.5, -1), (4, 0, 3.0, 0, 0, 2), (1, 1, 8.75, 1, 1, 0)]
    folder = tmp_path / "tgbl_wiki"
    write_rows(folder / "tgbl-wiki_edgelist.csv", "old", [(0, 0, 0, 0)])
    write_rows(folder / "tgbl-wiki_edgelist_v2.csv", "user_id,item_id,timestamp,state_label,features", rows)
    for split in ("val", "test"):
        (folder / f"tgbl-wiki_{split}_ns_v2.pkl").write_bytes(pickle.dumps({(1, 6, 8): np.array([5])}))
    with converted(folder) as file:
        assert events(file, "src", "dst", "time") == [(0, 6, 3), (4, 5, 3), (1, 6, 8)]
        assert file[f"{EDGES}/feat"][:].tolist() == [[0.5, -1], [0, 2], [1, 0]]
        assert file["nodes/node"].attrs["num_nodes"] == 7
        assert file.attrs["kind"] == "temporal"
    said = capsys.readouterr().out
    assert f"--eval tgb --eval.negatives_file '{folder}/tgbl-wiki_{{split}}_ns_v2.pkl'" in said
    assert "destinations of tgbl-wiki_edgelist are these numbers + 5" in said
    assert "1 times have a fraction, which is left out" in said


WEIGHTS = [(5, "0xb", "0xa", 8.0), (5, "0xa", "0xc", 0), (6, "0xc", "0xb", 0.25), (9, "0xd", "0xd", 3)]


@pytest.mark.parametrize("name", ["tgbl-coin", "tgbl-review"])
def test_weights_become_logarithms(tmp_path, capsys, name):
    write_rows(tmp_path / name / f"{name}_edgelist_v2.csv", "day,src,dst,w", WEIGHTS)
    numbers = met(WEIGHTS, 1, 2)
    with converted(tmp_path / name) as file:
        assert events(file, "time", "src", "dst") == [(row[0], numbers[row[1]], numbers[row[2]]) for row in WEIGHTS]
        expected = [[math.log2(row[3] or 1)] for row in WEIGHTS]
        assert np.array_equal(file[f"{EDGES}/feat"][:], np.array(expected, np.float32))
    assert f"no {name}_val_ns.pkl and {name}_test_ns.pkl" in capsys.readouterr().out


def test_words_and_scores_of_comments(tmp_path):
    rows = [(1, "ann", "bob", 100, -4), (2, "bob", "cid", 5000, 7)]
    write_rows(tmp_path / "c" / "tgbl-comment_edgelist.csv", "ts,src,dst,num_words,score", rows)
    with converted(tmp_path / "c") as file:
        assert np.allclose(file[f"{EDGES}/feat"][:], [[0.02, -4], [1, 7]])


def spelled(text: str, width: int, longest: int = 8) -> list[int]:
    """A text as numbers, character by character."""
    text = ("" if len(text) > longest else text).ljust(width, "!")
    return [int(one) if one.isdigit() else -1 if one == "!" else ord(one.upper()) - 35 for one in text]


def test_flights_and_airports(tmp_path):
    rows = [
        (1546300800, "LSZH", "EDDF", "SWR12a", "A320"), (1546300800, "EDDF", "KJFK", "", "toolongcode"),
        (1546387200, "LSZH", "KJFK", "DLH4", ""),
    ]  # fmt: skip
    airports = [
        ("KJFK", "large", "NA", "US-NY", -73.7, 40.6), ("XXXX", "small", "AS", "XX-X", 0, 0),
        ("LSZH", "large", "EU", "CH-ZH", 8.5, 47.4),
    ]  # fmt: skip
    folder = tmp_path / "flight"
    write_rows(folder / "tgbl-flight_edgelist_v2.csv", "day,src,dst,callsign,typecode", rows)
    write_rows(folder / "airport_node_feat_v2.csv", "code,type,continent,iso_region,longitude,latitude", airports)
    with converted(folder) as file:
        assert events(file, "src", "dst") == [(0, 1), (1, 2), (0, 2)]
        expected = [spelled(row[3], 8) + spelled(row[4], 8) for row in rows]
        assert file[f"{EDGES}/feat"][:].tolist() == expected
        of_nodes = {2: [1, 1, 0, *spelled("US-NY", 7), -73.7, 40.6], 0: [1, 0, 1, *spelled("CH-ZH", 7), 8.5, 47.4]}
        table = [of_nodes.get(node, [0] * 12) for node in range(3)]
        assert np.array_equal(file["nodes/node/feat"][:], np.array(table, np.float32))


FACTS = [(1, 7, 3, 5), (1, 3, 9, 2), (4, 7, 9, 5), (4, 9, 9, 2)]


@pytest.mark.parametrize("inverse", ["true", "false"])
@pytest.mark.parametrize("name", ["tkgl-icews", "tkgl-smallpedia"])
def test_facts_and_their_inverses(tmp_path, capsys, name, inverse):
    """Types of words are numbered in the order of rows; the inverse of a fact has a type behind those of all facts."""
    rows = [(t, f"Q{s}", f"Q{d}", f"P{r}") for t, s, d, r in FACTS] if name == "tkgl-smallpedia" else FACTS
    write_rows(tmp_path / "k" / f"{name}_edgelist.csv", "ts,head,tail,relation_type", rows)
    write_rows(tmp_path / "k" / f"{name}_static_edgelist.csv", "head,tail,relation_type", [])
    nodes = met(rows, 1, 2)
    types = met(rows, 3) if name == "tkgl-smallpedia" else {5: 5, 2: 2}
    facts = [(t, nodes[s], nodes[d], types[r]) for t, s, d, r in rows]
    backward = [(t, d, s, r + 2) for t, s, d, r in facts] if inverse == "true" else []
    with converted(tmp_path / "k", inverse=inverse) as file:
        assert events(file, "time", "src", "dst", "type") == sorted(facts + backward, key=lambda fact: fact[0])
        assert "feat" not in file[EDGES]
    assert ("the inverse of each fact is an event, too: type + 2" in capsys.readouterr().out) == bool(backward)


def test_types_of_nodes_and_lists_of_negatives(tmp_path, capsys):
    """The form of thgl-: negatives are listed by time, source and type, for all events of these."""
    rows = [(1, 10, 20, 0, 50, 3), (5, 10, 21, 0, 10, -1), (5, 10, 22, 0, 0, 0), (7, 11, 20, 1, 9, 9)]
    folder = tmp_path / "thgl_forum"
    write_rows(folder / "thgl-forum_edgelist.csv", "ts,src,dst,relation_type,num_words,score", rows)
    write_rows(folder / "thgl-forum_nodetype.csv", "node_id,type", [(20, 1), (22, 2), (10, 3), (99, 1), (21, 1)])
    lists = {"val": {(5, np.int64(0), 0): np.array([1, 3])}, "test": {(7, 4, 1): {3, 2, 0}}}
    for protocol, (split, content) in zip((5, 2), lists.items(), strict=True):
        (folder / f"thgl-forum_{split}_ns.pkl").write_bytes(pickle.dumps(content, protocol))
    with converted(folder) as file:
        assert events(file, "src", "dst", "type") == [(0, 1, 0), (0, 2, 0), (0, 3, 0), (4, 1, 1)]
        assert file["nodes/node/type"][:].tolist() == [3, 1, 1, 2, 0]
        assert np.allclose(file[f"{EDGES}/feat"][:], np.array([row[4:] for row in rows]) / 10_000)
    with files.open_checked(tmp_path / "graph.negatives.h5", files.NEGATIVES) as file:
        group = file[EDGES]
        assert group.attrs["sizes"].tolist() == [5, 5, 4]
        assert (group["val/row"][:].tolist(), group["val/negatives"][:].tolist()) == ([1, 2], [[1, 3], [1, 3]])
        assert (group["test/row"][:].tolist(), group["test/negatives"][:].tolist()) == ([3], [[0, 2, 3]])
    said = capsys.readouterr().out
    assert "1 nodes have no row; their type is 0" in said
    assert "1 rows of nodes without an edge, which are left out" in said


PROPERTIES = {
    "tgbn-trade": ("year,nation,trading nation,weight", [(1, "fr", "de", 0.5), (2, "de", "us", 1), (3, "fr", "us", 2)]),
    "tgbn-genre": ("ts,user,genre,weight", [(1, "u1", "rock", 0.5), (2, "u2", "folk", 1), (3, "u1", "folk", 2)]),
    "tgbn-reddit": ("ts,src,subreddit,num_words,score", [(1, "u1", "a", 9, 3), (2, "u2", "b", 8, -1)]),
    "tgbn-token": ("ts,user,token,value,sender", [(1, "x1", "eth", 1.0, 1), (2, "x2", "btc", 100.0, 0)]),
}
FIRST_USER = {"tgbn-genre": 513, "tgbn-reddit": 698, "tgbn-token": 1001}


@pytest.mark.parametrize("name", PROPERTIES)
def test_labels_of_nodes_at_times(tmp_path, capsys, name):
    """Labels are sorted by time, and of repeated rows the last one counts, as in TGB's dictionaries."""
    header, rows = PROPERTIES[name]
    write_rows(tmp_path / "n" / f"{name}_edgelist.csv", header, rows)
    user, kind = rows[0][1:3]
    other, last = rows[1][1], rows[1][2]
    labels = [
        (2, user, last, 0.95),
        (1, user, kind, 0.5),
        (2, other, kind, 1),
        (2, user, kind, 0.5),
        (2, user, last, 0.75),
    ]
    write_rows(tmp_path / "n" / f"{name}_node_labels.csv", "ts,node,class,weight", labels)
    if name == "tgbn-trade":
        nodes = classes = met(rows, 1, 2)
    else:
        classes = met(rows, 2)
        nodes = {user: number + FIRST_USER[name] for user, number in met(rows, 1).items()}
    features = {
        "tgbn-reddit": [[3], [-1]], "tgbn-token": [[0, 1], [math.log(100), 0]],
    }.get(name, [[row[3]] for row in rows])  # fmt: skip
    with converted(tmp_path / "n") as file:
        assert events(file, "time", "src", "dst") == [(row[0], nodes[row[1]], classes[row[2]]) for row in rows]
        assert np.allclose(file[f"{EDGES}/feat"][:], features)
        num_nodes = max(nodes.values()) + 1
        assert file["nodes/node"].attrs["num_nodes"] == num_nodes
    expected: dict = {}
    for time, node, of, weight in labels:
        expected.setdefault((time, nodes[node]), {})[classes[of]] = weight
    with files.open_checked(tmp_path / "graph.labels.h5", files.LABELS) as file:
        group = file["nodes/node"]
        assert group.attrs["num_classes"] == FIRST_USER.get(name, num_nodes)
        assert group.attrs["sizes"].tolist() == [num_nodes, len(rows)]
        columns = {column: group[column][:].tolist() for column in ("time", "node", "indptr", "class", "weight")}
    entries = list(zip(columns["class"], columns["weight"], strict=True))
    found = [dict(entries[a:b]) for a, b in zip(columns["indptr"], columns["indptr"][1:], strict=False)]
    assert list(zip(columns["time"], columns["node"], strict=True)) == sorted(expected)
    assert found == [expected[key] for key in sorted(expected)]
    assert "of 1 repeated rows the last one counts" in capsys.readouterr().out


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


TYPED = ("thgl-myket_edgelist.csv", "ts,src,dst,type", [(1, 1, 2, 0), (2, 1, 3, 0)])
MYKET = {"thgl-myket_nodetype.csv": [(1, 0)], "thgl-myket_test_ns.pkl": {(2, 0, 0): np.array([1])}}
GENRE = ("tgbn-genre_edgelist.csv", "ts,user,genre,weight", [(1, "u", "rock", 1)])
REFUSED = {
    "no list": ((), {"ml_tgbl-wiki.pkl": {}}, r"no edge list in it.*ml_\*\.pkl.*unzip"),
    "two sets": (TYPED, {"tgbl-coin_edgelist_v2.csv": []}, "several data sets; choose one: --set name=tgbl-coin"),
    "another set": (("tgbl-mine_edgelist.csv", "a", []), {}, "--set name.*tgbl-mine"),
    "empty list": (("tgbl-coin_edgelist.csv", "a,b,c,d", []), {}, "tgbl-coin_edgelist.csv: no column 0"),
    "a date": (
        ("tgbl-flight_edgelist.csv", "a,b,c,d,e", [("2019-01-01", "A", "B", "c", "d")]), {},
        "row 1: '2019-01-01' is not a time.*newest version",
    ),
    "a weight below 0": (("tgbl-coin_edgelist.csv", "a,b,c,d", [(1, "a", "b", 1), (1, "a", "b", -2)]), {}, "row 2.*-2"),
    "no types": (TYPED, {}, r"thgl-myket_nodetype\.csv: no such file; unzip"),
    "code": (TYPED, MYKET | {"thgl-myket_val_ns.pkl": Evil()}, "thgl-myket_val_ns.pkl.*holds builtins.print"),
    "no event": (TYPED, MYKET | {"thgl-myket_val_ns.pkl": {(1, 1, 0): [1]}}, r"\(1, 1, 0\): no such event"),
    "no node": (TYPED, MYKET | {"thgl-myket_val_ns.pkl": {(1, 0, 0): [7]}}, r"\(1, 0, 0\): lists what is none"),
    "no labels": (GENRE, {}, r"tgbn-genre_node_labels\.csv: no such file"),
    "a class": (GENRE, {"tgbn-genre_node_labels.csv": [(1, "u", "jazz", 1)]}, "row 1: the class 'jazz' is not in"),
    "a label below 0": (GENRE, {"tgbn-genre_node_labels.csv": [(1, "u", "rock", -1)]}, "row 1: the weight -1.0 is neg"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_file_and_remedy(tmp_path, capfd, case):
    edges, others, message = REFUSED[case]
    (folder := tmp_path / "folder").mkdir()
    if edges:
        write_rows(folder / edges[0], *edges[1:])
    for name, content in others.items():
        if name.endswith(".pkl"):
            (folder / name).write_bytes(pickle.dumps(content))
        else:
            write_rows(folder / name, "header,of,the,file" if "labels" in name else "header,b", content)
    said = refused(tmp_path, capfd, "--preset", "tgb", "--set", f"folder={folder}")
    assert re.search(message, said), said
    assert "executed" not in said


def test_settings_that_do_nothing_are_refused(tmp_path, capsys):
    write_rows(tmp_path / "c" / "tgbl-coin_edgelist.csv", "day,src,dst,w", WEIGHTS)
    words = ("--preset", "tgb", "--set", f"folder={tmp_path / 'c'}", "--set")
    assert "has no inverse edges" in refused(tmp_path, capsys, *words, "inverse=true")
    assert "--set" in refused(tmp_path, capsys, *words, "fold=1")
    assert "give --set folder" in refused(tmp_path, capsys, "--preset", "tgb")
