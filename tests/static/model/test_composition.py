"""CompGCN against its equations in plain torch, node by node."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from graph_batches import random_graph, sample_batch
from link_graphs import facts
from static_runs import make_static_parts, open_graph_session
from test_graph_links import link_config
from test_typed_attention import COUNTS, RELATIONS, WIDTH, assert_equal, case, scrambled  # noqa: F401

from hpcgnn.static.config import GraphModelConfig
from hpcgnn.static.model.composition import CompGcnConv

BACK = [False, True, False, True, False]


def combined(row, relation, composition) -> torch.Tensor:
    """A row combined with a relation's; the correlation by its definition."""
    if composition == "corr":
        return torch.stack([(row * relation.roll(-shift)).sum() for shift in range(len(row))])
    return row * relation if composition == "mult" else row - relation


def compgcn(layer, rows, edges, composition, aggregator) -> torch.Tensor:
    """Stacked rows by the equations of Vashishth et al. (2020), node by node."""
    first, out = np.cumsum([0, *COUNTS]), []
    for node in range(sum(COUNTS)):
        total = layer.bias
        for direction, weight in enumerate(layer.weight):
            near = [
                combined(rows[source + first[src]], layer.relation[number], composition)
                for number, ((src, dst), pairs) in enumerate(zip(RELATIONS, edges, strict=True))
                for source, end in pairs.T
                if end + first[dst] == node and BACK[number] == direction
            ]
            if near:
                around = torch.stack(near).sum(0) / (len(near) if aggregator == "mean" else 1)
                total = total + around @ weight
        if layer.own is not None:
            total = total + combined(rows[node], layer.relation[-1], composition) @ layer.own
        out.append(total)
    return torch.stack(out)


@pytest.mark.parametrize("composition", ["mult", "sub", "corr"])
@pytest.mark.parametrize(("aggregator", "self_loop"), [("mean", True), ("sum", False)])
def test_compgcn_is_that_of_its_equations(case, composition, aggregator, self_loop):  # noqa: F811
    block, rows, edges = case
    layer = scrambled(CompGcnConv(WIDTH, 5, BACK, composition, aggregator, self_loop))
    assert len(layer.weight) == 2
    expected = compgcn(layer, rows, edges, composition, aggregator)
    assert_equal(layer(block, rows, None), expected, rows)
    torch.testing.assert_close(layer(block, rows, None, rectify=True), torch.relu(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.serial
def test_a_graph_without_edges_back_has_one_matrix_for_edges():
    layer = CompGcnConv(WIDTH, 5, [False] * len(RELATIONS), "mult", "mean", True)
    assert layer.weight.shape == (1, WIDTH, 5)
    batch = sample_batch(random_graph(np.random.default_rng(2), COUNTS, RELATIONS, 4), [np.arange(0)] * 3, [-1])
    assert layer(batch.blocks[0], torch.empty(0, WIDTH), None).shape == (0, 5)


@pytest.mark.serial
def test_a_maximum_over_edges_is_refused():
    with pytest.raises(ValueError, match=r"compgcn adds up its messages: use model.aggregator mean or sum"):
        GraphModelConfig(kind="compgcn", aggregator="max")


@pytest.mark.parametrize(("messages", "matrices"), [("typed", 1), ("both", 2)])
def test_edges_that_lead_back_have_a_matrix_of_their_own(comm, mpi_tmp_path, messages, matrices):
    parts = make_static_parts(comm, facts, mpi_tmp_path)
    changes = {"task__message_edges": messages, "task__decoder": "distmult", "model__kind": "compgcn"}
    session = open_graph_session(comm, parts, link_config(**changes))
    layers = [layer for layer in session.model.modules() if isinstance(layer, CompGcnConv)]
    assert [len(layer.weight) for layer in layers] == [matrices, matrices]
    half = len(session.partition.relations) // matrices
    assert layers[0].is_back.tolist() == [False] * half + [True] * half * (matrices - 1)
