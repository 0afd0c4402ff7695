"""Names and sha256 of source files, and the spec, lead from convert through a run to the files of its answers."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from pyarrow import parquet
from run_commands import run, run_caught
from training_runs import on_rank_0

from data_tools import convert, inspect
from hpcgnn.loop import launch

SMALL = ["--train.epochs=1", "--memory.dim=8", "--model.hidden=8", "--model.time_dim=8", "--comm.threads=1"]


def write_events(path, seed):
    """Events between words, as CSV; returns the description that the graph file should have."""
    rng = np.random.default_rng(seed)
    src, dst, time = rng.integers(0, 20, 300), rng.integers(0, 9, 300), np.sort(rng.integers(0, 9999, 300))
    rows = [f"u{a},i{b},{t}\n" for a, b, t in zip(src, dst, time, strict=True)]
    path.write_text("src,dst,time\n" + "".join(rows))
    content = path.read_bytes()
    return {"name": path.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def make_graph(folder, name, seed):
    """A graph file of such events; returns the source's description, and the sha256 of the graph file."""
    folder.mkdir(exist_ok=True)
    source = write_events(folder / f"{name}.csv", seed)
    words = ["--preset=csv-temporal", "--ids=string", f"--set=events={folder / name}.csv", str(folder / f"{name}.h5")]
    assert convert.main(words) == 0
    return source, hashlib.sha256((folder / f"{name}.h5").read_bytes()).hexdigest()


def read_answers(path):
    """What a file of answers keeps about its origin."""
    if path.suffix == ".parquet":
        return json.loads(parquet.read_schema(path).metadata[b"hpcgnn"])
    return json.loads(path.with_name(f"{path.name}.json").read_text())


def test_sources_lead_from_convert_to_answers(comm, mpi_tmp_path, capsys):
    """On any number of ranks; of another graph, its sources and those of training."""
    root = mpi_tmp_path
    first, second = (on_rank_0(comm, lambda n=n, s=s: make_graph(root, n, s)) for n, s in (("one", 1), ("two", 2)))
    for name in ("one", "two"):
        assert run([["partition", f"{root / name}.h5", f"{root / name}-parts", "--parts=4"]]) == 0
    run_folder = f"{root / 'run'}"
    assert run([["train", f"--data.path={root / 'one-parts'}", *SMALL, f"--output.dir={run_folder}"]]) == 0
    on_rank_0(comm, lambda: (root / "pairs.csv").write_text("src,dst\nu1,i2\nu3,i4\n"))
    for suffix in ("csv", "npz", "parquet"):
        pairs = ["predict", run_folder, f"--pairs={root / 'pairs.csv'}", f"--out={root / 'answers.'}{suffix}"]
        assert run([pairs]) == 0
    elsewhere = [f"--data.path={root / 'two-parts'}", f"--out={root / 'elsewhere.csv'}"]
    assert run([["predict", run_folder, f"--pairs={root / 'pairs.csv'}", *elsewhere]]) == 0
    info = run_caught("info", run_folder)
    if comm.rank > 0:
        return
    trained = {"graph": {"name": "one.h5", "sha256": first[1]}, "sources": [first[0]]}
    for path in (root / "answers.csv", root / "answers.npz", root / "answers.parquet", root / "run" / "sources.json"):
        found = read_answers(path) if path.suffix != ".json" else json.loads(path.read_text())
        assert {name: found[name] for name in trained} == trained
        assert found["spec"]["files"] == {"events": {"path": "one.csv"}}
        assert found["spec"]["nodes"] == [{"type": "node", "ids": "string"}]
    assert read_answers(root / "answers.csv")["run"] == {
        "folder": run_folder, "model": "attention embedding, gru memory", "seed": 0, "epoch": 0
    }  # fmt: skip
    assert "trained_on" not in read_answers(root / "answers.csv")
    other = read_answers(root / "elsewhere.csv")
    assert (other["graph"]["sha256"], other["sources"]) == (second[1], [second[0]])
    assert {name: other["trained_on"][name] for name in trained} == trained
    assert f"graph one.h5 (sha256 {first[1]})\n  from one.csv (sha256 {first[0]['sha256']})" in info.stdout
    capsys.readouterr()
    assert inspect.main([f"{root / 'one-parts'}"]) == 0
    shown = capsys.readouterr().out
    assert f"from one.csv ({first[0]['bytes']:,} bytes, sha256 {first[0]['sha256']})" in shown
    assert '"relation": "node.to.node"' in shown


@pytest.mark.serial
def test_answers_leave_no_origin_of_older_ones(tmp_path):
    """A parquet file has it within, and a file of another program stays; a damaged record of a run is named."""
    make_graph(tmp_path, "one", 1)
    parts, run_folder = f"{tmp_path / 'parts'}", tmp_path / "run"
    assert run([["partition", f"{tmp_path / 'one.h5'}", parts, "--parts=4"]]) == 0
    assert run([["train", f"--data.path={parts}", *SMALL, f"--output.dir={run_folder}"]]) == 0
    (tmp_path / "pairs.csv").write_text("src,dst\nu1,i2\n")
    beside = tmp_path / "s.parquet.json"
    command = ["predict", str(run_folder), f"--pairs={tmp_path / 'pairs.csv'}", f"--out={tmp_path / 's.parquet'}"]
    for others in ("old", "[1]", '{"hpcgnn": "a note"}'):
        beside.write_text(others)
        assert run([command]) == 0
        assert beside.read_text() == others
        (tmp_path / "s.csv.json").write_text(others)
        early = [*command[:2], f"--pairs={tmp_path / 'none.csv'}", f"--out={tmp_path / 's.csv'}"]
        ended = run_caught(*early)  # before anything is computed, or questions are read
        assert ended.returncode == launch.EXIT_USER
        assert f"{tmp_path / 's.csv.json'}: not written by hpcgnn" in ended.stderr
        assert ((tmp_path / "s.csv.json").read_text(), (tmp_path / "s.csv").exists()) == (others, False)
    beside.write_text(json.dumps(read_answers(tmp_path / "s.parquet")))
    assert run([command]) == 0
    assert not beside.exists()
    for text in ("{", "{}", "[1]"):
        (run_folder / "sources.json").write_text(text)
        for words in (command, ["info", str(run_folder)]):
            ended = run_caught(*words)
            assert ended.returncode == launch.EXIT_USER
            assert f"{run_folder / 'sources.json'}: damaged, or not written by hpcgnn" in ended.stderr
