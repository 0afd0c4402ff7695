"""Every model, updater, aggregator, mailbox and sampler setting gives one answer on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from training_runs import (
    assert_same,
    bipartite,
    homogeneous,
    make_config,
    make_parts,
    on_rank_0,
    open_session,
    read_plain,
    record_epoch,
)

RICH = {"edge_width": 3, "node_width": 4}
NONE = {"memory__updater": "none"}
APAN = {
    "memory__updater": "transformer", "memory__mailbox_slots": 4, "memory__deliver_to": "neighbors",
    "model__readout": "identity",
}  # fmt: skip
WALKS = {"memory__updater": "walks", "memory__walk_scales": [2000.0], "task__decoder": "walks"}
CAWN = {"model__readout": "cawn", "model__layers": 2, "sampling__fanouts": [3, 2]}
DYGFORMER = NONE | {"model__readout": "dygformer", "model__layers": 2, "model__channel_dim": 4}

# name: (options of the graph, changes of the configuration)
CASES = {
    "jodie": ({}, {"memory__updater": "rnn", "model__readout": "time_projection"}),
    "jodie at user": (
        {},
        {"memory__updater": "rnn", "model__readout": "time_projection", "memory__update_at": "user"},
    ),
    "dyrep": (
        {"edge_width": 3},
        {"memory__updater": "rnn", "model__readout": "identity", "model__message_from": "embedding"},
    ),
    "apan": (RICH, APAN),
    "apan, in-batch off": ({}, APAN | {"sampling__in_batch_neighbors": False, "sampling__strategy": "uniform"}),
    "tgat": (RICH, NONE | {"model__layers": 2, "sampling__strategy": "uniform"}),
    "tgat without features": ({}, NONE | {"model__layers": 2}),
    "tgn of two layers": ({}, {"model__layers": 2, "sampling__fanouts": [3]}),
    "dysat": (
        RICH,
        NONE | {"sampling__strategy": "window", "sampling__window_length": 2000, "sampling__num_windows": 3},
    ),
    "dysat of two layers": (
        {"node_width": 4},
        NONE
        | {
            "sampling__strategy": "window",
            "sampling__window_length": 3000,
            "sampling__num_windows": 2,
            "model__layers": 2,
        },
    ),
    "window with memory": ({}, {"sampling__strategy": "window", "sampling__window_length": 1500}),
    "boundary decay": (RICH, {"sampling__remote_half_life": 1500}),
    "boundary decay, uniform": ({}, {"sampling__remote_half_life": 800, "sampling__strategy": "uniform"}),
    "random first batch": ({}, {"sampling__random_chunks": 4}),
    "replicated memory": (RICH, {"memory__placement": "replicated"}),
    "replicated, dyrep": (
        {"edge_width": 3},
        {
            "memory__placement": "replicated",
            "memory__updater": "rnn",
            "model__readout": "identity",
            "model__message_from": "embedding",
            "train__batch_size": 3,
        },
    ),
    "mixer": (RICH, NONE | {"model__readout": "mixer"}),
    "mixer without features": ({}, NONE | {"model__readout": "mixer"}),
    "dygformer": (RICH, DYGFORMER | {"model__patch_size": 2, "task__negatives": 3}),
    "dygformer without features": (
        {},
        DYGFORMER
        | {
            "task__decoder": "pair",
            "sampling__strategy": "uniform",
            "model__time_encoding": "learnable",
            "model__time_unit": 1000.0,
        },
    ),
    "dygformer, memory and clocks": (
        {"edge_width": 3},
        DYGFORMER | {"memory__updater": "gru", "task__decoder": "clocks", "model__patch_size": 4},
    ),
    "tcl": (RICH, NONE | {"model__readout": "tcl", "model__layers": 2}),
    "tncn": (RICH, {"model__readout": "tncn", "model__common_hops": 2, "task__negatives": 3}),
    "tncn of two layers, without features": (
        {},
        NONE
        | {
            "model__readout": "tncn",
            "model__layers": 2,
            "sampling__strategy": "uniform",
            "eval__negative_kind": "historical",
            "task__decoder": "clocks",
        },
    ),
    "tncn, mails to neighbors": (
        {"edge_width": 3},
        {
            "model__readout": "tncn",
            "model__common_hops": 2,
            "sampling__fanouts": [3, 2],
            "memory__deliver_to": "neighbors",
            "memory__update_at": "user",
            "task__decoder": "pair",
        },
    ),
    "walks alone": ({"ticks": 100}, WALKS | {"model__readout": "identity", "task__negatives": 3}),
    "walks, attention and clocks": (
        RICH,
        WALKS
        | {
            "task__decoder": "clocks_walks",
            "memory__walk_scales": [300.0, 9e3],
            "memory__placement": "replicated",
        },
    ),
    "cawn": (RICH, NONE | CAWN | {"task__negatives": 3}),
    "cawn, uniform walks of one step with memory": (
        {},
        CAWN
        | {
            "model__layers": 1,
            "sampling__fanouts": [4],
            "sampling__strategy": "uniform",
            "eval__negative_kind": "historical",
        },
    ),
    "tpnet": (RICH, WALKS | {"model__readout": "tpnet", "model__layers": 2, "task__negatives": 3}),
    "tpnet, hot nodes": (
        {},
        WALKS
        | {
            "model__readout": "tpnet",
            "memory__hot_ratio": 0.2,
            "sampling__strategy": "uniform",
            "eval__negative_kind": "historical",
            "task__decoder": "mlp",
        },
    ),
    "mean of messages": (RICH, {"memory__aggregator": "mean"}),
    "mean, to neighbors": ({}, {"memory__aggregator": "mean", "memory__deliver_to": "neighbors"}),
    "last, to neighbors": ({}, {"memory__deliver_to": "neighbors"}),
    "transformer, one slot": ({}, {"memory__updater": "transformer"}),
    "transformer, three slots": ({"ticks": 60}, {"memory__updater": "transformer", "memory__mailbox_slots": 3}),
    "message of an mlp": ({"edge_width": 3}, {"model__message": "mlp", "model__message_dim": 7}),
    "learned frequencies": (RICH, {"model__time_encoding": "learnable", "model__time_unit": 1000.0}),
    "learned frequencies, transformer": (
        {},
        {"model__time_encoding": "learnable", "model__time_unit": 1000.0, "memory__updater": "transformer"},
    ),
    "batches smaller than ranks": ({"num_events": 60}, APAN | {"train__batch_size": 2, "task__decoder": "pair"}),
    "two layers, batches smaller than ranks": (
        {"num_events": 60, "node_width": 4},
        {"train__batch_size": 2, "model__layers": 2},
    ),
    "pair decoder": ({}, {"task__decoder": "pair"}),
    "pair decoder, windows": (
        {},
        NONE
        | {
            "sampling__strategy": "window",
            "sampling__window_length": 2000,
            "sampling__num_windows": 2,
            "task__decoder": "pair",
        },
    ),
    "clocks": ({"ticks": 100}, {"task__decoder": "clocks", "task__negatives": 3}),
    "clocks alone": (
        {},
        NONE
        | {
            "model__readout": "identity",
            "task__decoder": "clocks",
            "task__loss": "softmax",
            "sampling__in_batch_neighbors": False,
        },
    ),
    "clocks of features": (
        {"node_width": 4},
        NONE | {"model__readout": "identity", "task__decoder": "clocks", "data__new_node_ratio": 0.2},
    ),
    "pair decoder, identity": ({}, {"task__decoder": "pair", "model__readout": "identity"}),
    "embedding of another width": ({}, {"model__readout": "identity", "model__hidden": 6}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("graph", [bipartite, homogeneous], ids=["bipartite", "homogeneous"])
def test_ranks_do_not_change_the_answer(comm, mpi_tmp_path, case, graph):
    """Losses, weights, memory and validation scores, with another partition set on one rank."""
    options, changes = CASES[case]
    path = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: graph(path, **{"num_events": 360} | options) and None)
    parts = make_parts(comm, path, mpi_tmp_path / "parts", 8, "random")
    config = make_config(**{"train__batch_size": 30} | changes)
    record = record_epoch(comm, parts, config)
    same = "decay" in case  # which neighbors are remote depends on the parts, never on the ranks
    other = parts if same else make_parts(comm, path, mpi_tmp_path / "other", 4, "metis")
    if comm.rank == 0:
        assert_same(record, record_epoch(MPI.COMM_SELF, other, config))


@pytest.mark.several_ranks
@pytest.mark.parametrize("case", CASES)
def test_ranks_without_events_take_part(comm, mpi_tmp_path, case, kernels):
    """Batches of one event: other ranks than its own have no row to compute."""
    options, changes = CASES[case]
    path = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: homogeneous(path, **options | {"num_events": 40}) and None)
    parts = make_parts(comm, path, mpi_tmp_path / "parts", comm.size, "random")
    config = make_config(**changes | {"train__batch_size": 1})
    with kernels():
        record = record_epoch(comm, parts, config)
        if comm.rank == 0:
            assert_same(record, record_epoch(MPI.COMM_SELF, parts, config))


@pytest.mark.parametrize("hidden", [0.0, 0.3])
@pytest.mark.parametrize("graph", [bipartite, homogeneous], ids=["bipartite", "homogeneous"])
def test_time_scale(comm, mpi_tmp_path, graph, hidden):
    """The root mean square of the pauses of nodes between the events that training shows."""
    path = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: graph(path) and None)
    parts = make_parts(comm, path, mpi_tmp_path / "parts")
    session = open_session(comm, parts, make_config(data__new_node_ratio=hidden))
    hides = set(np.concatenate(comm.allgather(session.partition.flat_row[session.graph.splits.hidden])).tolist())
    plain, end, times = read_plain(path), int(session.graph.splits.bounds[1]), {}
    for source, destination, time in zip(plain.src[:end], plain.dst[:end], plain.time[:end], strict=True):
        for node in {source, destination} if hides.isdisjoint((source, destination)) else ():
            times.setdefault(node, []).append(time)
    pauses = np.concatenate([np.diff(own) for own in times.values()])
    assert (hidden > 0) == bool(hides)
    np.testing.assert_allclose(session.model.sizes.time_scale, np.sqrt(np.mean(pauses.astype(float) ** 2)), rtol=1e-12)
