"""MPI libraries have but some thousand communicators: a run makes its own when it begins, and no more."""

from __future__ import annotations

import itertools

import pytest
from mpi4py import MPI
from selection import long_but

import hpcgnn
from hpcgnn import kinds
from hpcgnn.bench import command
from hpcgnn.comm import exchange
from hpcgnn.comm.ledger import Ledger
from hpcgnn.comm.watchdog import Watchdog
from hpcgnn.comm.world import CommConfig, DistributedError, World
from hpcgnn.snapshots.config import SnapshotConfig
from hpcgnn.static.config import StaticConfig
from hpcgnn.temporal.config import TemporalConfig


def small_config(kind):
    """Of few nodes, events and snapshots, with several steps an epoch."""
    data = {
        TemporalConfig: {"synthetic_events": 1500}, StaticConfig: {"synthetic_nodes": 400},
        SnapshotConfig: {"synthetic_nodes": 60, "synthetic_snapshots": 12},
    }  # fmt: skip
    train = {"batch_size": 50} if kind is not SnapshotConfig else {}
    return kind.from_dict({"data": data[kind], "train": train})


@pytest.mark.parametrize("make_config", [TemporalConfig, SnapshotConfig, StaticConfig])
def test_a_run_makes_no_communicators_on_its_way(comm, mpi_tmp_path, monkeypatch, make_config):
    """Whatever it trains, scores and plans ahead."""
    config, made, make = small_config(make_config), [], exchange.Channel.__init__
    config.comm, config.sampling.prefetch = CommConfig(device="cpu", threads=1, watchdog_seconds=0), 2
    if comm.rank == 0:
        kinds.make_built_in(config, mpi_tmp_path / "parts")
    comm.Barrier()

    def count(channel: exchange.Channel, *given, **named) -> None:
        made.append(channel)
        make(channel, *given, **named)

    monkeypatch.setattr(exchange.Channel, "__init__", count)
    folder, world = mpi_tmp_path / f"run-{comm.rank}", World(config.comm, comm)
    with command.training(kinds.open_session, config, str(mpi_tmp_path / "parts"), folder, world) as (session, trainer):
        at_the_start = len(made)
        assert at_the_start > 0
        for epoch in range(2):
            trainer.start_epoch(epoch)
            with session.plans("train", epoch) as plans:
                for plan in itertools.islice(plans, 3):
                    trainer.train_step(plan)
            session.memory.reset()
            session.scores("val")
        assert len(made) == at_the_start


class Counted(MPI.Intracomm):
    """A communicator that counts those that are made of it, and of these, and are not freed."""

    live = 0

    def Dup(self, info=MPI.INFO_NULL):
        return self.count(super().Dup(info))

    def Split(self, color=0, key=0):
        return self.count(super().Split(color, key))

    def Split_type(self, *arguments, **options):
        return self.count(super().Split_type(*arguments, **options))

    def count(self, made):
        """One more, but for a rank that was left out."""
        Counted.live += made != MPI.COMM_NULL
        return Counted(made)

    def Free(self):
        Counted.live -= 1
        super().Free()


@pytest.mark.parametrize("ranks_per_machine", long_but([0, 2], (2).__eq__))
@pytest.mark.parametrize("make_config", [TemporalConfig, SnapshotConfig, StaticConfig])
def test_a_session_frees_what_it_made(comm, mpi_tmp_path, monkeypatch, make_config, ranks_per_machine):
    """Its own communicators, the nodes' among them, and its world's: a service may open a run every minute."""
    config = small_config(make_config)
    config.comm = CommConfig(device="cpu", threads=1, watchdog_seconds=0, ranks_per_machine=ranks_per_machine)
    if comm.rank == 0:
        kinds.make_built_in(config, mpi_tmp_path / "parts")
    comm.Barrier()
    monkeypatch.setattr(Counted, "live", 0)
    for _ in range(2):
        world = World(config.comm, Counted(comm))
        group = world.split(2)
        session = kinds.open_session(config, str(mpi_tmp_path / "parts"), group, Watchdog(world, 0))
        session.scores("val")
        session.close()
        del session
        if group is not world:
            group.close()
        world.close()
        del group
        assert Counted.live == 0
        monkeypatch.setattr(Counted, "live", 0)


def fails(scores):
    """A metric that cannot be computed."""
    raise ArithmeticError


def test_calls_from_python_free_what_they_made(mpi_tmp_path, monkeypatch):
    """The watchdogs' communicators, too, and after errors: before there is a session, and in the midst of a run."""
    live, remember = [0], Ledger._remember

    def count(self, made):
        live[0] += made != MPI.COMM_NULL
        return remember(self, made)

    def free(self):
        live[0] -= 1
        MPI.Intracomm.Free(self)

    monkeypatch.setattr(Ledger, "_remember", count)
    monkeypatch.setattr(Ledger, "Free", free)
    config = {"comm.device": "cpu", "train.epochs": 1, "data.synthetic_nodes": 100, "model.hidden": 8}
    parts = mpi_tmp_path / "run" / "data" / "parts"
    run = hpcgnn.fit(kind="static", config=config, folder=mpi_tmp_path / "run", quiet=True)
    run.evaluate()
    assert live == [0]
    for act in (
        lambda: run.evaluate({"eval.none": 1}),
        lambda: run.predict(nodes={"node": ["no such node"]}),
        lambda: hpcgnn.fit(parts, config=config | {"train.metrics": [fails]}, folder=mpi_tmp_path / "two", quiet=True),
    ):
        with pytest.raises(DistributedError):
            act()
        assert live == [0]
