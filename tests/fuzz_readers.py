"""What fuzzing reads: for every kind of input a small valid one, and the command or function that reads it.

A reader may take a changed input or refuse it: by ValueError, OSError, DistributedError, or an exit code with one line
on stderr. Anything else is a finding.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pickle
import signal
import tarfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import scipy.io
import scipy.sparse
import torch
import yaml
from partition_sets import open_events, refresh
from places import TESTS
from random_graphs import random_static
from safetensors.torch import save_file
from test_convert_chunks import dgl_folder
from training_runs import bipartite

from data_tools import convert, inspect
from data_tools.partition import command as partition
from data_tools.snapshots import command as snapshots
from data_tools.source.formats.tables import FORMATS
from data_tools.synthetic.snapshots import synthesize_snapshots
from data_tools.verify import command as verify
from hpcgnn import config as configuration
from hpcgnn.comm.world import World
from hpcgnn.graph import files
from hpcgnn.graph.negative_file import open_negatives
from hpcgnn.graph.partition import open_graph_partition
from hpcgnn.info import describe_run
from hpcgnn.loop import checkpoint
from hpcgnn.loop.checkpoint import Progress
from hpcgnn.report import __main__ as report
from hpcgnn.snapshots.graph import open_snapshot_partition
from hpcgnn.temporal.config import TemporalConfig

HDF5_SECONDS = 10
OPENERS = {
    "temporal": lambda folder, *_: open_events(folder), "static": open_graph_partition,
    "snapshots": open_snapshot_partition,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reader:
    """make(folder) writes a valid input, read(folder) reads it; in between a file that ``changed`` matches is
    changed."""

    make: Callable[[Path], object]
    changed: tuple[str, ...]
    read: Callable[[Path], object]


# ------------------------------------------------------------------------------------------------ sources of graphs


def table() -> dict[str, np.ndarray]:
    """Columns of a small table of events."""
    rng = np.random.default_rng(0)
    return {
        "u": rng.integers(0, 9, 30), "i": rng.integers(0, 5, 30), "t": np.sort(rng.integers(0, 99, 30)),
        "y": rng.integers(0, 3, 30), "f0": rng.random(30), "f1": rng.random(30),
    }  # fmt: skip


def write_spec(folder: Path, file: dict, src="u", dst="i", time="t", columns=None, ids: str = "int") -> None:
    """A spec of one table of events."""
    edge = {"relation": "user.rates.item", "file": "events", "src": src, "dst": dst}
    edge |= {"columns": columns or {}} | ({} if time is None else {"time": time})
    nodes = [{"type": name, "ids": ids} | ({"count": 9} if ids == "row" else {}) for name in ("user", "item")]
    spec = {"files": {"events": file}, "nodes": nodes, "edges": [edge]}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))


def make_text(folder: Path, name: str) -> None:
    """A csv file, packed or not."""
    columns = table()
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    with (gzip.open if name.endswith("gz") else open)(folder / name, "wt") as file:
        file.write("\n".join(rows) + "\n")
    write_spec(folder, {"path": name}, columns={"label": "y", "feat": ["f0", "f1"]}, ids="string")


def make_columns(folder: Path, name: str) -> None:
    """A table of Arrow as parquet or in its own format."""
    if name.endswith("parquet"):
        pyarrow.parquet.write_table(pa.table(table()), folder / name)
    else:
        pyarrow.feather.write_feather(pa.table(table()), folder / name)
    write_spec(folder, {"path": name}, columns={"label": "y", "feat": ["f0", "f1"]})


def make_arrays(folder: Path, name: str) -> None:
    """Edges and features as npz, npy, mat or pt."""
    columns = table()
    edges, feat = np.stack([columns[name] for name in "uit"], 1), np.stack([columns["f0"], columns["f1"]], 1)
    sparse = scipy.sparse.csr_array(feat * (feat > 0.5))
    arrays = {"edges": edges, "feat": feat} | {
        f"x_{key}": getattr(sparse, key) for key in ("data", "indices", "indptr")
    }
    arrays["x_shape"] = np.array(sparse.shape)
    array = "array" if name.endswith("npy") else "edges"
    further = {} if name.endswith("npy") else {"feat": "feat"} if name.endswith("pt") else {"feat": {"sparse": "x_"}}
    if name.endswith("npz"):
        np.savez(folder / name, **arrays)
    elif name.endswith("npy"):
        np.save(folder / name, edges)
    elif name.endswith("mat"):
        scipy.io.savemat(folder / name, {"edges": edges, "x": scipy.sparse.csc_array(sparse)})
    else:
        torch.save({"edges": torch.tensor(edges), "feat": feat}, folder / name)
    write_spec(folder, {"path": name}, *(f"{array}[:,{column}]" for column in range(3)), columns=further, ids="row")


def make_numbers(folder: Path, name: str) -> None:
    """Edges as numbers without a header."""
    np.stack([table()[name] for name in "uit"], 1).astype("<i8").tofile(folder / name)
    file = {"path": name, "format": "raw", "dtype": "int64", "width": 3}
    write_spec(folder, file, *(f"array[:,{column}]" for column in range(3)), columns={}, ids="row")


def make_lists(folder: Path, name: str) -> None:
    """Links as lists, as JSON, or as triples."""
    pairs = list(zip(table()["u"].tolist(), table()["i"].tolist(), strict=True))
    if name.endswith("json"):
        (folder / name).write_text(json.dumps({str(u): [i] for u, i in pairs}))
        write_spec(folder, {"path": name, "format": "idlists"}, "row", "col", None, ids="row")
    elif name.endswith("txt"):
        (folder / name).write_text("".join(f"{u} {i} {i}\n" for u, i in pairs))
        file = {"path": name, "format": "lists", "header": "none", "delimiter": "whitespace"}
        write_spec(folder, file, 0, 1, None)
    else:
        head = "@prefix e: <http://e/> .\n" if name.endswith("ttl") else ""
        lines = [
            f'<http://e/u{u}> <http://e/p> "a{i}"@en .\n<http://e/u{u}> <http://e/q> <http://e/i{i}> .\n'
            for u, i in pairs
        ]
        (folder / name).write_text(head + "".join(lines))
        write_spec(folder, {"path": name}, "subject", "object", None, ids="string")


def make_chunks(folder: Path) -> None:
    """A folder of chunks with its own metadata."""
    for number in range(2):
        pyarrow.parquet.write_table(pa.table(table()).slice(15 * number, 15), folder / f"e-{number}.parquet")
    edge = {"files": "e-*.parquet", "src": "u", "dst": "i", "columns": {"weight": "f0"}, "duplicates": "drop"}
    data = {"nodes": {"user": {"ids": "int"}, "item": {"ids": "int"}}, "edges": {"user.rates.item": edge}}
    (folder / "metadata.yaml").write_text(yaml.safe_dump(data))


def convert_spec(folder: Path) -> None:
    convert.main(["--overwrite", "--memory", "1GiB", "--spec", str(folder / "spec.yaml"), str(folder / "graph.h5")])


def convert_chunks(folder: Path) -> None:
    convert.main(["--overwrite", "--chunks", str(folder), str(folder.with_suffix(".h5"))])


def make_dgl(folder: Path) -> None:
    folder.rmdir()
    dgl_folder(folder)


def make_saved_dgl(folder: Path) -> None:
    """What save_graphs of DGL wrote."""
    with tarfile.open(TESTS / "dgl_parts.tar.xz") as archive:
        (folder / "typed.bin").write_bytes(archive.extractfile("typed.bin").read())


def convert_saved_dgl(folder: Path) -> None:
    source = f"graph={folder / 'typed.bin'}"
    convert.main(["--overwrite", "--preset", "dgl", "--set", source, str(folder / "graph.h5")])


def make_pyg(folder: Path) -> None:
    """What torch.save writes of the dictionary of PyTorch Geometric's Data."""
    ends = torch.tensor([table()["u"], table()["i"]])
    torch.save({"edge_index": ends, "x": torch.ones(9, 2), "y": np.arange(9) % 3, "num_nodes": 9}, folder / "data.pt")


def convert_pyg(folder: Path) -> None:
    convert.main(["--overwrite", "--preset", "pyg", "--set", f"data={folder / 'data.pt'}", str(folder / "graph.h5")])


# Valid sources of every format of tables: names of files, and the function that makes them and their spec.
TABLES: dict[str, dict[str, Callable[[Path, str], object]]] = {
    "auto": {"events.csv": make_text}, "text": {"events.csv.gz": make_text}, "npz": {"a.npz": make_arrays},
    "npy": {"a.npy": make_arrays}, "raw": {"a.raw": make_numbers},
    "parquet": {"events.parquet": make_columns}, "arrow": {"e.feather": make_columns},
    "mat": {"a.mat": make_arrays}, "pt": {"a.pt": make_arrays}, "lists": {"l.txt": make_lists},
    "triples": {"l.nt": make_lists}, "turtle": {"l.ttl": make_lists}, "idlists": {"l.json": make_lists},
}  # fmt: skip

EDGES = "src,dst,time,weight\na,b,2024-01-01,1\nb,c,2024-01-02,2.5\n"
VALUES = "node,time,cases\na,2024-01-01,1\nb,2024-01-01,2\nc,2024-01-02,3\n"
FACTS = {name: f"0\t0\t1\t{at}\n1\t1\t2\t{at}\n" for at, name in enumerate(("train.txt", "valid.txt", "test.txt"))}
SPEEDS = {"s.csv": "7,8\n1.5,2\n3,4\n", "w.csv": "0,1\n0.5,0\n"}
PYGT = {"edges": [[0, 1], [1, 0]], "FX": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}
# Valid sources of every format of snapshots: texts of files, and the arguments that name them.
SNAPSHOTS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "lists": ({"l.csv": "0,1,2,0.5\n0,2,1,1\n1,1,2,2\n"}, ("l.csv",)),
    "pygt": ({"p.json": json.dumps(PYGT)}, ("p.json",)),
    "quadruples": ({f"facts/{name}": text for name, text in FACTS.items()}, ("facts",)),
    "speeds": (SPEEDS, ("s.csv", "w.csv")),
    "tables": ({"e.csv": EDGES, "v.csv": VALUES}, ("e.csv", "--series", "v.csv")),
    "contacts": ({"days/1.txt": "0 1 2\n0 2 3\n", "days/2.txt": "5 1 3\n"}, ("days",)),
    "windows": ({}, ("graph.h5", "--windows", "3")),
}


def make_snapshots(folder: Path, name: str) -> None:
    for path, text in SNAPSHOTS[name][0].items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    if name == "windows":
        make_graph(folder, "temporal")


def convert_snapshots(folder: Path, name: str) -> None:
    words = [str(folder / word) if (folder / word).exists() else word for word in SNAPSHOTS[name][1]]
    snapshots.main([name, *words, "--overwrite", str(folder / "snapshots.h5")])


# -------------------------------------------------------------------------------------- graph files, partition sets


def make_graph(folder: Path, kind: str) -> Path:
    """A graph file of a kind; returns its path."""
    path = folder / "graph.h5"
    if kind == "snapshots":
        synthesize_snapshots(path, 12, 5, 1)
    elif kind == "static":
        random_static(path, 1, (12, 7, 2))
    else:
        bipartite(path, num_events=60, edge_width=2)
    return path


def read_graph(folder: Path) -> None:
    """Inspect and partition a graph file."""
    inspect.main([str(folder / "graph.h5")])
    partition.main([str(folder / "graph.h5"), str(folder / "parts"), "--parts", "2", "--method", "ldg"])


def make_set(folder: Path, kind: str) -> None:
    further = {"out_edges": True, "cache_ranking": 0.5, "batch_size": 4} if kind == "static" else {}
    path = make_graph(folder, kind)
    partition.partition(path, folder, 2, "metis", **further)
    path.unlink()


def hangs(path: Path) -> bool:
    """Whether HDF5 does not come back from some object of a file."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(HDF5_SECONDS)
        with contextlib.suppress(Exception), h5py.File(path) as file:
            read_object("/", file)
            file.visititems(read_object)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def read_object(_, item: h5py.Group | h5py.Dataset) -> None:
    """All attributes and rows that can be read."""
    for name in item.attrs:
        with contextlib.suppress(Exception):
            item.attrs[name]
    with contextlib.suppress(Exception):
        item[()]


def read_set(folder: Path, kind: str) -> None:
    """Verify, inspect and open a set whose hashes fit what it holds, unless HDF5 hangs in it, as it may in damaged
    files: those are not as they were sealed."""
    if not any(map(hangs, folder.glob("*.h5"))):
        with contextlib.suppress(
            OSError, LookupError, RuntimeError, TypeError, ValueError, AttributeError, OverflowError
        ):
            refresh(folder)
    verify.main([str(folder)])
    inspect.main([str(folder), "--ranks", "2"])
    OPENERS[kind](folder, 0, 1)


def make_assignment(folder: Path, name: str) -> None:
    make_graph(folder, "static")
    part = np.arange(21) % 2
    np.savetxt(folder / name, part, "%d") if name.endswith("txt") else np.save(folder / name, part)


def read_assignment(folder: Path, name: str) -> None:
    partition.main(
        [str(folder / "graph.h5"), str(folder / "parts"), "--parts", "2", "--assignment", str(folder / name)]
    )


# -------------------------------------------------------------------------------------------------- runs, negatives


def make_run(folder: Path) -> None:
    """A run folder of one epoch on two ranks with two checkpoints."""
    run = folder / "run"
    progress = asdict(Progress(epoch=1, global_step=7, best_epoch=0))
    for tag in ("step-0000000007-00001-0000000", "best-00000"):
        place = run / "checkpoints" / tag
        place.mkdir(parents=True)
        save_file({"model.w": torch.ones(3, 4), "model.b": torch.ones(4)}, place / checkpoint.STATE)
        save_file({"flat_row": torch.arange(5), "memory": torch.ones(5, 4)}, place / "memory-0.safetensors")
        listed = [{"name": path.name, "bytes": 0, "sha256": ""} for path in sorted(place.iterdir())]
        manifest = {
            "format": checkpoint.FORMAT, "format_version": checkpoint.VERSION, "created_by": "test", "graph": "g",
            "files": listed, "progress": progress,
        }  # fmt: skip
        (place / checkpoint.MANIFEST).write_text(json.dumps(manifest))
        write_hashes(place)
    configuration.save(TemporalConfig(), {"ranks": "2"}, run / "config.yaml")
    time, pair = "2026-01-02T03:04:05.000+00:00", [1.0, 2.0]
    metrics = {"kind": "epoch", "epoch": 0, "train_seconds": 2.0, "loss": 0.5, "val_ap": 0.6}
    write_lines(run / "metrics.jsonl", metrics, {"kind": "test", "epoch": 0, "test_ap": 0.7})
    start = {"ranks": 2, "threads": 1, "hosts": ["a", "b"], "resumed": "", "device": "cpu"}
    stages = {"epoch": 0, "seconds": {"epoch": pair, "compute": pair}, "sent_bytes": [[0, 9], [9, 0]], "peak_mib": pair}
    write_lines(
        run / "stages.jsonl", {"time": time, "kind": "start", **start}, {"time": time, "kind": "epoch", **stages}
    )


def write_lines(path: Path, *lines: dict) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_checkpoints(folder: Path) -> None:
    """Every way in which checkpoints are read, with hashes as they are and then with such that fit."""
    run, world = folder / "run", World()
    describe_run(run, check=True)
    for path in sorted((run / "checkpoints").iterdir()):
        if checkpoint.find_damage(path, world):
            write_hashes(path)
        checkpoint.load_weights(path)
        manifest = checkpoint.read_manifest(path)
        checkpoint.load_state(path, manifest["graph"])


def write_hashes(path: Path) -> None:
    """Make the hashes and sizes of a checkpoint's manifest fit its files, where it still names them."""
    try:
        manifest = json.loads((path / checkpoint.MANIFEST).read_text())
        for entry in manifest["files"]:
            name = path / entry["name"]
            entry["bytes"], entry["sha256"] = name.stat().st_size, files.file_hash(name)
        (path / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    except (ValueError, LookupError, TypeError, OSError, RecursionError):
        return


def read_run_folder(folder: Path) -> None:
    """What info, report, evaluate and --resume read of a run folder."""
    configuration.load(folder / "run" / "config.yaml")
    describe_run(folder / "run", check=False)
    report.main([str(folder / "run")])


def make_config(folder: Path) -> None:
    values = {"kind": "static", "model": {"kind": "sage", "layers": 2}, "sampling": {"fanouts": [5, 5]}}
    (folder / "config.yaml").write_text(yaml.safe_dump(values | {"train": {"epochs": 3}}))


def read_config(folder: Path) -> None:
    argv = ["--config", str(folder / "config.yaml")]
    configuration.parse(configuration.parser("fuzz", "", configuration.kind_of(argv)), argv)


def make_negatives(folder: Path, name: str) -> None:
    row, negatives = np.arange(20), np.random.default_rng(0).integers(0, 9, (20, 4))
    if name.endswith("npz"):
        np.savez(folder / name, row=row, negatives=negatives)
    elif name.endswith("h5"):
        with files.h5py.File(folder / name, "w") as file:
            file["row"], file["negatives"] = row, negatives
    else:
        keys = [(int(i), int(i) + 1, 7) for i in row]
        (folder / name).write_bytes(pickle.dumps(dict(zip(keys, negatives, strict=True))))


def read_negatives(folder: Path, name: str) -> None:
    found = open_negatives(str(folder / name))
    found.read(0, min(found.num_listed, 100))


# ----------------------------------------------------------------------------------------------------------- all


def _sources() -> dict[str, Reader]:
    """A reader of every format in the tables of formats, and of sources that are no format."""
    readers = {
        f"convert {name}": Reader(lambda folder, make=make, name=name: make(folder, name), (name,), convert_spec)
        for form in FORMATS
        for name, make in TABLES[form].items()
    }
    for form in snapshots.FORMATS:
        make, read = (lambda folder, form=form, do=do: do(folder, form) for do in (make_snapshots, convert_snapshots))
        changed = tuple(SNAPSHOTS[form][0]) or ("graph.h5",)
        name = "graph windows" if form == "windows" else f"snapshots {form}"  # HDF5 reads it before any hash is known
        readers[name] = Reader(make, changed, read)
    return readers | {
        "convert spec": Reader(lambda folder: make_text(folder, "events.csv"), ("spec.yaml",), convert_spec),
        "convert chunks": Reader(make_chunks, ("metadata.yaml",), convert_chunks),
        "convert dgl": Reader(make_dgl, ("metadata.json", "metadata.json", "*-*"), convert_chunks),
        "convert saved dgl": Reader(make_saved_dgl, ("typed.bin",), convert_saved_dgl),
        "convert pyg": Reader(make_pyg, ("data.pt",), convert_pyg),
    }


def _ours() -> dict[str, Reader]:
    readers = {}
    for kind in OPENERS:
        make, read = lambda folder, kind=kind: make_set(folder, kind), lambda folder, kind=kind: read_set(folder, kind)
        readers[f"graph {kind}"] = Reader(lambda folder, kind=kind: make_graph(folder, kind), ("graph.h5",), read_graph)
        readers[f"book {kind}"] = Reader(make, ("book.h5",), read)
        readers[f"part {kind}"] = Reader(make, ("part-*.h5",), read)
    for name in ("parts.txt", "parts.npy"):
        make, read = (lambda folder, name=name, do=do: do(folder, name) for do in (make_assignment, read_assignment))
        readers[f"assignment {name}"] = Reader(make, (name,), read)
    for name in ("n.npz", "n.h5", "n.pkl"):
        make, read = (lambda folder, name=name, do=do: do(folder, name) for do in (make_negatives, read_negatives))
        readers[f"negatives {name}"] = Reader(make, (name,), read)
    return readers


READERS: dict[str, Reader] = {
    **_sources(),
    **_ours(),
    "configuration": Reader(make_config, ("config.yaml",), read_config),
    "run folder": Reader(make_run, ("run/*.jsonl", "run/config.yaml"), read_run_folder),
    "checkpoint manifest": Reader(make_run, ("run/checkpoints/*/manifest.json",), read_checkpoints),
    "checkpoint tensors": Reader(make_run, ("run/checkpoints/*/*.safetensors",), read_checkpoints),
}
