"""Models of one's own: their buffers are in checkpoints, and parts that know the rows of a rank are refused."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest
import torch
from snapshot_runs import make_config as snapshot_config
from snapshot_runs import make_parts as make_snapshot_parts
from snapshot_runs import open_session as open_snapshot_session
from static_runs import make_static_parts, open_graph_session, plain, static_config
from test_stops import StopAt, run
from torch import nn
from training_runs import homogeneous, make_config, make_parts, on_rank_0, open_session

from hpcgnn.comm.world import DistributedError
from hpcgnn.loop import checkpoint
from hpcgnn.loop.checkpoint_writer import initialize, load
from hpcgnn.loop.launch import EXIT_DONE, EXIT_REQUEUE, StopRequest
from hpcgnn.loop.session import split_metrics
from hpcgnn.nn.own_class import check_parts
from hpcgnn.snapshots.model.recurrent import TGCN
from hpcgnn.static.model.models import ResidualModel
from hpcgnn.temporal.model.model import TemporalModel


class Moving:
    """Scales by how many steps of training it has seen."""

    moving: torch.Tensor

    def add_buffers(self) -> None:
        """One that moves, and one that is no part of checkpoints."""
        self.register_buffer("moving", torch.zeros(1, 1))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def scaled(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows, scaled."""
        if self.training:
            self.moving = self.moving + 1
        return rows * torch.exp(self.moving / 20)


class MovingGraph(Moving, ResidualModel):
    """Of static graphs."""

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        self.add_buffers()

    def last(self, rows):
        """Scaled outputs."""
        return self.scaled(super().last(rows))


class MovingEvents(Moving, TemporalModel):
    """Of temporal graphs."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.add_buffers()

    def embed(self, *arguments):
        """Scaled embeddings."""
        return self.scaled(super().embed(*arguments))


class MovingSnapshots(Moving, TGCN):
    """Of snapshots."""

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        self.add_buffers()

    def forward(self, frames, state):
        """Scaled outputs."""
        outputs, state = super().forward(frames, state)
        return [self.scaled(rows) for rows in outputs], state


@pytest.fixture(params=["static", "temporal", "snapshots"])
def opened(request, comm, mpi_tmp_path):
    """A function that opens a session with a model of one's own, with changes of the configuration."""
    if request.param == "static":
        parts = make_static_parts(comm, plain, mpi_tmp_path)
        make, own, config = open_graph_session, "MovingGraph", partial(static_config, train__epochs=3)
    elif request.param == "temporal":
        graph = on_rank_0(comm, lambda: homogeneous(mpi_tmp_path / "graph.h5"))
        parts = make_parts(comm, graph, mpi_tmp_path / "parts")
        make, own, config = open_session, "MovingEvents", partial(make_config, train__epochs=3, train__log_every=1)
    else:
        parts = make_snapshot_parts(comm, mpi_tmp_path)
        config = partial(snapshot_config, train__epochs=3, train__batch_size=2, train__log_every=1, inputs__lags=1)
        make, own = open_snapshot_session, "MovingSnapshots"

    def session(**changes):
        return make(comm, parts, config(**{"model__class_path": f"{__name__}.{own}", **changes}))

    return session


def read(folder) -> list[str]:
    """The lines of metrics.jsonl, numbers to nine digits, without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        str({key: f"{v:.9e}" if isinstance(v, float) else v for key, v in line.items() if "second" not in key})
        for line in lines
    ]


def test_buffers_go_with_the_weights(comm, mpi_tmp_path, opened):
    """A resumed run, the test of the best epoch and its evaluation have those of that moment."""
    assert run(comm, opened(), mpi_tmp_path / "whole", StopRequest())[0] == EXIT_DONE
    session, folder = opened(), mpi_tmp_path / "cut"
    steps = session.batches["train"].num_steps
    assert run(comm, session, folder, StopAt(steps + steps // 2 + 2))[0] == EXIT_REQUEUE
    comm.barrier()
    assert run(comm, opened(), folder, StopRequest(), resume=True)[0] == EXIT_DONE
    comm.barrier()
    assert read(folder) == read(mpi_tmp_path / "whole")
    again, tested = opened(), json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    load(again, checkpoint.find_best(folder / "checkpoints"))
    assert again.model.moving.item() > 0
    for split in ("val", "test"):
        metrics = {f"{split}_{name}": v for name, v in split_metrics(again, split, again.scores(split)).items()}
        known = {name: value for name, value in metrics.items() if not math.isnan(value)}
        assert known == pytest.approx({name: tested[name] for name in known}, rel=1e-9)
    held = checkpoint.load_tensors(checkpoint.find_best(folder / "checkpoints"))
    assert "buffer.moving" in held
    assert "buffer.scratch" not in held


def test_a_checkpoint_without_a_buffer_is_refused(comm, mpi_tmp_path, opened):
    """As one that an earlier version wrote."""
    session, folder = opened(train__epochs=1), mpi_tmp_path / "run"
    assert run(comm, session, folder, StopRequest())[0] == EXIT_DONE
    comm.barrier()
    session.model.moving = torch.zeros(2, 1)  # a stored buffer of one row would fill both
    with pytest.raises(DistributedError, match=r"holds no buffer moving \[2, 1\]"):
        load(session, checkpoint.find_best(folder / "checkpoints"))
    session.model.moving = torch.zeros(1, 1)
    session.model.register_buffer("later", torch.zeros(3))
    with pytest.raises(DistributedError, match=r"holds no buffer later \[3\]"):
        load(session, checkpoint.find_best(folder / "checkpoints"))


@pytest.mark.parametrize("opened", ["temporal"], indirect=True)
def test_weights_of_another_run_bring_their_buffers(comm, mpi_tmp_path, opened):
    """``train.init`` takes those of the body."""
    session, folder = opened(train__epochs=1), mpi_tmp_path / "run"
    assert run(comm, session, folder, StopRequest())[0] == EXIT_DONE
    comm.barrier()
    anew = opened()
    initialize(anew, folder)
    assert anew.model.moving.item() == session.model.moving.item() > 0


@pytest.mark.serial
@pytest.mark.parametrize(
    ("part", "words"),
    [
        (nn.BatchNorm1d(3), r"inner\.0 is a torch\.nn\.BatchNorm1d, .* take torch\.nn\.LayerNorm"),
        (nn.SyncBatchNorm(3), "SyncBatchNorm"),
        (nn.Dropout(0.1), r"torch\.nn\.Dropout, .* keyed by nodes: hpcgnn\.static\.model\.models\.drop"),
        (nn.AlphaDropout(0.1), "AlphaDropout"),
        (nn.GRU(3, 3, num_layers=2, dropout=0.2), r"torch\.nn\.GRU"),
        (nn.TransformerEncoderLayer(4, 2), r"MultiheadAttention"),
    ],
)
def test_parts_that_depend_on_the_rows_of_a_rank(part, words):
    model = nn.Module()
    model.inner = nn.Sequential(part)
    with pytest.raises(ValueError, match=rf"model\.class_path 'mine\.Model': .*{words}"):
        check_parts(model, "mine.Model")


@pytest.mark.serial
def test_parts_that_do_not():
    parts = nn.LayerNorm(3), nn.Dropout(0.0), nn.GRU(3, 3), nn.TransformerEncoderLayer(4, 2, dropout=0.0)
    check_parts(nn.Sequential(*parts), "mine.Model")


class Forbidden(MovingGraph):
    """With dropout that knows no nodes."""

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        self.drop = nn.Dropout(0.5)


class ForbiddenEvents(MovingEvents):
    """With dropout that knows no nodes."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.drop = nn.Dropout(0.5)


class ForbiddenSnapshots(MovingSnapshots):
    """With dropout that knows no nodes."""

    def __init__(self, config, sizes):
        super().__init__(config, sizes)
        self.drop = nn.Dropout(0.5)


def test_such_a_model_is_refused(opened):
    own = opened().config.model.class_path.rpartition(".")[2].replace("Moving", "Forbidden").removesuffix("Graph")
    with pytest.raises(DistributedError, match=rf"{own}': drop is a torch\.nn\.Dropout"):
        opened(model__class_path=f"{__name__}.{own}")
