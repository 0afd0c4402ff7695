"""Memory of conversion: what is predicted is an upper bound, for every format, and is held."""

import gzip
import json
import subprocess
import sys

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
import yaml
from convert_sources import EDGE, contents, refused

from data_tools.convert import convert
from data_tools.source import disk_ids, edge_rows
from data_tools.source.convert_memory import plan_conversion
from data_tools.source.disk_ids import Runs
from data_tools.source.spec_file import load_spec

pytestmark = pytest.mark.serial

NUM_ROWS = 30_000
BOMB_ROWS = 3_000_000
MEASURE = """
import sys
from data_tools.convert import main
from data_tools.memory import status_bytes
code = main(sys.argv[1:])
print(status_bytes("VmHWM"))
sys.exit(code)
"""


def ends() -> np.ndarray:
    """Two columns of ids."""
    return np.random.default_rng(0).integers(0, 5_000, (NUM_ROWS, 2))


def write_npz(path):
    np.savez_compressed(path, edges=np.zeros((NUM_ROWS, 2), np.int64))


def write_raw(path):
    ends().tofile(path)


def write_mat(path):
    scipy_io = pytest.importorskip("scipy.io")
    scipy_io.savemat(path, {"edges": ends()}, do_compression=True)


def write_pt(path):
    torch.save({"edges": torch.tensor(ends())}, path)


def write_gz(path):
    with gzip.open(path, "wt") as file:
        file.write("u,i\n" + "".join(f"{row},{row}\n" for row in range(NUM_ROWS)))


def write_lists(path):
    path.write_text("".join(" ".join(map(str, range(row, row + 101))) + "\n" for row in range(NUM_ROWS // 100)))


def write_json(path):
    path.write_text(json.dumps({str(row): list(range(100)) for row in range(NUM_ROWS // 100)}))


def write_triples(path):
    path.write_text("".join(f"<e:{row}> <e:p> <e:{row + 1}> .\n" for row in range(NUM_ROWS)))


def write_turtle(path):
    path.write_text("@prefix e: <http://example.org/> .\n" + f"e:a e:p {', '.join(['e:b'] * NUM_ROWS)} .\n")


def write_parquet(path):
    pyarrow.parquet.write_table(pa.table({"u": ends()[:, 0], "i": ends()[:, 1]}), path)


def write_feather(path):
    pyarrow.feather.write_feather(pa.table({"u": ends()[:, 0], "i": ends()[:, 1]}), path, chunksize=NUM_ROWS // 3)


def write_folder(path):
    table = pa.table({"u": ends()[:, 0], "i": ends()[:, 1], "day": np.arange(NUM_ROWS) % 2})
    pyarrow.parquet.write_to_dataset(table, path, partition_cols=["day"])


ARRAY = {"src": "edges[:,0]", "dst": "edges[:,1]"}
SOURCES = {
    "e.npz": (write_npz, ARRAY, {}),
    "e.raw": (write_raw, {"src": "array[:,0]", "dst": "array[:,1]"}, {"format": "raw", "dtype": "int64", "width": 2}),
    "e.mat": (write_mat, ARRAY, {}),
    "e.pt": (write_pt, ARRAY, {}),
    "e.csv.gz": (write_gz, {"src": "u", "dst": "i"}, {}),
    "e.txt": (write_lists, {"src": 0, "dst": 1}, {"format": "lists", "delimiter": "whitespace", "header": "none"}),
    "e.json": (write_json, {"src": "row", "dst": "col"}, {"format": "idlists"}),
    "e.nt": (write_triples, {"src": "subject", "dst": "object"}, {}),
    "e.ttl": (write_turtle, {"src": "subject", "dst": "object"}, {}),
    "e.parquet": (write_parquet, {"src": "u", "dst": "i"}, {}),
    "e.feather": (write_feather, {"src": "u", "dst": "i"}, {}),
    "folder": (write_folder, {"src": "u", "dst": "i"}, {}),
}


@pytest.mark.parametrize("name", SOURCES)
def test_rows_are_counted_not_guessed(tmp_path, name):
    write, columns, layout = SOURCES[name]
    write(tmp_path / name)
    ids = "string" if name in ("e.nt", "e.ttl") else "int"
    edge = {"relation": "user.rates.item", "file": "events", **columns}
    spec = {"files": {"events": {"path": name, **layout}}, "nodes": [{"type": t, "ids": ids} for t in ("user", "item")]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec | {"edges": [edge]}))
    spec = load_spec(tmp_path / "spec.yaml", {})
    plan = plan_conversion(spec, 8 << 30)
    convert(spec, tmp_path / "graph.h5")
    with h5py.File(tmp_path / "graph.h5") as file:
        num_edges = file["edges/user.rates.item"].attrs["num_edges"]
    assert num_edges == NUM_ROWS
    assert num_edges <= plan.num_edges <= num_edges + 1
    assert plan.num_buckets == 0


def write_bomb(path):
    """Rows of few distinct ids, a hundredth of their size as gz; all of one row, but for the last."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"u,i,t\n" + b"a-rather-long-name-of-a-user,b,3\n" * BOMB_ROWS)


def write_book(path):
    """Turtle with few triples and much text, one character of which takes four bytes."""
    with path.open("w", encoding="utf-8") as file:
        file.write('@prefix e: <http://example.org/> .\ne:a e:p "\U0001f600" .\n')
        for row in range(2_000):
            file.write(f'e:s{row} e:p "{"x" * 20_000}" .\n')


def run_measured(arguments: list[str]) -> tuple[subprocess.CompletedProcess, int]:
    """Convert in a process of its own; how it ended, and its peak memory in bytes."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, check=False)
    return done, int(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("name", "write", "allowed", "columns"),
    [
        pytest.param("e.csv.gz", write_bomb, 400, EDGE | {"duplicates": "drop"}, marks=pytest.mark.long),
        ("e.ttl", write_book, 600, {"relation": "user.rates.item", "src": "subject", "dst": "object"}),
    ],
)
def test_what_is_predicted_is_held(tmp_path, name, write, allowed, columns):
    write(tmp_path / name)
    nodes = [{"type": node_type, "ids": "string"} for node_type in ("user", "item")]
    spec = {"files": {"events": {"path": name}}, "nodes": nodes, "edges": [{**columns, "file": "events"}]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    arguments = ["--overwrite", "--spec", str(tmp_path / "spec.yaml"), str(tmp_path / "graph.h5")]
    done, peak = run_measured([*arguments, "--memory", f"{allowed}MiB"])
    assert done.returncode == 0, done.stderr
    predicted = int(done.stdout.split()[1].replace(",", ""))
    assert peak >> 20 <= predicted <= allowed
    done, peak = run_measured([*arguments, "--memory", "330MiB"])
    assert peak >> 20 <= 330
    if name == "e.ttl":
        assert "330 MiB are too few; the least is" in done.stderr
    else:
        assert done.returncode == 0, done.stderr


def test_of_equal_edges_one_is_in_memory(tmp_path, monkeypatch):
    """All edges are the same, so all are in one bucket."""
    num_rows, largest = 20_000, []
    (tmp_path / "e.csv").write_text("u,i,t\n" + "1,2,3\n" * num_rows)
    edge = EDGE | {"duplicates": "drop"}
    spec = {"files": {"events": {"path": "e.csv"}}, "nodes": [{"type": "user"}, {"type": "item"}], "edges": [edge]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    later_of_equal = edge_rows.later_of_equal
    monkeypatch.setattr(edge_rows, "SCAN_ROWS", 500)
    monkeypatch.setattr(
        edge_rows, "later_of_equal", lambda records: largest.append(len(records)) or later_of_equal(records)
    )
    summary = convert(load_spec(tmp_path / "spec.yaml", {}), tmp_path / "graph.h5", 4)
    assert summary.edges == {"user.rates.item": 1}
    assert max(largest) <= 2_000


def test_ids_that_would_widen_all_others_are_refused(tmp_path, capsys):
    """Of 2,000 ids one had 5,000 bytes: 32 kB of text became 10.5 MB."""
    rows = [f"a{row},b,{row}" for row in range(2_000)]
    rows[1_234] = "x" * 5_000 + ",b,1234"
    (tmp_path / "e.csv").write_text("u,i,t\n" + "\n".join(rows) + "\n")
    nodes = [{"type": "user", "ids": "string"}, {"type": "item", "ids": "string"}]
    spec = {"files": {"events": {"path": "e.csv"}}, "nodes": nodes, "edges": [EDGE]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    message = refused(tmp_path, capsys, "--spec", str(tmp_path / "spec.yaml"))
    assert "e.csv: column 'u', row 1235: the id has 5,000 bytes, at most 1,024 are stored" in message
    (tmp_path / "e.csv").write_text("u,i,t\n" + "\n".join([*rows[:1_234], "x" * 1_024 + ",b,1233"]) + "\n")
    spec = load_spec(tmp_path / "spec.yaml", {})
    convert(spec, tmp_path / "memory.h5")
    convert(spec, tmp_path / "disk.h5", 4)
    assert contents(tmp_path / "memory.h5") == contents(tmp_path / "disk.h5")


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("num_runs", [1, 3, 40])
def test_runs_are_merged_block_by_block(tmp_path, text, num_runs):
    """No more is in memory than two blocks of each run, also where the runs lie one behind the other."""
    block_bytes = 400
    for shift in (0, 10**6):
        rng = np.random.default_rng(num_runs)
        values = rng.permutation(20_000)[: 300 * num_runs]
        runs, parts = Runs(tmp_path, text, block_bytes), []
        for run in range(num_runs):
            ids = values[run::num_runs][: 0 if run == 1 else None] + shift * run
            part = pa.array([f"é-{value}" for value in ids], pa.large_string()) if text else pa.array(ids)
            parts.append(part.take(pa.compute.sort_indices(part)).to_pylist())
            runs.append(pa.array(parts[-1], part.type))
        merged, origins, largest = [], [], 0
        for ids, sources in runs.merged():
            merged += ids.to_pylist()
            origins += sources.tolist()
            largest = max(largest, len(ids))
        expected = sorted((item, run) for run, part in enumerate(parts) for item in part)
        assert list(zip(merged, origins, strict=True)) == expected
        assert largest <= 2 * num_runs * (block_bytes // disk_ids.PLACE_BYTES + 1)
        assert [runs.read(run).to_pylist() for run in range(num_runs)] == parts
