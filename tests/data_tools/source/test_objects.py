"""Graphs in memory become the graph files that their tables make: PyTorch Geometric, DGL, networkx, SciPy, frames."""

from __future__ import annotations

import pickle
from collections import defaultdict
from types import SimpleNamespace
from typing import ClassVar

import h5py
import numpy as np
import pytest
import torch
from convert_sources import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcgnn
from data_tools.convert import main
from data_tools.objects import convert_object, from_edges
from data_tools.source.formats.arrays import load_tensors
from data_tools.source.formats.pyg_file import load_pyg
from hpcgnn.graph.files import FileFormatError
from hpcgnn.graph.unpickle import load_pickled_bytes

pytestmark = pytest.mark.serial
SPLIT = {"train_mask": 0, "val_mask": 1, "test_mask": 2}


def content(path) -> dict[str, np.ndarray]:
    """All columns of a graph file by place, edges in order of their ends."""
    with h5py.File(path) as file:
        found: dict[str, np.ndarray] = {}
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def data(seed: int, n: int, e: int):
    """PyTorch Geometric's Data: features, labels, masks, weights and features of edges."""
    torch_geometric = pytest.importorskip("torch_geometric.data")
    generator = torch.Generator().manual_seed(seed)
    split = torch.randint(-1, 3, (n,), generator=generator)
    masks = {name: split == number for name, number in SPLIT.items()}
    return torch_geometric.Data(
        x=torch.randn(n, 3, generator=generator), y=torch.randint(0, 4, (n,), generator=generator),
        edge_index=torch.randint(0, n, (2, e), generator=generator), age=torch.arange(n),
        edge_attr=torch.randn(e, 2, generator=generator), edge_weight=torch.rand(e, generator=generator), **masks,
    )  # fmt: skip


@settings(max_examples=20)
@given(st.integers(0, 99), st.integers(1, 12), st.integers(1, 20))
def test_data_comes_back(tmp_path_factory, seed, n, e):
    """In memory, and by torch.save and the preset."""
    folder, graph = tmp_path_factory.mktemp("data"), data(seed, n, e)
    convert_object(graph, folder / "a.h5")
    torch.save(graph, folder / "data.pt")
    assert main(["--preset", "pyg", "--set", f"data={folder / 'data.pt'}", str(folder / "b.h5")]) == 0
    split = np.select([graph[name].numpy() for name in SPLIT], list(SPLIT.values()), -1)
    for name in ("a.h5", "b.h5"):
        found = content(folder / name)
        nodes, edges = "nodes/node/", "edges/node.to.node/"
        for column, expected in (("feat", graph.x), ("label", graph.y), ("age", graph.age), ("split", split)):
            np.testing.assert_array_equal(found[nodes + column], np.asarray(expected))
        for column, expected in (
            ("src", graph.edge_index[0]), ("dst", graph.edge_index[1]), ("feat", graph.edge_attr),
            ("weight", graph.edge_weight),
        ):  # fmt: skip
            np.testing.assert_array_equal(found[edges + column], expected)


def test_types_and_relations(tmp_path):
    data = pytest.importorskip("torch_geometric.data")
    graph = data.HeteroData()
    graph["paper"].x, graph["paper"].y = torch.arange(8.0).view(4, 2), torch.tensor([0, 1, 0, 1])
    graph["author"].num_nodes = 3
    graph["author", "writes", "paper"].edge_index = torch.tensor([[0, 2, 1], [3, 0, 0]])
    graph["paper", "cites", "paper"].edge_index = torch.tensor([[0, 1], [1, 2]])
    torch.save(graph, tmp_path / "data.pt")
    convert_object(graph, tmp_path / "a.h5")
    assert main(["--preset", "pyg", "--set", f"data={tmp_path / 'data.pt'}", str(tmp_path / "b.h5")]) == 0
    for name in ("a.h5", "b.h5"):
        found = content(tmp_path / name)
        assert found["edges/author.writes.paper/src"].tolist() == [0, 2, 1]
        assert found["edges/paper.cites.paper/dst"].tolist() == [1, 2]
        assert found["nodes/paper/feat"].shape == (4, 2)
        with h5py.File(tmp_path / name) as file:
            assert file["nodes/author"].attrs["num_nodes"] == 3


def test_events(tmp_path):
    data = pytest.importorskip("torch_geometric.data")
    graph = data.TemporalData(
        src=torch.tensor([7, 8, 7]), dst=torch.tensor([1, 2, 3]), t=torch.tensor([5, 6, 9]), msg=torch.ones(3, 2),
        y=torch.tensor([0, 1, 0]),
    )  # fmt: skip
    convert_object(graph, tmp_path / "g.h5")
    found = content(tmp_path / "g.h5")
    assert found["edges/node.to.node/time"].tolist() == [5, 6, 9]
    assert found["edges/node.to.node/feat"].shape == (3, 2)
    assert found["edges/node.to.node/label"].tolist() == [0, 1, 0]
    ids = found["nodes/node/id"]
    assert ids[found["edges/node.to.node/src"]].tolist() == [7, 8, 7]


class DglGraph:
    """What is used of a DGL graph: dgl.heterograph({("user", "buys", "item"): ([0, 1, 1], [2, 0, 1])})."""

    ntypes, canonical_etypes = ["item", "user"], [("user", "buys", "item")]
    nodes: ClassVar = {"item": SimpleNamespace(data={"feat": torch.arange(3.0)}), "user": SimpleNamespace(data={})}

    class _Edges:
        def __call__(self, etype, order):
            assert order == "eid"
            return torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1])

        def __getitem__(self, relation):
            return SimpleNamespace(data={"w": torch.tensor([1, 2, 3])})

    edges = _Edges()

    def num_nodes(self, kind: str) -> int:
        return {"item": 3, "user": 2}[kind]


def test_dgl(tmp_path):
    convert_object(DglGraph(), tmp_path / "g.h5")
    found = content(tmp_path / "g.h5")
    assert found["edges/user.buys.item/src"].tolist() == [0, 1, 1]
    assert found["edges/user.buys.item/w"].tolist() == [1, 2, 3]
    assert found["nodes/item/feat"].tolist() == [[0], [1], [2]] or found["nodes/item/feat"].tolist() == [0, 1, 2]


def test_networkx_and_scipy(tmp_path):
    networkx, sparse = pytest.importorskip("networkx"), pytest.importorskip("scipy.sparse")
    graph = networkx.DiGraph([("b", "a"), ("a", "c")])
    graph.add_node("alone")
    networkx.set_edge_attributes(graph, 2.5, "weight")
    convert_object(graph, tmp_path / "n.h5")
    found = content(tmp_path / "n.h5")
    ids = found["nodes/node/id"]
    assert sorted(ids.tolist()) == [b"a", b"alone", b"b", b"c"]
    assert ids[found["edges/node.to.node/dst"]].tolist() == [b"a", b"c"]
    assert found["edges/node.to.node/weight"].tolist() == [2.5, 2.5]
    convert_object(networkx.path_graph(3), tmp_path / "u.h5")
    assert len(content(tmp_path / "u.h5")["edges/node.to.node/src"]) == 4
    convert_object(sparse.csr_matrix(np.array([[0, 2], [1, 0]])), tmp_path / "s.h5")
    assert content(tmp_path / "s.h5")["edges/node.to.node/weight"].tolist() == [2, 1]


def test_frames(tmp_path):
    """pandas, Arrow and dictionaries make the same file; dates become seconds, words of labels classes."""
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    when = pandas.to_datetime(["2024-01-01 00:00", "2024-01-01 12:00", "2024-02-01 00:00"], utc=True)
    events = {"user": ["a", "b", "a"], "item": [5, 6, 6], "label": ["kept", "sent", "kept"], "feat": [1.5, 2.5, 3.5]}
    frame = pandas.DataFrame({**events, "when": when})
    tables = [frame, pyarrow.Table.from_pandas(frame), {**events, "when": [1704067200, 1704110400, 1706745600]}]
    found = []
    for number, table in enumerate(tables):
        path = tmp_path / f"{number}.h5"
        hpcgnn.from_edges(table, path, src="user", dst="item", time="when", relation="user.buys.item")
        found.append(content(path))
    for other in found:
        assert other.keys() == found[0].keys()
        assert all(np.array_equal(values, found[0][name]) for name, values in other.items())
    assert found[0]["edges/user.buys.item/time"].tolist() == [1704067200, 1704110400, 1706745600]
    with h5py.File(tmp_path / "0.h5") as file:
        assert "kept" in file["edges/user.buys.item/label"].attrs["names"]


def test_tables_of_nodes(tmp_path):
    """Several types and relations; types with ids, and types numbered by rows."""
    edges = {
        "user.buys.item": {"src": ["b", "a"], "dst": [0, 1]}, "item.near.item": {"src": [0], "dst": [1]},
    }  # fmt: skip
    nodes = {"user": {"id": ["a", "b"], "age": [30, 40]}, "item": {"feat": np.ones((2, 3))}}
    hpcgnn.from_edges(edges, tmp_path / "g.h5", nodes)
    found = content(tmp_path / "g.h5")
    assert found["nodes/user/age"].tolist() == [30, 40]
    assert found["edges/user.buys.item/src"].tolist() == [1, 0]
    assert found["nodes/item/feat"].shape == (2, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: from_edges({"src": [0]}, path), "edges of node.to.node: no column dst; there are src"),
        (lambda path: from_edges({"src": [0, 1], "dst": [0]}, path), "columns must have one length"),
        (lambda path: from_edges(7, path), "int is no table: give a pandas or Arrow table"),
        (
            lambda path: from_edges({"src": [0], "dst": [1], "x": [object()]}, path),
            "column x: values are neither numbers",
        ),
        (lambda path: convert_object("text", path), "str is no known graph"),
        (lambda path: convert_object(SimpleNamespace(columns=["a", "b"]), path), "tables of edges are for from_edges"),
        (lambda path: from_edges({"src": [0], "dst": [1], "time": np.array(["NaT"], "M8[s]")}, path), "row 1: no date"),
    ],
)
def test_what_is_no_graph_is_refused(tmp_path, make, message):
    with pytest.raises(ValueError, match=message):
        make(tmp_path / "g.h5")
    assert list(tmp_path.iterdir()) == []


def test_arrays_of_numpy_are_read_from_all_pickles(tmp_path):
    """In an object, in a dictionary of torch.save and in a plain pickle."""
    torch_geometric = pytest.importorskip("torch_geometric.data")
    arrays = {code: np.array([1, 0, 1]).astype(code) for code in "?bhiqfd"} | {"text": np.array(["a", "bc"])}
    ends = torch.tensor([[0, 1], [1, 2]])
    torch.save(torch_geometric.Data(edge_index=ends, num_nodes=3, **arrays), tmp_path / "data.pt")
    torch.save(defaultdict(dict, arrays), tmp_path / "tensors.pt")
    (tmp_path / "pickle").write_bytes(pickle.dumps(arrays))
    found = [load_pyg(tmp_path / "data.pt").nodes["node"].columns, load_tensors(tmp_path / "tensors.pt")]
    found.append(load_pickled_bytes((tmp_path / "pickle").read_bytes()))
    for name, values in arrays.items():
        for columns in found if name != "text" else found[1:]:
            assert columns[name].tolist() == values.tolist()


class Evil:
    def __reduce__(self):
        return (print, ("this ran",))


def test_files_run_no_code(tmp_path, capsys):
    torch.save({"x": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Evil()))
    torch.save({"x": torch.ones(2)}, tmp_path / "plain.pt")
    for name, message in (("evil", "builtins.print"), ("pickle", "not a readable pt file"), ("plain", "no edge_index")):
        with pytest.raises(FileFormatError, match=message):
            load_pyg(tmp_path / f"{name}.pt")
    with torch.serialization.safe_globals([print]), pytest.raises(FileFormatError, match=r"builtins\.print, which"):
        load_pyg(tmp_path / "evil.pt")  # another package trusts it
    assert "this ran" not in capsys.readouterr().out
    assert "give --set data=FILE.pt" in refused(tmp_path, capsys, "--preset", "pyg")
    assert "no such file" in refused(tmp_path, capsys, "--preset", "pyg", "--set", f"data={tmp_path / 'none.pt'}")


def test_a_list_of_edges_needs_no_spec(tmp_path):
    (tmp_path / "e.csv").write_text("src,dst\n5,7\n7,9\n")
    for name, options in (("d", []), ("u", ["--set", "undirected=true"])):
        command = [
            "--preset",
            "csv-static",
            "--set",
            f"edges={tmp_path / 'e.csv'}",
            *options,
            str(tmp_path / f"{name}.h5"),
        ]
        assert main(command) == 0
    assert len(content(tmp_path / "d.h5")["edges/node.to.node/src"]) == 2
    assert len(content(tmp_path / "u.h5")["edges/node.to.node/src"]) == 4


MEMBERS = {
    "words": ("red", "", "blue", [1, -1, 0], "<i8"), "integers": ("7", "", "5", [7, np.nan, 5], "<f8"),
    "numbers": ("7", "", "5.5", [7, np.nan, 5.5], "<f8"), "classes": ("7", "0", "5", [7, 0, 5], "<i8"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MEMBERS)
def test_two_tables_need_no_spec(tmp_path, capsys, kind):
    """Weights of equal edges are added; the table of nodes has words, other columns, and another encoding."""
    *labels, stored, dtype = MEMBERS[kind]
    (tmp_path / "e.csv").write_text("src;dst;weight;note\n5;7;1;x\n7;9;0.5;y\n5;7;2;z\n")
    columns = zip((9, 7, 5), labels, ("train", "", "test"), strict=True)
    rows = [f"{node};{label};{split};{node};{2 * node}" for node, label, split in columns]
    (tmp_path / "n.csv").write_bytes("\n".join(["name;größe;split;feat_0;feat_1", *rows]).encode("latin-1"))
    words = {"edges": tmp_path / "e.csv", "nodes": tmp_path / "n.csv", "duplicates": "sum", "delimiter": ";",
             "encoding": "latin-1", "id": "name", "label": "größe"}  # fmt: skip
    command = ["--preset", "csv-static", *(f"--set={name}={value}" for name, value in words.items())]
    assert main([*command, str(tmp_path / "g.h5")]) == 0
    found, order = content(tmp_path / "g.h5"), [9, 7, 5]
    ids = found["nodes/node/id"].tolist()
    places = [order.index(node) for node in ids]
    edges = {name: found[f"edges/node.to.node/{name}"] for name in ("src", "dst", "weight")}
    assert [(ids[a], ids[b], w) for a, b, w in zip(*edges.values(), strict=True)] == [(5, 7, 3), (7, 9, 0.5)]
    np.testing.assert_array_equal(found["nodes/node/label"], np.array(stored)[places])
    assert found["nodes/node/label"].dtype == dtype
    assert found["nodes/node/feat"].tolist() == [[node, 2 * node] for node in ids]
    assert found["nodes/node/split"].tolist() == [[0, -1, 2][place] for place in places]
    assert "e.csv: columns that are not read: note" in capsys.readouterr().out
    assert main([*command, "--set=feat=feat_1", str(tmp_path / "one.h5")]) == 0
    assert content(tmp_path / "one.h5")["nodes/node/feat"].tolist() == [[2 * node] for node in ids]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nodes={n}"], "files.edges has no path"), (["edges={e}", "label=kind"], "a table of nodes, which is missing"),
        (["edges={e}", "weights=w"], "'weights' is not one of edges, nodes, delimiter, encoding, undirected"),
        (["edges={e}", "duplicates=sum"], "adds up the column weight, which must be there"),
        (["edges={e}", "weight=w"], "no column 'w'"), (["edges={e}", "delimiter=xy"], "neither one character nor"),
        (["edges={e}", "nodes={n}", "id=name"], "no column 'name'"),
    ],
)  # fmt: skip
def test_tables_that_are_refused(tmp_path, capsys, words, message):
    paths = {"e": tmp_path / "e.csv", "n": tmp_path / "n.csv"}
    paths["e"].write_text("src,dst\n5,7\n")
    paths["n"].write_text("id,label\n5,1\n7,2\n")
    command = ["--preset", "csv-static", *(f"--set={word.format(**paths)}" for word in words)]
    assert message in refused(tmp_path, capsys, *command)


def test_dates_of_nodes_and_static_edges_stay_marked(tmp_path):
    """Of data frames, and of the columns of a spec that declare them."""
    days = np.array(["2024-01-01", "2024-01-02"], "M8[D]")
    seconds = [1704067200, 1704153600]
    people = {"id": [0, 1], "born": days.astype("M8[ns]")}
    from_edges({"src": [0, 1], "dst": [1, 0], "since": days}, tmp_path / "frame.h5", people)
    (tmp_path / "e.csv").write_text("src,dst,since\n0,1,01.01.2024 01:00\n1,0,02.01.2024 01:00\n")
    (tmp_path / "n.csv").write_text("id,born\n0,1704067200\n1,1704153600\n")
    (tmp_path / "spec.yaml").write_text(
        "files: {e: {path: e.csv}, n: {path: n.csv}}\n"
        "nodes: [{type: node, file: n, id: id, columns: {born: {column: born, zone: UTC}}}]\n"
        "edges: [{relation: node.to.node, file: e, src: src, dst: dst, columns: {since: "
        "{column: since, dates: '%d.%m.%Y %H:%M', zone: Europe/Berlin}}}]\n"
    )
    assert main(["--spec", str(tmp_path / "spec.yaml"), str(tmp_path / "spec.h5")]) == 0
    for name, zone in (("frame", "UTC"), ("spec", "Europe/Berlin")):
        with h5py.File(tmp_path / f"{name}.h5") as file:
            for place, expected in (("nodes/node/born", "UTC"), ("edges/node.to.node/since", zone)):
                assert file[place][:].tolist() == seconds
                assert file[place].attrs["zone"] == expected
