"""The layer of GraphSAGE against its composition in plain torch."""

import pytest
import torch
from layer_checks import PRECISIONS, assert_alike, assert_same_nans, assert_same_on_any_threads, gradients, leaf
from test_segment import plain_sum, random_lists

from hpcgnn import native

pytestmark = pytest.mark.serial


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


@PRECISIONS
@pytest.mark.parametrize("mean", [True, False])
@SAGE
def test_weighted_neighbors_equal_composition(shape, mean, dtype, tolerance):
    """A tenth of the weights are 0; some destinations have no other."""
    rows, lists, weight, bias = sage_case(shape, dtype)
    factors = torch.rand(len(lists.source), dtype=dtype)
    factors[torch.rand(len(factors)) < 0.1] = 0
    factors[: int(lists.indptr[:2][-1])] = 0
    inputs, destination = [rows, weight, bias], lists.destination
    total = torch.zeros(len(lists), rows.shape[1], dtype=dtype)
    total = total.index_add(0, destination, rows[lists.source] * factors.unsqueeze(1))
    share = torch.zeros(len(lists), dtype=dtype).index_add_(0, destination, factors)
    around = total / torch.where(share > 0, share, 1.0).unsqueeze(1) if mean else total
    theirs = torch.relu(torch.nn.functional.linear(torch.cat([rows[: len(lists)], around], dim=1), weight, bias))
    ours = native.sage_layer(rows, None, lists, weight, bias, mean, True, factors)
    assert_alike([ours], [theirs], tolerance)
    assert_alike(gradients(ours, inputs), gradients(theirs, inputs), tolerance)


def test_weights_that_changed_since_are_noticed():
    rows, lists, weight, bias = sage_case((37, 40, 3, 7, 12), torch.float32)
    out = native.sage_layer(rows, None, lists, weight, bias, True, True)
    with torch.no_grad():
        weight += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("relu", [True, False])
def test_sage_layer_keeps_nans(relu):
    rows, lists, weight, bias = sage_case((37, 40, 3, 7, 12), torch.float64)
    assert_same_nans(
        lambda: native.sage_layer(rows, None, lists, weight, bias, True, relu),
        lambda: plain_sage(rows, lists, weight, bias, True, relu),
        [rows, weight, bias],
    )


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


@pytest.mark.parametrize("relu", [False, True])
def test_sage_layer_gradcheck(relu):
    rows, lists, weight, bias = sage_case((5, 7, 3, 4, 3), torch.float64)

    def layer(rows, weight, bias):
        return native.sage_layer(rows, None, lists, weight, bias, True, relu)

    assert torch.autograd.gradcheck(layer, (rows, weight, bias))


def test_sage_layer_does_not_depend_on_threads():
    rows, lists, weight, bias = sage_case((3000, 5000, 5, 40, 30), torch.float32)

    def compute():
        out = native.sage_layer(rows, None, lists, weight, bias, True, True)
        return [out, *gradients(out, [rows, weight, bias])]

    assert_same_on_any_threads(compute)
