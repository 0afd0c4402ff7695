"""Files of earlier layouts are read with the right values or refused by name; a layout does not change unnoticed.

golden/README.md says what the archives hold and which commit made them, golden/make.py what the values are.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import sys
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import yaml
from golden import make
from golden.make import CITES, EVENTS, PAPERS, WRITES
from partition_sets import open_events
from places import TESTS
from safetensors import safe_open

from data_tools import convert, inspect
from data_tools.partition import command as partition
from data_tools.snapshots.text import unpack_tar
from data_tools.verify.command import verify
from hpcgnn import evaluate, train
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph import files
from hpcgnn.graph.partition import GraphPartition, open_graph_partition
from hpcgnn.info import describe_run
from hpcgnn.loop import checkpoint
from hpcgnn.task.negatives import NegativeDraw
from hpcgnn.temporal.negatives import Negatives, RandomNegatives

pytestmark = pytest.mark.serial

FOLDER = TESTS / "golden"
PRESENT = "present"
SETS = [
    ("0367fb9", "temporal"), ("2a5e3cd", "static"),
    *((name, kind) for name in ("9e0d451", PRESENT) for kind in files.KINDS),
]  # fmt: skip
# sha256 of the tensors of the newest checkpoint, by archive and kind.
STATES = {
    ("8c26956", "temporal"): "52ca70f2552b5fe001d184377690fb71773f73eb8bacda978421d757ddcf5619",
    ("9e0d451", "static"): "19d11a90806a71755c7f9660adcb7272fee418d0f622500a9bdc36edbd0a4924",
    ("9e0d451", "snapshots"): "f506143eecea96e1b6c02aa5e9e9441c1a9a3d93daab4695ed51312d509fa80b",
    (PRESENT, "temporal"): "52ca70f2552b5fe001d184377690fb71773f73eb8bacda978421d757ddcf5619",
    (PRESENT, "static"): "2d0a1527dfef214cb4dd6ee1e5f0b1598d582c6530478bc00c91ccc30e214f88",
    (PRESENT, "snapshots"): "e6205fe81d2641a5564b7ab1eaf2dd0f51b5b00058cbaaf3c8c7c31f694c2c99",
}
# Keys of these runs' configurations that have another name now; empty: that have none.
RENAMED = {
    "model.decoder": "task.decoder", "task.eval_negatives": "eval.negatives", "task.eval_pairs": "", "task.loss": "",
}  # fmt: skip
REFUSED = {"0367fb9": "best_ap in its manifest", "31f5b35": "one mail a node"}
BETWEEN_EPOCHS = "step-0000000004-00001-0000000"
CHANGED = (
    "the layout of {}: raise its version, refuse or read the older one, and add a golden file (tests/golden/README.md)"
)


def rename_keys(text: str) -> str:
    """The configuration of a run, with the keys of today."""
    values = yaml.safe_load(text)
    for old, new in RENAMED.items():
        section, key = old.split(".")
        value = values.get(section, {}).pop(key, None)
        if new and value is not None:
            section, key = new.split(".")
            values.setdefault(section, {})[key] = value
    facts = [line for line in text.splitlines() if line.startswith("#")]
    return "\n".join([*facts, yaml.safe_dump(values, sort_keys=False)])


@pytest.fixture(scope="module")
def golden(tmp_path_factory, fresh):
    """The folder with what an archive holds, by its name; its runs with the present names of their settings."""
    root = tmp_path_factory.mktemp("golden")

    def unpack(name: str) -> Path:
        if not (root / name).exists():
            with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
                unpack_tar(archive, root / name)
            for kind in files.KINDS:
                if (root / name / f"run-{kind}").exists():
                    shutil.copy(fresh / f"run-{kind}" / "config.yaml", root / name / f"run-{kind}")
            for path in (root / name).glob("run-*/config.yaml"):
                path.write_text(rename_keys(path.read_text()))
        return root / name

    return unpack


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    """What this hpcgnn writes, by the commands of make.py in this process."""
    folder, world = tmp_path_factory.mktemp("fresh"), World(CommConfig(device="cpu", threads=1))
    mains = {
        "data_tools.convert": convert.main, "data_tools.partition": partition.main,
        "hpcgnn.train": lambda argv: train.main(world, argv),
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)

        def run(_: Path, option: str, first: str, *rest: str) -> None:
            patch.setattr(sys, "argv", [option, *rest])
            assert not (mains[first](list(rest)) if option == "-m" else exec(first, {}))

        patch.setattr(make, "run", run)
        for kind in files.KINDS:
            make.make_graph(folder, kind)
            make.make_parts(folder, kind)
            make.make_run(folder, kind)
    return folder


@pytest.fixture
def world():
    return World(CommConfig(device="cpu", threads=1))


# ------------------------------------------------------------------------------------------------------------ values


def rows_of(text: str) -> list[tuple]:
    """A table of text without its header, numbers as such."""
    number = lambda word: float(word) if word.replace(".", "").isdigit() else word  # noqa: E731
    return [tuple(map(number, row)) for row in csv.reader(text.strip().splitlines()[1:])]


def names_of(ids: np.ndarray) -> list:
    """Original ids, words decoded."""
    return [value.decode() if isinstance(value, bytes) else value for value in ids.tolist()]


def stored_events(parts: Path) -> list[tuple]:
    """Events in their order, with original ids: all columns of EVENTS."""
    found = open_events(parts)
    names = [name for node_type in found.book.node_types for name in names_of(found.node_ids[node_type])]
    events = found.events
    columns = events.columns["label"].tolist(), *np.asarray(events.columns["feat"]).T.tolist()
    times = (events.time / 2).tolist()
    return list(zip((names[i] for i in events.src), (names[i] for i in events.dst), times, *columns, strict=True))


def shares(parts: Path, kind: str, ranks: int) -> list[GraphPartition]:
    """What every rank holds, out-edges of static graphs too."""
    return [open_graph_partition(parts, rank, ranks, with_out=kind == "static", kind=kind) for rank in range(ranks)]


def names_by_global_id(parts: list[GraphPartition]) -> dict[int, object]:
    """Original ids of all nodes."""
    found = {}
    for part in parts:
        for number, columns in enumerate(part.columns):
            found |= dict(zip(part.global_ids(number).tolist(), names_of(columns["id"]), strict=True))
    return found


def stored_edges(parts: list[GraphPartition], relation: int, *columns: str, out: bool = False) -> list[tuple]:
    """Edges of all ranks in order of their rows: source, destination, columns."""
    names, rows = names_by_global_id(parts), []
    for part in parts:
        lists, info = (part.out if out else part.edges)[relation], part.relations[relation]
        near = part.global_ids(info.src_type if out else info.dst_type)[lists.dst].tolist()
        ends = (near, lists.src.tolist()) if out else (lists.src.tolist(), near)
        values = (lists.columns[name].reshape(len(lists.src)).tolist() for name in columns)
        named = ([names[i] for i in column] for column in ends)
        rows += zip(lists.row.tolist(), *named, *values, strict=True)
    return [row[1:] for row in sorted(rows)]


def features(part: GraphPartition, node_type: int) -> dict:
    """Features by original id."""
    values = np.concatenate([piece for _, piece in part.features[node_type].slabs()])
    return dict(zip(names_of(part.columns[node_type]["id"]), values.tolist(), strict=True))


@pytest.mark.parametrize("name", [name for name, kind in SETS if kind == "temporal"])
def test_events(golden, name):
    assert stored_events(golden(name) / "temporal") == rows_of(EVENTS)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", [name for name, kind in SETS if kind == "static"])
def test_static(golden, name, ranks):
    parts = shares(golden(name) / "static", "static", ranks)
    assert stored_edges(parts, 0, "weight", "feat") == rows_of(CITES)
    assert stored_edges(parts, 1) == rows_of(WRITES)
    assert stored_edges(parts, 0, out=True) == [row[:2] for row in rows_of(CITES)]
    papers = {}
    for part in parts:
        held, values = part.columns[0], features(part, 0)
        labels = zip(held["id"].tolist(), held["label"].tolist(), held["split"].tolist(), strict=True)
        papers |= {paper: (paper, *values[paper], label, split) for paper, label, split in labels}
    assert [papers[paper] for paper in sorted(papers)] == rows_of(PAPERS)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", [name for name, kind in SETS if kind == "snapshots"])
def test_snapshots(golden, name, ranks):
    parts = shares(golden(name) / "snapshots", "snapshots", ranks)
    ring = [(100 + i, 100 + (i + 1) % 8, first, 4, 1.0 + i) for i, first in enumerate((0, 0, 0, 0, 1, 1, 2, 3))]
    assert stored_edges(parts, 0, "first", "last", "weight") == ring
    for part in parts:
        for node, target in zip(part.columns[0]["id"].tolist(), part.columns[0]["target"], strict=True):
            row = node - 100
            np.testing.assert_array_equal(target, np.arange(6 * row, 6 * row + 6, dtype=np.float32) / 48)
            assert features(part, 0)[node] == [2 * row, 2 * row + 1]


@pytest.mark.parametrize(("name", "kind"), SETS)
def test_sets_are_verified_against_their_graphs(golden, name, kind, capsys):
    graph, parts = golden(name) / f"{kind}.h5", golden(name) / kind
    assert verify(parts, graph) == []
    assert inspect.main([str(graph)]) == inspect.main([str(parts)]) == 0
    assert "version 1" in capsys.readouterr().out


@pytest.mark.parametrize("file", ["temporal.h5", "temporal/book.h5", "temporal/part-1.h5"])
@pytest.mark.parametrize("version", [0, 2])
def test_other_versions_of_files_are_refused(golden, tmp_path, file, version):
    shutil.copytree(golden("0367fb9") / "temporal", tmp_path / "temporal")
    shutil.copy(golden("0367fb9") / "temporal.h5", tmp_path)
    with h5py.File(tmp_path / file, "r+") as opened:
        opened.attrs["format_version"], expected = version, opened.attrs["format"]
    with pytest.raises(files.FileFormatError) as caught:
        files.open_checked(tmp_path / file, expected)
    for text in (f"{tmp_path / file}: {expected} version {version}", "reads version 1", "convert or partition again"):
        assert text in str(caught.value)


# ------------------------------------------------------------------------------------------------------- checkpoints


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """sha256 over names, types and values."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def first_draws(self: RandomNegatives, events: slice, draws: NegativeDraw) -> Negatives:
    """The first draw of every negative, which may be the event's own destination."""
    rows = self._batches.events.row[events]
    return Negatives(draws.pool.lookup(draws.draw(self._random, rows, self.per_event)))


@pytest.mark.parametrize(("name", "kind"), STATES)
def test_checkpoints(golden, name, kind, world, capsys, monkeypatch):
    """State and progress as they were written; the run's best epoch is tested with the metrics that it had then, when a
    random negative could be the event's own destination."""
    monkeypatch.setattr(RandomNegatives, "_draw", first_draws)
    run, parts = golden(name) / f"run-{kind}", golden(PRESENT) / kind
    newest, _ = checkpoint.find_sound(run / "checkpoints", world, print)
    manifest = checkpoint.read_manifest(newest)
    state, _ = checkpoint.load_state(newest, manifest["graph"])
    assert digest(state.tensors) == STATES[name, kind]
    assert (state.progress.epoch, state.progress.step, state.progress.best_epoch) == (1, 0, 0)
    assert describe_run(run, check=True)[1] == []
    capsys.readouterr()
    assert evaluate.main(world, [str(run), f"--data.path={parts}", "--comm.device=cpu"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    told = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    tested = [metric for metric, value in told.items() if metric.startswith("test_") and value is not None]
    assert tested
    for metric in tested:
        assert found[metric] == pytest.approx(told[metric], abs=1e-4)


READERS = {
    "state": lambda run, parts, world: checkpoint.load_state(run / "checkpoints" / "best-00000", ""),
    "weights": lambda run, parts, world: checkpoint.load_weights(run / "checkpoints" / "best-00000"),
    "best": lambda run, parts, world: checkpoint.find_best(run / "checkpoints"),
    "resume": lambda run, parts, world: checkpoint.find_sound(run / "checkpoints", world, print),
    "evaluate": lambda run, parts, world: evaluate.main(world, [str(run), f"--data.path={parts}", "--comm.device=cpu"]),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", REFUSED)
def test_first_layouts_of_checkpoints_are_refused(golden, tmp_path, name, reader, world):
    """Whoever reads such a run says which layout it found, which one is read, and what to do. Between epochs there is
    no node memory by which to tell: that checkpoint is left out here."""
    run, parts = tmp_path / "run", golden(PRESENT) / "temporal"
    shutil.copytree(golden(name) / "run-temporal", run)
    if reader in ("best", "resume"):
        shutil.rmtree(run / "checkpoints" / BETWEEN_EPOCHS)
    with pytest.raises((ValueError, DistributedError)) as caught:
        READERS[reader](run, parts, world)
    assert_named(str(caught.value), run, REFUSED[name])


def test_weights_of_the_first_layouts_do_not_fit(golden, tmp_path, world):
    """What is left of such a run between two epochs is refused by the layout of its best one, without that by the names
    of its weights."""
    shutil.copytree(golden("31f5b35") / "run-temporal", tmp_path / "run")
    data = f"--data.path={golden(PRESENT) / 'temporal'}"
    resume = ["--resume", str(tmp_path / "run"), data, "--train.epochs=2", "--comm.device=cpu"]
    with pytest.raises(DistributedError) as caught:
        train.main(world, resume)
    assert_named(str(caught.value), tmp_path / "run", REFUSED["31f5b35"])
    for folder in (tmp_path / "run" / "checkpoints").iterdir():
        if folder.name != BETWEEN_EPOCHS:
            shutil.rmtree(folder)
    with pytest.raises(DistributedError) as caught:
        train.main(world, resume)
    path = tmp_path / "run" / "checkpoints" / BETWEEN_EPOCHS
    for text in (f"{path}: the weights do not fit", "attention.key [2, 2, 10] where it has embedding.", "train anew"):
        assert text in str(caught.value)


def assert_named(message: str, run: Path, found: str) -> None:
    for text in (
        str(run / "checkpoints"),
        f"version 1 with {found}",
        "reads hpcgnn-checkpoint version 2",
        "train anew",
    ):
        assert text in message


@pytest.mark.parametrize("name", REFUSED)
def test_info_tells_of_first_layouts(golden, name):
    """All checkpoints that can be told apart: the one between two epochs of 31f5b35 has no node memory."""
    run = golden(name) / "run-temporal"
    problems = describe_run(run, check=True)[1]
    assert len(problems) == {"0367fb9": 3, "31f5b35": 2}[name]
    for message in problems:
        assert_named(message, run, REFUSED[name])


# --------------------------------------------------------------------------------------------------------- structure


def file_structure(path: Path) -> dict:
    """Names, types, trailing shapes, compression and attributes of all that an HDF5 file holds."""
    with h5py.File(path) as file:
        found = {"user block": file.userblock_size, "/": attributes(file)}

        def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
            found[name] = attributes(item)
            if isinstance(item, h5py.Dataset):
                found[name] |= {"dtype": str(item.dtype), "tail": item.shape[1:], "compression": item.compression}

        file.visititems(visit)
    return found


def attributes(item: h5py.Group | h5py.Dataset) -> dict:
    """Types of attributes, the keys of those in JSON, and the version."""
    found = {}
    for name, value in item.attrs.items():
        if name in files.ORIGIN:
            continue  # a record for people, which files of a version may lack
        found[f"@{name}"] = type(value).__name__, str(getattr(value, "dtype", ""))
        if isinstance(value, str) and value.startswith("{"):
            found[f"@{name}"] = sorted(json.loads(value))
    return found | {"version": int(item.attrs.get("format_version", -1))}


def checkpoint_structure(path: Path) -> dict:
    """Keys of the manifest, and names, types and trailing shapes of the tensors of every file."""
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    found = {"manifest": sorted(manifest), "progress": sorted(manifest["progress"])}
    found |= {"entry": sorted(manifest["files"][0]), "version": manifest["format_version"]}
    for entry in manifest["files"]:
        with safe_open(path / entry["name"], "pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}
            found[entry["name"]] = {name: (part.get_dtype(), part.get_shape()[1:]) for name, part in slices.items()}
    return found


def structure(folder: Path, kind: str) -> dict[str, dict]:
    """Structure of the graph file, every file of the partition set and every checkpoint, by path."""
    paths = [folder / f"{kind}.h5", *sorted((folder / kind).iterdir())]
    found = {str(path.relative_to(folder)): file_structure(path) for path in paths}
    for path in sorted((folder / f"run-{kind}" / "checkpoints").iterdir()):
        found[str(path.relative_to(folder))] = checkpoint_structure(path)
    return found


@pytest.mark.parametrize("kind", files.KINDS)
def test_layouts_change_with_a_new_version_only(golden, fresh, kind):
    written, kept = structure(fresh, kind), structure(golden(PRESENT), kind)
    assert written.keys() == kept.keys(), CHANGED.format(f"{kind}: folder")
    for path, expected in kept.items():
        assert written[path] == expected, CHANGED.format(path)


def retype(file: h5py.File) -> None:
    values = file["edges/paper.cites.paper/src"][:].astype(np.int32)
    del file["edges/paper.cites.paper/src"]
    file["edges/paper.cites.paper/src"] = values


def rename(file: h5py.File) -> None:
    file.move("edges/paper.cites.paper/row", "edges/paper.cites.paper/rows")


def pack(file: h5py.File) -> None:
    values = file["nodes/paper/row"][:]
    del file["nodes/paper/row"]
    file.create_dataset("nodes/paper/row", data=values, compression="gzip")


def drop_attribute(file: h5py.File) -> None:
    del file.attrs["num_parts"]


@pytest.mark.parametrize("change", [retype, rename, pack, drop_attribute])
def test_changes_of_the_layout_are_seen(golden, tmp_path, change):
    shutil.copy(golden(PRESENT) / "static" / "part-0.h5", tmp_path)
    before = file_structure(tmp_path / "part-0.h5")
    with h5py.File(tmp_path / "part-0.h5", "r+") as file:
        change(file)
    assert file_structure(tmp_path / "part-0.h5") != before
