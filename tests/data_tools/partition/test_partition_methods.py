"""A run learns the same from partition sets of every method: parts say where rows lie, and nothing else."""

import importlib.util
import json

import numpy as np
import pytest
from partition_sets import parmetis_library
from static_runs import open_graph_trainer, plain, static_config
from training_runs import bipartite, make_config, on_rank_0, record_epoch

from data_tools.graph.source import open_source
from data_tools.partition.assignment import GIVEN, METHODS
from data_tools.partition.command import partition
from data_tools.team import Ranks
from hpcgnn.comm.world import CommConfig, World

FURTHER = {
    "seed": {"method": "random", "seed": 9},
    "constraints": {"method": "metis", "balance": ("nodes", "degree", "train", "val", "types")},
    "volume": {"method": "metis", "objective": "volume"},
}
NAMED = {name: {"method": name} for name, row in METHODS.items() if "temporal" in row.kinds and not row.needs_file}
TEMPORAL = NAMED | FURTHER | {GIVEN: {"assignment": "given.npy"}}
STATIC = TEMPORAL | {"hotness": {"method": "hotness"}}
PARTS = 6


@pytest.fixture(scope="module")
def reference():
    """What the first method gave, by kind."""
    return {}


def make(comm, graph, folder, options) -> None:
    """Collective. A graph and its set; skips where a method is not installed."""
    need(options.get("method"))

    def write() -> None:
        graph(folder / "graph.h5")
        given = options.get("assignment")
        if given:
            with (source := open_source(folder / "graph.h5")).file:
                np.save(folder / given, np.random.default_rng(3).integers(0, PARTS, source.num_nodes))
            partition(folder / "graph.h5", folder / "parts", PARTS, assignment=folder / given)
        elif options["method"] != "parmetis":
            partition(folder / "graph.h5", folder / "parts", PARTS, **options)

    on_rank_0(comm, write)
    if options.get("method") == "parmetis":
        team = Ranks(World(CommConfig(device="cpu"), comm))
        partition(folder / "graph.h5", folder / "parts", PARTS, "parmetis", team=team)


def need(method) -> None:
    """Skips, on all ranks alike, where a method is not installed."""
    if method == "kaminpar" and importlib.util.find_spec(method) is None:
        pytest.skip("needs kaminpar")
    if method == "parmetis":
        parmetis_library()


@pytest.mark.parametrize("method", STATIC)
def test_static_graphs(comm, mpi_tmp_path, reference, method):
    make(comm, plain, mpi_tmp_path, STATIC[method])
    open_graph_trainer(comm, mpi_tmp_path / "parts", mpi_tmp_path, static_config()).run()
    text = on_rank_0(comm, (mpi_tmp_path / "metrics.jsonl").read_text)
    losses = [line["loss"] for line in map(json.loads, text.splitlines()) if "loss" in line]
    assert len(losses) > 4
    np.testing.assert_allclose(losses, reference.setdefault("static", losses), rtol=1e-9)


@pytest.mark.parametrize("method", TEMPORAL)
def test_temporal_graphs(comm, mpi_tmp_path, reference, method):
    make(comm, bipartite, mpi_tmp_path, TEMPORAL[method])
    record = record_epoch(comm, mpi_tmp_path / "parts", make_config())
    losses, scores = comm.bcast((record.losses, record.scores) if comm.rank == 0 else None)
    expected = reference.setdefault("temporal", (losses, scores))
    np.testing.assert_allclose(losses, expected[0], rtol=1e-9)
    np.testing.assert_allclose(scores, expected[1], rtol=1e-9)
