"""DGL's parts and graphs: dgl_parts.tar.xz holds what DGL 2.1 wrote, and the graphs it wrote it of (truth.npz). Its
make_typed.py wrote typed.bin and typed.npz."""

import json
import tarfile
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest
from convert_sources import contents, refused
from places import TESTS

from data_tools.convert import main
from data_tools.snapshots.text import unpack_tar
from data_tools.source.formats.dgl_files import read_graphs, read_part, read_tensors
from hpcgnn.graph.files import FileFormatError

pytestmark = pytest.mark.serial


@pytest.fixture
def parts(tmp_path):
    """A folder with what DGL wrote."""
    with tarfile.open(TESTS / "dgl_parts.tar.xz") as archive:
        unpack_tar(archive, tmp_path / "dgl")
    return tmp_path / "dgl"


def converted(folder: Path) -> h5py.File:
    """The graph file that becomes of a folder."""
    output = folder.with_suffix(".h5")
    assert main(["--chunks", str(folder), "--overwrite", str(output)]) == 0
    return h5py.File(output)


def original_rows(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Which row of the truth each row of features is."""
    rows = {tuple(row): i for i, row in enumerate(truth.tolist())}
    return np.array([rows[tuple(row)] for row in found.tolist()])


def edges(file: h5py.File, relation: str, src: np.ndarray, dst: np.ndarray, *columns: str) -> Counter:
    """Edges with original ends and some columns."""
    group = file["edges"][relation]
    ends = src[group["src"][:]], dst[group["dst"][:]]
    return Counter(zip(*(array.tolist() for array in (*ends, *(group[name][:] for name in columns))), strict=True))


def truth_edges(*arrays: np.ndarray) -> Counter:
    return Counter(zip(*(array.tolist() for array in arrays), strict=True))


def test_one_type(parts):
    truth = np.load(parts / "truth.npz")
    with converted(parts / "homo") as file:
        rows = original_rows(file["nodes/_N/feat"][:], truth["hfeat"])
        found = edges(file, "_N._E._N", rows, rows, "w")
        assert found == truth_edges(truth["hsrc"], truth["hdst"], np.arange(40.0))
        assert file["nodes/_N/part"][:].tolist() == [0] * 4 + [1] * 8
        names = {source["name"] for source in json.loads(file.attrs["sources"])}
        assert {"nodes._N.feat-0.npy", "edges._N:_E:_N.ends-0.npy"} <= names  # what inspect says


def test_paths_may_be_relative(parts, monkeypatch):
    """Of the output: what was unpacked beside it was looked for below the parts."""
    monkeypatch.chdir(parts.parent)
    folder = parts.relative_to(parts.parent) / "homo"
    assert main(["--chunks", str(folder), "g.h5"]) == 0
    assert (parts.parent / "g.h5").is_file()


def test_several_types(parts):
    """Without their original ids, nodes are told apart by their features; authors have none, so degrees must do."""
    truth = np.load(parts / "truth.npz")
    with converted(parts / "hetero") as file:
        papers = original_rows(file["nodes/paper/feat"][:], truth["feat"])
        found = edges(file, "paper.cites.paper", papers, papers, "weight")
        assert found == truth_edges(truth["cites_src"], truth["cites_dst"], truth["weight"])
        assert np.array_equal(file["nodes/paper/label"][:], truth["label"][papers])
        assert np.array_equal(file["nodes/paper/split"][:] == 0, truth["train"][papers])
        authors = np.zeros(9, int)
        found = edges(file, "author.writes.paper", authors, papers)
        assert found == truth_edges(np.zeros(25, int), truth["writes_dst"])


def test_original_ids(parts):
    """With orig_nids.dgl the numbering is that of the graph before it was partitioned."""
    truth = np.load(parts / "truth.npz")
    with converted(parts / "original") as file:
        assert file["nodes/paper/id"][:].tolist() == list(range(14))
        assert np.array_equal(file["nodes/paper/feat"][:], truth["feat"])
        found = edges(file, "author.writes.paper", np.arange(9), np.arange(14))
        assert found == truth_edges(truth["writes_src"], truth["writes_dst"])
        found = edges(file, "paper.cites.paper", np.arange(14), np.arange(14), "weight")
        assert found == truth_edges(truth["cites_src"], truth["cites_dst"], truth["weight"])


@pytest.mark.parametrize("form", ["coo", "csr", "csc", "all"])
def test_every_form_of_a_graph(parts, form):
    edges, _ = read_part(parts / f"{form}.dgl")
    assert edges.src.tolist() == [2, 0, 1, 2]
    assert edges.dst.tolist() == [0, 1, 1, 2]


def test_files_cut_short_are_refused(parts):
    """At every length; behind a graph are 32 bytes that are not needed: where graphs begin."""
    for path, read, rest in (
        (parts / "all.dgl", read_graphs, 32),
        (parts / "typed.bin", read_graphs, 40),
        (parts / "homo/part0/node_feat.dgl", read_tensors, 0),
    ):
        data = path.read_bytes()
        for length in {*range(0, len(data) - rest, 37), len(data) - rest - 1}:
            (parts / "cut.dgl").write_bytes(data[:length])
            with pytest.raises(FileFormatError, match=r"cut.dgl"):
                read(parts / "cut.dgl")
    with pytest.raises(FileFormatError, match=r"not a file of graphs of DGL"):
        read_graphs(parts / "homo/part0/node_feat.dgl")


def test_refused_parts(parts, tmp_path, capsys):
    path = parts / "homo" / "homo.json"
    data = json.loads(path.read_text())
    bolt = {key: value for key, value in data["part-1"].items() if key != "part_graph"}
    bolt["part_graph_graphbolt"] = "part1/fused_csc_sampling_graph.pt"
    path.write_text(json.dumps(data | {"part-1": bolt}))
    assert "parts of GraphBolt are not read" in refused(tmp_path, capsys, "--chunks", str(parts / "homo"))
    path.write_text(json.dumps(data | {"edge_map": {"_N:_E:_N": [[0, 11], [11, 40]]}}))
    message = refused(tmp_path, capsys, "--chunks", str(parts / "homo"))
    assert "_N:_E:_N/w has 13 rows, part 0 has 11 of _N:_E:_N" in message


def test_older_metadata(parts):
    """Files that name only where the ranges of parts end, and features without their type."""
    expected = contents_of(parts / "homo")
    path = parts / "homo" / "homo.json"
    data = json.loads(path.read_text())
    ends = {key: [last for _, last in data[key][name]] for key, name in (("node_map", "_N"), ("edge_map", "_N:_E:_N"))}
    path.write_text(json.dumps({key: value for key, value in (data | ends).items() if key not in ("ntypes", "etypes")}))
    assert contents_of(parts / "homo") == expected


def contents_of(folder: Path) -> dict:
    converted(folder).close()
    return contents(folder.with_suffix(".h5"))


@pytest.mark.parametrize("number", [0, 1])
def test_saved_graphs(parts, capsys, number):
    """As save_graphs wrote them: types by name, edges in the order of their ids, columns and masks."""
    output = parts.parent / "typed.h5"
    source = ["--preset", "dgl", "--set", f"graph={parts / 'typed.bin'}", "--set", f"number={number}"]
    assert main([*source, str(output)]) == 0
    said = capsys.readouterr().out
    assert f"graph {number} of 2; --set number=N reads another one" in said
    assert "not kept: labels of whole graphs: target" in said
    truth, prefix = np.load(parts / "typed.npz"), f"{number}/"
    with h5py.File(output) as file:
        found = {}
        for relation, group in file["edges"].items():
            found |= {f"{prefix}edges/{relation}/{name}": group[name][...] for name in group}
        for kind, group in file["nodes"].items():
            found |= {f"{prefix}nodes/{kind}/{name}": group[name][...] for name in group}
        counts = {kind: int(group.attrs["num_nodes"]) for kind, group in file["nodes"].items()}
    assert found.keys() == {name for name in truth.files if name.startswith(prefix)}
    for name, values in found.items():
        assert np.array_equal(values, truth[name]), name
    assert counts == ({"game": 12, "user": 30}, {"_N": 5})[number]


@pytest.mark.parametrize("number", ["2", "-1", "x"])
def test_a_number_that_no_graph_has(parts, tmp_path, capsys, number):
    source = ["--preset", "dgl", "--set", f"graph={parts / 'typed.bin'}", "--set", f"number={number}"]
    assert f"number={number}: {parts / 'typed.bin'} has 2 graphs, counted from 0" in refused(tmp_path, capsys, *source)


@pytest.mark.parametrize("preset", ["dgl", "pyg"])
def test_a_fold_that_is_no_number(parts, tmp_path, capsys, preset):
    source = ["--preset", preset, "--set", f"{'graph' if preset == 'dgl' else 'data'}={parts / 'typed.bin'}"]
    assert "--set fold=x: expected the number" in refused(tmp_path, capsys, *source, "--set", "fold=x")
