"""The benchmark of training steps on static graphs: what it counts, and what it refuses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import two_machines
from faults import machine
from run_commands import run
from static_runs import APART, make_static_parts, open_graph_session, plain, static_config

from data_tools.synthetic.igbh import synthesize_igbh
from hpcgnn.bench import peer_pyg_sage
from hpcgnn.bench.peers import pyg_rgat
from hpcgnn.bench.sage import TimingOptions, measure, table
from hpcgnn.comm.world import CommConfig, World


@pytest.mark.parametrize("ratio", [0.0, 0.3])
def test_rows_that_travel_are_those_expected(comm, mpi_tmp_path, ratio):
    """Unique remote rows without those found among the copies, to the byte."""
    config = static_config(features__cache_ratio=ratio, sampling__prefetch=0, **APART)
    config.data.path = str(make_static_parts(comm, plain, mpi_tmp_path))
    world = World(CommConfig(device="cpu", threads=1, ranks_per_machine=1), comm)
    result = measure(config, mpi_tmp_path, TimingOptions(4, "", "none"), world)
    assert result["ranks"] == comm.size
    assert result["row_bytes_sent"] == result["row_bytes_expected"]
    assert (result["row_bytes_sent"] > 0) == (comm.size > 1)
    if comm.size == 1 or ratio == 0:
        assert result["hit_rate"] == 0
    else:
        assert result["hit_rate"] == pytest.approx(result["predicted_hit_rate"], abs=0.2)
    assert f"{comm.size} ranks x 1 threads" in table(result)


@pytest.mark.launcher
def test_command_prints_the_stages_of_a_step(capsys):
    small = ["--data.synthetic_nodes=400", "--model.hidden=8", "--train.batch_size=16", "--steps=2"]
    assert run([["bench", "sage", *small]]) == 0
    printed = capsys.readouterr().out
    assert all(stage in printed for stage in ("plan", "exchange", "compute", "optimizer", "edges sampled", "ms a step"))


@pytest.mark.launcher
@pytest.mark.nightly
def test_between_two_machines_a_row_travels_once(comm, tmp_path):
    """On a real link, whose own counters agree."""
    parts = make_static_parts(comm, plain, tmp_path)
    arguments = [f"--data.path={parts}", "--model.hidden=8", "--train.batch_size=64", "--steps=3"]
    try:
        with machine.two_machines(tmp_path / "machines") as machines:
            alone = two_machines.measure(tmp_path / "alone.json", arguments, two_machines.MPIRUN)
            machines.shape(1)
            launcher = machines.launcher(two_machines.MPIRUN, two_machines.SLOTS)
            result = two_machines.measure(tmp_path / "machines.json", arguments, launcher)
    except machine.Missing as missing:
        pytest.skip(f"needs what this machine does not lend: {missing}")
    assert alone["row_bytes_sent"] == alone["bytes_between_machines"] == 0
    assert result["row_bytes_sent"] == result["row_bytes_expected"] > 0
    assert 0 < result["bytes_between_machines"] / 2 < result["wire_bytes"]


@pytest.mark.launcher
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--steps=0", "--steps"),
        ("--peer=dgl", "--peer"),
        ("--train.full_graph=true", "mini-batches"),
        ("--model.kind=gat --peer=pyg", "--peer pyg compares model.kind sage or rgat, not gat"),
    ],
)
def test_wrong_options_are_refused(capsys, option, message):
    assert run([["bench", "sage", *option.split()]]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.serial
def test_a_peer_is_timed_on_graphs_of_fewer_batches_than_steps(comm, tmp_path, monkeypatch):
    """Its loader begins anew where an epoch ends; here it gives all nodes, as one that samples needs a package more."""
    loader = pytest.importorskip("torch_geometric.loader")
    epochs = itertools.count()

    class AllNodes:
        def __init__(self, data, fanouts, seeds, batch_size, **options):
            self.batch = data.clone()
            self.batch.batch_size = min(batch_size, len(seeds))

        def __iter__(self):
            next(epochs)
            return iter([self.batch.clone()])

    monkeypatch.setattr(loader, "NeighborLoader", AllNodes)
    config = static_config(train__precision="float32", train__batch_size=1024)
    session = open_graph_session(comm, make_static_parts(comm, plain, tmp_path), config)
    seconds = peer_pyg_sage.step_seconds(session)
    session.close()
    assert (np.isfinite(seconds), seconds > 0, next(epochs)) == (True, True, peer_pyg_sage.STEPS + 1)


RGAT = {"model__kind": "rgat", "train__precision": "float32", "model__hidden": 8, "model__heads": 2}


def papers(path):
    synthesize_igbh(path, 100, seed=1, width=6, num_classes=4)
    return path


@pytest.mark.serial
@pytest.mark.parametrize(
    "changes", [{"model__self_loop": False, "model__output_layer": "linear"}, {"model__dropout": 0.5}]
)
def test_rgat_is_compared_with_layers_of_the_same_outputs(comm, tmp_path, changes):
    pytest.importorskip("torch_geometric")
    session = open_graph_session(comm, make_static_parts(comm, papers, tmp_path), static_config(**RGAT | changes))
    seconds = pyg_rgat.compare(session, 2)
    assert list(seconds) == [f"{who}compute_{what}seconds" for who in ("", "pyg_") for what in ("cpu_", "")]
    assert min(seconds.values()) > 0
    session.close()


@pytest.mark.serial
def test_other_outputs_are_noticed(comm, tmp_path, monkeypatch):
    pytest.importorskip("torch_geometric")
    session = open_graph_session(comm, make_static_parts(comm, papers, tmp_path), static_config(**RGAT))
    monkeypatch.setattr(session.model, "activation", torch.nn.Identity())
    with pytest.raises(ValueError, match="outputs differ by"):
        pyg_rgat.compare(session, 1)
    session.close()
