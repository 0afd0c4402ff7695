"""The programs in docs/ do what the text beside them says, on any number of ranks."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import snapshot_runs
import torch
from docs_sources import block
from link_graphs import friends
from mpi4py import MPI
from places import REPOSITORY
from static_runs import make_static_parts, plain, typed
from training_runs import assert_same, bipartite, make_config, make_parts, on_rank_0, record_epoch

from data_tools.export.command import export
from data_tools.partition.command import partition
from hpcgnn.comm.world import CommConfig, World
from hpcgnn.graph import files
from hpcgnn.graph.book import read_offsets
from hpcgnn.kinds import KINDS
from hpcgnn.static.config import GraphModelConfig
from hpcgnn.static.loader import StaticGraph
from hpcgnn.static.model.models import GraphSizes, make_model
from hpcgnn.temporal.config import TemporalSamplingConfig
from hpcgnn.temporal.loader import TemporalGraph, TemporalLoader

DOCS = REPOSITORY / "docs"
BLOCKS = {"library": 4, "own_model": 1, "partition": 1, "data": 1}  # of Python, by page; each has a test here


@pytest.mark.serial
def test_no_block_is_left_out():
    found = {page.stem: len(re.findall(r"^```python", page.read_text(), re.MULTILINE)) for page in DOCS.glob("*.md")}
    assert {page: number for page, number in found.items() if number} == BLOCKS


def program(page: str, folder: Path, number: int = 0):
    """A Python block of a page, imported as a module."""
    path = folder / f"documented_{page}_{number}.py"
    path.write_text(block("python", page, number))
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


def test_own_loop(comm, parts, tmp_path):
    """Losses fall, and are those of one rank."""
    loop = program("library", tmp_path)
    losses = loop.train(parts, epochs=3, batch_size=50, world=world_of(comm))
    assert len(losses) == 3 * (350 // 50)
    assert np.mean(losses[-7:]) < np.mean(losses[:7])
    if comm.rank == 0:
        np.testing.assert_allclose(losses, loop.train(parts, 3, 50, world=world_of(MPI.COMM_SELF)), rtol=1e-9)


def test_own_loop_on_a_static_graph(comm, mpi_tmp_path, tmp_path):
    """Likewise."""
    loop, parts = program("library", tmp_path, 1), make_static_parts(comm, plain, mpi_tmp_path)
    losses = loop.train(parts, 4, epochs=10, batch_size=16, world=world_of(comm))
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    if comm.rank == 0:
        np.testing.assert_allclose(losses, loop.train(parts, 4, 10, 16, world=world_of(MPI.COMM_SELF)), rtol=1e-9)


def test_edges_as_seeds(comm, mpi_tmp_path):
    """The block reads a graph and a model of the programs before it."""
    world = world_of(comm)
    graph = StaticGraph(make_static_parts(comm, friends, mpi_tmp_path), world, dtype=torch.float64)
    config = GraphModelConfig(kind="sage", layers=2, hidden=8)
    found = {"graph": graph, "model": make_model(config, GraphSizes(graph.widths, ((0, 0),), 4)).to(torch.float64)}
    exec(block("python", "library", 2), found)
    assert np.isfinite(found["loss"].item())


def test_own_loop_on_snapshots(comm, mpi_tmp_path, tmp_path):
    """Losses fall, and are those of one rank."""
    loop, parts = program("library", tmp_path, 3), snapshot_runs.make_parts(comm, mpi_tmp_path)
    losses = loop.train(parts, world=world_of(comm))
    assert len(losses) == 5 * 5
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    if comm.rank == 0:
        np.testing.assert_allclose(losses, loop.train(parts, world=world_of(MPI.COMM_SELF)), rtol=1e-9)


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
def test_own_model(comm, parts, tmp_path, name):
    module = program("own_model", tmp_path)
    changes = {"memory__updater": "none"} if name == "Activity" else {}
    config = make_config(**{"model__class_path": f"{module.__name__}.{name}"} | changes)
    record = record_epoch(comm, parts, config)
    if comm.rank == 0:
        assert record.losses[-1] < record.losses[0]
        assert_same(record, record_epoch(MPI.COMM_SELF, parts, config))


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


def test_loader_refuses(comm, parts):
    graph = TemporalGraph(parts, world_of(comm))
    with pytest.raises(ValueError, match="train, val, test, got 'all'"):
        TemporalLoader(graph, "all", 10)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        TemporalLoader(graph, "val", 0)


PAGES = {
    "models": (KINDS["temporal"].config, "task model memory sampling eval baseline"),
    "static": (KINDS["static"].config, "data task sampling features node_embedding model eval"),
    "snapshots": (KINDS["snapshots"].config, "data task sampling inputs node_embedding model eval"),
}


@pytest.mark.parametrize("page", PAGES)
def test_page_names_every_key(page):
    """A page has a line for each key of the sections that it explains."""
    kind, sections = PAGES[page]
    text, keys = (DOCS / f"{page}.md").read_text(), kind().to_dict()
    for section in sections.split():
        missing = [key for key in keys[section] if f"`{section}.{key}`" not in text]
        assert not missing, f"docs/{page}.md does not name {section}: {missing}"


# Tables of named parts, and the pages that have a word of each row.
TABLES = {
    "hpcgnn.temporal.model.updater:UPDATERS": ("models",), "hpcgnn.temporal.model.updater:MESSAGES": ("models",),
    "hpcgnn.temporal.model.readout:READOUTS": ("models",), "hpcgnn.temporal.baselines:BASELINES": ("models",),
    "hpcgnn.temporal.eval_negatives:EVAL_NEGATIVES": ("models",), "hpcgnn.snapshots.model:MODELS": ("snapshots",),
    "hpcgnn.static.model.convolutions:CONVOLUTIONS": ("static",), "hpcgnn.task.negatives:NEGATIVES": ("static",),
    "hpcgnn.nn.decoders:DECODERS": ("static", "models"), "hpcgnn.task.metrics:METRICS": ("glossary",),
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
