"""A part is added by a row of its table alone: configuration, help, training and evaluation take it from there."""

from __future__ import annotations

from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from training_runs import assert_same, bipartite, make_config, make_parts, on_rank_0, open_session, record_epoch

from hpcgnn import config as configuration
from hpcgnn.comm.route import Route
from hpcgnn.comm.world import DistributedError
from hpcgnn.keys import entry, keys
from hpcgnn.loop.session import split_metrics
from hpcgnn.temporal.baselines import BASELINES, Baseline, BaselinePart, baseline_metrics
from hpcgnn.temporal.eval_negatives import EVAL_NEGATIVES, EvalNegativesPart, draw_random
from hpcgnn.temporal.model.readout import READOUTS, IdentityReadout, ReadoutPart
from hpcgnn.temporal.model.updater import UPDATERS, UpdaterPart, take_rows
from hpcgnn.temporal.negatives import PairHistory
from hpcgnn.train_help import keys_text

SAYS = "a part of this test"


class BlendUpdater(nn.Module):
    """The mean of the state and of a product of the mail."""

    def __init__(self, sizes):
        super().__init__()
        self.product = nn.Linear(sizes.mail_width, sizes.memory_width)

    def forward(self, state, mail, updated, mailed, delivered, index=None):
        state, mail, delivered = take_rows(index, state, mail, delivered)
        new = (state + torch.tanh(self.product(mail[:, 0]))) / 2
        return torch.where((delivered > 0).unsqueeze(1), new, state)


class SquashedReadout(IdentityReadout):
    """The root's own row between -1 and 1."""

    def forward(self, node, query, dropout=None, last=None):
        return torch.tanh(super().forward(node, query))


class Recency(Baseline):
    """The sooner a pair met before the event, the likelier it is; pairs that never met have 0."""

    def __init__(self, graph, config):
        super().__init__(graph, config)
        self._history = PairHistory(graph.partition, graph.channel)

    def score_pairs(self, src, dst, time, before, step):
        row, last = self._history.last_before(src, dst, np.full(len(src), before))
        return np.where(row >= 0, 1 / (1.0 + time - last), 0.0)


class Popularity(Baseline):
    """The number of earlier events of the destination."""

    def score_pairs(self, src, dst, time, before, step):
        partition, (nodes, place) = self.graph.partition, np.unique(dst, return_inverse=True)
        earlier = np.concatenate(([0], np.cumsum(partition.history.event < before)))
        counts = np.diff(earlier[partition.history.indptr])
        (of_nodes,) = Route.plan(partition.book, nodes, self.graph.channel).pull(torch.from_numpy(counts))
        return of_nodes.numpy()[place].astype(np.float64)


def draw_others(batches, source):
    """Other random negatives than the built-in ones."""
    return draw_random(batches, replace(source, seed=source.seed + 1))


# key: (table, row)
PARTS = {
    "memory.updater": (UPDATERS, UpdaterPart(BlendUpdater, SAYS)),
    "model.readout": (READOUTS, ReadoutPart(SquashedReadout, SAYS, shows_memory=True)),
    "baseline.kind": (BASELINES, BaselinePart(Recency, SAYS)),
    "eval.negative_kind": (EVAL_NEGATIVES, EvalNegativesPart(draw_others, SAYS)),
}
WITH_ROW = pytest.mark.parametrize("key", PARTS)


@pytest.fixture(autouse=True)
def rows(monkeypatch):
    """Adds the rows to their tables, by the name "own"."""
    for table, row in PARTS.values():
        monkeypatch.setitem(table, "own", row)
    monkeypatch.setitem(BASELINES, "popularity", BaselinePart(Popularity, SAYS))


@pytest.fixture
def parts(comm, mpi_tmp_path):
    graph = mpi_tmp_path / "graph.h5"
    on_rank_0(comm, lambda: bipartite(graph) and None)
    return make_parts(comm, graph, mpi_tmp_path / "parts")


@pytest.mark.serial
@WITH_ROW
def test_a_row_is_a_choice_with_its_help(key):
    parser = configuration.parser("train", "")
    section, name = key.split(".")
    config, _ = configuration.parse(parser, [f"--{key}=own"])
    assert getattr(getattr(config, section), name) == "own"
    with pytest.raises(ValueError, match=rf"{key} must be one of .*\bown\b.*, got 'owned'"):
        configuration.parse(parser, [f"--{key}=owned"])
    (option,) = (one for one in keys("temporal") if one.name == key)
    assert f"own: {SAYS}" in " ".join(keys_text([entry(option)], 80).split())


@pytest.mark.serial
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory__updater": "own", "memory__mailbox_slots": 2}, "memory.updater own reads one mail"),
        ({"model__readout": "own", "memory__updater": "none"}, "model.readout own shows node memory"),
        ({"model__readout": "own", "model__layers": 2}, "model.readout own has one layer"),
    ],
)
def test_a_row_says_what_its_part_cannot_go_with(changes, message):
    with pytest.raises(ValueError, match=message):
        make_config(**changes)


@pytest.mark.parametrize("key", ["memory.updater", "model.readout"])
def test_a_row_trains_on_any_number_of_ranks(comm, parts, key):
    changes = {key.replace(".", "__"): "own"}
    own, built_in = (record_epoch(comm, parts, make_config(**keys)) for keys in (changes, {}))
    if comm.rank == 0:
        assert_same(own, record_epoch(MPI.COMM_SELF, parts, make_config(**changes)))
        assert own.losses[-1] < own.losses[0]
        assert not np.allclose(own.losses, built_in.losses, rtol=1e-6)


@pytest.mark.parametrize("kind", ["own", "popularity"])
def test_a_baseline_is_evaluated_on_any_number_of_ranks(comm, parts, kind):
    config = make_config(baseline__kind=kind)
    found = baseline_metrics(open_session(comm, parts, config), config.baseline)
    alone = baseline_metrics(open_session(MPI.COMM_SELF, parts, config), config.baseline)
    assert found == pytest.approx(alone, rel=1e-12, nan_ok=True)
    assert found["test_auc"] != 0.5


def share_met(scores: dict[str, np.ndarray]) -> float:
    return float(scores["positive"].mean())


def auc(scores: dict[str, np.ndarray]) -> float:
    return 0.0


def test_own_metrics_of_a_baseline(comm, parts):
    """From the scores that its other metrics are computed from; a name that is taken is refused."""
    config = make_config(baseline__kind="unlimited", train__metrics=[f"{__name__}.share_met"])
    session = open_session(comm, parts, config)
    found, seen, met = baseline_metrics(session, config.baseline), set(), []
    with h5py.File(parts.parent / "graph.h5") as file:
        (edges,) = file["edges"].values()
        pairs = list(zip(edges["src"][()].tolist(), edges["dst"][()].tolist(), strict=True))
    begin, end = (int(bound) for bound in session.graph.splits.bounds[2:])
    size = config.train.batch_size
    for row in range(begin, end):
        first = begin + (row - begin) // size * size
        seen = set(pairs[:first])
        met.append(pairs[row] in seen)
    assert found["test_share_met"] == pytest.approx(np.mean(met), rel=1e-6)
    config = make_config(baseline__kind="unlimited", train__metrics=[f"{__name__}.auc"])
    with pytest.raises(DistributedError, match="there is a metric auc already"):
        baseline_metrics(open_session(comm, parts, config), config.baseline)


@pytest.mark.serial
def test_callbacks_of_a_baseline_are_refused():
    """Except where it is evaluated in the place of a model that was trained with them."""
    with pytest.raises(ValueError, match=r"callbacks follow training, and baseline.kind unlimited trains nothing"):
        make_config(baseline__kind="unlimited", train__callbacks=["own.Callback"])
    trained = make_config(train__callbacks=["own.Callback"])
    assert trained.evaluated_by("", "", "unlimited").train.callbacks == []
    assert trained.train.callbacks == ["own.Callback"]


def test_negatives_are_evaluated_on_any_number_of_ranks(comm, parts):
    config = make_config(eval__negative_kind="own")
    measured = []
    for group in (comm, MPI.COMM_SELF):
        session = open_session(group, parts, config)
        measured.append(split_metrics(session, "val", session.scores("val")))
    assert measured[0] == pytest.approx(measured[1], rel=1e-9, nan_ok=True)
