"""The background planner: order, errors, and a window that does not depend on timing."""

import threading
import time
from contextlib import contextmanager, nullcontext

import pytest
import torch

from hpcgnn.loop.prefetch import PlanStream, Prefetcher, tensors_of

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("depth", [0, 1, 3, 100])
def test_plans_come_in_order(depth):
    with Prefetcher(lambda i: i * i, 2, 9, depth) as plans:
        assert list(plans) == [i * i for i in range(2, 9)]


@pytest.mark.parametrize("in_a_row", [1, 2, 4, 100])
def test_plans_in_place_are_made_in_rows(in_a_row):
    made = []

    def make(index):
        made.append(index)
        return index

    with Prefetcher(make, 1, 10, 0, in_a_row) as plans:
        for used, plan in enumerate(plans):
            assert plan == used + 1
            assert made == list(range(1, min(10, 1 + (used // in_a_row + 1) * in_a_row)))


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("consumed", [0, 1, 4])
def test_an_early_end_makes_exactly_the_window(depth, consumed):
    """All ranks must make the same plans, whatever their speed: consumed + depth of them."""
    for pause in (0.0, 0.003):
        made = []

        def make(index, pause=pause, made=made):
            time.sleep(pause)
            made.append(index)
            return index

        with Prefetcher(make, 0, 50, depth) as plans:
            iterator = iter(plans)
            for _ in range(consumed):
                next(iterator)
        assert made == list(range(consumed + depth))


def test_no_more_plans_than_there_are():
    made = []
    with Prefetcher(made.append, 0, 3, 10) as plans:
        next(iter(plans))
    assert len(made) == 3


def test_an_error_in_the_planner_reaches_the_consumer():
    def make(index):
        if index == 2:
            raise RuntimeError("no such node")
        return index

    with pytest.raises(RuntimeError, match="no such node"):
        list(Prefetcher(make, 0, 5, 2))


def test_planning_happens_in_another_thread():
    with Prefetcher(lambda _: threading.current_thread().name, 0, 1, 1) as plans:
        assert next(iter(plans)) == "planner"


def test_tensors_of_a_plan_are_in_no_lists():
    """One that is overlooked would be freed while a device still reads it."""
    first, second = torch.zeros(1), torch.zeros(2)
    assert list(tensors_of((first, {"one": (second, 3)}))) == [first, second]
    with pytest.raises(TypeError, match="a plan with a list: use a tuple"):
        list(tensors_of((first, {"one": [second]})))


class Stream:
    """A stream of a device, by number."""

    def __init__(self, number: int):
        self.number = number

    def __eq__(self, other):
        return self.number == other.number

    def synchronize(self):
        """All is done already."""


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("consumer", [0, 5])
def test_plans_are_kept_for_the_stream_that_uses_them(monkeypatch, depth, consumer):
    """That of the thread that iterates, which a program may have chosen: 0 is the default stream."""
    streams, kept = threading.local(), []

    @contextmanager
    def within(stream):
        before, streams.now = getattr(streams, "now", Stream(0)), stream
        yield
        streams.now = before

    for name, value in {
        "is_initialized": lambda: True, "current_stream": lambda device=None: getattr(streams, "now", Stream(0)),
        "default_stream": lambda device=None: Stream(0), "Stream": lambda device: Stream(9), "stream": within,
        "device": lambda device: nullcontext(),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: kept.append(stream.number))
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: True))
    maker = PlanStream(torch.device("cuda", 0))
    streams.now = Stream(consumer)
    with Prefetcher(lambda index: maker.run(lambda: (torch.ones(1),)), 0, 4, depth) as plans:
        for number, _ in enumerate(plans):
            assert kept.count(consumer) >= number + 1
    assert set(kept) <= {0, consumer}
