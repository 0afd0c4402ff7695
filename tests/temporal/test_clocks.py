"""Clocks and counts of pairs against a plain loop over all events, on any number of ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from run_commands import asked_for
from training_runs import (
    bipartite,
    flat_rows,
    homogeneous,
    make_config,
    make_parts,
    on_rank_0,
    open_session,
    open_trainer,
    pairs_by_step,
    read_plain,
    train_steps,
)

from hpcgnn.comm.world import DistributedError
from hpcgnn.loop.trainer import Trainer
from hpcgnn.temporal.model.clocks import QUANTILES, num_clocks, time_scales
from hpcgnn.temporal.predict import answer
from hpcgnn.temporal.schema import CLOCK_SCALES

ALONE = {
    "task__decoder": "clocks", "task__loss": "softmax", "memory__updater": "none", "model__readout": "identity"
}  # fmt: skip
CASES = {
    "earlier events of the batch": {"task__negatives": 3},
    "earlier batches": {"task__negatives": 3, "sampling__in_batch_neighbors": False, "eval__negative_kind": "all"},
    "sources of their own": {"task__negatives": 2, "eval__negative_kind": "historical"},
    "hidden nodes": {"data__new_node_ratio": 0.3, "task__negatives": 2},
    "protocol of TGB": {"eval__protocol": "tgb", "eval__batch_size": 30},
}


@pytest.fixture
def graph_and_parts(comm, mpi_tmp_path):
    """Makes a graph file and its partition set."""

    def make(graph, **options) -> tuple[Path, Path]:
        path = mpi_tmp_path / "graph.h5"
        on_rank_0(comm, lambda: graph(path, **{"num_events": 300} | options) and None)
        return path, make_parts(comm, path, mpi_tmp_path / "parts", 8, "random")

    return make


def numbers_of(times: list[int], now: int, scales: list[float]) -> list[float]:
    """S + 4 numbers of the events at ``times``."""
    ages = [now - time for time in times]
    last, second = (ages[-place] if len(ages) >= place else 0 for place in (1, 2))
    sums = [sum(math.exp(-age / scale) for age in ages) for scale in scales]
    clocks = [math.log1p(age / min(scales)) for age in (last, second)]
    return [float(bool(times)), *clocks, math.log1p(len(times)), *map(math.log1p, sums)]


def expected(events: list[tuple], source: int, destination: int, now: int, scales: list[float]) -> list[float]:
    """The numbers of a pair, from the events (source, destination, time) before, in order."""
    places = [place for place, event in enumerate(events) if event[:2] == (source, destination)]
    by_end = [[place for place, event in enumerate(events) if event[end] == node]
              for end, node in ((0, source), (1, destination))]  # fmt: skip
    tables = [[events[place][2] for place in rows] for rows in (places, by_end[1], by_end[0])]
    since = len([place for place in by_end[0] if place > places[-1]]) if places else 0
    share = len(places) / max(1, len(by_end[0]))
    together = [math.log1p(since), float(bool(places) and since == 0), share]
    return [number for times in tables for number in numbers_of(times, now, scales)] + together


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("graph", [bipartite, homogeneous], ids=["bipartite", "homogeneous"])
def test_numbers_are_those_of_a_loop_over_events(comm, graph_and_parts, graph, case, split):
    """Some events share a time, and pairs of the batch come before each other."""
    path, parts = graph_and_parts(graph, ticks=150)
    config = make_config(train__batch_size=30, **ALONE | CASES[case])
    session, plain = open_session(comm, parts, config), read_plain(path)
    scales, row_of = session.schema.values[CLOCK_SCALES], flat_rows(comm, session)
    hidden = {row for piece in comm.allgather(session.partition.flat_row[session.graph.splits.hidden].tolist())
              for row in piece}  # fmt: skip
    assert bool(hidden) == (case == "hidden nodes")
    left_out = set() if split == "val" else hidden
    every = list(zip(plain.src.tolist(), plain.dst.tolist(), plain.time.tolist(), strict=True))
    sees_batch = config.sampling.in_batch_neighbors and (split == "train" or config.eval.in_batch_neighbors)
    pairs_of, compared = pairs_by_step(session, split), 0
    with session.plans(split, 0) as plans:
        for plan in plans:
            limit = len(every) if sees_batch else int(session.batches[split].first_row[plan.step])
            for number, event in enumerate(plan.event_row.tolist()):
                now, pairs = every[event][2], pairs_of[plan.step][:, number]
                before = [other for other in every[:limit] if other[2] < now and left_out.isdisjoint(other[:2])]
                for source, destination, found in zip(*pairs.T, plan.clocks[:, number].tolist(), strict=True):
                    ends = row_of[int(source)], row_of[int(destination)]
                    assert found == pytest.approx(expected(before, *ends, now, scales), rel=1e-9, abs=1e-12)
                    compared += 1
    assert session.world.total(compared) > 100
    assert plan.clocks.shape[2] == num_clocks(len(QUANTILES)) == session.model.sizes.clocks
    session.close()


@pytest.mark.parametrize("hidden", [0.0, 0.3])
def test_time_scales_are_quantiles_of_training(comm, graph_and_parts, hidden):
    """The smallest time with enough times up to it, as of sorted times on one rank."""
    path, parts = graph_and_parts(bipartite, num_events=600)
    session, plain = open_session(comm, parts, make_config(data__new_node_ratio=hidden)), read_plain(path)
    rows = comm.allgather(session.partition.flat_row[session.graph.splits.hidden].tolist())
    left_out, times, gaps = {row for piece in rows for row in piece}, defaultdict(list), []
    for event in range(int(session.graph.splits.bounds[1])):
        pair = int(plain.src[event]), int(plain.dst[event])
        if left_out.isdisjoint(pair):
            times[pair].append(int(plain.time[event]))
    gaps = np.sort(np.concatenate([np.diff(own) for own in times.values()]))
    found = time_scales(session.partition, session.graph.splits, session.world, session.graph.channel)
    session.close()
    assert found == [max(1, gaps[math.ceil(share * len(gaps)) - 1]) for share in QUANTILES]


def test_pairs_without_second_events_have_time_scales(comm, graph_and_parts):
    _, parts = graph_and_parts(bipartite, num_events=4, num_users=30, num_items=30)
    session = open_session(comm, parts, make_config(data__val_ratio=0.0, data__test_ratio=0.0))
    found = time_scales(session.partition, session.graph.splits, session.world, session.graph.channel)
    session.close()
    assert found == [1.0] * len(QUANTILES)


def test_a_model_of_clocks_alone_has_no_embeddings(comm, graph_and_parts, mpi_tmp_path):
    _, parts = graph_and_parts(bipartite)
    session = open_session(comm, parts, make_config(sampling__prefetch=0, **ALONE))
    assert session.model.decoder.link is None
    for arguments in ({"embeddings": True}, {"nodes": "nodes.csv"}):
        with pytest.raises(DistributedError, match="by clocks alone and has no embeddings of nodes: give --pairs"):
            answer(session, asked_for(**arguments))
    session.close()


def make_trainer(comm, parts: Path, folder: Path) -> Trainer:
    config = make_config(train__batch_size=30, task__negatives=4, **ALONE)
    return open_trainer(comm, parts, config, folder)


def test_a_run_resumes_on_another_number_of_ranks(comm, graph_and_parts, mpi_tmp_path):
    """With the time scales of its checkpoint, and the losses of a run that never stopped."""
    _, parts = graph_and_parts(bipartite)
    folder = mpi_tmp_path / "run"
    on_rank_0(comm, folder.mkdir)
    first = make_trainer(comm, parts, folder)
    losses = train_steps(first, 0, 3)
    first._save(first.session.memory.saved())
    losses += train_steps(first, 3)
    first.close()
    assert len(losses) > 5
    if comm.rank == 0:
        second = make_trainer(MPI.COMM_SELF, parts, folder)
        second.resume()
        assert second.session.schema == first.session.schema
        np.testing.assert_allclose(train_steps(second, 3), losses[3:], rtol=1e-9)
        second.close()


def test_clocks_are_for_the_host_and_for_built_in_models():
    with pytest.raises(ValueError, match=r"task\.decoder clocks does not go with model\.class_path"):
        make_config(task__decoder="clocks", model__class_path="own.Model")
    with pytest.raises(ValueError, match=r"task\.decoder clocks scores links, task\.kind is node"):
        make_config(task__decoder="clocks", task__kind="node")
    with pytest.raises(ValueError, match=r"readout time_projection shows node memory"):
        make_config(**ALONE | {"model__readout": "time_projection"})
    assert make_config(**ALONE).model.readout == "identity"
