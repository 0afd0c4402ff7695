"""Options of relations and tables of nodes."""

import json
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from convert_sources import refused, run_spec, spec_for

from data_tools.convert import main
from data_tools.export.command import export
from data_tools.partition.command import partition
from data_tools.verify.command import main as verify
from hpcgnn.graph.files import relations

pytestmark = pytest.mark.serial


def convert_edges(folder: Path, pairs, **options) -> dict[str, list]:
    """src, dst and label (the source row) of each relation that comes from these pairs of row ids."""
    np.savez(folder / "e.npz", pairs=np.array(pairs), row=np.arange(len(pairs)))
    spec = {
        "files": {"e": {"path": "e.npz"}},
        "nodes": [{"type": "n", "ids": "row", "count": 9}, {"type": "m", "ids": "row", "count": 9}],
        "edges": [{"relation": "n.to.n", "file": "e", "src": "pairs[:,0]", "dst": "pairs[:,1]", **options}],
    }
    spec["edges"][0]["columns"] = {"label": "row"}
    with h5py.File(run_spec(folder, spec)) as file:
        assert "id" not in file["nodes/n"]
        columns = {
            name: [file[f"edges/{name}/{column}"] for column in ("src", "dst", "label")] for name in relations(file)
        }
        return {name: np.stack([column[...] for column in three], 1).tolist() for name, three in columns.items()}


PAIRS = [(0, 1), (2, 2), (1, 0), (0, 1), (3, 8)]


def test_duplicates_and_self_loops(tmp_path, capsys):
    kept = convert_edges(tmp_path, PAIRS, duplicates="drop", self_loops="drop")["n.to.n"]
    assert kept == [[0, 1, 0], [1, 0, 2], [3, 8, 4]]
    assert "1 self-loop dropped; n.to.n: 1 duplicate edge dropped" in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--memory", "1GiB"]])
@pytest.mark.parametrize("undirected", [False, True])
def test_facts_of_two_kinds_are_no_duplicates(tmp_path, capsys, options, undirected):
    """Of five rows between a and b one is there twice; undirected also in the other direction."""
    (tmp_path / "e.csv").write_text("u,how,v\na,likes,b\na,hates,b\na,likes,b\nb,likes,a\nb,knows,a\n")
    edge = {"relation": "n.to.n", "file": "e", "src": "u", "dst": "v", "duplicates": "drop", "undirected": undirected,
            "columns": {"rel": {"column": "how", "classes": True}}}  # fmt: skip
    spec = {"files": {"e": {"path": "e.csv"}}, "nodes": [{"type": "n", "ids": "string"}], "edges": [edge]}
    with h5py.File(run_spec(tmp_path, spec, *options)) as file:
        edges = file["edges/n.to.n"]
        facts = sorted(zip(*(edges[name][...].tolist() for name in ("src", "rel", "dst")), strict=True))
    kept = [(0, 0, 1), (0, 2, 1), (1, 1, 0)] if undirected else [(0, 0, 1), (0, 2, 1), (1, 1, 0), (1, 2, 0)]
    assert facts == sorted(kept + [(v, rel, u) for u, rel, v in kept] if undirected else kept)
    assert ("2 duplicate edges" if undirected else "1 duplicate edge") + " dropped" in capsys.readouterr().out


def test_undirected_is_stored_in_both_directions(tmp_path):
    kept = convert_edges(tmp_path, PAIRS, undirected=True, duplicates="drop")["n.to.n"]
    assert kept == [[0, 1, 0], [1, 0, 0], [2, 2, 1], [3, 8, 4], [8, 3, 4]]


def test_reverse_adds_a_relation(tmp_path):
    graph = convert_edges(tmp_path, PAIRS, relation="n.to.m", reverse="from")
    assert list(graph) == ["n.to.m", "m.from.n"]
    assert graph["n.to.m"] == [[u, v, row] for row, (u, v) in enumerate(PAIRS)]
    assert graph["m.from.n"] == [[v, u, row] for row, (u, v) in enumerate(PAIRS)]


@pytest.mark.parametrize(("option", "row"), [("duplicates", "row 4"), ("self_loops", "row 2")])
def test_error_policies_name_the_row(tmp_path, capsys, option, row):
    with pytest.raises(AssertionError):
        convert_edges(tmp_path, PAIRS, **{option: "error"})
    assert row in capsys.readouterr().err


def test_fill_replaces_empty_and_nan(tmp_path):
    """In text and in parquet alike; without a fill such values are refused."""
    (tmp_path / "e.csv").write_text("u,i,t,y,f\n0,0,1,,nan\n0,0,2,5,\n")
    pyarrow.parquet.write_table(
        pa.table({"u": [0, 0], "i": [0, 0], "t": [1, 2], "y": [None, 5], "f": [float("nan"), None]}),
        tmp_path / "e.parquet",
    )
    for name in ("e.csv", "e.parquet"):
        spec = spec_for(tmp_path / name)
        spec["edges"][0]["columns"] = {"label": {"column": "y", "fill": -1}, "feat": {"column": "f", "fill": 0.5}}
        with h5py.File(run_spec(tmp_path, spec)) as file:
            assert file["edges/user.rates.item/label"][...].tolist() == [-1, 5]
            assert file["edges/user.rates.item/feat"][...].tolist() == [[0.5], [0.5]]


def write_unknown(folder: Path) -> dict[str, dict]:
    """Three rows whose number y is not known in the second, as csv, npz and parquet: columns of ids and y."""
    (folder / "e.csv").write_text("u,i,t,y\n0,0,1,0.5\n0,1,2,\n1,0,3,-2\n")
    columns = {"u": np.array([0, 0, 1]), "i": np.array([0, 1, 0]), "t": np.arange(1, 4)}
    np.savez(folder / "e.npz", **columns, y=np.array([0.5, np.nan, -2]))
    halves = pa.array([0.5, None, -2])
    pyarrow.parquet.write_table(pa.table(columns | {"y": halves}), folder / "e.parquet")
    integers = pa.array([3, None, 0], pa.uint8())
    pyarrow.parquet.write_table(pa.table(columns | {"y": integers}), folder / "integers.parquet")
    (folder / "words.csv").write_text("u,i,t,y\n0,0,1,half\n0,1,2,?\n1,0,3,less\n")
    plain, words = [0.5, np.nan, -2], {"values": {"half": 5, "less": -2}}
    return {"e.csv": (plain, {}), "e.npz": (plain, {}), "e.parquet": (plain, {}),
            "integers.parquet": ([3, np.nan, 0], {}), "words.csv": ([5, np.nan, -2], words)}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_are_not_known(tmp_path, dtype):
    """`fill: .nan`: labels of events, nodes and edges stay NaN, also through partition, verify and an export."""
    for name, (expected, options) in write_unknown(tmp_path).items():
        spec = spec_for(tmp_path / name)
        label = {"column": "y", "dtype": dtype, "fill": float("nan"), **options}
        spec["edges"][0]["columns"] = {"label": label}
        user = {"type": "user", "file": "events", "id": "t", "columns": {"score": label}}
        spec["nodes"] = [user, {"type": "item"}]
        spec["edges"][0] |= {"src": "t"}
        graph = run_spec(tmp_path, spec)
        partition(graph, tmp_path / "p", 2, "random", overwrite=True)
        assert verify([str(tmp_path / "p"), "--against", str(graph)]) == 0
        export(graph, tmp_path / f"{name}-out", "parquet")
        again = tmp_path / "again.h5"
        assert main(["--chunks", str(tmp_path / f"{name}-out"), "--overwrite", str(again)]) == 0
        for path in (graph, again):
            with h5py.File(path) as file:
                for column in ("edges/user.rates.item/label", "nodes/user/score"):
                    assert file[column].dtype == dtype
                    np.testing.assert_array_equal(file[column][...], expected)


def test_numbers_of_nodes_and_edges_of_a_static_graph_that_are_not_known(tmp_path):
    """A node that only an edge names has none, either; both directions of an edge have the edge's."""
    (tmp_path / "n.csv").write_text("id,y\n5,\n3,1.5\n")
    (tmp_path / "e.csv").write_text("u,v,y\n3,5,nan\n9,3,2.5\n")
    label = {"column": "y", "dtype": "float32", "fill": float("nan")}
    node = {"type": "n", "file": "n", "id": "id", "others": "add", "columns": {"label": label}}
    edge = {"relation": "n.to.n", "file": "e", "src": "u", "dst": "v", "undirected": True, "columns": {"label": label}}
    files = {"n": {"path": "n.csv"}, "e": {"path": "e.csv"}}
    with h5py.File(run_spec(tmp_path, {"files": files, "nodes": [node], "edges": [edge]})) as file:
        np.testing.assert_array_equal(file["nodes/n/label"][...], np.float32([1.5, np.nan, np.nan]))  # of 3, 5, 9
        np.testing.assert_array_equal(file["edges/n.to.n/label"][...], np.float32([np.nan, np.nan, 2.5, 2.5]))


NODE_SPEC = {
    "files": {"n": {"path": "n.csv"}, "e": {"path": "e.csv"}},
    "nodes": [
        {
            "type": "n",
            "file": "n",
            "id": "name",
            "ids": "string",
            "columns": {
                "feat": "2:",
                "label": "class",
                "split": {"column": "set", "values": {"tr": 0, "te": 2}, "fill": -1},
            },
        }
    ],
    "edges": [{"relation": "n.to.n", "file": "e", "src": 0, "dst": 1, "columns": {"weight": "w"}}],
}
NODE_CSV = "name,class,x,y,set\nc,1,0.5,1,te\na,0,2,3,tr\nb,2,4,5,\n"


def test_node_table(tmp_path):
    """Rows of a node table are brought into the order of the ids; nodes without edges stay."""
    spec = json.loads(json.dumps(NODE_SPEC))
    spec["nodes"][0]["columns"]["feat"] = ["x", 3]
    (tmp_path / "n.csv").write_text(NODE_CSV)
    (tmp_path / "e.csv").write_text("s,d,w\nc,a,0.25\n")
    with h5py.File(run_spec(tmp_path, spec)) as file:
        nodes = file["nodes/n"]
        assert nodes["id"][...].tolist() == [b"a", b"b", b"c"]
        assert nodes["label"][...].tolist() == [0, 2, 1]
        assert nodes["split"][...].tolist() == [0, -1, 2]
        assert nodes["feat"][...].tolist() == [[2, 3], [4, 5], [0.5, 1]]
        assert file["edges/n.to.n/src"][...].tolist() == [2]
        assert file["edges/n.to.n/weight"][...].tolist() == [0.25]


def test_node_table_refuses_others_unless_told(tmp_path, capsys):
    spec = json.loads(json.dumps(NODE_SPEC))
    spec["nodes"][0]["columns"] = {"label": {"column": "class", "fill": -1}}
    (tmp_path / "n.csv").write_text(NODE_CSV)
    (tmp_path / "e.csv").write_text("s,d,w\na,c,1\nc,zz,1\n")
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    for part in ("e.csv", "row 2", "'zz'", "others: add"):
        assert part in message
    spec["nodes"][0]["others"] = "add"
    with h5py.File(run_spec(tmp_path, spec)) as file:
        assert file["nodes/n/label"][...].tolist() == [0, 2, 1, -1]


def test_sparse_features_and_sets(tmp_path):
    dense = np.array([[0, 1.5, 0], [0, 0, 0], [2, 0, 3]], np.float32)
    row, col = np.nonzero(dense)
    csr = {"x_data": dense[row, col], "x_indices": col, "x_indptr": [0, 1, 1, 3], "x_shape": dense.shape}
    coo = {"c_data": dense[row, col][::-1], "c_row": row[::-1], "c_col": col[::-1], "c_shape": dense.shape}
    np.savez(tmp_path / "g.npz", **csr, **coo, edges=[[0, 2]], train=[1], test=[False, False, True])
    for prefix in ("x_", "c_"):
        columns = {"feat": {"sparse": prefix}, "split": {"sets": {"train": "train", "test": "test"}}}
        spec = {
            "files": {"g": {"path": "g.npz"}},
            "nodes": [{"type": "n", "ids": "row", "file": "g", "columns": columns}],
            "edges": [{"relation": "n.to.n", "file": "g", "src": "edges[:,0]", "dst": "edges[:,1]"}],
        }
        with h5py.File(run_spec(tmp_path, spec)) as file:
            assert np.array_equal(file["nodes/n/feat"], dense)
            assert file["nodes/n/split"][...].tolist() == [-1, 0, 2]
