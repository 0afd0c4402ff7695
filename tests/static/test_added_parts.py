"""Parts that a row of a table adds: a convolution, a decoder, a loss, a metric and a way to draw negatives."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from link_graphs import friends
from static_runs import make_static_parts
from test_graph_links import link_config
from test_graph_training import run_both
from torch import nn

from hpcgnn.keys import entry, keys
from hpcgnn.native.products import linear
from hpcgnn.nn.decoders import DECODERS, DecoderPart
from hpcgnn.static.model.convolutions import CONVOLUTIONS, ConvolutionPart, aggregate
from hpcgnn.task.losses import LOSSES, LossPart
from hpcgnn.task.metrics import METRICS, RANKS, MetricPart
from hpcgnn.task.negatives import NEGATIVES, NegativeDraw, NegativePart
from hpcgnn.train_help import keys_text


class GinConv(nn.Module):
    """weight (own row + sum of the neighbors' rows) + bias."""

    def __init__(self, in_width: int, out_width: int):
        super().__init__()
        self.product = nn.Linear(in_width, out_width)

    def forward(self, block, rows: torch.Tensor, degree, rectify: bool = False) -> torch.Tensor:
        assert len(degree) == len(rows)  # as the row asks for
        total = block.own(rows) + aggregate(rows, block.lists, block.weight, "sum")
        out = linear(total, self.product.weight, self.product.bias)
        return torch.relu(out) if rectify else out


class Opposites(nn.Module):
    """Scores a pair by how near both are to opposites; not to each other, or biases would have gradients of 0."""

    def forward(self, source, destination, relation=None) -> torch.Tensor:
        return -(source + destination).square().sum(-1)

    def all_pairs(self, query, candidate, relation=None, reverse: bool = False) -> torch.Tensor:
        return -(query.unsqueeze(1) + candidate).square().sum(-1)


def hinge_loss(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """What pairs lack to 1, and negatives have above -1."""
    return torch.relu(1 - positive).sum() + torch.relu(1 + negative).mean(0).sum()


class NextNodes(NegativeDraw):
    """The nodes that follow that of the edge's number, from another one on in every try."""

    def draw(self, random, rows: np.ndarray, count: int) -> np.ndarray:
        return (rows[:, None] + random.epoch + random.hop + np.arange(count)) % self.pool.size


ROWS = {
    "model.kind": (CONVOLUTIONS, "gin", ConvolutionPart(
        lambda shape: GinConv(shape.in_width, shape.out_width), "sum of own row and neighbors",
        node_columns=("degree",), one_relation=True,
    )),
    "task.decoder": (DECODERS, "opposites", DecoderPart(lambda sizes: Opposites(), "minus the square of the sum")),
    "task.loss": (LOSSES, "hinge", LossPart(lambda task: hinge_loss, "what is within a margin of 1")),
    "task.negative_kind": (NEGATIVES, "next", NegativePart(NextNodes, "nodes that follow the edge's number")),
}  # fmt: skip


@pytest.fixture
def added(monkeypatch) -> None:
    """All parts are in their tables."""
    for table, name, row in ROWS.values():
        monkeypatch.setitem(table, name, row)
    best = MetricPart(lambda ranks: ranks.mean(ranks.rank), "mean rank", (RANKS,), lower_is_better=True)
    monkeypatch.setitem(METRICS, "mean_rank", best)


def settings(**changes) -> dict:
    """A run with all added parts."""
    return {f"{key.replace('.', '__')}": name for key, (_, name, _) in ROWS.items()} | changes


@pytest.mark.serial
def test_added_parts_are_choices(added, monkeypatch):
    text = keys_text(map(entry, keys("static")), 10_000)
    for key, (_, name, row) in ROWS.items():
        assert f"{name}: {row.says}" in text
        with pytest.raises(ValueError, match=rf"{key} must be one of .*\b{name}.*, got 'no such word'"):
            link_config(**settings(**{key.replace(".", "__"): "no such word"}))
    for key, (table, name, _) in ROWS.items():
        monkeypatch.delitem(table, name)
        with pytest.raises(ValueError, match=f"{key} must be one of .*, got '{name}'"):
            link_config(**{key.replace(".", "__"): name})


@pytest.mark.parametrize("sharing", ["edge", "shared"])
def test_added_parts_give_one_answer(comm, mpi_tmp_path, added, sharing):
    parts = make_static_parts(comm, friends, mpi_tmp_path)
    config = link_config(
        **settings(task__negative_sharing=sharing, task__negatives=5, train__monitor="mean_rank", train__epochs=1)
    )
    run_both(comm, parts, mpi_tmp_path, config)
    if comm.rank == 0:
        records = [json.loads(line) for line in (mpi_tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        found = [value for record in records for name, value in record.items() if name.endswith("mean_rank")]
        assert len(found) >= 2
        assert min(found) >= 1
