"""The example of an encoder for each node type: trains, evaluates exactly and answers, on any number of ranks."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import pytest
from link_graphs import shop
from places import REPOSITORY
from run_commands import asked
from static_runs import make_static_parts, open_graph_session
from test_graph_links import BUYS, link_config
from test_graph_training import run_both
from test_sampled_predictions import by_row
from torch import nn

from hpcgnn.loop.links import best_answers
from hpcgnn.static.inference import infer
from hpcgnn.static.predict import links_of, read_pairs, score_pairs
from hpcgnn.static.sampled import sampled_outputs

USERS, ITEMS = 40, 30


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(REPOSITORY / "examples" / "further"), *sys.path])


def test_training_with_exact_evaluation_is_the_same_on_any_number_of_ranks(comm, mpi_tmp_path):
    parts = make_static_parts(comm, shop, mpi_tmp_path)
    run_both(
        comm,
        parts,
        mpi_tmp_path,
        link_config(model__class_path="two_encoders.TwoEncoders", task__relation=BUYS, eval__exact=True),
    )


def test_pairs_and_best_items(comm, mpi_tmp_path):
    """Outputs of all nodes are those of samples of all neighbors; scores of pairs are their products, and the best
    items have the highest of them."""
    parts = make_static_parts(comm, shop, mpi_tmp_path)
    config = link_config(
        model__class_path="two_encoders.TwoEncoders", task__relation=BUYS, sampling__fanouts=[-1, -1]
    )  # fmt: skip
    session = open_graph_session(comm, parts, config)
    kinds = dict(zip(session.partition.types, session.model.encoders, strict=True))
    assert [type(kinds[name]) for name in ("user", "item")] == [nn.Linear, nn.Sequential]
    exact, sampled = by_row(session, infer(session)), by_row(session, sampled_outputs(session))
    src, dst = np.divmod(np.arange(USERS * ITEMS), ITEMS)
    pairs = asked(partial(read_pairs, session), src=src.tolist(), dst=dst.tolist())
    score = score_pairs(session, pairs).slab("score", 0, session.world)
    best = best_answers(links_of(session, "src"), 3)
    table = {name: best.slab(name, 0, session.world) for name in best.columns}
    if comm.rank == 0:
        np.testing.assert_allclose(exact, sampled, rtol=1e-9, atol=1e-12)
        sizes = [{"user": USERS, "item": ITEMS}[name] for name in session.partition.types]
        rows = dict(zip(session.partition.types, np.split(exact, [sizes[0]]), strict=True))
        expected = rows["user"] @ rows["item"].T
        np.testing.assert_allclose(score, expected.ravel(), rtol=1e-9, atol=1e-12)
        order = np.argsort(-expected, axis=1, kind="stable")[:, :3]
        assert table["dst"].tolist() == order.ravel().tolist()
    session.close()
