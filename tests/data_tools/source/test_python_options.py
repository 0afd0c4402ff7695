"""Objects in Python are read as files are, by the same keys; what is not kept is named, and errors name the columns."""

from __future__ import annotations

import dataclasses
import json
import re
from types import SimpleNamespace

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from convert_sources import contents

from data_tools import inspect
from data_tools.convert import convert, main
from data_tools.objects import convert_object, from_edges
from data_tools.partition.command import partition
from data_tools.source.spec import EdgeSpec, NodeSpec
from data_tools.source.spec_file import load_spec
from hpcgnn import config as configuration
from hpcgnn import train
from hpcgnn.graph import files
from hpcgnn.loop.logs import SOURCES
from hpcgnn.reopen import read_sources
from hpcgnn.temporal.config import TemporalConfig

pytestmark = pytest.mark.serial
RELATION, ENDS = "node.to.node", {"src": [0, 1], "dst": [1, 0]}
# A row without an id, an edge to a node that the table lacks, a duplicate, a self-loop; dates as text.
EDGES = {
    "u": [0, 1, None, 0, 2, 1, 1], "v": [1, 2, 1, 1, 9, 1, 2], "w": [1.5, 1, 1, 2, 1, 1, 4],
    "day": [f"0{day}.02.2024 0{day}:30" for day in range(1, 8)], "half": [0.5, 1, 1.5, 2, 2.5, 3, 3.5],
}  # fmt: skip
NODES = {"name": [3, 0, 1, 2], "kind": ["x", None, "y", "x"], "a": [1, 2, 3, 4], "b": [0.5, 1, 1.5, 2]}
COLUMNS = {
    RELATION: {"weight": "w"},
    "node": {"label": {"column": "kind", "classes": True}, "feat": {"column": ["b", "a"], "fill": 0}},
}  # fmt: skip
DROP = {"missing_ids": "drop", "dangling": "drop"}
CASES = {
    "rows without an id": DROP,
    "sums": DROP | {"duplicates": "sum"},
    "both directions": DROP | {"undirected": True, "self_loops": "drop"},
    "a reverse": DROP | {"reverse": "back"},
    "added nodes": {"missing_ids": "drop", "dangling": "keep"},
    "added nodes, by their type": {"missing_ids": "drop", "others": "add"},
    "dates": DROP | {"time": "day", "dates": "%d.%m.%Y %H:%M", "zone": "Asia/Tokyo"},
    "parts of times": DROP | {"time": "half", "time_scale": 2},
}  # fmt: skip


def keys_of(spec: type) -> list[str]:
    return [item.name for item in dataclasses.fields(spec)]


@pytest.mark.parametrize("case", CASES)
def test_keys_mean_in_python_what_they_mean_in_specs(tmp_path, case):
    """The same graph and the same notes, of CSV by a spec and of dictionaries by arguments."""
    options = CASES[case]
    pd.DataFrame(EDGES).astype({"u": "Int64"}).to_csv(tmp_path / "e.csv", index=False)
    pd.DataFrame(NODES).to_csv(tmp_path / "n.csv", index=False)
    node = {"type": "node", "file": "n", "id": "name", "columns": COLUMNS["node"]}
    edge = {"relation": RELATION, "file": "e", "src": "u", "dst": "v", "columns": COLUMNS[RELATION]}
    tables = {"nodes": [node | {key: value for key, value in options.items() if key in keys_of(NodeSpec)}],
              "edges": [edge | {key: value for key, value in options.items() if key in keys_of(EdgeSpec)}]}  # fmt: skip
    spec = {"files": {name: {"path": f"{name}.csv"} for name in "en"}, **tables}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(spec))
    expected = convert(load_spec(tmp_path / "s.yaml", {}), tmp_path / "f.h5")
    found = from_edges(EDGES, tmp_path / "p.h5", NODES, src="u", dst="v", id="name", columns=COLUMNS, **options)
    assert contents(tmp_path / "p.h5") == contents(tmp_path / "f.h5")
    assert [note for note in found.notes if "not kept" not in note] == expected.notes
    assert f"{RELATION}: 1 row without an id dropped" in found.notes
    assert "node: 1 of 4 without a label" in found.notes or "node: 2 of 5 without a label" in found.notes
    with h5py.File(tmp_path / "p.h5") as file:  # of nodes 0, 1, 2, 3
        assert file["nodes/node/label"][:4].tolist() == [-1, 1, 0, 0]
        assert file["nodes/node/feat"][:4].tolist() == [[1, 2], [1.5, 3], [2, 4], [0.5, 1]]
        if "time" in options:
            first = 1706718600 if case == "dates" else 1  # 1 February 2024, 01:30 in Tokyo
            assert file[f"edges/{RELATION}/time"][0] == first


def test_every_key_of_specs_is_an_option(tmp_path):
    """A key that is added to specs is one, too, except the names of the tables and their columns of ids and times."""
    tables = {"type", "relation", "file", "count", "id", "src", "dst", "time"}
    values = {"columns": {"weight": "w"}, "ids": "int", "types": None, "reverse": None, "left_out": []}
    for spec in (NodeSpec, EdgeSpec):
        for item in dataclasses.fields(spec):
            if item.name not in tables:
                value = values.get(item.name, item.default)
                from_edges(ENDS | {"w": [1.0, 2.0], "time": [3, 4]}, tmp_path / "g.h5", **{item.name: value})


def test_dates_of_all_kinds(tmp_path):
    """datetime64 and text in a zone, and pandas' timestamps with a zone, to the millisecond."""
    stamps = pd.to_datetime(["2024-07-01 12:00:00.250", "2024-07-01 12:00:01.000"])
    times = {
        "numpy": (stamps.to_numpy(), {"zone": "Europe/Berlin"}),
        "text": (["2024-07-01T12:00:00.250", "2024-07-01T12:00:01"], {"zone": "Europe/Berlin", "dates": "iso"}),
        "pandas": (stamps.tz_localize("Europe/Berlin"), {}),
    }
    for name, (when, options) in times.items():
        frame = pd.DataFrame({**ENDS, "when": when})
        from_edges(frame, tmp_path / f"{name}.h5", time="when", time_scale=1000, **options)
        with h5py.File(tmp_path / f"{name}.h5") as file:
            assert file[f"edges/{RELATION}/time"][:].tolist() == [1719828000250, 1719828001000]
    born = pd.to_datetime(["2024-07-01 12:00:00"] * 2)  # not of the edges' time
    for options, seconds in (({}, 1719835200), ({"time": "when", "zone": "Europe/Berlin"}, 1719828000)):
        from_edges(pd.DataFrame({**ENDS, "when": born, "born": born}), tmp_path / "g.h5", **options)
        with h5py.File(tmp_path / "g.h5") as file:
            assert file[f"edges/{RELATION}/born"][:].tolist() == [seconds] * 2


@pytest.mark.parametrize("gap", [None, np.nan, pd.NA])
def test_labels_with_gaps_are_unlabeled(tmp_path, gap, capsys):
    """Words become classes and -1, numbers stay and are NaN; of nodes and of edges; counted and printed."""
    nodes = {"id": [0, 1, 2], "label": ["b", gap, "a"]}
    summary = from_edges(ENDS | {"label": [0.5, gap]}, tmp_path / "g.h5", nodes)
    with h5py.File(tmp_path / "g.h5") as file:
        assert file["nodes/node/label"][:].tolist() == [1, -1, 0]
        assert json.loads(file["nodes/node/label"].attrs["names"]) == ["a", "b"]
        np.testing.assert_array_equal(file[f"edges/{RELATION}/label"], [0.5, np.nan])
        assert "NaN" not in file.attrs["spec"]  # which is JSON
    notes = ["node: 1 of 3 without a label", f"{RELATION}: 1 of 2 without a label"]
    assert summary.notes == notes
    assert capsys.readouterr().err == "".join(f"note: {tmp_path / 'g.h5'}: {note}\n" for note in notes)
    with pytest.raises(ValueError, match="nodes of node: column color, row 2: the word is missing; mend the"):
        from_edges(ENDS, tmp_path / "h.h5", {"id": [0, 1], "color": ["b", gap]})
    columns = {"node": {"label": {"column": "y", "fill": -1}}}  # classes that pandas has made floats
    from_edges(ENDS, tmp_path / "i.h5", {"id": [0, 1], "y": [3.0, gap]}, columns=columns)
    with h5py.File(tmp_path / "i.h5") as file:
        assert file["nodes/node/label"].dtype == np.int64
        assert file["nodes/node/label"][:].tolist() == [3, -1]


def data(**attributes):
    """PyTorch Geometric's Data of three nodes and two edges."""
    geometric = pytest.importorskip("torch_geometric.data")
    return geometric.Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3, **attributes)


def typed(**attributes):
    """HeteroData with these attributes of edges."""
    graph = pytest.importorskip("torch_geometric.data").HeteroData()
    graph["a"].num_nodes = graph["b"].num_nodes = 2
    graph["a", "to", "b"].edge_index = torch.tensor([[0, 1], [1, 0]])
    for name, value in attributes.items():
        graph["a", "to", "b"][name] = value
    return graph


WORDS, TIMES = {"src": ["a", "b"], "dst": ["b", "a"]}, torch.tensor([1, 2])
REFUSED = {
    "no such id": (
        lambda path: from_edges(ENDS, path, {"uid": [0, 1]}, id="user"),
        "nodes of node: no column user; there are uid",
    ),
    "no such row": (
        lambda path: from_edges({"a": [0, 1], "b": [1, 2]}, path, {"x": [5, 6]}, src="a", dst="b"),
        "edges of node.to.node: column b, row 2: no node 2 of type node, whose 2 nodes are numbered by rows from 0; "
        "name the column of ids of its table (id), or set dangling: drop on the relation",
    ),
    "no such node": (
        lambda path: from_edges(WORDS, path, {"name": ["a"]}, id="name"),
        "edges of node.to.node: column src, row 2: no node 'b' of type node; add it to the node table, or set others",
    ),
    "words for rows": (
        lambda path: from_edges(WORDS, path, {"name": ["a", "b"]}),
        "edges of node.to.node: column src has words, and nodes of node are numbered by their rows; name the column of "
        "their ids (id), one of name",
    ),
    "a missing id": (
        lambda path: from_edges({"src": [0, None], "dst": [1, 2]}, path),
        "edges of node.to.node: column src, row 2: the id is missing; mend the row, or leave out rows without an id: "
        "missing_ids: drop",
    ),
    "directions of events": (
        lambda path: from_edges({**ENDS, "time": [1, 2]}, path, undirected=True),
        "undirected: an event with a time is in the history of both ends already; leave it out",
    ),
    "unsorted times": (
        lambda path: from_edges({**ENDS, "when": [2, 1]}, path, time="when"),
        "edges of node.to.node: column when, row 2: the time decreases from 2 to 1; pass --sort (or set sort: true)",
    ),
    "dates without times": (
        lambda path: from_edges(ENDS, path, dates="iso"),
        "dates: edges of node.to.node have no times; name their column (time), or leave dates out",
    ),
    "no option": (
        lambda path: from_edges(ENDS, path, duplicate="drop"), "no option 'duplicate'; there are time_scale, dates, ",
    ),
    "no value": (
        lambda path: from_edges(ENDS, path, duplicates="first"),
        "edges of node.to.node: duplicates: 'first' is not one of keep, drop, error, sum",
    ),
    "no table": (lambda path: from_edges(ENDS, path, sort={"a": True}), "sort: 'a' is not one of node.to.node"),
    "another table": (
        lambda path: from_edges(ENDS, path, sort={"node": True}), "sort: 'node' is not one of node.to.node",
    ),
    "several tables": (
        lambda path: from_edges(ENDS, path, {"a": [1, 2]}, columns={"feat": "a"}),
        "columns: there are several tables; give columns by table: columns={'node': ..., 'node.to.node': ...}",
    ),
    "no mapping": (
        lambda path: from_edges(ENDS, path, columns={RELATION: ["src"]}),
        "columns: expected a mapping of names to columns, got ['src']",
    ),
    "ids of no type": (
        lambda path: from_edges(ENDS, path, {"node": {"a": [0, 1]}}, id={"user": "a"}), "id: 'user' is not one of node",
    ),
    "no column": (
        lambda path: from_edges(ENDS, path, columns={"feat": ["a"]}),
        "edges of node.to.node: no column a; there are src, dst",
    ),
    "columns of one name": (
        lambda path: from_edges(pd.DataFrame([[0, 1, 2]], columns=["src", "dst", "dst"]), path),
        "edges of node.to.node: several columns are called dst; rename them",
    ),
    "a file": (
        lambda path: convert_object("x.pt", path),
        "str is no known graph: it names a file: give torch.load('x.pt', weights_only=False), or run hpcgnn convert "
        "--preset pyg --set data=x.pt graph.h5",
    ),
    "a data set": (lambda path: convert_object(SimpleNamespace(), path), "one graph of a data set: dataset[0]"),
    "edge_attr": (
        lambda path: convert_object(torch.tensor([[0], [1]]), path, edge_attr="weight"),
        "no option 'edge_attr'; there are ",
    ),
    "a matrix of one type": (
        lambda path: convert_object(torch.ones(2, 3).to_sparse(), path, relation="a.b.a"),
        "a matrix of shape (2, 3) has edges between two types of nodes; name them: relation='user.buys.item'",
    ),
    "no fold": (
        lambda path: convert_object(data(train_mask=torch.ones(3, 2) > 0), path, fold=2),
        "fold 2: train_mask has 2 folds, counted from 0",
    ),
    "two times": (
        lambda path: convert_object(typed(time=TIMES, edge_time=TIMES), path),
        "time and edge_time would both be the time of edges; rename or remove one",
    ),
    "two weights": (
        lambda path: convert_object(typed(weight=TIMES, edge_weight=TIMES), path),
        "edges of a.to.b: weight and edge_weight would both be column weight; rename or remove one",
    ),
    "directions of events of PyG": (
        lambda path: convert_object(data(edge_time=TIMES), path, undirected=True), "undirected: an event with a time",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_errors_name_the_table_the_column_and_the_remedy(tmp_path, case):
    """And no path that the user has not written; nothing is left behind."""
    make, message = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        make(tmp_path / "g.h5")
    assert "npz" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_attributes_of_networkx(tmp_path, capsys):
    """Numbers, words and vectors are kept; others, and the ones with gaps, are named once."""
    networkx = pytest.importorskip("networkx")
    graph = networkx.MultiGraph()
    graph.add_node("a", age=3, club="red", place=[1.0, 2.0], more={"x": 1}, label="yes")
    graph.add_node("b", age=4, club="a long word", place=[3.0, 4.0], more={}, some=1)
    graph.add_edge("a", "b", key="first", weight=2, parts=[1, [2]], seen="mon")
    convert_object(graph, tmp_path / "g.h5", source="the club's book")
    with h5py.File(tmp_path / "g.h5") as file:
        nodes, edges = file["nodes/node"], file[f"edges/{RELATION}"]
        assert set(nodes) == {"id", "age", "club", "place", "label"}
        assert set(edges) == {"src", "dst", "weight", "seen"}
        assert json.loads(nodes["club"].attrs["names"]) == ["a long word", "red"]
        assert (nodes["club"][:].tolist(), nodes["label"][:].tolist()) == ([1, 0], [0, -1])
        assert nodes["place"][:].tolist() == [[1, 2], [3, 4]]
        assert edges["src"][:].tolist() == [0, 1]  # both directions
    printed = capsys.readouterr().err
    for note in (
        "nodes: not kept: more (dict [1]), some (missing in 1 of 2)", "edges: not kept: parts (list [2])",
        "edges: not kept: keys of parallel edges", "node: 1 of 2 without a label",
    ):  # fmt: skip
        assert printed.count(f"note: {tmp_path / 'g.h5'}: {note}\n") == 1
    networkx.set_edge_attributes(graph, 5, "time")
    convert_object(graph, tmp_path / "t.h5")  # an event, which both ends have, is stored once
    with h5py.File(tmp_path / "t.h5") as file:
        assert (file.attrs["kind"], file[f"edges/{RELATION}/time"][:].tolist()) == ("temporal", [5])


def test_attributes_of_pyg_that_are_not_kept(tmp_path, capsys):
    """In memory and in a file; of the graph, of types and of relations."""
    graph = data(
        x=torch.ones(3, 1, dtype=torch.bfloat16), names=["one", "two", "three"], title="a graph",
        pos=torch.ones(2, 5), n_id=torch.arange(3),
        edge_label_index=torch.ones(2, 4), id=torch.tensor([7, 8, 9]), many=[[1], [1, 2], []],
    )  # fmt: skip
    left = "pos (Tensor [2, 5]), title (str), n_id (Tensor [3]), edge_label_index (Tensor [2, 4]), many (list [3])"
    torch.save(graph, tmp_path / "data.pt")
    convert_object(graph, tmp_path / "a.h5")
    assert f"the graph: not kept: {left}\n" in (printed := capsys.readouterr().err)
    assert "nodes of node: id is kept as id_\n" in printed
    assert main(["--preset", "pyg", "--set", f"data={tmp_path / 'data.pt'}", str(tmp_path / "b.h5")]) == 0
    assert f"the graph: not kept: {left}\n" in capsys.readouterr().out
    for name in "ab":
        with h5py.File(tmp_path / f"{name}.h5") as file:
            assert set(file["nodes/node"]) == {"feat", "names", "id_"}
            assert file["nodes/node/names"][:].tolist() == [0, 2, 1]
            assert set(file[f"edges/{RELATION}"]) == {"src", "dst"}
    other = typed(edge_label_index=torch.ones(2, 3), note="x")
    other.version = 3
    convert_object(other, tmp_path / "c.h5")
    printed = capsys.readouterr().err
    assert "edges of a.to.b: not kept: edge_label_index (Tensor [2, 3]), note (str)\n" in printed
    assert "the graph: not kept: version (int)\n" in printed
    events = pytest.importorskip("torch_geometric.data").TemporalData(
        src=TIMES, dst=TIMES, t=TIMES, msg=torch.ones(2, 1), horizon=torch.tensor(3)
    )
    convert_object(events, tmp_path / "d.h5")
    assert "events: not kept: horizon (Tensor [])\n" in capsys.readouterr().err


class SparseTensor:
    """What is used of torch_sparse.SparseTensor."""

    def __init__(self, row, col, value, shape):
        self._entries, self._shape = (row, col, value), shape

    def coo(self):
        return self._entries

    def sparse_sizes(self):
        return self._shape


ROW, COL = torch.tensor([1, 2, 2, 0]), torch.tensor([0, 0, 1, 2])
VALUE = torch.tensor([2.0, 3.0, 4.0, 5.0])
MATRIX = torch.sparse_coo_tensor(torch.stack([ROW, COL]), VALUE, (3, 3))
SPARSE = {
    "coo": MATRIX, "csr": MATRIX.to_sparse_csr(), "csc": MATRIX.to_sparse_csc(),
    "torch_sparse": SparseTensor(ROW, COL, VALUE, (3, 3)),
}  # fmt: skip


def triples(path, relation: str = RELATION) -> set[tuple]:
    """Source, destination and weight of all edges."""
    with h5py.File(path) as file:
        columns = (file[f"edges/{relation}/{name}"][:].tolist() for name in ("src", "dst", "weight"))
        return set(zip(*columns, strict=True))


@pytest.mark.parametrize("form", SPARSE)
def test_adj_t_is_the_transposed_matrix(tmp_path, form):
    """Rows of adj_t are destinations, of a matrix sources; equal entries stay apart."""
    rows = {(row, col, value) for row, col, value in zip(ROW.tolist(), COL.tolist(), VALUE.tolist(), strict=True)}
    graph = pytest.importorskip("torch_geometric.data").Data(x=torch.ones(3, 1), adj_t=SPARSE[form])
    convert_object(graph, tmp_path / "t.h5")
    assert triples(tmp_path / "t.h5") == {(col, row, value) for row, col, value in rows}
    convert_object(SPARSE[form], tmp_path / "m.h5")
    assert triples(tmp_path / "m.h5") == rows
    twice = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), torch.ones(2), (2, 2))
    assert convert_object(twice, tmp_path / "e.h5").edges == {RELATION: 2}


def test_adj_t_that_pyg_makes(tmp_path):
    """With the attributes that it has sorted along, and of several types."""
    transforms = pytest.importorskip("torch_geometric.transforms")
    for layout in (torch.sparse_csr, torch.sparse_coo):
        to_sparse = transforms.ToSparseTensor(attr="edge_weight", layout=layout)
        graph = data(edge_weight=torch.tensor([2.0, 3.0]), edge_attr=torch.tensor([[20.0], [30.0]]))
        convert_object(to_sparse(graph), tmp_path / "a.h5")
        with h5py.File(tmp_path / "a.h5") as file:
            edges = {name: file[f"edges/{RELATION}/{name}"][:].ravel().tolist() for name in ("src", "weight", "feat")}
        assert edges == {"src": [0, 1], "weight": [2, 3], "feat": [20, 30]}
        graph = to_sparse(typed(edge_weight=torch.tensor([2.0, 3.0])))
        convert_object(graph, tmp_path / "b.h5")
        assert triples(tmp_path / "b.h5", "a.to.b") == {(0, 1, 2), (1, 0, 3)}


def test_a_rectangular_matrix_is_a_bipartite_graph(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.coo_array(([2, 3], ([0, 1], [2, 0])), shape=(2, 4))
    for relation, name in (("", "row.to.column"), ("user.buys.item", "user.buys.item")):
        summary = convert_object(matrix, tmp_path / "g.h5", relation=relation)
        assert list(summary.nodes.values()) == [2, 4]
        assert triples(tmp_path / "g.h5", name) == {(0, 2, 2), (1, 0, 3)}
        assert any("rows are nodes of type row" in note for note in summary.notes) == (not relation)


def test_tables_of_pandas_with_an_index(tmp_path):
    """A level with a name is a column; a table without ids is numbered by rows, and a note names it."""
    nodes = pd.DataFrame({"age": [30, 40], "file": [1, 2], "size[m]": [5, 6]}, index=pd.Index(["b", "a"], name="who"))
    summary = from_edges(WORDS, tmp_path / "g.h5", nodes, id="who")
    with h5py.File(tmp_path / "g.h5") as file:
        assert file["nodes/node/age"][:].tolist() == [40, 30]
        assert file["nodes/node/file"][:].tolist() == [2, 1]
        assert file["nodes/node/size[m]"][:].tolist() == [6, 5]
    assert summary.notes == []
    summary = from_edges(ENDS, tmp_path / "h.h5", nodes.reset_index())
    assert summary.notes == ["nodes of node: numbered by rows from 0, as id= names no column of ids"]


def test_columns_that_nothing_needs_may_be_anything(tmp_path):
    frame = pd.DataFrame({**ENDS, "w": [1.0, 2.0], "what": [object(), object()], "born": [pd.NaT, pd.Timestamp(0)]})
    summary = from_edges(frame, tmp_path / "g.h5", columns={"weight": "w"})
    assert summary.notes == [f"edges of {RELATION}: not kept: what, born"]


def test_the_source_leads_to_the_files_of_predictions(tmp_path, capsys):
    """By the book of a partition set and the record of a run; without one, tables are named, never temporary files."""
    nodes = {"id": [0, 1], "feat": [1.0, 2.0]}
    from_edges(ENDS, tmp_path / "g.h5", nodes, source="https://shop/orders?day=1")
    partition(tmp_path / "g.h5", tmp_path / "parts", 1)
    origin = files.read_origin(tmp_path / "parts")  # which `hpcgnn predict` writes beside its answers
    assert [(source["name"], source["source"]) for source in origin["sources"]] == [
        ("nodes of node", "https://shop/orders?day=1"), (f"edges of {RELATION}", "https://shop/orders?day=1"),
    ]  # fmt: skip
    assert origin["spec"]["edges"][0]["file"] == f"edges of {RELATION}"
    (tmp_path / SOURCES).write_text(json.dumps(origin))
    assert read_sources(tmp_path) == origin
    configuration.save(TemporalConfig(), train._origin_facts(origin), tmp_path / "config.yaml")
    comments = [line for line in (tmp_path / "config.yaml").read_text().splitlines() if line.startswith("# ")]
    assert comments == [
        f"# graph: g.h5 (sha256 {origin['graph']['sha256']})",
        "# sources: " + "; ".join(f"{s['name']} of {s['source']} (sha256 {s['sha256']})" for s in origin["sources"]),
        f"# spec: {json.dumps(origin['spec'])}",
    ]
    assert inspect.main([str(tmp_path / "parts")]) == 0
    assert f"from edges of {RELATION} of https://shop/orders?day=1 (" in capsys.readouterr().out
    from_edges(ENDS, tmp_path / "g.h5", nodes)
    with h5py.File(tmp_path / "g.h5") as file:
        assert "source" not in json.loads(file.attrs["sources"])[0]
        assert "tables-" not in file.attrs["sources"] + file.attrs["spec"]
