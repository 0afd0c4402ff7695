"""The programs in docs/ and examples/ do what the text beside them says, on any number of ranks."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import snapshot_runs
import torch
from docs_sources import block
from link_graphs import friends
from mpi4py import MPI
from places import REPOSITORY
from static_runs import make_static_parts, plain, static_config, typed
from test_graph_training import run_both
from training_runs import assert_same, bipartite, make_config, make_parts, on_rank_0, record_epoch

from data_tools.export.command import export
from data_tools.partition.command import partition
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph import files
from hpcgnn.graph.book import read_offsets
from hpcgnn.temporal.config import TemporalSamplingConfig
from hpcgnn.temporal.loader import TemporalGraph, TemporalLoader

DOCS = REPOSITORY / "docs"
EXAMPLES = REPOSITORY / "examples"
BLOCKS = {"partition": 1, "data": 1, "own_data": 2, "python": 1}  # of Python, by page; each has a test here


@pytest.mark.serial
def test_no_block_is_left_out():
    found = {page.stem: len(re.findall(r"^```python", page.read_text(), re.MULTILINE)) for page in DOCS.glob("*.md")}
    assert {page: number for page, number in found.items() if number} == BLOCKS


def program(page: str, folder: Path, number: int = 0):
    """A Python block of a page, imported as a module."""
    path = folder / f"documented_{page}_{number}.py"
    path.write_text(block("python", page, number))
    return imported(path)


@pytest.mark.serial
def test_frames_become_graph_files(tmp_path, monkeypatch):
    """The blocks of own_data.md."""
    monkeypatch.chdir(tmp_path)
    program("own_data", tmp_path)
    with h5py.File(tmp_path / "buys.h5") as file:
        assert file["edges/user.buys.item/time"][()].tolist() == [1704067200, 1704153600, 1704412800]
        assert file["nodes/user/id"][()].tolist() == [b"ann", b"bob"]
    program("own_data", tmp_path, 1)
    with h5py.File(tmp_path / "orders.h5") as file:
        edges = file["edges/user.buys.item"]
        assert edges["feat"][()].tolist() == [[2.5, 3], [4, 1]]
        assert edges["time"][()].tolist() == [1704061800000, 1704092400000]  # in UTC, an hour before Berlin
        assert file["nodes/item/label"][()].tolist() == [-1, 0]  # of cup and pen


def example(name: str):
    """A program of examples/, imported as a module."""
    return imported(EXAMPLES / f"{name}.py")


def imported(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def world_of(comm) -> World:
    return World(CommConfig(device="cpu", threads=1), comm)


@pytest.fixture
def parts(comm, mpi_tmp_path):
    """A partition set of a graph with event features."""
    on_rank_0(comm, lambda: bipartite(mpi_tmp_path / "graph.h5", num_events=500, edge_width=3) and None)
    return make_parts(comm, mpi_tmp_path / "graph.h5", mpi_tmp_path / "parts", 8, "random")


def test_own_loop(comm, parts):
    """Losses fall, and are those of one rank."""
    loop = example("loop_temporal")
    losses, metrics = loop.train(parts, epochs=3, batch_size=50, world=world_of(comm))
    assert len(losses) == 3 * (350 // 50)
    assert np.mean(losses[-7:]) < np.mean(losses[:7])
    if comm.rank == 0:
        alone, of_one = loop.train(parts, 3, 50, world=world_of(MPI.COMM_SELF))
        np.testing.assert_allclose(losses, alone, rtol=1e-9)
        assert metrics == pytest.approx(of_one, rel=1e-9, nan_ok=True)


def test_own_loop_on_a_static_graph(comm, mpi_tmp_path):
    """Losses fall, and are those of one rank."""
    loop, parts = example("loop_static"), make_static_parts(comm, plain, mpi_tmp_path)
    losses = loop.train(parts, epochs=10, batch_size=16, world=world_of(comm))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    if comm.rank == 0:
        np.testing.assert_allclose(losses, loop.train(parts, 10, 16, world=world_of(MPI.COMM_SELF)), rtol=1e-9)


def test_edges_as_seeds(comm, mpi_tmp_path):
    """Losses fall, and are those of one rank."""
    loop, parts = example("link_loop"), make_static_parts(comm, friends, mpi_tmp_path)
    losses = loop.train(parts, world=world_of(comm))
    steps = len(losses) // 5
    assert np.mean(losses[-steps:]) < np.mean(losses[:steps])
    if comm.rank == 0:
        np.testing.assert_allclose(losses, loop.train(parts, world=world_of(MPI.COMM_SELF)), rtol=1e-9)


def test_own_loop_on_snapshots(comm, mpi_tmp_path):
    """Losses fall, and are those of one rank."""
    loop, parts = example("loop_snapshots"), snapshot_runs.make_parts(comm, mpi_tmp_path)
    losses = loop.train(parts, world=world_of(comm))
    assert len(losses) == 5 * 5
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    if comm.rank == 0:
        np.testing.assert_allclose(losses, loop.train(parts, world=world_of(MPI.COMM_SELF)), rtol=1e-9)


def test_from_a_table_to_best_items(comm, mpi_tmp_path, monkeypatch):
    """In Python, without a run file; then the block of python.md, with the same graph as that of next week."""
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    monkeypatch.chdir(mpi_tmp_path)
    program = example("events_in_python")
    run, best = program.main(".")
    on_rank_0(comm, lambda: Path("next-week-parts").symlink_to("buys-parts"))
    exec(block("python", "python", 0), {"run": run, "pd": pandas})
    if comm.rank == 0:
        assert len(best) == 60 * 10
        known = set(zip(program.buys["user"], program.buys["item"], strict=True))
        assert not known & set(zip(best["src"], best["dst"], strict=True))


def test_a_loop_of_distributed_data_parallel(comm, mpi_tmp_path):
    """Losses are those of one rank, although ranks have unequal shares of a batch, and some have none."""
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    loop, parts = example("pyg_ddp"), make_static_parts(comm, plain, mpi_tmp_path)
    options = {"epochs": 3, "batch_size": 5, "dtype": torch.float64}
    losses = loop.train(parts, **options, world=world_of(comm))
    torch.distributed.destroy_process_group()
    if comm.rank == 0:
        alone = loop.train(parts, **options, world=world_of(MPI.COMM_SELF))
        torch.distributed.destroy_process_group()
        np.testing.assert_allclose(losses, alone, rtol=1e-9)


def test_modules_of_pytorch_geometric_over_the_loader(comm, mpi_tmp_path):
    """Losses fall, and with all neighbors they are those of one rank: a sampled ``edge_index`` joins the hops of the
    seeds that share a rank."""
    pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    loop, parts = example("pyg_sage"), make_static_parts(comm, plain, mpi_tmp_path)
    losses = loop.train(parts, 4, 8, 16, dtype=torch.float64, world=world_of(comm))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    losses = loop.train(parts, 4, 3, 16, (-1, -1), torch.float64, world_of(comm))
    if comm.rank == 0:
        alone = loop.train(parts, 4, 3, 16, (-1, -1), torch.float64, world_of(MPI.COMM_SELF))
        np.testing.assert_allclose(losses, alone, rtol=1e-9)


@pytest.mark.serial
def test_own_partitioner(tmp_path):
    path = plain(tmp_path / "graph.h5")
    partitioner = program("partition", tmp_path).MyPartitioner
    partition(path, tmp_path / "parts", 4, method=f"{partitioner.__module__}.MyPartitioner")
    with files.open_checked(files.book_path(tmp_path / "parts"), files.BOOK) as book:
        offsets, _ = read_offsets(book)
    assert np.diff(offsets[0]).tolist() == [38, 37, 38, 37]


@pytest.mark.serial
def test_exported_tensors(tmp_path, monkeypatch):
    """What is exported without PyTorch Geometric is read where it is."""
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch_geometric.data", None)
        export(typed(tmp_path / "graph.h5"), tmp_path / "exported", "pyg")
    monkeypatch.chdir(tmp_path / "exported")
    found = {}
    exec(block("python", "data", 0), found)
    assert found["data"].validate()


@pytest.mark.parametrize("name", ["BilinearTGN", "Activity"])
def test_own_model(comm, parts, name):
    """The loss falls, and all that is measured is as on one rank."""
    module = example("own_model")
    changes = {"memory__updater": "none"} if name == "Activity" else {}
    config = make_config(**{"model__class_path": f"{module.__name__}.{name}"} | changes)
    record = record_epoch(comm, parts, config)
    if comm.rank == 0:
        assert record.losses[-1] < record.losses[0]
        assert_same(record, record_epoch(MPI.COMM_SELF, parts, config))


@pytest.mark.parametrize("name", ["own_static_model.MeanSAGE", "pyg_model.PygSAGE"])
@pytest.mark.parametrize("full_graph", [False, True])
def test_own_model_of_a_static_graph(comm, mpi_tmp_path, name, full_graph):
    """Mini-batches, and the whole graph in each step: weights and metrics after two epochs are those of one rank."""
    if name.startswith("pyg"):
        pytest.importorskip("torch_geometric", reason="needs torch-geometric")
    example(name.partition(".")[0])
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    run_both(comm, parts, mpi_tmp_path, static_config(model__class_path=name, train__full_graph=full_graph))


@pytest.mark.parametrize("window", [0, 3])
def test_own_model_of_snapshots(comm, mpi_tmp_path, window):
    """With state that is carried on, and in windows: losses, gradients and metrics are those of one rank."""
    example("own_snapshot_model")
    parts = snapshot_runs.make_parts(comm, mpi_tmp_path)
    config = snapshot_runs.make_config(
        model__class_path="own_snapshot_model.NeighborGRU", model__hidden=8, inputs__lags=1, node_embedding__dim=0,
        sampling__window_size=window, train__batch_size=2,
    )  # fmt: skip
    snapshot_runs.assert_like_one_rank(comm, parts, config)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_loader(comm, parts, prefetch):
    """Every event of a split once, in time order; negatives as many as asked for, new in every epoch of training."""
    graph = TemporalGraph(parts, world_of(comm))
    sampling = TemporalSamplingConfig(prefetch=prefetch)
    for split, begin, end in zip(("train", "val", "test"), graph.splits.bounds, graph.splits.bounds[1:], strict=False):
        loader = TemporalLoader(graph, split, 60, sampling=sampling, negatives=4)
        epochs = [_rows_and_roots(loader, epoch) for epoch in (0, 1)]
        rows = np.concatenate(comm.allgather(np.concatenate([row for row, _ in epochs[0]])))
        assert np.array_equal(np.sort(rows), np.arange(begin, end))
        same = all(np.array_equal(a, b) for (_, a), (_, b) in zip(*epochs, strict=True))
        assert all(comm.allgather(same)) == (split != "train")
    short = TemporalLoader(graph, "train", 60, sampling=sampling, drop_last=True)
    assert len(short) == (graph.splits.bounds[1] // 60)


def _rows_and_roots(loader: TemporalLoader, epoch: int):
    with loader.plans(epoch) as plans:
        found = [(plan.event_row, plan.query.root.numpy().reshape(6, plan.num_events)) for plan in plans]
    assert len(found) == len(loader)
    return found


def test_opening_a_graph_is_logged(comm, parts, caplog):
    """For programs that set a level for the logger `hpcgnn`; nothing is printed."""
    with caplog.at_level("INFO", logger="hpcgnn"):
        graph = TemporalGraph(parts, world_of(comm))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "hpcgnn"]
    first, last = graph.partition.book.parts_of(comm.rank)[0], graph.partition.book.parts_of(comm.rank)[-1]
    assert f"rank {comm.rank} of {comm.size} has parts {first} to {last}, " in line


def test_loader_refuses(comm, parts):
    graph = TemporalGraph(parts, world_of(comm))
    with pytest.raises(ValueError, match="train, val, test, got 'all'"):
        TemporalLoader(graph, "all", 10)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        TemporalLoader(graph, "val", 0)


# Tables of named parts, and the pages that have a word of each row.
TABLES = {
    "hpcgnn.temporal.model.updater:UPDATERS": ("models",), "hpcgnn.temporal.model.updater:MESSAGES": ("models",),
    "hpcgnn.temporal.model.readout:READOUTS": ("models",), "hpcgnn.temporal.baselines:BASELINES": ("evaluate",),
    "hpcgnn.temporal.eval_negatives:EVAL_NEGATIVES": ("evaluate",), "hpcgnn.snapshots.model:MODELS": ("snapshots",),
    "hpcgnn.task.baselines:LINK_BASELINES": ("static",),
    "hpcgnn.static.rows.label_propagation:NODE_BASELINES": ("static",),
    "hpcgnn.static.model.convolutions:CONVOLUTIONS": ("static",), "hpcgnn.task.negatives:NEGATIVES": ("static",),
    "hpcgnn.nn.decoders:DECODERS": ("static", "models"),
    "hpcgnn.task.losses:LOSSES": ("static", "models", "snapshots"),
    "data_tools.source.formats.tables:FORMATS": ("own_data",),
    "data_tools.partition.assignment:METHODS": ("partition",),
}  # fmt: skip


@pytest.mark.serial
@pytest.mark.parametrize("table", TABLES)
def test_every_row_of_a_table_is_in_the_docs(table):
    module, _, name = table.partition(":")
    text = "".join((REPOSITORY / f"docs/{page}.md").read_text() for page in TABLES[table])
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    words = set(re.findall(r"[\w@-]+", " ".join(re.findall(r"`([^`]+)`", text))))
    assert sorted(filter(None, set(getattr(importlib.import_module(module), name)) - words)) == []
