"""Operations over lists of edges against plain torch: values, gradients, threads, CUDA."""

import numpy as np
import pytest
import torch
from layer_checks import PRECISIONS, assert_alike, assert_same_on_any_threads, gradients, leaf

from hpcgnn import native
from hpcgnn.native import EdgeLists

pytestmark = pytest.mark.serial

# (destinations, sources, mean degree, width, heads)
SHAPES = pytest.mark.parametrize(
    "shape", [(300, 500, 6, 64, 4), (17, 40, 3, 9, 3), (5, 1, 2, 130, 1), (0, 3, 0, 4, 2), (40, 50, 0, 6, 1)]
)


def random_lists(destinations, sources, mean_degree, seed=0):
    """Lists of which some are empty; destinations come first among the sources where there are enough."""
    rng = np.random.default_rng([destinations, sources, seed])
    degree = rng.poisson(mean_degree, destinations) * (rng.random(destinations) < 0.8)
    indptr = np.concatenate([[0], np.cumsum(degree)]).astype(np.int64)
    return EdgeLists(torch.from_numpy(indptr), torch.from_numpy(rng.integers(0, sources, indptr[-1])), sources)


def plain_sum(rows, lists, weight=None):
    """segment_sum by index_add."""
    message = rows[lists.source]
    if weight is not None:
        message = (message.unflatten(1, (weight.shape[1], -1)) * weight.unsqueeze(2)).view(message.shape)
    return rows.new_zeros((len(lists), rows.shape[1])).index_add(0, lists.destination, message)


def plain_attention(rows, source, target, lists, edge=0.0, slope=0.2):
    score = torch.nn.functional.leaky_relu(source[lists.source] + target[lists.destination] + edge, slope)
    weight = [torch.softmax(piece, 0) for piece in score.split(lists.degree.tolist())]
    return plain_sum(rows, lists, torch.cat([score[:0], *weight]))


def plain_max(rows, lists):
    pieces = rows[lists.source].split(lists.degree.tolist())
    return torch.stack([piece.max(0).values if len(piece) else 0 * rows[0] for piece in pieces])


def test_transpose_leads_back():
    lists = random_lists(30, 12, 4)
    back = lists.transposed
    assert torch.equal(lists.destination[back.edge], back.destination)
    everyone = torch.repeat_interleave(torch.arange(12), back.indptr.diff())
    assert torch.equal(lists.source[back.edge], everyone)


def sum_case(shape, dtype):
    destinations, sources, degree, width, heads = shape
    torch.manual_seed(destinations)
    lists = random_lists(destinations, sources, degree)
    return lists, leaf(sources, width, dtype=dtype), leaf(len(lists.source), heads, dtype=dtype)


@PRECISIONS
@SHAPES
def test_sum_equals_plain_torch(shape, dtype, tolerance):
    lists, rows, weight = sum_case(shape, dtype)
    for inputs in ((rows,), (rows, weight)):
        ours, theirs = native.segment_sum(rows, lists, *inputs[1:]), plain_sum(rows, lists, *inputs[1:])
        assert_alike([ours], [theirs], tolerance)
        assert_alike(gradients(ours, inputs), gradients(theirs, inputs), tolerance)


@PRECISIONS
@SHAPES
def test_max_equals_plain_torch(shape, dtype, tolerance):
    lists, rows, _ = sum_case(shape, dtype)
    ours, theirs = native.segment_max(rows, lists), plain_max(rows, lists) if shape[0] else rows[:0]
    assert torch.equal(ours, theirs)
    assert_alike(gradients(ours, [rows]), gradients(theirs, [rows]), tolerance)


def test_max_of_ties_goes_to_the_first_edge():
    rows = torch.ones((2, 1), requires_grad=True)
    lists = EdgeLists(torch.tensor([0, 3]), torch.tensor([1, 0, 1]), 2)
    (gradient,) = torch.autograd.grad(native.segment_max(rows, lists).sum(), rows)
    assert gradient.tolist() == [[0], [1]]


@PRECISIONS
def test_max_of_a_nan_is_one(dtype, tolerance, device):
    """Wherever it stands in its list; the first one's edge gets the gradient."""
    lists, rows, _ = sum_case((300, 500, 6, 5, 1), dtype)
    with torch.no_grad():
        rows[1::7, ::2] = torch.nan
    theirs = plain_max(rows, lists)
    assert theirs.isnan().any()
    ours = native.segment_max(rows, lists)
    assert torch.equal(ours.nan_to_num(9.0), theirs.nan_to_num(9.0))
    (got,) = gradients(ours, [rows])
    assert_alike([got], gradients(theirs, [rows]), tolerance)
    there, leaf_there = EdgeLists(*device.put_all(lists.indptr, lists.source), 500), device.put(rows).requires_grad_()
    with device:
        found = native.segment_max(leaf_there, there)
        (got_there,) = gradients(found, [leaf_there])
    device.assert_same([found.detach().nan_to_num(9.0), got_there], [ours.detach().nan_to_num(9.0), got])


@PRECISIONS
def test_own_rows_are_added_like_a_last_edge(dtype, tolerance):
    lists, rows, _ = sum_case((300, 500, 6, 64, 1), dtype)
    weight, own = torch.rand(len(lists.source), 1, dtype=dtype), torch.rand(len(lists), dtype=dtype)
    ours = native.segment_sum(rows, lists, weight, own)
    theirs = plain_sum(rows, lists, weight) + rows[: len(lists)] * own.unsqueeze(1)
    assert_alike([ours], [theirs], tolerance)
    assert_alike(gradients(ours, [rows]), gradients(theirs, [rows]), tolerance)


def test_weights_are_those_of_the_edges():
    lists, rows, weight = sum_case((30, 20, 4, 8, 2), torch.float32)
    for wrong in (weight[:-1], torch.cat([weight, weight])):
        with pytest.raises(ValueError, match="weight \\[edges, heads\\]"):
            native.segment_sum(rows, lists, wrong)


def test_second_derivatives_are_refused():
    """They would lack the part that goes through the weights."""
    lists, rows, weight = sum_case((30, 20, 4, 8, 2), torch.float32)
    out = native.segment_sum(rows, lists, weight).pow(2).sum()
    (gradient,) = torch.autograd.grad(out, rows, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def attention_case(shape, dtype):
    destinations, sources, _, _, heads = shape
    lists, rows, _ = sum_case(shape, dtype)
    return rows, leaf(sources, heads, dtype=dtype), leaf(destinations, heads, dtype=dtype), lists


def with_edges(rows, source, target, edge, lists):
    return native.graph_attention(rows, source, target, lists, edge_score=edge)


@PRECISIONS
@SHAPES
def test_attention_equals_plain_torch(shape, dtype, tolerance):
    """Also with scores of edges."""
    *inputs, lists = attention_case(shape, dtype)
    edge = leaf(len(lists.source), shape[-1], dtype=dtype)
    for given, ours, theirs in (
        (inputs, native.graph_attention(*inputs, lists), plain_attention(*inputs, lists)),
        ([*inputs, edge], with_edges(*inputs, edge, lists), plain_attention(*inputs, lists, edge)),
    ):
        assert_alike([ours], [theirs], tolerance)
        assert_alike(gradients(ours, given), gradients(theirs, given), tolerance)


def test_attention_of_large_scores_is_finite():
    rows, source, target, lists = attention_case((30, 20, 4, 8, 2), torch.float32)
    out = native.graph_attention(rows, source * 1e4, target * 1e4, lists)
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(gradient).all() for gradient in gradients(out, [rows, source, target]))


def test_gradcheck():
    """Of every operation, in all its inputs."""
    lists, rows, weight = sum_case((5, 7, 3, 4, 2), torch.float64)
    check = torch.autograd.gradcheck
    assert check(lambda *given: native.segment_sum(given[0], lists, *given[1:]), (rows,))
    assert check(lambda *given: native.segment_sum(given[0], lists, *given[1:]), (rows, weight))
    assert check(lambda given: native.segment_max(given, lists), (rows,))
    source, target = leaf(7, 2, dtype=torch.float64), leaf(5, 2, dtype=torch.float64)
    assert check(lambda *given: native.graph_attention(*given, lists), (rows, source, target))
    edge = leaf(len(lists.source), 2, dtype=torch.float64)
    assert check(lambda *given: with_edges(*given, lists), (rows, source, target, edge))


def test_results_do_not_depend_on_threads():
    lists, rows, weight = sum_case((3000, 2000, 6, 48, 4), torch.float32)
    source, target = leaf(2000, 4, dtype=torch.float32), leaf(3000, 4, dtype=torch.float32)

    def compute():
        pairs = [
            (native.segment_sum(rows, lists, weight), [rows, weight]),
            (native.segment_max(rows, lists), [rows]),
            (native.graph_attention(rows, source, target, lists), [rows, source, target]),
        ]
        return [tensor for out, leaves in pairs for tensor in (out, *gradients(out, leaves))]

    assert_same_on_any_threads(compute)


@PRECISIONS
@SHAPES
def test_cuda_equals_cpu(device, shape, dtype, tolerance):
    *inputs, lists = attention_case(shape, dtype)
    there = EdgeLists(*device.put_all(lists.indptr, lists.source), lists.num_sources)
    inputs.append(leaf(len(lists.source), shape[-1], dtype=dtype))
    leaves = [device.put(tensor).requires_grad_() for tensor in inputs]
    operations = (native.graph_attention, 3), (with_edges, 4), (native.segment_max, 1), (native.segment_sum, 1)
    for operation, count in operations:
        theirs = operation(*inputs[:count], lists)
        weight = torch.randn_like(theirs)
        expected = torch.autograd.grad((theirs * weight).sum(), inputs[:count])
        with device:
            ours = operation(*leaves[:count], there)
            found = torch.autograd.grad((ours * device.put(weight)).sum(), leaves[:count])
        assert_alike([ours.cpu()], [theirs], tolerance)
        assert_alike([gradient.cpu() for gradient in found], expected, tolerance)
