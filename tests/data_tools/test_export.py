"""Exports hold what the graph has; parquet comes back as the same graph file."""

import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from convert_sources import contents
from random_graphs import random_graph
from static_runs import typed

from data_tools.convert import main as convert
from data_tools.export.command import export, main
from data_tools.export.formats import make_data
from data_tools.partition.command import partition

pytestmark = pytest.mark.serial


def round_trip(path: Path, tmp_path: Path) -> tuple[dict, dict]:
    """What a graph file has, but for text of edges, and what is left after an export to parquet."""
    export(path, tmp_path / "exported", "parquet")
    assert convert(["--chunks", str(tmp_path / "exported"), str(tmp_path / "again.h5")]) == 0
    before, after = contents(path), contents(tmp_path / "again.h5")
    for found in (before, after):
        for name in [name for name in found if name.endswith("/tag")]:
            del found[name]
        for group in found.values():
            if isinstance(group, dict):
                group.pop("time_scale", None)
    return before, after


def test_round_trip_of_a_temporal_graph(tmp_path):
    before, after = round_trip(random_graph(tmp_path / "g.h5", 0, sizes=(9, 7, 3)), tmp_path)
    # Nodes that no edge names are there all the same, and so are loops, repetitions and equal times. The order of the
    # events of several relations, which this file lacks, is new.
    new = {f"edges/{name}/event" for name in ("a.meets.a", "a.likes.b")}
    assert after.keys() - before.keys() == new
    assert {path: item for path, item in after.items() if path not in new} == before


def test_round_trip_of_a_static_graph(tmp_path):
    before, after = round_trip(typed(tmp_path / "g.h5"), tmp_path)
    assert before == after


def test_round_trip_by_text_ids(tmp_path):
    (tmp_path / "e.csv").write_text("u,v,t\nanna,bär,1\nbär,carl,2\nanna,anna,2\n")
    spec = """
files: {e: {path: e.csv}}
nodes: [{type: user, ids: string}]
edges: [{relation: user.meets.user, file: e, src: u, dst: v, time: t}]
"""
    (tmp_path / "spec.yaml").write_text(spec)
    assert convert(["--spec", str(tmp_path / "spec.yaml"), str(tmp_path / "g.h5")]) == 0
    before, after = round_trip(tmp_path / "g.h5", tmp_path)
    assert before == after
    table = pyarrow.parquet.read_table(tmp_path / "exported" / "edges-user.meets.user.parquet").to_pydict()
    assert table["src_id"] == ["anna", "bär", "anna"]
    assert table["src"] == [0, 1, 0]


def test_npz_holds_all_columns(tmp_path):
    path = random_graph(tmp_path / "g.h5", 1)
    export(path, tmp_path / "exported", "npz")
    found = contents(path)
    with np.load(tmp_path / "exported" / "graph.npz") as arrays:
        for name, item in found.items():
            if "values" in item:
                assert (arrays[name].dtype.str, arrays[name].tolist()) == item["values"]
        assert arrays["nodes/a/row"].tolist() == list(range(9))


@pytest.fixture(params=["static", "temporal"])
def parts(request, tmp_path):
    """A graph file and the folder of its three parts."""
    make = typed if request.param == "static" else lambda path: random_graph(path, 2, sizes=(20, 15, 4), num_edges=80)
    path = make(tmp_path / "g.h5")
    partition(path, tmp_path / "parts", 3, "random")
    return path, tmp_path / "parts"


def test_parts_hold_the_graph(parts, tmp_path):
    """Edges, by row ids, with their columns; inner nodes are in one part each; outer nodes have their columns."""
    path, folder = parts
    found = contents(path)
    inner, edges = {}, {}
    for part in range(3):
        export(folder, tmp_path / f"part-{part}", "npz", part)
        with np.load(tmp_path / f"part-{part}" / "graph.npz") as arrays:
            for name in arrays.files:
                kind, group, column = name.split("/")
                table = {key: arrays[f"{kind}/{group}/{key}"] for key in ("row",)}
                if kind == "nodes":
                    if column == "inner":
                        inner.setdefault(group, []).append(table["row"][arrays[name]])
                    elif column != "row":
                        expected = np.array(found[name]["values"][1])[table["row"]]
                        assert np.array_equal(arrays[name], expected)
                    continue
                values = arrays[name]
                if column in ("src", "dst"):
                    node_type = group.split(".")[0 if column == "src" else 2]
                    values = arrays[f"nodes/{node_type}/row"][values]
                if column == "row":
                    edges.setdefault(group, []).append(values)
                elif len(values):
                    assert np.array_equal(values, np.array(found[name]["values"][1], values.dtype)[table["row"]])
    for group, rows in inner.items():
        assert sorted(np.concatenate(rows).tolist()) == list(range(found[f"nodes/{group}"]["num_nodes"]))
    for group, rows in edges.items():
        # An event is in the parts of both its ends.
        assert set(np.concatenate(rows).tolist()) == set(range(found[f"edges/{group}"]["num_edges"]))


def load_pyg(folder: Path):
    return torch.load(folder / "graph.pt", weights_only=False)


def test_pyg(tmp_path, monkeypatch):
    """With PyTorch Geometric HeteroData, without it a dictionary of the same tensors."""
    path = typed(tmp_path / "g.h5")
    found = contents(path)
    export(path, tmp_path / "data", "pyg")
    monkeypatch.setitem(sys.modules, "torch_geometric.data", None)
    export(path, tmp_path / "plain", "pyg")
    plain = load_pyg(tmp_path / "plain")
    for (source, relation, destination), edge in plain["edges"].items():
        group = f"edges/{source}.{relation}.{destination}"
        ends = [found[f"{group}/{end}"]["values"][1] for end in ("src", "dst")]
        assert edge["edge_index"].tolist() == ends
        assert edge["e_id"].tolist() == list(range(len(ends[0])))
    for name, node in plain["nodes"].items():
        assert node["num_nodes"] == found[f"nodes/{name}"]["num_nodes"]
        if f"nodes/{name}/feat" in found:
            assert node["x"].tolist() == found[f"nodes/{name}/feat"]["values"][1]
    monkeypatch.undo()
    data = load_pyg(tmp_path / "data")
    for key, tensors in [*plain["nodes"].items(), *plain["edges"].items()]:
        for name, value in tensors.items():
            assert torch.equal(torch.as_tensor(data[key][name]), torch.as_tensor(value))
    assert data.validate()


def test_pyg_of_one_type_is_data():
    ends = torch.tensor([[0, 1], [1, 2]])
    node = {"num_nodes": 3, "y": torch.arange(3)}
    data = make_data({"node": node}, {("node", "to", "node"): {"edge_index": ends, "y": torch.arange(2)}})
    assert (data.num_nodes, data.num_edges) == (3, 2)
    assert torch.equal(data.edge_y, torch.arange(2))
    assert data.validate()


def test_refused(parts, tmp_path, capsys):
    path, folder = parts
    for arguments, message in [
        ([folder], "parts are exported one by one: --part 0"),
        ([folder, "--part", "3"], "no part 3; it has 0 to 2"),
        ([path, "--part", "0"], "a graph file has no parts"),
        ([tmp_path / "none.h5"], "no such file"),
    ]:
        assert main([*map(str, arguments), str(tmp_path / "out"), "--format", "npz"]) == 2
        assert message in capsys.readouterr().err
        assert not list(tmp_path.glob("*out*"))
    assert main([str(path), str(tmp_path / "whole"), "--format", "npz"]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'whole'}: ")
    assert main([str(path), str(folder), "--format", "npz"]) == 2
    assert "exists and is not an empty folder" in capsys.readouterr().err
