"""Sampling servers beside ranks that train: the same answer, bounded buffers, who asks whom, what is refused, failures
at start. S samplers and T trainers are the ranks there are."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from link_graphs import friends, shop
from static_runs import APART, chances, make_static_parts, plain, reference_run, static_config, typed
from test_graph_training import assert_same_records

from hpcgnn.comm.crew import Crew, Lane, Mapping
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.graph.partition import open_graph_partition
from hpcgnn.loop.launch import StopRequest
from hpcgnn.loop.trainer import Trainer
from hpcgnn.reopen import command_parser, parse
from hpcgnn.static import features, learned_edges
from hpcgnn.static.model.blocks import Adjacency, Block
from hpcgnn.static.sampler_ranks import (
    Leave,
    Request,
    SamplerRank,
    beside_samplers,
    pack_drawn,
    read_drawn,
    read_request,
)
from hpcgnn.static.sampling.draw import Drawn
from hpcgnn.static.session import open_session
from hpcgnn.temporal.config import TemporalConfig

SIDES = [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (3, 1)]  # samplers, trainers
LINK = {"task__kind": "link", "task__negatives": 2, "train__batch_size": 40, "train__epochs": 1}


@pytest.fixture
def side(request, comm):
    """The communicator and S."""
    return comm, request.param[0]


def on(*sides):
    """The test for every pair of sides, on as many ranks as these are."""
    values = [pytest.param(side, marks=pytest.mark.ranks(sum(side)), id=f"{side[0]}-{side[1]}") for side in sides]
    return pytest.mark.parametrize("side", values, indirect=True)


def with_crew(comm, samplers: int, config, **comm_changes):
    """The configuration of a run with samplers, and its world. Collective."""
    talk = CommConfig(device="cpu", threads=1, sampling_servers=samplers, watchdog_seconds=0, **comm_changes)
    return dataclasses.replace(config, comm=talk), World(talk, comm)


def run_crew(comm, samplers: int, parts: Path, folder: Path, config, work=None, **comm_changes):
    """Collective. A run; the trainer at trainer ranks, None at samplers. work: what to do with it, else all of it."""
    config, world = with_crew(comm, samplers, config, **comm_changes)
    found = []

    def train(part: World, remote) -> int:
        session = open_session(config, str(parts), part, watchdog, remote)
        trainer = Trainer(session, folder, lambda *_, **__: None, StopRequest())
        found.append(trainer)
        return (work or Trainer.run)(trainer)

    with Watchdog(world, 0) as watchdog:
        code = beside_samplers(config, str(parts), world, watchdog, lambda *_, **__: None, train)
    assert comm.allgather(code) == [code] * comm.size
    return found[0] if found else None


def check_answer(part, samplers: int, parts: Path, folder: Path, config, **comm_changes) -> None:
    """Collective. The run writes what a rank alone writes."""
    if part.rank == 0:
        (folder / "run").mkdir()
        (folder / "alone-0").mkdir()
    part.Barrier()
    trainer = run_crew(part, samplers, parts, folder / "run", config, **comm_changes)
    if part.rank == 0:
        reference = reference_run(parts, folder, config)
        assert_same_records(folder / "run", folder / "alone-0")
        found = trainer.flat.parameter.detach()
        torch.testing.assert_close(found, reference.flat.parameter.detach(), rtol=1e-9, atol=1e-12)
    part.Barrier()


CASES = {
    "typed": (typed, {"model__kind": "rgcn", "train__epochs": 1}),
    "plain": (plain, {}),
    "links": (friends, {**LINK, "train__epochs": 2}),
    "typed links": (shop, {**LINK, "task__relation": "user.buys.item"}),
    "links along out-edges": (shop, {**LINK, "task__relation": "user.buys.item", "sampling__direction": "out"}),
}


@on(*SIDES)
@pytest.mark.parametrize("case", CASES)
def test_samplers_give_the_same_answer(comm, side, mpi_tmp_path, case):
    make, changes = CASES[case]
    parts = make_static_parts(comm, make, mpi_tmp_path, out_edges=True)
    check_answer(*side, parts, mpi_tmp_path, static_config(**changes))


OPTIONS = {
    "foreground": (plain, {"sampling__prefetch": 0}),
    "in flight": (typed, {"sampling__prefetch": 3, "sampling__in_flight": 3}),
    "links in flight": (friends, {**LINK, "sampling__in_flight": 2}),
    "weighted": (chances, {"sampling__strategy": "weighted", "sampling__weight_column": "chance"}),
    "labor": (plain, {"sampling__strategy": "labor"}),
    "replicated": (plain, {"sampling__topology": "replicated"}),
    "copies": (
        plain,
        {
            "features__cache_ratio": 0.2,
            **APART,
            "sampling__in_flight": 2,
            "sampling__eval_fanouts": [2, 1],
        },
    ),
    "exact": (typed, {"eval__exact": True}),
    "ranking": (friends, {**LINK, "eval__ranking": "filtered", "task__decoder": "dot"}),
}


@on((1, 1), (1, 2), (2, 2))
@pytest.mark.parametrize("case", OPTIONS)
def test_options_give_the_same_answer_too(comm, side, mpi_tmp_path, case):
    make, changes = OPTIONS[case]
    parts = make_static_parts(comm, make, mpi_tmp_path)
    config = static_config(**{"train__epochs": 1} | changes)
    check_answer(*side, parts, mpi_tmp_path, config, max_message_bytes=1000)


@on((1, 1))
def test_servers_make_no_edges_of_the_test(side, mpi_tmp_path, monkeypatch):
    """Trainers score the test from copies of their own; a server has the edges of training alone."""
    comm, made, take = side[0], [], learned_edges.take_edges
    parts = make_static_parts(comm, friends, mpi_tmp_path)
    config = static_config(**LINK, eval__exact=True, eval__message_edges="train_val")
    monkeypatch.setattr(learned_edges, "take_edges", lambda *given: made.append(take(*given)) or made[-1])
    trainer = run_crew(comm, 1, parts, mpi_tmp_path, config, work=lambda _: 0)
    assert len(made) == (1 if trainer is None else 2)


HELD = {
    "types": (typed, {"model__kind": "rgcn"}, {}),
    "learned": (typed, {"node_embedding__types": ["paper"]}, {}),
    "narrow": (plain, {"features__wire": "bfloat16", "sampling__in_flight": 2}, {}),
    "normalized": (plain, {"features__normalize": True}, {}),
    "messages": (typed, {}, {"ranks_per_machine": 1}),
    "file": (plain, {"features__storage": "file"}, {"ranks_per_machine": 1}),
    "links in flight": (friends, {**LINK, "sampling__in_flight": 2}, {}),
    "replicated": (plain, {"sampling__topology": "replicated", "sampling__prefetch": 0}, {}),
}


@on(*SIDES)
@pytest.mark.parametrize("case", HELD)
def test_samplers_that_hold_features_give_the_same_answer(comm, side, mpi_tmp_path, case, monkeypatch):
    """And the ranks that train read none."""
    make, changes, comm_changes = HELD[case]
    parts, (part, samplers) = make_static_parts(comm, make, mpi_tmp_path), side
    original = features.NodeTables.__init__

    def make_tables(self, *arguments, **options) -> None:
        original(self, *arguments, **options)
        trains = part.size > 1 and comm.rank < comm.size - samplers and self._world.job.config.server_features
        assert not (trains and any(features.FEATURE in rows.tables for rows in self.rows))

    monkeypatch.setattr(features.NodeTables, "__init__", make_tables)
    config = static_config(**{"train__epochs": 1} | changes)
    options = {"server_features": True, "max_message_bytes": 1000} | comm_changes
    check_answer(part, samplers, parts, mpi_tmp_path, config, **options)


@on(*SIDES)
def test_what_waits_is_bounded(comm, side, mpi_tmp_path, monkeypatch):
    """However slow the trainers are, samplers draw as many steps ahead as were asked for, and no more: those taken,
    plans ahead, and the buffer."""
    part, samplers = side
    parts, original = make_static_parts(comm, plain, mpi_tmp_path), SamplerRank._draw
    drawn = [mpi_tmp_path / f"drawn-{rank}" for rank in range(comm.size - samplers, comm.size)]

    def count(self, *arguments) -> None:
        original(self, *arguments)
        with open(mpi_tmp_path / f"drawn-{comm.rank}", "a") as file:
            file.write(".")

    def work(trainer: Trainer) -> int:
        session, taken = trainer.session, 0
        assert sum(len(edges.src) for edges in session.partition.edges) == 0
        with session.plans("train", 0) as plans:
            for taken, _ in zip(range(1, 4), plans, strict=False):
                until = time.monotonic() + 60
                while not all(_size(path) == taken + 2 + 4 for path in drawn) and time.monotonic() < until:
                    time.sleep(0.01)
                time.sleep(0.1)
                assert [_size(path) for path in drawn] == [taken + 2 + 4] * samplers
        assert sum(draw.num_pending for draw in session.loaders["train"].remote.draws) <= 4
        return 0

    monkeypatch.setattr(SamplerRank, "_draw", count)
    config = static_config(sampling__prefetch=2, sampling__in_flight=2, train__batch_size=4)
    run_crew(part, samplers, parts, mpi_tmp_path, config, work, server_buffer=4)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@on(*SIDES)
@pytest.mark.parametrize("make", [plain, friends])
def test_a_run_resumes_with_other_samplers(comm, side, mpi_tmp_path, make):
    """Stopped with samplers and resumed without, and the other way round: as if it had never stopped."""
    part, samplers = side
    parts = make_static_parts(comm, make, mpi_tmp_path)
    changes = {} if make is plain else LINK | {"train__epochs": 2}
    config = static_config(**changes, train__checkpoint_every=2)
    for first, then in ((samplers, 0), (0, samplers)):
        folder = mpi_tmp_path / str(first)
        if comm.rank == 0:
            (folder / "alone-0").mkdir(parents=True)
        comm.Barrier()
        run_crew(part, first, parts, folder, config, _stop_after_three)
        run_crew(part, then, parts, folder, config, _resume)
        if comm.rank == 0:
            reference_run(parts, folder, config)
            assert_same_records(folder, folder / "alone-0")
        comm.Barrier()


def _stop_after_three(trainer: Trainer) -> int:
    steps = iter(range(1000))
    trainer._stop = type("Stop", (), {"requested": property(lambda _: next(steps) >= 3)})()
    code = trainer.run()
    assert code == 75
    return code


def _resume(trainer: Trainer) -> int:
    trainer.resume()
    assert trainer.progress.global_step in (2, 3, 4)
    return trainer.run()


@on(*SIDES)
def test_plans_that_are_given_up_are_taken(comm, side, mpi_tmp_path):
    """Stopped in the middle of an epoch, then another one: the same as from its start."""
    part, samplers = side
    parts, nodes = make_static_parts(comm, friends, mpi_tmp_path), []
    config = static_config(**LINK, sampling__in_flight=2)

    def epoch(trainer: Trainer, number: int, steps: int) -> list[list[int]]:
        trainer.start_epoch(number)
        with trainer.session.plans("train", number) as plans:
            chosen = [plan for plan, _ in zip(plans, range(steps), strict=False)]
        return [plan.batch.identity[0].tolist() for plan in chosen]

    def give_up(trainer: Trainer) -> int:
        epoch(trainer, 0, 1)
        nodes.extend([epoch(trainer, 1, 2), epoch(trainer, 1, 100), epoch(trainer, 0, 100)])
        return 75

    def check(trainer: Trainer) -> int:
        assert nodes[0] == nodes[1][:2]
        assert nodes[1:] == [epoch(trainer, 1, 100), epoch(trainer, 0, 100)]
        return 0

    for work in (give_up, check):
        run_crew(part, samplers, parts, mpi_tmp_path, config, work)


@on((1, 1), (2, 2))
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task__classes": 2}, "label 3, but task.classes = 2"),  # trainers find out, before they ask
        ({"train__batch_size": 1000, "train__drop_last": True}, "drop_last leaves no batch"),  # afterwards
        ({"sampling__relation_fanouts": {"a.b.c": [1, 1]}}, "no relation a.b.c"),  # both sides
    ],
)
def test_an_error_at_start_is_that_of_all_ranks(comm, side, mpi_tmp_path, changes, message):
    part, samplers = side
    parts = make_static_parts(comm, plain, mpi_tmp_path)
    with pytest.raises(DistributedError, match=message):
        run_crew(part, samplers, parts, mpi_tmp_path, static_config(**changes))


@on((1, 1), (2, 2))
def test_an_error_of_a_sampler_at_start_is_that_of_all_ranks(comm, side, mpi_tmp_path, monkeypatch):
    part, samplers = side
    parts = make_static_parts(comm, plain, mpi_tmp_path)

    def fail_without_columns(*arguments, **options):
        if not arguments[5]:  # columns, which trainers alone read
            raise OSError("part-3.h5: cannot be read")
        return open_graph_partition(*arguments, **options)

    monkeypatch.setattr("hpcgnn.static.graph.open_graph_partition", fail_without_columns)
    with pytest.raises(DistributedError, match=r"part-3\.h5: cannot be read"):
        run_crew(part, samplers, parts, mpi_tmp_path, static_config())


def test_samplers_must_leave_a_trainer(comm):
    world = World(CommConfig(device="cpu", threads=1, sampling_servers=comm.size), comm)
    with pytest.raises(
        DistributedError, match=f"sampling_servers {comm.size} leaves no trainer among {comm.size} ranks"
    ):
        Crew(world, 1)


def test_commands_that_open_a_run_refuse_samplers(comm):
    world = World(CommConfig(device="cpu", threads=1), comm)
    with pytest.raises(DistributedError, match=r"comm\.sampling_servers is for training"):
        parse(command_parser("evaluate", ""), ["run/", "--comm.sampling_servers=1"], world)


@pytest.mark.parametrize("max_bytes", [7, 1 << 20])
def test_lanes_carry_messages_of_any_length_in_order(comm, max_bytes):
    lane = Lane(comm.Dup(), max_bytes)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    messages = [np.full(length, length % 251, np.uint8) for length in (3, 0, 20_000, 7, 8)]
    for _ in range(3):
        for message in messages:
            lane.send(message, after)
        for message in messages:
            np.testing.assert_array_equal(lane.receive(before), message)
        lane.flush()
        assert lane.num_held() == len(lane._sending) == 0
    for _ in range(40):
        lane.send(messages[0], after)
        lane.receive(before)
        comm.Barrier()
    assert len(lane._sending) < 20  # what is sent is let go with a later message


@pytest.mark.parametrize(("trainers", "samplers"), [(1, 1), (1, 4), (4, 1), (2, 5), (5, 2), (3, 3), (7, 6)])
def test_everyone_asks_one_and_every_sampler_hears_one(trainers, samplers):
    mapping = Mapping(trainers, samplers)
    asked = [mapping.askers(sampler) for sampler in range(samplers)]
    assert [trainer for those in asked for trainer in those] == list(range(trainers))
    assert mapping.rounds == max(map(len, asked)) == -(-trainers // samplers)
    told = sorted(sampler for trainer in range(trainers) for sampler in mapping.followers(trainer))
    assert told == [sampler for sampler in range(samplers) if not asked[sampler]]
    assert all(mapping.source(sampler) in range(trainers) for sampler in told)


def test_messages_come_back_as_they_were():
    ids = [(1, np.array([5, 1 << 40], np.int64)), (0, np.empty(0, np.int64))]
    found = read_request(Request(7, 3, True, ids).pack())
    assert (found.epoch, found.step, found.training) == (7, 3, True)
    assert [(kind, values.tolist()) for kind, values in found.groups] == [(1, [5, 1 << 40]), (0, [])]
    assert read_request(Request(0, 0, False, []).pack()).groups == []
    assert read_request(Leave(75, "Grüße", True).pack()) == Leave(75, "Grüße", True)
    block = Block((Adjacency(2, 1, 0, torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1])),), (4, 2), (2, 1))
    drawn = Drawn([np.array([1, 0, 1])], (block, Block((), (2, 1), (0, 1))), [np.arange(4), np.array([9, 1 << 40])])
    again = read_drawn(pack_drawn(drawn))
    for one, other in zip([*again.places, *again.input_ids], [*drawn.places, *drawn.input_ids], strict=True):
        assert one.dtype == np.int64
        np.testing.assert_array_equal(one, other)
    assert again.blocks[1] == drawn.blocks[1]
    (one,), (other,) = again.blocks[0].relations, block.relations
    assert (one.relation, one.src_type, one.dst_type) == (2, 1, 0)
    assert torch.equal(one.indptr, other.indptr)
    assert torch.equal(one.source, other.source)


def test_draws_announce_the_features_that_follow():
    of_type = (torch.ones(3, 2), None, torch.ones(0, 4, dtype=torch.bfloat16), torch.ones(1, 5, dtype=torch.float64))
    again = read_drawn(pack_drawn(Drawn([], (), [np.arange(count) for count in (3, 2, 0, 1)], of_type)))
    assert [rows if rows is None else (rows.shape, rows.dtype) for rows in again.features] == [
        rows if rows is None else (rows.shape, rows.dtype) for rows in of_type
    ]


@pytest.mark.parametrize("changes", [{"sampling_servers": -1}, {"server_buffer": -1}])
def test_negative_numbers_are_refused(changes):
    with pytest.raises(ValueError, match=r"comm\.sampling_servers and comm\.server_buffer"):
        CommConfig(**changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"eval__exact": True, "features__cache_ratio": 0.1}, r"eval\.exact, features\.cache_ratio"),
        ({**LINK, "eval__ranking": "filtered", "task__decoder": "dot"}, r"eval\.ranking"),
        ({"features__storage": "pinned"}, r"features\.storage pinned"),
    ],
)
def test_what_needs_features_beside_the_model_is_refused(changes, named):
    with pytest.raises(ValueError, match=rf"ranks that train hold no features: leave out {named}, or comm\."):
        static_config(**changes, comm__sampling_servers=1, comm__server_features=True)


def test_features_need_samplers_to_hold_them():
    with pytest.raises(ValueError, match=r"there are no sampling servers; set comm\.sampling_servers"):
        CommConfig(server_features=True)


def test_temporal_runs_refuse_samplers():
    with pytest.raises(ValueError, match=r"comm\.sampling_servers is for static graphs"):
        TemporalConfig(comm=CommConfig(sampling_servers=1))
