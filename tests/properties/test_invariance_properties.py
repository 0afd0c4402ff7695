"""What losses do not depend on: where times begin, their unit where a model has one, how nodes lie in parts."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_graphs import write_columns
from same_verdict import same_verdict
from training_runs import assert_same, bipartite, homogeneous, make_config, on_rank_0, record_epoch

from data_tools.partition.command import partition

# An example trains twice.
FEW = settings(max_examples=max(3, settings.default.max_examples // 8))
NONE = {"memory__updater": "none"}
APAN = {
    "memory__updater": "transformer", "memory__mailbox_slots": 4, "memory__deliver_to": "neighbors",
    "model__readout": "identity",
}  # fmt: skip
MODELS = {
    "tgn": {},
    "jodie": {"memory__updater": "rnn", "model__readout": "time_projection"},
    "dyrep": {"memory__updater": "rnn", "model__readout": "identity", "model__message_from": "embedding"},
    "apan": APAN,
    "tgat": NONE | {"model__layers": 2, "sampling__strategy": "uniform"},
    "mixer": NONE | {"model__readout": "mixer"},
    "dygformer": NONE | {"model__readout": "dygformer", "model__layers": 2, "model__patch_size": 2},
    "tncn": {"model__readout": "tncn", "model__common_hops": 2},
    "cawn": NONE | {"model__readout": "cawn", "model__layers": 2, "sampling__strategy": "uniform"},
    "walks": {"memory__updater": "walks", "memory__walk_scales": [1e3], "task__decoder": "walks"},
    "window": {"sampling__strategy": "window", "sampling__window_length": 2000},
    "windows": NONE | {"sampling__strategy": "window", "sampling__window_length": 2000, "sampling__num_windows": 3},
    "states at users": {"memory__update_at": "user", "model__readout": "time_projection", "memory__updater": "rnn"},
}
GRAPHS = st.fixed_dictionaries({
    "make": st.sampled_from([bipartite, homogeneous]), "seed": st.integers(0, 99), "num_events": st.integers(80, 120),
    "ticks": st.sampled_from([1000, 10_000]), "edge_width": st.sampled_from([0, 3]),
})  # fmt: skip
SMALL = {"make": bipartite, "seed": 3, "num_events": 100, "ticks": 1000}
NODES = {bipartite: 55, homogeneous: 30}


@pytest.fixture
def folder(mpi_tmp_path):
    """A folder that an example empties before it begins."""
    return mpi_tmp_path / "example"


def record(comm, folder: Path, graph: dict, config: dict, factor: int = 1, shift: int = 0, part=None):
    """Collective. Train an epoch on a graph whose times are changed, in as many parts as there are ranks, or in parts
    that are given."""

    def write() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        options = dict(graph)
        options.pop("make")(folder / "graph.h5", **options)
        with h5py.File(folder / "graph.h5", "r+") as file:
            (events,) = file["edges"].values()
            time = factor * (events["time"][()] - 10**9) + shift
            del events["time"]
            write_columns(events, {"time": time})
        if part is None:
            partition(folder / "graph.h5", folder / "parts", comm.size, "random")
        else:
            np.save(folder / "part.npy", part)
            partition(folder / "graph.h5", folder / "parts", int(part.max()) + 1, assignment=folder / "part.npy")

    on_rank_0(comm, write)
    result = record_epoch(comm, folder / "parts", make_config(**config))
    comm.barrier()
    return result


@FEW
@given(
    graph=GRAPHS, model=st.sampled_from(sorted(MODELS)),
    start=st.sampled_from([-(10**4), -5000, 1 << 31, 1 << 53, -(1 << 53), 1 << 62, -(1 << 62)]),
)  # fmt: skip
@example(graph=SMALL, model="tgn", start=1 << 62)
@example(graph=SMALL, model="windows", start=-5000)
@example(graph=SMALL, model="states at users", start=-5000)
def test_only_differences_of_times_count(comm, folder, graph, model, start):
    """To the last bit, however late the events are."""
    with same_verdict(comm):
        one, other = (record(comm, folder, graph, MODELS[model], shift=shift) for shift in (0, start))
        if one is not None:
            assert one.losses == other.losses
            assert np.array_equal(one.scores, other.scores)


@FEW
@given(graph=GRAPHS, factor=st.sampled_from([2, 1024, 1 << 20]), memory=st.sampled_from(["gru", "none"]))
def test_the_unit_of_times_does_not_count_where_a_model_has_one(comm, folder, graph, factor, memory):
    """Where frequencies are learned, differences of times are divided by the unit."""
    config = {"memory__updater": memory, "model__time_encoding": "learnable"}
    with same_verdict(comm):
        one, other = (
            record(comm, folder, graph, config | {"model__time_unit": 1000.0 * unit}, factor=unit)
            for unit in (1, factor)
        )
        if one is not None:
            np.testing.assert_allclose(one.losses, other.losses, rtol=1e-12)
            np.testing.assert_allclose(one.scores, other.scores, rtol=1e-9)


@FEW
@given(
    graph=GRAPHS, model=st.sampled_from(sorted(MODELS)), parts=st.integers(0, 5), seed=st.integers(0, 99),
    skew=st.sampled_from([1, 3]),
)  # fmt: skip
def test_parts_do_not_count(comm, folder, graph, model, parts, seed, skew):
    """Nodes may lie anywhere, very unevenly too: the same samples, and losses to rounding."""
    count = NODES[graph["make"]]
    number = (np.random.default_rng(seed).random(count) ** skew * (comm.size + parts)).astype(int)
    number[-1] = comm.size + parts - 1
    with same_verdict(comm):
        one, other = (record(comm, folder, graph, MODELS[model], part=part) for part in (None, number))
        if one is not None:
            assert_same(one, other)
