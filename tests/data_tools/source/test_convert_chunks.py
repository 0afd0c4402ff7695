"""Chunked input: the graph does not depend on the number of chunks, their format, or whether ids fit into memory."""

import dataclasses
import gzip
import itertools
import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from convert_sources import contents, refused

from data_tools.convert import convert, main
from data_tools.export.command import export
from data_tools.source.convert_memory import plan_conversion
from data_tools.source.formats.chunk_folder import load_chunks
from data_tools.source.spec_file import PRESETS, load_spec, with_sorting
from hpcgnn.graph.files import file_hash

pytestmark = pytest.mark.serial

USERS, ITEMS, EDGES = 60, 40, 700


def random_graph(seed: int = 0) -> dict[str, np.ndarray]:
    """Users named by text, items by large integers; edges with duplicates, self-loops and ids without a node."""
    rng = np.random.default_rng(seed)
    users = np.array([f"user-{'é' * (i % 3)}{i * 7919 % 1000}" for i in range(USERS)])
    items = rng.choice(2**50, ITEMS, replace=False)
    named = np.append(users, ["remote node", "phantom-with-a-long-name"])
    numbered = np.append(items, [5, 6])
    # Ids of dangling ends are rare.
    u = named[rng.choice(USERS + 2, EDGES, p=np.r_[np.full(USERS, 0.98 / USERS), 0.01, 0.01])]
    v = named[rng.choice(USERS + 2, EDGES, p=np.r_[np.full(USERS, 0.98 / USERS), 0.01, 0.01])]
    i = numbered[rng.choice(ITEMS + 2, EDGES, p=np.r_[np.full(ITEMS, 0.98 / ITEMS), 0.01, 0.01])]
    return {
        "users": users,
        "items": items,
        "kind": rng.integers(0, 3, USERS),
        "vector": rng.standard_normal((USERS, 3)).astype(np.float32),
        "u": u,
        "v": v,
        "i": i,
        "stars": rng.integers(1, 6, EDGES).astype(np.float32),
    }


def pieces(num_rows: int, num_chunks: int):
    """Row ranges of chunks; one of them is empty where there are several."""
    bounds = np.linspace(0, num_rows, num_chunks + 1).astype(int)
    if num_chunks > 2:
        bounds[1] = bounds[0]
    return list(itertools.pairwise(bounds))


def write_chunks(folder, graph, num_chunks: int, kind: str = "parquet", **options):
    """A folder of chunks with users, items, ratings and friends."""
    folder.mkdir()
    tables = {
        "user": {"name": graph["users"], "kind": graph["kind"]},
        "item": {"name": graph["items"]},
        "rates": {"u": graph["u"], "i": graph["i"], "stars": graph["stars"]},
        "knows": {"u": graph["u"], "v": graph["v"]},
    }
    suffix = {"parquet": "parquet", "csv": "csv.gz"}[kind]
    for name, columns in tables.items():
        table = pa.table(columns)
        for chunk, (start, stop) in enumerate(pieces(len(table), num_chunks)):
            path = folder / f"{name}-{chunk}.{suffix}"
            if kind == "parquet":
                pyarrow.parquet.write_table(table[start:stop], path)
            else:
                with pa.CompressedOutputStream(str(path), "gzip") as stream:
                    pa.csv.write_csv(table[start:stop], stream)
    for chunk, (start, stop) in enumerate(pieces(USERS, num_chunks)):
        np.save(folder / f"vector-{chunk}.npy", graph["vector"][start:stop])
    user = {"files": f"user-*.{suffix}", "ids": "string", "id": "name"}
    user["columns"] = {"label": "kind", "feat": {"files": "vector-*.npy", "column": "array"}}
    rates = {
        "files": f"rates-*.{suffix}",
        "src": "u",
        "dst": "i",
        "columns": {"weight": "stars"},
        "reverse": "rated_by",
    }
    knows = {"files": f"knows-*.{suffix}", "src": "u", "dst": "v", "undirected": True}
    policies = {"duplicates": "drop", "self_loops": "drop", "dangling": "drop"} | options
    data = {
        "nodes": {"user": user, "item": {"files": f"item-*.{suffix}", "ids": "int", "id": "name"}},
        "edges": {"user.rates.item": rates | policies, "user.knows.user": knows | policies},
    }
    (folder / "metadata.yaml").write_text(yaml.safe_dump(data, allow_unicode=True, sort_keys=False))
    return folder


@pytest.mark.parametrize("num_chunks", [1, 2, 5])
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_chunks_and_buckets_do_not_change_the_graph(tmp_path, kind, num_chunks):
    graph = random_graph()
    expected = tmp_path / "expected.h5"
    convert(load_chunks(write_chunks(tmp_path / "whole", graph, 1)), expected)
    spec = load_chunks(write_chunks(tmp_path / "chunks", graph, num_chunks, kind))
    for buckets in (0, 1, 7):
        convert(spec, tmp_path / "graph.h5", buckets)
        assert contents(tmp_path / "graph.h5") == contents(expected)


def reference_counts(graph) -> dict[str, int]:
    """What becomes of the edges, edge by edge."""
    users, items = set(graph["users"]), set(graph["items"].tolist())
    rates = [(u, i) for u, i in zip(graph["u"], graph["i"].tolist(), strict=True) if u in users and i in items]
    knows = [(u, v) for u, v in zip(graph["u"], graph["v"], strict=True) if u in users and v in users]
    loops = [pair for pair in knows if pair[0] == pair[1]]
    pairs = [tuple(sorted(pair)) for pair in knows if pair[0] != pair[1]]
    return {
        "rates": len(set(rates)),
        "rates dangling": EDGES - len(rates),
        "knows dangling": EDGES - len(knows),
        "loops": len(loops),
        "knows": 2 * len(set(pairs)),
        "knows repeated": len(pairs) - len(set(pairs)),
    }


@pytest.mark.parametrize("buckets", [0, 5])
def test_what_is_dropped_is_counted(tmp_path, buckets):
    graph = random_graph(1)
    expected = reference_counts(graph)
    summary = convert(load_chunks(write_chunks(tmp_path / "chunks", graph, 3)), tmp_path / "graph.h5", buckets)
    assert summary.edges == {
        "user.rates.item": expected["rates"],
        "item.rated_by.user": expected["rates"],
        "user.knows.user": expected["knows"],
    }
    repeated = EDGES - expected["rates dangling"] - expected["rates"]
    assert summary.notes == [
        f"user.rates.item: {expected['rates dangling']} dangling edges dropped",
        f"user.rates.item: {repeated} duplicate edges dropped",
        f"user.knows.user: {expected['knows dangling']} dangling edges dropped",
        f"user.knows.user: {expected['loops']} self-loops dropped",
        f"user.knows.user: {expected['knows repeated']} duplicate edges dropped",
        "user.knows.user: both directions",
    ]


@pytest.mark.parametrize("buckets", [0, 5])
def test_dangling_ids_are_kept_as_nodes(tmp_path, buckets):
    graph = random_graph(2)
    spec = load_chunks(write_chunks(tmp_path / "chunks", graph, 3, dangling="keep"))
    columns = {name: dataclasses.replace(column, fill=-1) for name, column in spec.nodes[0].columns.items()}
    user = dataclasses.replace(spec.nodes[0], columns=columns)
    spec = dataclasses.replace(spec, nodes=[user, spec.nodes[1]])
    summary = convert(spec, tmp_path / "graph.h5", buckets)
    assert summary.nodes == {"user": USERS + 2, "item": ITEMS + 2}
    assert "user: 2 nodes added that only edges name" in summary.notes
    found = contents(tmp_path / "graph.h5")
    label = dict(zip(found["nodes/user/id"]["values"][1], found["nodes/user/label"]["values"][1], strict=True))
    assert label[b"remote node"] == -1
    assert label[graph["users"][0].encode()] == graph["kind"][0]


@pytest.mark.parametrize("buckets", [0, 5])
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("dangling", r"rates-\d.parquet: column '[ui]', row \d+: no node .* of type"),
        ("duplicates", r"rates-\d.parquet: row \d+: duplicate edge \(\d+ in the file\)"),
        ("self_loops", r"knows-\d.parquet: row \d+: self-loop \(\d+ in the file\)"),
    ],
)
def test_errors_name_file_and_row(tmp_path, policy, message, buckets):
    spec = load_chunks(write_chunks(tmp_path / "chunks", random_graph(3), 3, **{policy: "error"}))
    with pytest.raises(ValueError, match=message):
        convert(spec, tmp_path / "graph.h5", buckets)


def test_the_row_named_is_the_first_that_is_wrong(tmp_path):
    graph = random_graph(4)
    graph["i"] = np.where(np.isin(graph["i"], graph["items"]), graph["i"], graph["items"][0])
    spec = load_chunks(write_chunks(tmp_path / "chunks", graph, 3, dangling="error"))
    bad = int(np.flatnonzero(~np.isin(graph["u"], graph["users"]))[0])
    start, chunk = max((start, chunk) for chunk, (start, stop) in enumerate(pieces(EDGES, 3)) if start <= bad < stop)
    for buckets in (0, 5):
        with pytest.raises(ValueError) as error:
            convert(spec, tmp_path / "graph.h5", buckets)
        where = f"rates-{chunk}.parquet: column 'u', row {bad - start + 1}"
        assert f"{where}: no node '{graph['u'][bad]}'" in str(error.value)


@pytest.mark.parametrize("buckets", [0, 5])
def test_a_node_with_two_rows_is_refused(tmp_path, buckets):
    graph = random_graph()
    graph["users"][50] = graph["users"][3]
    spec = load_chunks(write_chunks(tmp_path / "chunks", graph, 3))
    with pytest.raises(ValueError, match=r"user-2.parquet: column 'name', row 11: the id occurs a second time"):
        convert(spec, tmp_path / "graph.h5", buckets)


def dgl_folder(folder, num_chunks: int = 2, **changes):
    """DGL's chunked graph format: papers with features, labels and masks; authors; edges as csv, numpy and parquet."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    sizes = {"paper": 30, "author": 12}
    ends = {"author:writes:paper": 50, "paper:cites:paper": 80, "paper:by:author": 20}
    data = {
        "graph_name": "tiny",
        "node_type": list(sizes),
        "num_nodes_per_chunk": [[stop - start for start, stop in pieces(n, num_chunks)] for n in sizes.values()],
        "edge_type": list(ends),
        "num_edges_per_type": list(ends.values()),
        "edges": {},
        "node_data": {"paper": {}},
        "edge_data": {"paper:cites:paper": {}},
    }
    data["num_nodes_per_chunk"] = [[int(n) for n in row] for row in data["num_nodes_per_chunk"]]
    arrays = {}
    for (name, count), kind in zip(ends.items(), ("csv", "numpy", "parquet"), strict=True):
        source, _, destination = name.split(":")
        edges = np.stack([rng.integers(0, sizes[source], count), rng.integers(0, sizes[destination], count)], 1)
        arrays[name] = edges
        data["edges"][name] = write_dgl(folder, name.replace(":", "_"), edges, kind, num_chunks)
    arrays["feat"] = rng.standard_normal((30, 4)).astype(np.float32)
    arrays["label"] = np.where(rng.random(30) < 0.3, np.nan, rng.integers(0, 5, 30))
    arrays["year"] = rng.integers(1990, 2020, 30).astype(np.int16)
    arrays["train_mask"] = np.arange(30) < 10
    arrays["val_mask"] = (np.arange(30) >= 10) & (np.arange(30) < 15)
    for name in ("feat", "label", "year", "train_mask", "val_mask"):
        kind = "parquet" if name == "year" else "numpy"
        data["node_data"]["paper"][name] = write_dgl(folder, name, arrays[name], kind, num_chunks)
    arrays["weight"] = rng.random(80)
    data["edge_data"]["paper:cites:paper"]["weight"] = write_dgl(
        folder, "weight", arrays["weight"], "numpy", num_chunks
    )
    for name, rows in (("train_mask", slice(0, 40)), ("test_mask", slice(60, 80))):
        mask = np.zeros(80, bool)
        mask[rows] = True
        data["edge_data"]["paper:cites:paper"][name] = write_dgl(folder, "cites_" + name, mask, "numpy", num_chunks)
    (folder / "metadata.json").write_text(json.dumps(data | changes))
    return folder, arrays


def write_dgl(folder, name, array, kind, num_chunks):
    files = []
    for chunk, (start, stop) in enumerate(pieces(len(array), num_chunks)):
        files.append(f"{name}-{chunk}.{kind}")
        piece = array[start:stop]
        if kind == "csv":
            np.savetxt(folder / files[-1], piece, "%d", delimiter=" ")
        elif kind == "numpy":
            with open(folder / files[-1], "wb") as file:
                np.save(file, piece)
        else:
            columns = {f"c{i}": piece[:, i] for i in range(2)} if piece.ndim == 2 else {"c": piece}
            pyarrow.parquet.write_table(pa.table(columns), folder / files[-1])
    return {"format": {"name": kind, **({"delimiter": " "} if kind == "csv" else {})}, "data": files}


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_chunks_of_dgl(tmp_path, num_chunks):
    folder, arrays = dgl_folder(tmp_path / "dgl", num_chunks)
    assert main(["--chunks", str(folder), str(tmp_path / "graph.h5")]) == 0
    found = contents(tmp_path / "graph.h5")
    for name in ("author:writes:paper", "paper:cites:paper", "paper:by:author"):
        group = "edges/" + name.replace(":", ".")
        ends = [found[f"{group}/{end}"]["values"][1] for end in ("src", "dst")]
        assert np.array_equal(np.transpose(ends), arrays[name])
    paper = {name: found[f"nodes/paper/{name}"]["values"] for name in ("feat", "label", "year", "split")}
    assert paper["feat"] == ("<f4", arrays["feat"].tolist())
    assert paper["label"] == ("<i8", np.nan_to_num(arrays["label"], nan=-1).astype(int).tolist())
    assert paper["year"] == ("<i2", arrays["year"].tolist())
    assert paper["split"][1] == [0] * 10 + [1] * 5 + [-1] * 15
    assert found["edges/paper.cites.paper/weight"]["values"] == ("<f8", arrays["weight"].tolist())
    assert found["nodes/author"]["num_nodes"] == 12
    assert found["edges/paper.cites.paper/split"]["values"] == ("|i1", [0] * 40 + [-1] * 20 + [2] * 20)
    assert not [name for name in found if name.endswith("_mask")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_nodes_per_chunk": [[15, 14], [6, 6]]}, "feat-1.numpy: has 15 rows, expected 14"),
        ({"num_edges_per_type": [50, 80]}, "num_edges_per_type: 2 entries for 3 types"),
        ({"num_edges_per_type": [49, 80, 20]}, "(and 1 chunks more): has 50 rows, expected 49"),
        ({"edges": {}}, "metadata.json: edges: nothing about 'author:writes:paper'"),
        ({"edge_type": ["writes", "a:b:c", "d:e:f"]}, "'writes' is not of the form source:relation:destination"),
    ],
)
def test_refused_metadata_of_dgl(tmp_path, capsys, changes, message):
    folder, _ = dgl_folder(tmp_path / "dgl", **changes)
    assert message in refused(tmp_path, capsys, "--chunks", str(folder))


def test_refused_folders(tmp_path, capsys):
    assert "none of metadata.yaml" in refused(tmp_path, capsys, "--chunks", str(tmp_path))
    folder = write_chunks(tmp_path / "chunks", random_graph(), 2)
    (folder / "user-1.parquet").unlink()
    assert "files with rows that belong together differ in length" in refused(tmp_path, capsys, "--chunks", str(folder))
    text = (folder / "metadata.yaml").read_text()
    (folder / "metadata.yaml").write_text(text.replace("user-*", "person-*"))
    assert "no file is called 'person-*.parquet'" in refused(tmp_path, capsys, "--chunks", str(folder))
    (folder / "metadata.yaml").write_text(text.replace("dangling: drop", "dangling: forget"))
    assert "'forget' is not one of" in refused(tmp_path, capsys, "--chunks", str(folder))


def run_measured(folder, output, memory: str) -> tuple[str, int]:
    """Convert in a process of its own; what it prints, and its peak memory in bytes."""
    # Not ru_maxrss, which a process takes over from the one that starts it.
    script = "import sys; from data_tools.convert import main; from data_tools.memory import status_bytes; "
    script += "code = main(sys.argv[1:]); print(status_bytes('VmHWM')); sys.exit(code)"
    command = [sys.executable, "-c", script, "--chunks", str(folder), "--memory", memory, str(output)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    return lines[0], int(lines[-1])


def test_memory_is_predicted_and_held(tmp_path):
    """Half a million edges whose ids take more than what is allowed; the graph is that without a bound."""
    rng = np.random.default_rng(0)
    (tmp_path / "chunks").mkdir()
    users = np.char.add("a-rather-long-name-of-a-user-", np.arange(200_000).astype(str))
    for chunk, names in enumerate(np.array_split(rng.permutation(users), 4)):
        ends = {end: rng.choice(users, 125_000) for end in "uv"}
        columns = {"name": names, "kind": rng.integers(0, 9, len(names))}
        pyarrow.parquet.write_table(pa.table(columns), tmp_path / "chunks" / f"user-{chunk}.parquet")
        pyarrow.parquet.write_table(pa.table(ends), tmp_path / "chunks" / f"edge-{chunk}.parquet")
    data = {
        "nodes": {"user": {"files": "user-*.parquet", "ids": "string", "id": "name", "columns": {"label": "kind"}}},
        "edges": {"user.to.user": {"files": "edge-*.parquet", "src": "u", "dst": "v", "duplicates": "drop"}},
    }
    (tmp_path / "chunks" / "metadata.yaml").write_text(yaml.safe_dump(data))
    spec = load_chunks(tmp_path / "chunks")
    allowed = 380 << 20
    plan = plan_conversion(spec, allowed)
    assert plan.num_buckets > 0
    assert plan.peak <= allowed
    line, peak = run_measured(tmp_path / "chunks", tmp_path / "graph.h5", "380MiB")
    assert line == plan.describe(allowed)
    assert "500,000 rows of edges" in line
    assert peak <= allowed
    convert(spec, tmp_path / "expected.h5")
    assert file_hash(tmp_path / "graph.h5") == file_hash(tmp_path / "expected.h5")
    assert plan_conversion(spec, 8 << 30).num_buckets == 0


def test_too_little_memory_is_refused(tmp_path, capsys):
    folder = write_chunks(tmp_path / "chunks", random_graph(), 2)
    assert "100 MiB are too few; the least is" in refused(tmp_path, capsys, "--chunks", str(folder), "--memory", "100M")
    assert "expected a number of bytes" in refused(tmp_path, capsys, "--chunks", str(folder), "--memory", "some")


def test_mathoverflow_in_chunks(tmp_path, shared_data):
    """A real list of events, cut into three csv files: the graph file is the same, but for the names of its sources;
    so it is by way of the disk, and after an export to parquet."""
    source = shared_data("sx-mathoverflow/sx-mathoverflow.txt.gz")
    assert main(["--preset", "snap-temporal", "--set", f"events={source}", "--sort", str(tmp_path / "whole.h5")]) == 0
    (tmp_path / "chunks").mkdir()
    with gzip.open(source, "rb") as file:
        lines = file.readlines()
    for chunk, (start, stop) in enumerate(pieces(len(lines), 4)):
        (tmp_path / "chunks" / f"part-{chunk * 5}.txt").write_bytes(b"".join(lines[start:stop]))
    edges = {"files": "part-*.txt", "delimiter": "whitespace", "header": "none", "src": 0, "dst": 1, "time": 2}
    data = {"nodes": {"node": {"ids": "int"}}, "edges": {"node.to.node": edges | {"rows": len(lines)}}}
    with h5py.File(tmp_path / "whole.h5") as file:
        assert [*file["nodes"], *file["edges"]] == [*data["nodes"], *data["edges"]]
    (tmp_path / "chunks" / "metadata.yaml").write_text(yaml.safe_dump(data))
    spec = with_sorting(load_chunks(tmp_path / "chunks"), True)
    for buckets in (0, 6):
        convert(spec, tmp_path / "graph.h5", buckets)
        assert same_datasets(tmp_path / "graph.h5", tmp_path / "whole.h5")
    export(tmp_path / "whole.h5", tmp_path / "exported", "parquet")
    convert(load_chunks(tmp_path / "exported"), tmp_path / "graph.h5", 6)
    assert same_datasets(tmp_path / "graph.h5", tmp_path / "whole.h5")


def same_datasets(one: Path, other: Path) -> bool:
    """Whether all datasets of two graph files are equal, types and values."""
    with h5py.File(one) as first, h5py.File(other) as second:
        names: list[str] = []
        first.visit(names.append)
        again: list[str] = []
        second.visit(again.append)
        datasets = [name for name in names if isinstance(first[name], h5py.Dataset)]
        return names == again and all(
            first[name].dtype == second[name].dtype and np.array_equal(first[name][:], second[name][:])
            for name in datasets
        )


@pytest.mark.parametrize("buckets", [0, 3])
def test_ids_of_64_bits(tmp_path, buckets):
    """Negative ids, and those beyond 2**63, are read as text; as integers they are refused."""
    ids = np.array([2**64 - 1, 7, 2**63], np.uint64)
    pyarrow.parquet.write_table(pa.table({"u": ids, "v": ids[[1, 2, 0]].astype(np.int64)}), tmp_path / "e.parquet")
    edges = {"node.to.node": {"files": "e.parquet", "src": "u", "dst": "v"}}
    data = {"nodes": {"node": {"ids": "string"}}, "edges": edges}
    (tmp_path / "metadata.yaml").write_text(yaml.safe_dump(data))
    convert(load_chunks(tmp_path), tmp_path / "graph.h5", buckets)
    with h5py.File(tmp_path / "graph.h5") as file:
        wanted = [b"-1", b"-9223372036854775808", b"18446744073709551615", b"7", b"9223372036854775808"]
        assert file["nodes/node/id"][:].tolist() == wanted
        assert file["edges/node.to.node/src"][:].tolist() == [2, 3, 4]
    (tmp_path / "metadata.yaml").write_text(yaml.safe_dump(data | {"nodes": {"node": {"ids": "int"}}}))
    with pytest.raises(ValueError, match=r"e.parquet: column 'u', row 1: 18446744073709551615 is not an integer"):
        convert(load_chunks(tmp_path), tmp_path / "graph.h5", buckets)


def test_triples_by_way_of_the_disk(tmp_path, shared_data):
    """AIFB: text ids that tables of nodes and edges share, relations made by a column, classes as labels."""
    names = {"triples": "aifb_stripped.nt.gz", "train": "trainingSet.tsv.gz", "test": "testSet.tsv.gz"}
    sources = {name: str(shared_data(f"aifb/{file}")) for name, file in names.items()}
    spec = load_spec(PRESETS / "rdf.yaml", sources | {"id": "person", "label": "label_affiliation"})
    for buckets in (0, 5):
        convert(spec, tmp_path / f"{buckets}.h5", buckets)
    assert file_hash(tmp_path / "0.h5") == file_hash(tmp_path / "5.h5")
