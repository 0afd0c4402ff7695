"""Several plans in flight: they come in order, and change nothing but when they are made."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from link_graphs import friends
from static_runs import APART, make_static_parts, open_graph_trainer, plain, static_config, typed

from hpcgnn.loop.prefetch import Prefetcher

LINK = {"task__kind": "link", "task__negatives": 2, "train__batch_size": 40}
GRAPHS = {
    "typed": (typed, {}),
    "weighted": (plain, {"sampling__strategy": "weighted"}),
    "labor": (plain, {"sampling__strategy": "labor", "features__cache_ratio": 0.1, **APART}),
    "links": (friends, LINK),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_plans_in_flight_change_nothing(comm, mpi_tmp_path, case):
    make, changes = GRAPHS[case]
    parts, found = make_static_parts(comm, make, mpi_tmp_path), []
    for in_flight in (1, 2, 3):
        config = static_config(**changes, sampling__prefetch=3, sampling__in_flight=in_flight, train__epochs=2)
        folder = mpi_tmp_path / str(in_flight)
        if comm.rank == 0:
            folder.mkdir()
        comm.Barrier()
        trainer = open_graph_trainer(comm, parts, folder, config)
        assert len(trainer.session.loaders["train"].samplers) == in_flight
        trainer.run()
        found.append((trainer.flat.parameter.detach().clone(), trainer.session.graph.tables.hit_rate()))
    for parameter, hit_rate in found[1:]:
        assert torch.equal(parameter, found[0][0])
        assert hit_rate == found[0][1]


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_as_many_are_made_at_once_and_come_in_order(in_flight):
    lock, running, most = threading.Lock(), set(), []

    def maker(number: int):
        def make(index: int) -> int:
            assert (index - 2) % in_flight == number
            with lock:
                running.add(index)
                most.append(len(running))
            time.sleep(0.02 if index % 2 else 0.001)
            with lock:
                running.remove(index)
            return index

        return make

    with Prefetcher([maker(number) for number in range(in_flight)], 2, 20, 4) as plans:
        assert list(plans) == list(range(2, 20))
    assert max(most) == in_flight


@pytest.mark.parametrize("consumed", [0, 1, 5])
def test_an_early_end_makes_exactly_the_window(consumed):
    made = []
    with Prefetcher([made.append] * 3, 0, 50, 4) as plans:
        iterator = iter(plans)
        for _ in range(consumed):
            next(iterator)
    assert sorted(made) == list(range(consumed + 4))


def test_an_error_comes_in_its_place():
    def fail(index: int) -> int:
        if index == 3:
            raise RuntimeError("no such node")
        return index

    plans = iter(Prefetcher([fail, fail], 0, 9, 4))
    assert [next(plans) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="no such node"):
        next(plans)


@pytest.mark.parametrize(("prefetch", "in_flight"), [(0, 2), (2, 3), (-1, 0)])
def test_what_makes_no_sense_is_refused(prefetch, in_flight):
    with pytest.raises(ValueError, match=r"sampling\.in_flight"):
        static_config(sampling__prefetch=prefetch, sampling__in_flight=in_flight)
