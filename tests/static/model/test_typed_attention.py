"""HAN and HGT against PyTorch Geometric, SimpleHGN against its equations in plain torch; HAN on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from graph_batches import random_graph, sample_batch
from mpi4py import MPI
from static_runs import make_static_parts, open_graph_trainer, static_config, typed
from test_full_graph import learn, learnable_rows
from torch.nn import functional
from torch_geometric.nn import HANConv, HGTConv

from hpcgnn.static.config import GraphModelConfig
from hpcgnn.static.model.models import GraphSizes, make_model
from hpcgnn.static.model.typed_attention import HanConv, HgtConv, SimpleHgnConv

COUNTS, RELATIONS = (30, 20, 4), ((0, 0), (0, 1), (1, 0), (2, 0), (1, 1))  # no relation into the third type
WIDTH, HEADS = 6, 2
NAMES = [("abc"[src], f"r{number}", "abc"[dst]) for number, (src, dst) in enumerate(RELATIONS)]
METADATA = (list("abc"), NAMES)


@pytest.fixture
def case():
    """The block of a whole graph, its stacked rows [54, WIDTH], and the edges [2, E] of each relation."""
    torch.manual_seed(0)
    graph = random_graph(np.random.default_rng(2), COUNTS, RELATIONS, 4)
    (block,) = sample_batch(graph, [np.arange(count) for count in COUNTS], [-1]).blocks
    edges = []
    for lists in graph.neighbors:
        destination = np.repeat(np.arange(len(lists)), list(map(len, lists)))
        edges.append(torch.from_numpy(np.stack([np.concatenate(lists).astype(np.int64), destination])))
    return block, torch.randn(sum(COUNTS), WIDTH).double().requires_grad_(), edges


def scrambled(layer):
    """The layer in float64, no parameter of which is 0 or 1."""
    layer = layer.double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def theirs(layer, rows, edges) -> torch.Tensor:
    """Stacked rows of the first two types by a layer of PyTorch Geometric."""
    by_type = layer(dict(zip("abc", rows.split(COUNTS), strict=True)), dict(zip(NAMES, edges, strict=True)))
    return torch.cat([by_type[name] for name in "ab"])


def assert_equal(found, expected, rows) -> None:
    """The same rows of the types with relations, and the same gradients."""
    found = found[: len(expected)]
    weight = torch.randn_like(expected)
    gradients = [torch.autograd.grad((each * weight).sum(), rows)[0] for each in (found, expected)]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_han_is_that_of_pyg(case):
    block, rows, edges = case
    ours = scrambled(HanConv(WIDTH, 8, HEADS, len(COUNTS), RELATIONS))
    reference = HANConv(dict.fromkeys("abc", WIDTH), 8, METADATA, HEADS).double()
    with torch.no_grad():
        for kind, name in enumerate("abc"):
            reference.proj[name].weight.copy_(ours.product.weight[kind].T)
            reference.proj[name].bias.copy_(ours.product.bias[kind])
        for number, name in enumerate(NAMES):
            reference.lin_src["__".join(name)].copy_(ours.source[number][None])
            reference.lin_dst["__".join(name)].copy_(ours.target[number][None])
        reference.k_lin.load_state_dict(ours.relation.state_dict())
        reference.q.copy_(ours.query)
    wide = ours(block, rows, None)
    found = ours.mixed(wide, COUNTS, ours.sums(wide, COUNTS))
    assert_equal(found, theirs(reference, rows, edges), rows)
    assert not found[50:].any()


@pytest.mark.parametrize("out_width", [WIDTH, 8])
def test_hgt_is_that_of_pyg(case, out_width):
    """With the share of the node's row, and, where widths differ, without."""
    block, rows, edges = case
    ours = scrambled(HgtConv(WIDTH, out_width, out_width, HEADS, len(COUNTS), len(RELATIONS)))
    reference = HGTConv(dict.fromkeys("abc", WIDTH), out_width, METADATA, HEADS).double()
    with torch.no_grad():
        for kind, name in enumerate("abc"):
            parts = ours.key, ours.query, ours.value
            reference.kqv_lin.lins[name].weight.copy_(torch.cat([part.weight[kind].T for part in parts]))
            reference.kqv_lin.lins[name].bias.copy_(torch.cat([part.bias[kind] for part in parts]))
            reference.out_lin.lins[name].weight.copy_(ours.output.weight[kind].T)
            reference.out_lin.lins[name].bias.copy_(ours.output.bias[kind])
            if ours.skip is not None:
                reference.skip[name].copy_(ours.skip[kind])
        for number, name in enumerate(NAMES):
            reference.p_rel["__".join(name)].copy_(ours.prior[number][None])
        reference.k_rel.weight.copy_(ours.key_relation.transpose(0, 1).flatten(0, 1))
        reference.v_rel.weight.copy_(ours.value_relation.transpose(0, 1).flatten(0, 1))
    assert_equal(ours(block, rows, None), theirs(reference, rows, edges), rows)


def simple_hgn(layer, rows, edges) -> torch.Tensor:
    """Stacked rows by the equations of Lv et al. (2021), node by node."""
    first, out = np.cumsum([0, *COUNTS]), []
    values = (rows @ layer.weight).unflatten(1, (HEADS, -1))
    types = (layer.edge_types @ layer.edge_weight).unflatten(1, (HEADS, -1))
    for node in range(sum(COUNTS)):
        near = [
            (int(source + first[src]), number)
            for number, ((src, dst), pairs) in enumerate(zip(RELATIONS, edges, strict=True))
            for source, end in pairs.T
            if end + first[dst] == node
        ]
        near += [(node, len(RELATIONS))] * layer.self_loop
        if not near:
            out.append(torch.zeros(HEADS * values.shape[2], dtype=rows.dtype))
            continue
        source, number = map(list, zip(*near, strict=True))
        scores = values[source] * layer.source + values[node] * layer.target + types[number] * layer.edge
        share = functional.leaky_relu(scores.sum(2), 0.2).softmax(0)
        out.append((share.unsqueeze(2) * values[source]).sum(0).flatten())
    heads = torch.stack(out)
    around = heads.unflatten(1, (HEADS, -1)).mean(1) if layer.last else heads
    around = around + (rows if around.shape[1] == rows.shape[1] else rows @ layer.residual)
    return around / around.norm(dim=1, keepdim=True) if layer.last else around


@pytest.mark.parametrize(("head_width", "self_loop", "last"), [(3, True, False), (4, False, False), (5, True, True)])
def test_simple_hgn_is_that_of_its_equations(case, head_width, self_loop, last):
    block, rows, edges = case
    layer = scrambled(SimpleHgnConv(WIDTH, head_width, HEADS, len(RELATIONS), self_loop, last))
    assert (layer.residual is None) == (head_width == 3)
    assert_equal(layer(block, rows, None), simple_hgn(layer, rows, edges), rows)


@pytest.mark.parametrize("layers", [1, 2])
def test_han_gives_one_answer_on_any_number_of_ranks(comm, mpi_tmp_path, layers):
    parts = make_static_parts(comm, typed, mpi_tmp_path)
    keys = {"train__full_graph": True, "model__kind": "han", "model__layers": layers, "model__input_dropout": 0.2}
    found, alone = (
        open_graph_trainer(each, parts, mpi_tmp_path, static_config(**keys)) for each in (comm, MPI.COMM_SELF)
    )
    assert learn(found) == pytest.approx(learn(alone), rel=1e-9)
    close = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(found.flat.parameter.detach(), alone.flat.parameter.detach(), **close)
    torch.testing.assert_close(learnable_rows(found.session), learnable_rows(alone.session), **close)


@pytest.mark.serial
def test_what_does_not_go_with_these_kinds_is_refused():
    with pytest.raises(ValueError, match=r"han weighs relations by means over all nodes: set train.full_graph true"):
        static_config(model__kind="han")
    for kind, key, named in (
        ("simple_hgn", "residual", "adds the node's row itself"), ("han", "residual", "has no residual blocks"),
        ("hgt", "bases", "model.bases shares"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=named):
            GraphModelConfig(kind=kind, **{key: 1})
    graph = random_graph(np.random.default_rng(2), COUNTS, RELATIONS, 4)
    batch = sample_batch(graph, [np.arange(count) for count in COUNTS], [-1])
    relation = batch.blocks[0].relations[0]
    object.__setattr__(relation, "weight", torch.ones(len(relation.source)))
    for kind in ("han", "hgt", "simple_hgn"):
        model = make_model(GraphModelConfig(kind=kind, layers=1, hidden=8), GraphSizes((4, 4, 4), RELATIONS, 3))
        with pytest.raises(ValueError, match=f"{kind} weighs edges itself"):
            model(batch, [torch.zeros(count, 4) for count in COUNTS])
