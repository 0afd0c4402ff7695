"""What keys of random numbers have no room for is refused when a run starts, with the key of the run file and a remedy,
not hours later in the thread that plans."""

from __future__ import annotations

import pytest
import snapshot_runs
import training_runs
from link_graphs import facts, friends
from static_runs import make_static_parts, open_graph_session, static_config, typed

from hpcgnn.comm.world import DistributedError
from hpcgnn.graph import directory
from hpcgnn.snapshots import loader as snapshot_loader
from hpcgnn.static import config as static_settings

LINK = {"task__kind": "link", "train__batch_size": 24}
DEEP = {"sampling__fanouts": [2] * 17, "model__layers": 17}


@pytest.mark.parametrize("make", [static_config, training_runs.make_config, snapshot_runs.make_config])
def test_epochs_have_a_limit(make):
    make(train__epochs=1 << 16)
    with pytest.raises(ValueError, match=r"train\.epochs must be at most 65536, .* got 65537"):
        make(train__epochs=(1 << 16) + 1)


def test_hops_have_a_limit():
    static_config(sampling__fanouts=[2] * 16, model__layers=16)
    with pytest.raises(ValueError, match=r"sampling\.fanouts must have at most 16 numbers, got 17: use train"):
        static_config(**DEEP)
    static_config(train__full_graph=True, model__layers=17)
    training_runs.make_config(model__layers=16)
    with pytest.raises(ValueError, match=r"model\.layers must be at most 16, got 17"):
        training_runs.make_config(model__layers=17)


@pytest.mark.parametrize(
    ("make", "changes", "most", "message"),
    [
        (typed, {}, 4, r"sampling\.fanouts: .* at most 4 relations, not 5: use train"),
        (typed, {"train__full_graph": True, "sampling__fanouts": []}, 4, ""),
        (
            facts,
            LINK | {"task__message_edges": "typed"},
            3,
            r"task\.message_edges: .* at most 3 relations, not 4: use",
        ),
        (
            facts,
            LINK | {"task__message_edges": "both"},
            7,
            r"task\.message_edges: .* at most 7 relations, not 8: use",
        ),
        (facts, LINK | {"task__message_edges": "both"}, 8, ""),
    ],
)
def test_relations_have_a_limit(comm, mpi_tmp_path, monkeypatch, make, changes, most, message):
    parts = make_static_parts(comm, make, mpi_tmp_path)
    monkeypatch.setattr(static_settings, "MOST_RELATIONS", most)
    if not message:
        open_graph_session(comm, parts, static_config(**changes)).close()
        return
    with pytest.raises(DistributedError, match=message) as refusal:
        open_graph_session(comm, parts, static_config(**changes))
    assert refusal.value.user_error


CHOICES = {
    "static": lambda comm, folder: open_graph_session(
        comm, make_static_parts(comm, friends, folder), static_config(**LINK)
    ),
    "snapshots": lambda comm, folder: snapshot_runs.open_session(
        comm, snapshot_runs.make_parts(comm, folder), snapshot_runs.make_config(task__kind="link")
    ),
}


@pytest.mark.parametrize("kind", CHOICES)
def test_nodes_to_draw_from_have_a_limit(comm, mpi_tmp_path, monkeypatch, kind):
    monkeypatch.setattr(directory, "MOST_CHOICES", 59)
    with pytest.raises(DistributedError, match=r"nodes that negatives are drawn from: .* here are 60") as refusal:
        CHOICES[kind](comm, mpi_tmp_path)
    assert refusal.value.user_error


@pytest.mark.parametrize(
    ("changes", "most", "message"),
    [
        ({"task__negative_pool": "all"}, 20, "nodes that .* here are 55: set task.negative_pool destinations"),
        ({"eval__negative_kind": "historical"}, 20, "pairs of historical negatives: .* at most 20, here are "),
    ],
)
def test_temporal_choices_have_a_limit(comm, mpi_tmp_path, monkeypatch, changes, most, message):
    graph = mpi_tmp_path / "graph.h5"
    training_runs.on_rank_0(comm, lambda: training_runs.bipartite(graph) and None)
    parts = training_runs.make_parts(comm, graph, mpi_tmp_path / "parts", 8, "random")
    monkeypatch.setattr(directory, "MOST_CHOICES", most)
    with pytest.raises(DistributedError, match=message):
        training_runs.open_session(comm, parts, training_runs.make_config(**changes))


DROPS = {"model__layers": 2, "model__dropout": 0.1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            DROPS,
            r"model\.dropout is drawn by .*, 8 of each at most: an epoch has 9 steps",
        ),
        ({"sampling__halo_ratio": 0.5}, r"set sampling\.halo_ratio 1, take fewer snapshots or raise train\.batch_size"),
        (DROPS | {"train__batch_size": 5, "sampling__updates_per_batch": 7}, "an epoch has 14 steps"),
        (DROPS | {"train__batch_size": 9}, "an epoch has 1 steps, of the first 9 snapshots"),
        ({"train__batch_size": 1}, ""),
    ],
)
def test_steps_of_snapshots_have_a_limit(comm, mpi_tmp_path, monkeypatch, changes, message):
    parts = snapshot_runs.make_parts(comm, mpi_tmp_path)
    monkeypatch.setattr(snapshot_loader, "STEP_NUMBERS", 8)
    config = snapshot_runs.make_config(**{"train__batch_size": 1} | changes)
    if not message:
        snapshot_runs.open_session(comm, parts, config).close()
        return
    with pytest.raises(DistributedError, match=message):
        snapshot_runs.open_session(comm, parts, config)
