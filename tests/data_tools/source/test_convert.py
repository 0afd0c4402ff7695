"""Conversion of source files: the graph does not depend on the format; presets; real data."""

import json
import re
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from convert_sources import contents, random_table, refused, run_preset, run_spec, spec_for, write_text

from data_tools.source import edge_rows
from data_tools.source.formats import text_stream
from hpcgnn.graph.files import file_hash, node_types, relations

pytestmark = pytest.mark.serial


def write_csv(folder, table):
    return spec_for(write_text(folder / "e.csv", table, ","))


def write_csv_crlf_gz(folder, table):
    return spec_for(write_text(folder / "e.csv.gz", table, ",", "\r\n", noise="# a comment"), comment="#%")


def write_tsv(folder, table):
    return spec_for(write_text(folder / "e.tsv", table, "\t", header=False), True, delimiter="\t", header="none")


def write_spaces(folder, table):
    path = write_text(folder / "e.txt", table, "  \t ", "   \n", header=False, noise="  % note")
    options = {"delimiter": "whitespace", "header": "none", "comment": "%", "columns": ["u", "i", "t", "y", "f0", "f1"]}
    return spec_for(path, **options)


def write_zip(folder, table):
    with zipfile.ZipFile(folder / "e.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(write_text(folder / "inside.csv", table, ","), "inside.csv")
    return spec_for(folder / "e.zip", True)


def write_parquet(folder, table):
    features = pa.array(np.stack([table["f0"], table["f1"]], 1).tolist(), pa.list_(pa.float32()))
    arrow = pa.table({**{name: table[name] for name in "uity"}, "f": features})
    pyarrow.parquet.write_table(arrow, folder / "e.parquet", row_group_size=123)
    spec = spec_for(folder / "e.parquet")
    spec["edges"][0]["columns"] = {"label": "y", "feat": "f"}
    return spec


def write_npz(folder, table):
    arrays = {"edges": np.stack([table["u"], table["i"]]), "f": np.stack([table["f0"], table["f1"]], 1)}
    np.savez(folder / "e.npz", **arrays, t=table["t"].astype(np.float64), y=table["y"].astype(np.int16))
    spec = spec_for(folder / "e.npz")
    spec["edges"][0] |= {
        "src": "edges[0]",
        "dst": "edges[1]",
        "time": "t",
        "columns": {"label": "y", "feat": "f[:, :]"},
    }
    return spec


def write_csv_and_npy(folder, table):
    np.save(folder / "f.npy", np.stack([table["f0"], table["f1"]], 1)[np.r_[0, 0 : len(table["u"])]])
    spec = write_csv(folder, table)
    spec["files"]["features"] = {"path": str(folder / "f.npy")}
    spec["edges"][0]["columns"] = {"label": "y", "feat": {"file": "features", "column": "array[1:]"}}
    return spec


FORMATS = [write_csv_crlf_gz, write_tsv, write_spaces, write_zip, write_parquet, write_npz, write_csv_and_npy]


@pytest.mark.parametrize("write", FORMATS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_format_gives_the_same_graph(tmp_path, monkeypatch, write, seed):
    """Also when lines straddle the blocks a file is read in."""
    table = random_table(seed)
    expected = contents(run_spec(tmp_path, write_csv(tmp_path, table)))
    monkeypatch.setattr(text_stream, "BLOCK_BYTES", 777)
    assert contents(run_spec(tmp_path, write(tmp_path, table))) == expected


def test_same_source_gives_the_same_file(tmp_path):
    """Byte for byte: no dates, no paths."""
    spec = write_csv(tmp_path, random_table(0))
    first = file_hash(run_spec(tmp_path, spec))
    assert file_hash(run_spec(tmp_path, spec)) == first


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_graph_holds_the_table(tmp_path, seed):
    """Original ids and values come back row by row; ids increase with the row."""
    table = random_table(seed)
    path = run_spec(tmp_path, write_csv(tmp_path, table))
    with h5py.File(path) as file:
        assert (node_types(file), relations(file)) == (["user", "item"], ["user.rates.item"])
        edges = file["edges/user.rates.item"]
        for end, column, kind in (("src", "u", "user"), ("dst", "i", "item")):
            ids = file[f"nodes/{kind}/id"][...]
            assert np.array_equal(ids, np.unique(table[column]))
            assert file[f"nodes/{kind}"].attrs["num_nodes"] == len(ids)
            assert np.array_equal(ids[edges[end][...]], table[column])
        assert np.array_equal(edges["time"], table["t"])
        assert np.array_equal(edges["label"], table["y"])
        assert np.array_equal(edges["feat"], np.stack([table["f0"], table["f1"]], 1))
        assert edges.attrs["num_edges"] == len(table["u"])
        (source,) = json.loads(file.attrs["sources"])
    assert source == {
        "name": "e.csv",
        "bytes": (tmp_path / "e.csv").stat().st_size,
        "sha256": file_hash(tmp_path / "e.csv"),
    }


def test_text_ids_are_sorted_by_their_bytes(tmp_path):
    (tmp_path / "e.csv").write_text('src,dst\nzoë,"a, b"\n10,9\n9,zoë\n')
    spec = {
        "files": {"e": {"path": "e.csv"}},
        "nodes": [{"type": "n", "ids": "string"}],
        "edges": [{"relation": "n.to.n", "file": "e", "src": "src", "dst": "dst"}],
    }
    with h5py.File(run_spec(tmp_path, spec)) as file:
        ids = [name.decode() for name in file["nodes/n/id"][...]]
        assert ids == ["10", "9", "a, b", "zoë"]
        assert file["edges/n.to.n/src"][...].tolist() == [3, 0, 1]
        assert file["edges/n.to.n/dst"][...].tolist() == [2, 1, 3]
        assert file.attrs["kind"] == "static"


@pytest.mark.parametrize("seed", [0, 1])
def test_sort_is_stable(tmp_path, seed):
    rng = np.random.default_rng(seed)
    table = random_table(seed) | {"t": rng.integers(0, 20, 500), "y": np.arange(500)}
    with h5py.File(run_spec(tmp_path, write_csv(tmp_path, table), "--sort")) as file:
        order = np.argsort(table["t"], kind="stable")
        assert np.array_equal(file["edges/user.rates.item/label"], order)
        assert np.array_equal(file["edges/user.rates.item/time"], table["t"][order])
        assert np.array_equal(file["edges/user.rates.item/feat"][:, 1], table["f1"][order])


def test_jodie_header_with_fewer_names_than_fields(tmp_path):
    """Items numbered from 0 or after the users: the same graph; features from the fifth column on."""
    rows = [[3, 0, 0.0, 0, 0.5, -1.5], [1, 1, 36.0, 1, 2.5, 0], [3, 1, 36.0, 0, 1e-3, 4]]
    head = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    (tmp_path / "a.csv").write_text(head + "".join(",".join(map(str, row)) + "\n" for row in rows))
    (tmp_path / "b.csv").write_text(
        "u,i,ts,label\r\n" + "".join(",".join(map(str, [row[0], row[1] + 7, *row[2:]])) + "\r\n" for row in rows)
    )
    graphs = []
    for name in ("a.csv", "b.csv"):
        with h5py.File(run_preset(tmp_path, "jodie", tmp_path / name)) as file:
            graphs.append({name: data[...].tolist() for name, data in file["edges/user.interacts.item"].items()})
            assert file["nodes/item"].attrs["num_nodes"] == 2
    assert graphs[0] == graphs[1]
    assert graphs[0]["feat"] == np.float32([row[4:] for row in rows]).tolist()
    assert graphs[0]["src"] == [1, 0, 1]


def test_without_feature_columns_there_is_no_feat(tmp_path):
    (tmp_path / "e.csv").write_text("user_id,item_id,timestamp,state_label\n0,0,1,0\n")
    with h5py.File(run_preset(tmp_path, "jodie", tmp_path / "e.csv")) as file:
        assert sorted(file["edges/user.interacts.item"]) == ["dst", "label", "src", "time"]


def counts(path: Path) -> tuple[dict, dict]:
    """Numbers of nodes and edges by name."""
    with h5py.File(path) as file:
        nodes = {name: int(group.attrs["num_nodes"]) for name, group in file["nodes"].items()}
        return nodes, {name: int(group.attrs["num_edges"]) for name, group in file["edges"].items()}


def test_wikipedia(tmp_path, shared_data):
    path = run_preset(tmp_path, "jodie", shared_data("wikipedia/wikipedia.csv.gz"))
    assert counts(path) == ({"user": 8227, "item": 1000}, {"user.interacts.item": 157474})
    with h5py.File(path) as file:
        edges = file["edges/user.interacts.item"]
        assert (edges["time"].dtype, edges["time"][0], edges["time"][-1]) == (np.int64, 0, 2678373)
        assert edges["label"][...].sum() == 217
        assert "feat" not in edges
        assert file.attrs["kind"] == "temporal"


def test_enron(tmp_path, shared_data):
    path = run_preset(tmp_path, "tgn-ml", shared_data("enron/ml_enron.csv.gz"))
    assert counts(path) == ({"node": 184}, {"node.to.node": 125235})


def test_mathoverflow_must_be_sorted(tmp_path, capsys, shared_data):
    source = shared_data("sx-mathoverflow/sx-mathoverflow.txt.gz")
    assert "--sort" in refused(tmp_path, capsys, "--preset", "snap-temporal", "--set", f"events={source}")
    path = run_preset(tmp_path, "snap-temporal", source, "--sort")
    assert counts(path) == ({"node": 24818}, {"node.to.node": 506550})


def test_sociopatterns_in_a_zip(tmp_path, shared_data):
    path = run_preset(tmp_path, "snap-temporal", shared_data("sociopatterns-SFHH/tij_pres_SFHH.txt.zip"))
    assert counts(path) == ({"node": 403}, {"node.to.node": 1417485})


def test_bitcoin_otc(tmp_path, shared_data):
    path = run_preset(tmp_path, "snap-signed", shared_data("bitcoin-otc/soc-sign-bitcoinotc.csv.gz"))
    assert counts(path) == ({"node": 5881}, {"node.rates.node": 35592})


def test_digg_skips_comments(tmp_path, shared_data):
    spec = {
        "files": {"e": {"path": str(shared_data("digg/digg.gz")), "delimiter": "whitespace", "header": "none"}},
        "nodes": [{"type": "n"}],
        "edges": [{"relation": "n.to.n", "file": "e", "src": 0, "dst": 1, "time": 3, "sort": True}],
    }
    spec["files"]["e"]["comment"] = "%"
    assert counts(run_spec(tmp_path, spec)) == ({"n": 30398}, {"n.to.n": 87627})


def test_cora_from_arrays(tmp_path, shared_data):
    columns = {
        "label": "y",
        "feat": {"sparse": "x_"},
        "split": {"sets": {"train": "train_idx", "val": "val_idx", "test": "test_idx"}},
    }
    spec = {
        "files": {"cora": {"path": str(shared_data("cora/cora_planetoid.npz"))}},
        "nodes": [{"type": "paper", "ids": "row", "file": "cora", "columns": columns}],
        "edges": [
            {
                "relation": "paper.cites.paper",
                "file": "cora",
                "src": "edges[:,0]",
                "dst": "edges[:,1]",
                "undirected": True,
            }
        ],
    }
    path = run_spec(tmp_path, spec)
    assert counts(path) == ({"paper": 2708}, {"paper.cites.paper": 2 * 5278})
    with h5py.File(path) as file:
        assert np.bincount(file["nodes/paper/split"][...] + 1).tolist() == [1068, 140, 500, 1000]
        assert file["nodes/paper/feat"].shape == (2708, 1433)


@pytest.mark.parametrize("more", [[], ["--memory", "400MiB"]])
def test_ids_of_a_preset_may_be_text(tmp_path, more):
    """What the message about an id that is no number says."""
    (tmp_path / "e.csv").write_text("src,dst,time\nbob,alice,3\n17,bob,4\n")
    with h5py.File(run_preset(tmp_path, "csv-temporal", tmp_path / "e.csv", "--ids", "string", *more)) as file:
        assert file["nodes/node/id"][:].tolist() == [b"17", b"alice", b"bob"]
        assert file["edges/node.to.node/src"][:].tolist() == [2, 0]


def test_columns_that_are_not_read_are_named(tmp_path, capsys):
    (tmp_path / "e.csv").write_text("src,weight,dst,time,note\n1,0.5,2,3,x\n")
    run_preset(tmp_path, "csv-temporal", tmp_path / "e.csv")
    assert capsys.readouterr().out.splitlines()[0] == "e.csv: columns that are not read: weight, note"
    (tmp_path / "e.csv").write_text("src,dst,time\n1,2,3\n")
    run_preset(tmp_path, "csv-temporal", tmp_path / "e.csv")
    assert "not read" not in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--memory", "400MiB"]])
def test_white_space_around_ids(tmp_path, capsys, more):
    """In text it is left out, with a word; in parquet, where it can only be meant, it belongs to the id."""
    rows = {"src": ["a", "a ", "b"], "dst": ["b", "b", "b"], "time": [1, 2, 3]}
    (tmp_path / "e.csv").write_text("src,dst,time\na,b,1\na ,b,2\nb, b,3\n")
    with h5py.File(run_preset(tmp_path, "csv-temporal", tmp_path / "e.csv", "--ids", "string", *more)) as file:
        assert file["nodes/node/id"][:].tolist() == [b"a", b"b"]
    assert "node: white space around ids left out, first in e.csv, column 'src', row 2" in capsys.readouterr().out
    pyarrow.parquet.write_table(pa.table(rows), tmp_path / "e.parquet")
    with h5py.File(run_preset(tmp_path, "csv-temporal", tmp_path / "e.parquet", "--ids", "string", *more)) as file:
        assert file["nodes/node/id"][:].tolist() == [b"a", b"a ", b"b"]
    assert "white space" not in capsys.readouterr().out


@pytest.mark.parametrize("sample", [1 << 18, 1000])
def test_undirected_input_in_both_directions_is_noticed(tmp_path, capsys, monkeypatch, sample):
    monkeypatch.setattr(edge_rows, "SAMPLE_ROWS", sample)
    monkeypatch.setattr(edge_rows, "SCAN_ROWS", 700)
    pairs = np.unique(np.random.default_rng(0).integers(0, 400, (6_000, 2)), axis=0)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    edge = {"relation": "n.to.n", "file": "e", "src": "u", "dst": "v", "undirected": True}
    for rows, policy in ((pairs, "keep"), (np.concatenate([pairs, pairs[:, ::-1]]), "keep"), (pairs, "drop")):
        np.savetxt(tmp_path / "e.csv", rows, "%d", delimiter=",", header="u,v", comments="")
        spec = {"files": {"e": {"path": "e.csv"}}, "nodes": [{"type": "n"}], "edges": [edge | {"duplicates": policy}]}
        run_spec(tmp_path, spec)
        words = re.findall(
            r"n\.to\.n: (about )?([\d,]+) edges have their reverse in the source", capsys.readouterr().out
        )
        assert len(words) == (len(rows) > len(pairs))
        if words:
            assert bool(words[0][0]) == (sample == 1000)
            assert int(words[0][1].replace(",", "")) == pytest.approx(len(rows), rel=0.1 if words[0][0] else 0)
