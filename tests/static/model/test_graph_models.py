"""Models of static graphs: plain references, the same rows in any batch and order, rare shapes, gradients, decoders."""

import dataclasses

import numpy as np
import pytest
import torch
from graph_batches import input_rows, random_graph, sample_batch
from layer_checks import assert_alike, gradients

from hpcgnn.static.config import GraphModelConfig
from hpcgnn.static.model.blocks import Adjacency, Batch, Block, IndexedRows
from hpcgnn.static.model.convolutions import ACTIVATIONS, SageConv, aggregate
from hpcgnn.static.model.models import GraphSizes, make_model

pytestmark = pytest.mark.serial

SIMPLE = ("sage", "gcn", "gat", "gatv2")
TYPED = ("sage", "rgcn", "rgat")
COUNTS, RELATIONS = (30, 20, 0), ((0, 0), (0, 1), (1, 0), (2, 0), (1, 2), (1, 1))


def config_of(**keys) -> GraphModelConfig:
    return GraphModelConfig(**{"hidden": 8, "heads": 2, "layers": 2, **keys})


def configs():
    """(typed, config) of all kinds, with what they can be combined with."""
    variants = [
        {}, {"norm": "layer", "activation": "elu", "dropout": 0.4, "input_dropout": 0.3}, {"self_loop": False},
        {"residual": True, "norm": "layer", "activation": "gelu", "feed_forward": 2, "dropout": 0.3},
        {"residual": True}, {"linear_skip": True, "norm": "layer", "dropout": 0.3},
    ]  # fmt: skip
    kinds = [(False, kind) for kind in SIMPLE] + [(True, kind) for kind in TYPED]
    found = [(typed, config_of(kind=kind, **keys)) for typed, kind in kinds for keys in variants]
    found += [(typed, config_of(kind="sage", aggregator=how)) for typed in (False, True) for how in ("sum", "max")]
    found += [(True, config_of(kind="rgcn", bases=2)), (True, config_of(kind="rgcn", low_memory=True))]
    found += [(typed, config_of(kind=kind, output_layer="linear", activation="leaky_relu"))
              for typed, kind in ((False, "gat"), (True, "rgat"))]  # fmt: skip
    found += [(True, config_of(kind="rgat", bases=3)), (True, config_of(kind="rgcn", aggregator="max"))]
    return found


ALL = pytest.mark.parametrize(
    ("typed", "config"), configs(), ids=lambda value: None if isinstance(value, bool) else value.kind
)


def make_case(typed, config, widths=(5, 7, 0)):
    """(graph, model in float64, tables by type)."""
    rng = np.random.default_rng(1)
    torch.manual_seed(0)
    counts, relations, widths = (COUNTS, RELATIONS, widths) if typed else ((60,), ((0, 0),), (5,))
    graph = random_graph(rng, counts, relations, 4)
    model = make_model(config, GraphSizes(widths, relations, 3)).double()
    tables = [torch.randn(count, width or config.hidden).double() for count, width in zip(counts, widths, strict=True)]
    return graph, model, tables


def seeds_of(graph, number, rng):
    return [rng.choice(count, min(count, number), replace=False) for count in graph.counts]


def run(case, seeds, fanouts=(3, 2), training=True, shuffle=None):
    graph, model, tables = case
    batch = sample_batch(graph, seeds, fanouts, step=7, training=training, shuffle=shuffle)
    return model(batch, input_rows(graph, batch, tables))


# ------------------------------------------------------------------------------------------- the same rows in any batch


@ALL
def test_rows_do_not_depend_on_the_batch(typed, config):
    """Permuted nodes, permuted seeds, seeds in two batches: the same rows and the same gradients of their sum."""
    case = make_case(typed, config)
    rng = np.random.default_rng(2)
    seeds = seeds_of(case[0], 9, rng)
    order = [rng.permutation(len(ids)) for ids in seeds]
    whole = run(case, seeds)
    permuted = run(case, [ids[o] for ids, o in zip(seeds, order, strict=True)], shuffle=rng)
    assert_alike(permuted, [rows[torch.from_numpy(o)] for rows, o in zip(whole, order, strict=True)], 1e-10)
    halves = [run(case, [ids[:4] for ids in seeds]), run(case, [ids[4:] for ids in seeds])]
    assert_alike([torch.cat(rows) for rows in zip(*halves, strict=True)], whole, 1e-10)
    parameters = list(case[1].parameters())
    grad = lambda *results: torch.autograd.grad(  # noqa: E731
        sum((rows**2).sum() for rows_of_type in results for rows in rows_of_type), parameters, allow_unused=True
    )
    zeros = lambda found: [torch.zeros(1) if g is None else g for g in found]  # noqa: E731
    assert_alike(zeros(grad(*halves)), zeros(grad(whole)), 1e-10)


@ALL
def test_rare_shapes(typed, config):
    """No seeds at all, seeds of one type only, and nodes without any neighbor."""
    case = graph, _, _ = make_case(typed, config)
    nobody = [np.zeros(0, np.int64)] * len(graph.counts)
    assert [tuple(rows.shape) for rows in run(case, nobody)] == [(0, 3)] * len(graph.counts)
    only_last = (
        [*nobody[:-1], np.arange(min(3, graph.counts[-1]))] if not typed else [nobody[0], np.arange(3), nobody[2]]
    )
    out = run(case, only_last)
    assert [len(rows) for rows in out] == [len(ids) for ids in only_last]
    graph.neighbors = [[ids[:0] for ids in lists] for lists in graph.neighbors]
    out = run(case, only_last)
    assert all(torch.isfinite(rows).all() for rows in out)
    sum(rows.sum() for rows in out).backward()


@ALL
def test_single_precision(typed, config):
    case = graph, model, tables = make_case(typed, config)
    seeds = seeds_of(graph, 9, np.random.default_rng(2))
    expected = run(case, seeds)
    assert_alike(
        run((graph, model.float(), [table.float() for table in tables]), seeds),
        [rows.float() for rows in expected],
        2e-4,
    )


@ALL
def test_a_block_without_relations_has_nodes_without_neighbors(typed, config):
    graph, model, tables = make_case(typed, config)
    batch = sample_batch(graph, seeds_of(graph, 5, np.random.default_rng(0)), (3, 0))
    bare = [Block((), block.num_src, block.num_dst) for block in batch.blocks[:1]]
    rows = input_rows(graph, batch, tables)
    assert_alike(model(dataclasses.replace(batch, blocks=(*bare, *batch.blocks[1:])), rows), model(batch, rows), 1e-12)


@pytest.mark.parametrize(("typed", "kind"), [(False, kind) for kind in SIMPLE] + [(True, kind) for kind in TYPED])
def test_gradcheck(typed, kind):
    graph, model, tables = make_case(typed, config_of(kind=kind, hidden=4, activation="elu", norm="layer"), (4, 4, 0))
    batch = sample_batch(graph, [ids[:3] for ids in seeds_of(graph, 3, np.random.default_rng(3))], (2, 2))
    rows = [given.clone().requires_grad_() for given in input_rows(graph, batch, tables)]
    used = [given for given in rows if len(given)]
    forward = lambda *given: tuple(model(batch, [*given, *rows[len(given) :]]))  # noqa: E731
    assert torch.autograd.gradcheck(forward, used, nondet_tol=0, fast_mode=True)


def test_low_memory_and_bases_change_nothing_but_the_memory():
    graph, model, tables = case = make_case(True, config_of(kind="rgcn", bases=2))
    low = make_model(config_of(kind="rgcn", bases=2, low_memory=True), model.sizes).double()
    low.load_state_dict(model.state_dict())
    seeds = seeds_of(graph, 9, np.random.default_rng(2))
    ours, theirs = run((graph, low, tables), seeds), run(case, seeds)
    assert_alike(ours, theirs, 1e-10)
    assert_alike(
        gradients(ours[0], list(low.parameters())), gradients(theirs[0], list(model.parameters())), 1e-10
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------- plain references


def whole_graph_batch(graph, layers):
    """All nodes, all neighbors: dense algebra can follow."""
    (count,) = graph.counts
    return sample_batch(graph, [np.arange(count)], [-1] * layers)


def dense_adjacency(graph):
    (lists,), (count,) = graph.neighbors, graph.counts
    matrix = torch.zeros(count, count, dtype=torch.float64)
    for destination, sources in enumerate(lists):
        for source in sources:
            matrix[destination, source] += 1
    return matrix


def test_gcn_is_the_normalized_adjacency():
    graph, model, (table,) = make_case(False, config_of(kind="gcn", activation="relu", hidden=3))
    adjacency = dense_adjacency(graph)
    scale = torch.rsqrt(adjacency.sum(1) + 1)
    normal = scale.unsqueeze(1) * (adjacency + torch.eye(len(table)).double()) * scale
    first, second = (layer.product for layer in model.layers)
    expected = normal @ second(torch.relu(normal @ (table @ first.weight.T) + first.bias)) - second.bias * normal.sum(
        1, keepdim=True
    )
    (found,) = model(whole_graph_batch(graph, 2), [table])
    assert_alike([found], [expected + second.bias], 1e-10)


@pytest.mark.parametrize("typed", [False, True])
def test_linear_skips_are_added_before_norm_and_activation(typed):
    """Of a node's row by the matrix of its type."""
    graph, model, tables = make_case(typed, config_of(linear_skip=True, norm="layer", layers=2), (5, 5, 5))
    batch = sample_batch(graph, [np.arange(count) for count in graph.counts], [-1, -1])
    rows = inputs = input_rows(graph, batch, tables)
    for number, (block, layer, skip) in enumerate(zip(batch.blocks, model.layers, model.skips, strict=True)):
        skip.bias.data.uniform_()
        out = layer(block, torch.cat(rows), None).split(block.num_dst)
        own = [of_type[:count] for of_type, count in zip(rows, block.num_dst, strict=True)]
        pairs = zip(own, skip.weight, strict=True)
        rows = [one + own_rows @ matrix + skip.bias for one, (own_rows, matrix) in zip(out, pairs, strict=True)]
        rows = rows if number else [torch.relu(model.norms[0](of_type)) for of_type in rows]
    assert_alike(model(batch, inputs), rows, 1e-10)


def test_sampled_gcn_is_unbiased_in_the_neighbors_weight():
    """Of d neighbors any k stand for all: the mean over all samples is the whole sum."""
    _, model, _ = make_case(False, config_of(kind="gcn", layers=1))
    (layer,), rows = model.layers, torch.randn(4, 5).double()
    degree = torch.tensor([3, 1, 5, 2])
    block = lambda *sources: Block(  # noqa: E731
        (Adjacency(0, 0, 0, torch.tensor([0, len(sources)]), torch.tensor(sources)),), (4,), (1,)
    )
    samples = [layer(block(a, b), rows, degree) for a, b in ((1, 2), (1, 3), (2, 3))]
    assert_alike([torch.stack(samples).mean(0)], [layer(block(1, 2, 3), rows, degree)], 1e-12)


def test_sage_is_the_mean_of_neighbors():
    graph, model, (table,) = make_case(False, config_of(kind="sage"))
    adjacency = dense_adjacency(graph)
    mean = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    rows = table
    for number, layer in enumerate(model.layers):
        rows = layer.product(torch.cat([rows, mean @ rows], dim=1))
        rows = torch.relu(rows) if number == 0 else rows
    assert_alike(model(whole_graph_batch(graph, 2), [table]), [rows], 1e-10)


def test_gat_weighs_neighbors_by_attention():
    graph, model, (table,) = make_case(False, config_of(kind="gat", layers=1))
    (layer,), (lists,) = model.layers, graph.neighbors
    heads = (table @ layer.weight).view(len(table), layer.heads, -1)
    expected = []
    for node, sources in enumerate(lists):
        around = heads[[*sources, node]]
        score = torch.nn.functional.leaky_relu(
            (around * layer.source).sum(2) + (heads[node] * layer.target).sum(1), 0.2
        )
        expected.append((torch.softmax(score, 0).unsqueeze(2) * around).sum(0).mean(0) + layer.bias)
    assert_alike(model(whole_graph_batch(graph, 1), [table]), [torch.stack(expected)], 1e-10)


@pytest.mark.parametrize("aggregator", ["mean", "sum", "max"])
@pytest.mark.parametrize("bases", [0, 2])
def test_rgcn_adds_up_relations(bases, aggregator):
    config = config_of(kind="rgcn", layers=1, bases=bases, aggregator=aggregator)
    graph, model, tables = make_case(True, config, (8, 8, 8))
    (layer,), seeds = model.layers, [np.arange(count) for count in graph.counts]
    matrices = layer.weights()
    how = {"mean": lambda rows: rows.mean(0), "sum": lambda rows: rows.sum(0), "max": lambda rows: rows.max(0).values}
    expected = [table @ layer.own.weight[0] + layer.own.bias for table in tables]
    for matrix, (src, dst), lists in zip(matrices, RELATIONS, graph.neighbors, strict=True):
        messages = [
            how[aggregator](tables[src][ids]) @ matrix if len(ids) else torch.zeros(3).double() for ids in lists
        ]
        expected[dst] = expected[dst] + torch.stack(messages) if messages else expected[dst]
    batch = sample_batch(graph, seeds, [-1])
    assert_alike(model(batch, input_rows(graph, batch, tables)), expected, 1e-10)


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("self_loop", [True, False])
def test_rows_of_bases_are_the_matrices_of_one_hot_rows(self_loop, low_memory):
    """One-hot rows times a matrix a relation, its bases [all nodes, hidden]."""
    config = config_of(kind="rgcn", bases=3, basis_rows=True, self_loop=self_loop, low_memory=low_memory)
    graph, model, _ = make_case(True, config, (0, 0, 0))
    total, layer = sum(COUNTS), model.layers[0]
    layer.own.bias.data.uniform_()
    table = torch.randn(total, config.row_width).double().requires_grad_()
    matrices = table.view(total, -1, config.hidden).unbind(1)
    one_hot, hidden = torch.eye(total).double().split(COUNTS), []
    for number, rows in enumerate(one_hot):
        own = rows @ matrices[3] if self_loop else torch.zeros(len(rows), config.hidden).double()
        for factors, (src, dst), lists in zip(layer.weights.coefficients, RELATIONS, graph.neighbors, strict=True):
            if dst == number and len(rows):
                matrix = sum(c * basis for c, basis in zip(factors, matrices[:3], strict=True))
                own = own + torch.stack([one_hot[src][ids].sum(0) / max(1, len(ids)) for ids in lists]) @ matrix
        hidden.append(torch.relu(own + layer.own.bias))
    batch = sample_batch(graph, [np.arange(count) for count in graph.counts], [-1, -1])
    rows = model.first(batch, [table[ids] for ids in batch.identity])
    found = model.step(0, batch, batch.blocks[0], rows)
    expected = torch.cat(hidden)[torch.cat(batch.identity)]
    inputs = [table, *layer.parameters()]
    assert_alike([found, *gradients(found, inputs)], [expected, *gradients(expected, inputs)], 1e-10)


def test_rgat_of_one_relation_is_gat():
    graph, gat, (table,) = make_case(False, config_of(kind="gat", self_loop=False))
    rgat = make_model(config_of(kind="rgat", self_loop=False), gat.sizes).double()
    for ours, theirs in zip(rgat.layers, gat.layers, strict=True):
        ours.weights.matrices.data[0] = theirs.weight.data
        ours.source.data[0], ours.target.data[0], ours.own.bias.data = theirs.source, theirs.target, theirs.bias.data
    batch = whole_graph_batch(graph, 2)
    assert_alike(rgat(batch, [table]), gat(batch, [table]), 1e-10)


def test_a_linear_output_follows_the_last_layer():
    graph, model, tables = make_case(True, config_of(output_layer="linear", activation="leaky_relu"))
    batch = sample_batch(graph, seeds_of(graph, 6, np.random.default_rng(0)), [3, 2])
    rows = model.first(batch, input_rows(graph, batch, tables))
    for number, block in enumerate(batch.blocks):
        rows = model.step(number, batch, block, rows)
    assert (rows.shape[1], (rows < 0).any()) == (8, True)  # nothing is done to rows of the last layer
    expected = rows @ model.output.weight.t() + model.output.bias
    assert_alike([torch.cat(model(batch, input_rows(graph, batch, tables)))], [expected], 1e-12)
    assert model.embedding_hops == 2
    assert ACTIVATIONS["leaky_relu"].make()(torch.tensor([-1.0, 2.0])).tolist() == pytest.approx([-0.01, 2.0])


def test_weighted_mean_and_sum():
    rows, weight = torch.randn(3, 4).double(), torch.tensor([1.0, 3.0, 2.0]).double()
    block = Block((Adjacency(0, 0, 0, torch.tensor([0, 2, 3, 3]), torch.tensor([1, 2, 0]), weight=weight),), (3,), (3,))
    total = torch.stack([rows[1] + 3 * rows[2], 2 * rows[0], 0 * rows[0]])
    assert_alike([aggregate(rows, block.lists, block.weight, "sum")], [total], 1e-12)
    mean = total / torch.tensor([4.0, 2.0, 1.0]).unsqueeze(1)
    assert_alike([aggregate(rows, block.lists, block.weight, "mean")], [mean], 1e-12)
    with pytest.raises(ValueError, match="edge weights"):
        aggregate(rows, block.lists, block.weight, "max")


@pytest.mark.parametrize("aggregator", ["mean", "sum"])
def test_fused_sage_equals_its_composition(aggregator):
    graph, _, (table,) = make_case(False, config_of())
    block = sample_batch(graph, [np.arange(20)], [3]).blocks[0]
    layer, rows = SageConv(5, 6, aggregator).double(), table[: block.num_src[0]].clone().requires_grad_()
    ours, theirs = layer(block, rows, None, True), layer._compose(block, rows, None, True)
    inputs = [rows, *layer.parameters()]
    assert_alike([ours, *gradients(ours, inputs)], [theirs, *gradients(theirs, inputs)], 1e-10)


@ALL
def test_rows_by_index(typed, config):
    graph, model, tables = make_case(typed, config)
    batch = sample_batch(graph, seeds_of(graph, 5, np.random.default_rng(0)), (3, 2), training=True)
    first = graph.first_ids()
    indexed = [
        IndexedRows(table, ids - int(first[t]))
        for t, (table, ids) in enumerate(zip(tables, batch.identity, strict=True))
    ]
    assert_alike(model(batch, indexed), model(batch, input_rows(graph, batch, tables)), 1e-12)


def test_dropout_follows_training_step_and_probability():
    case = graph, model, tables = make_case(False, config_of(dropout=0.5))
    seeds = seeds_of(graph, 40, np.random.default_rng(0))
    assert torch.equal(run(case, seeds, training=False)[0], run(case, seeds, training=False)[0])
    assert torch.equal(run(case, seeds)[0], run(case, seeds)[0])
    assert not torch.equal(run(case, seeds)[0], run(case, seeds, training=False)[0])
    batch = sample_batch(graph, seeds, (3, 2), step=8, training=True)
    assert not torch.equal(model(batch, input_rows(graph, batch, tables))[0], run(case, seeds)[0])


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("keys", "message"),
    [({"kind": "gim"}, "model.kind"), ({"heads": 3, "kind": "gat"}, "divide"), ({"bases": 2}, "bases"),
     ({"dropout": 1.0}, "dropout"), ({"low_memory": True}, "low_memory"), ({"feed_forward": 1}, "residual"),
     ({"layers": 0}, "at least 1"), ({"kind": "rgcn", "basis_rows": True}, "model.bases above 0"),
     ({"kind": "rgcn", "bases": 2, "basis_rows": True, "layers": 1}, "at least 2"),
     ({"kind": "rgat", "bases": 2, "basis_rows": True}, "basis_rows"),
     ({"residual": True, "linear_skip": True}, "linear_skip does not go with model.residual"),
     ({"kind": "none", "layers": 0, "linear_skip": True}, "linear_skip does not go with model.kind none"),
     ({"kind": "gcn2", "linear_skip": True}, "gcn2 has its own residual"),
     ({"kind": "lightgcn", "linear_skip": True}, "nothing between its layers: leave out model.linear_skip")],
)  # fmt: skip
def test_configuration_is_checked(keys, message):
    with pytest.raises(ValueError, match=message):
        config_of(**keys)


def test_models_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="use sage, lightgcn, rgcn, compgcn, rgat, han, hgt, simple_hgn or mlp"):
        make_model(config_of(kind="gcn"), GraphSizes((4, 4), RELATIONS[:2], 3))
    with pytest.raises(ValueError, match="no_such_module"):
        make_model(config_of(class_path="no_such_module.Model"), GraphSizes((4,), ((0, 0),), 3))
    with pytest.raises(ValueError, match=r"model\.class_path 'math\.sqrt' is no torch\.nn\.Module"):
        make_model(config_of(class_path="math.sqrt"), GraphSizes((4,), ((0, 0),), 3))
    graph, model, (table,) = make_case(False, config_of())
    with pytest.raises(ValueError, match="fanout"):
        model(sample_batch(graph, [np.arange(3)], (2,)), [table])
    for keys in ({}, {"residual": True}, {"kind": "gat"}):
        with pytest.raises(ValueError, match=r"input rows \[61\] do not match the batch's nodes \(60,\)"):
            make_case(False, config_of(**keys))[1](whole_graph_batch(graph, 2), [torch.zeros(61, 5).double()])


def test_attention_refuses_weights_of_edges():
    """Of the only relation, or of one of several: those of the others count as 1."""
    indptr, source, weight = torch.tensor([0, 2, 3, 3]), torch.tensor([1, 2, 0]), torch.tensor([1.0, 3.0, 2.0])
    plain, weighted = (Adjacency(number, 0, 0, indptr, source, weight=w) for number, w in enumerate((None, weight)))
    assert Block((plain, weighted), (3,), (3,)).pairs.weight.tolist() == [1, 1, 1, 1, 3, 2]
    for kind, relations in (("gat", (weighted,)), ("rgat", (plain, weighted))):
        model = make_model(config_of(kind=kind, layers=1), GraphSizes((4,), ((0, 0),) * len(relations), 4))
        batch = Batch((Block(relations, (3,), (3,)),), (torch.arange(3),), (torch.ones(3),))
        with pytest.raises(ValueError, match=f"{kind} weighs edges itself: leave edge weights out, or use sage or"):
            model(batch, [torch.zeros(3, 4)])


class OwnModel(torch.nn.Module):
    """A user's model."""

    def __init__(self, config, sizes):
        super().__init__()
        self.given = config, sizes


def test_own_class():
    config, sizes = config_of(class_path=f"{__name__}.OwnModel"), GraphSizes((4,), ((0, 0),), 3)
    assert make_model(config, sizes).given == (config, sizes)


class DoubledSage(SageConv):
    """Rows twice as large."""

    def _compose(self, *arguments):
        return 2 * super()._compose(*arguments)


class StrictSage(SageConv):
    """Wants rows, and no places of rows."""

    def forward(self, block, rows, degree, rectify=False):
        assert isinstance(rows, torch.Tensor)
        return super().forward(block, rows, degree, rectify)


def test_a_convolution_of_ones_own_is_computed():
    """The fused kernel and the rows that are read where they lie are for the class itself."""
    case = make_case(False, config_of(kind="sage", layers=1))
    seeds = seeds_of(case[0], 9, np.random.default_rng(2))
    (built_in,) = run(case, seeds, fanouts=(3,))
    model, weights = case[1], case[1].layers[0].state_dict()
    for kind, factor in ((DoubledSage, 2), (StrictSage, 1)):
        model.layers[0] = kind(5, 3, "mean").double()
        model.layers[0].load_state_dict(weights)
        (rows,) = run(case, seeds, fanouts=(3,))
        torch.testing.assert_close(rows, factor * built_in, rtol=0, atol=1e-12)


def test_a_projection_of_ones_own_is_computed():
    """In the place of a type's linear one, or of none."""

    class Squared(torch.nn.Linear):
        def forward(self, rows):
            return super().forward(rows) ** 2

    case = make_case(False, config_of(kind="sage", layers=1))
    seeds = seeds_of(case[0], 9, np.random.default_rng(2))
    for product in (Squared(5, 5).double(), torch.nn.Sequential(torch.nn.Linear(5, 5).double(), torch.nn.Tanh())):
        case[1].input.products[0] = product
        (rows,) = run(case, seeds, fanouts=(3,))
        graph, model, (table,) = case
        with torch.no_grad():
            projected = product(table)
        case[1].input.products[0] = torch.nn.Identity()
        (expected,) = run((graph, model, [projected]), seeds, fanouts=(3,))
        torch.testing.assert_close(rows, expected, rtol=0, atol=1e-12)
