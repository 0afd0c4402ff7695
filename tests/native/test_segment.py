"""Operations over lists of edges against plain torch: values, gradients, threads; the fused layer of GraphSAGE; the
element functions of the CUDA build on the host."""

import numpy as np
import pytest
import torch
from test_native_layers import assert_alike, gradients, leaf

from hpcgnn import native
from hpcgnn.native import EdgeLists

pytestmark = pytest.mark.serial

# (destinations, sources, mean degree, width, heads)
SHAPES = pytest.mark.parametrize(
    "shape", [(300, 500, 6, 64, 4), (17, 40, 3, 9, 3), (5, 1, 2, 130, 1), (0, 3, 0, 4, 2), (40, 50, 0, 6, 1)]
)
PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.float64, 1e-10)])


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


def plain_attention(rows, source, target, lists, slope=0.2):
    score = torch.nn.functional.leaky_relu(source[lists.source] + target[lists.destination], slope)
    weight = [torch.softmax(piece, 0) for piece in score.split(lists.degree.tolist())]
    return plain_sum(rows, lists, torch.cat([score[:0], *weight]))


def plain_max(rows, lists):
    pieces = rows[lists.source].split(lists.degree.tolist())
    return torch.stack([piece.max(0).values if len(piece) else 0 * rows[0] for piece in pieces])


def assert_same_on_any_threads(compute):
    """compute() returns tensors."""
    before, results = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(compute())
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


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


def attention_case(shape, dtype):
    destinations, sources, _, _, heads = shape
    lists, rows, _ = sum_case(shape, dtype)
    return rows, leaf(sources, heads, dtype=dtype), leaf(destinations, heads, dtype=dtype), lists


@PRECISIONS
@SHAPES
def test_attention_equals_plain_torch(shape, dtype, tolerance):
    *inputs, lists = attention_case(shape, dtype)
    ours, theirs = native.graph_attention(*inputs, lists), plain_attention(*inputs, lists)
    assert_alike([ours], [theirs], tolerance)
    assert_alike(gradients(ours, inputs), gradients(theirs, inputs), tolerance)


def test_attention_of_large_scores_is_finite():
    rows, source, target, lists = attention_case((30, 20, 4, 8, 2), torch.float32)
    out = native.graph_attention(rows, source * 1e4, target * 1e4, lists)
    assert torch.isfinite(out).all()
    assert all(torch.isfinite(gradient).all() for gradient in gradients(out, [rows, source, target]))


def grouped_case(counts, in_width, out_width, dtype):
    torch.manual_seed(len(counts))
    begin = torch.tensor([0, *np.cumsum(counts)])
    return leaf(int(begin[-1]), in_width, dtype=dtype), begin, leaf(len(counts), in_width, out_width, dtype=dtype)


@PRECISIONS
@pytest.mark.parametrize(
    ("counts", "in_width", "out_width"),
    [([300, 0, 1, 700], 100, 47), ([5], 3, 130), ([0, 0], 7, 5), ([9] * 40, 33, 16)],
)
def test_grouped_linear_equals_a_product_a_group(counts, in_width, out_width, dtype, tolerance):
    rows, begin, weight = grouped_case(counts, in_width, out_width, dtype)
    ours, theirs = native.grouped_linear(rows, begin, weight), native.grouped_linear_reference(rows, begin, weight)
    assert_alike([ours], [theirs], tolerance)
    assert_alike(gradients(ours, [rows, weight]), gradients(theirs, [rows, weight]), tolerance)


def test_grouped_linear_refuses_groups_that_do_not_cover_the_rows():
    rows, begin, weight = grouped_case([3, 4], 2, 2, torch.float32)
    with pytest.raises(ValueError, match="cover"):
        native.grouped_linear(rows, begin - 1, weight)


# (destinations, sources, mean degree, input width, output width)
SAGE = pytest.mark.parametrize(
    "shape", [(700, 1500, 5, 100, 256), (37, 40, 3, 7, 12), (9, 9, 0, 33, 5), (0, 6, 0, 4, 3), (130, 200, 9, 64, 47)]
)


def sage_case(shape, dtype):
    destinations, sources, degree, in_width, out_width = shape
    torch.manual_seed(destinations)
    lists = random_lists(destinations, sources, degree)
    weight, bias = leaf(out_width, 2 * in_width, dtype=dtype), leaf(out_width, dtype=dtype)
    return leaf(sources, in_width, dtype=dtype), lists, weight, bias


def plain_sage(rows, lists, weight, bias, mean, relu):
    around = plain_sum(rows, lists)
    around = around / lists.degree.clamp(min=1).unsqueeze(1) if mean else around
    out = torch.nn.functional.linear(torch.cat([rows[: len(lists)], around], dim=1), weight, bias)
    return torch.relu(out) if relu else out


@PRECISIONS
@pytest.mark.parametrize("flags", [(True, True), (False, False)])
@SAGE
def test_sage_layer_equals_composition(shape, flags, dtype, tolerance):
    rows, lists, weight, bias = sage_case(shape, dtype)
    inputs = [rows, weight, bias]
    ours, theirs = (
        native.sage_layer(rows, None, lists, weight, bias, *flags),
        plain_sage(rows, lists, *inputs[1:], *flags),
    )
    assert_alike([ours], [theirs], tolerance)
    assert_alike(gradients(ours, inputs), gradients(theirs, inputs), tolerance)


@SAGE
def test_sage_layer_reads_rows_by_index(shape):
    rows, lists, weight, bias = sage_case(shape, torch.float32)
    table, index = rows.detach().flip(0), torch.arange(len(rows)).flip(0)
    ours = native.sage_layer(table, index, lists, weight, bias, True, True)
    theirs = native.sage_layer(rows.detach(), None, lists, weight, bias, True, True)
    assert torch.equal(ours, theirs)
    assert all(map(torch.equal, gradients(ours, [weight, bias]), gradients(theirs, [weight, bias])))
    with pytest.raises(ValueError, match="gather"):
        native.sage_layer(rows, index, lists, weight, bias, True, True)


def test_gradcheck():
    """Of every operation, in all its inputs."""
    lists, rows, weight = sum_case((5, 7, 3, 4, 2), torch.float64)
    check = torch.autograd.gradcheck
    assert check(lambda *given: native.segment_sum(given[0], lists, *given[1:]), (rows,))
    assert check(lambda *given: native.segment_sum(given[0], lists, *given[1:]), (rows, weight))
    assert check(lambda given: native.segment_max(given, lists), (rows,))
    source, target = leaf(7, 2, dtype=torch.float64), leaf(5, 2, dtype=torch.float64)
    assert check(lambda *given: native.graph_attention(*given, lists), (rows, source, target))
    grouped, begin, matrices = grouped_case([3, 0, 4], 3, 2, torch.float64)
    assert check(lambda a, b: native.grouped_linear(a, begin, b), (grouped, matrices))
    inputs, lists, weight, bias = sage_case((5, 7, 3, 4, 3), torch.float64)
    for relu in (False, True):
        assert check(lambda a, b, c: native.sage_layer(a, None, lists, b, c, True, relu), (inputs, weight, bias))  # noqa: B023


def test_results_do_not_depend_on_threads():
    lists, rows, weight = sum_case((3000, 2000, 6, 48, 4), torch.float32)
    source, target = leaf(2000, 4, dtype=torch.float32), leaf(3000, 4, dtype=torch.float32)
    grouped, begin, matrices = grouped_case([900, 5, 700], 100, 30, torch.float32)
    inputs, sage_lists, sage_weight, bias = sage_case((3000, 5000, 5, 40, 30), torch.float32)

    def compute():
        pairs = [
            (native.segment_sum(rows, lists, weight), [rows, weight]), (native.segment_max(rows, lists), [rows]),
            (native.graph_attention(rows, source, target, lists), [rows, source, target]),
            (native.grouped_linear(grouped, begin, matrices), [grouped, matrices]),
            (native.sage_layer(inputs, None, sage_lists, sage_weight, bias, True, True), [inputs, sage_weight, bias]),
        ]  # fmt: skip
        return [tensor for out, leaves in pairs for tensor in (out, *gradients(out, leaves))]

    assert_same_on_any_threads(compute)


@PRECISIONS
@SHAPES
def test_cuda_equals_cpu(device, shape, dtype, tolerance):
    *inputs, lists = attention_case(shape, dtype)
    there = EdgeLists(*device.put_all(lists.indptr, lists.source), lists.num_sources)
    leaves = [device.put(tensor).requires_grad_() for tensor in inputs]
    for operation, count in ((native.graph_attention, 3), (native.segment_max, 1), (native.segment_sum, 1)):
        theirs = operation(*inputs[:count], lists)
        weight = torch.randn_like(theirs)
        expected = torch.autograd.grad((theirs * weight).sum(), inputs[:count])
        with device:
            ours = operation(*leaves[:count], there)
            found = torch.autograd.grad((ours * device.put(weight)).sum(), leaves[:count])
        assert_alike([ours.cpu()], [theirs], tolerance)
        assert_alike([gradient.cpu() for gradient in found], expected, tolerance)
