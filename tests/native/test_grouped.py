"""Products of groups of rows against a product a group."""

import numpy as np
import pytest
import torch
from layer_checks import PRECISIONS, assert_alike, assert_same_on_any_threads, gradients, leaf

from hpcgnn import native
from hpcgnn.native import grouped

pytestmark = pytest.mark.serial


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


def test_grouped_linear_gradcheck():
    rows, begin, weight = grouped_case([3, 0, 4], 3, 2, torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: native.grouped_linear(a, begin, b), (rows, weight))


def test_grouped_linear_does_not_depend_on_threads():
    rows, begin, weight = grouped_case([900, 5, 700], 100, 30, torch.float32)

    def compute():
        out = native.grouped_linear(rows, begin, weight)
        return [out, *gradients(out, [rows, weight])]

    assert_same_on_any_threads(compute)


def summed_case(counts, sources, degree, width, heads, dtype):
    """Lists of groups with rows, weights of edges and matrices; the first source of a group differs."""
    rng = np.random.default_rng(len(counts))
    torch.manual_seed(len(counts))
    degrees = rng.integers(0, 2 * degree + 1, sum(counts))
    indptr = torch.from_numpy(np.concatenate([[0], np.cumsum(degrees)]))
    group = np.repeat(np.arange(len(counts)), counts).repeat(degrees)
    source = rng.integers(0, np.where(group % 2 == 1, 2, sources))  # every second group has two sources at most
    lists = native.EdgeLists(indptr, torch.from_numpy(source), sources)
    matrices = leaf(len(counts) + 1, width, 6 * heads, dtype=dtype)  # the last one belongs to no group
    return lists, leaf(sources, width, dtype=dtype), leaf(len(source), heads, dtype=dtype), matrices


def product_of_each_group(rows, weight, matrices, lists, counts):
    """Products of all rows, then weighed sums by index_add."""
    out, first = [], 0
    for matrix, count in zip(matrices, counts, strict=False):
        edges = slice(int(lists.indptr[first]), int(lists.indptr[first + count]))
        message = (rows @ matrix)[lists.source[edges]].unflatten(1, (weight.shape[1], -1))
        message = (message * weight[edges].unsqueeze(2)).flatten(1)
        place = torch.repeat_interleave(torch.arange(count), lists.degree[first : first + count])
        out.append(rows.new_zeros((count, matrices.shape[2])).index_add(0, place, message))
        first += count
    return torch.cat(out)


@PRECISIONS
@pytest.mark.parametrize(
    ("counts", "sources", "degree", "width", "heads"),
    [([300, 200, 0, 70], 500, 4, 70, 4), ([9, 8], 40, 3, 5, 3), ([3], 2, 0, 130, 1), ([150], 90, 2, 33, 7)],
)
def test_sums_are_multiplied_or_their_sources(
    monkeypatch, counts, sources, degree, width, heads, dtype, tolerance
):  # fmt: skip
    """Whichever are fewer; in pieces, of which the rows' gradients are sums."""
    monkeypatch.setattr(grouped, "PIECE_BYTES", 1)
    lists, rows, weight, matrices = summed_case(counts, sources, degree, width, heads, dtype)
    ours = native.summed_linear(rows, weight, matrices, lists, range(len(counts)), counts)
    theirs = product_of_each_group(rows, weight, matrices, lists, counts)
    assert_alike([ours], [theirs], tolerance)
    inputs = [rows, weight, matrices]
    found = gradients(ours, inputs)
    assert_alike(found, gradients(theirs, inputs), tolerance)
    assert found[2][-1].abs().max() == 0


def test_sums_of_rows_without_a_gradient():
    lists, rows, weight, matrices = summed_case([30, 20], 50, 3, 8, 2, torch.float64)
    ours = native.summed_linear(rows.detach(), weight, matrices, lists, [1, 0], [30, 20])
    theirs = product_of_each_group(rows, weight, matrices[[1, 0, 2]], lists, [30, 20])
    assert_alike(gradients(ours, [weight, matrices]), gradients(theirs, [weight, matrices]), 1e-10)


def test_no_lists_have_no_sums():
    lists, rows, weight, matrices = summed_case([], 4, 0, 3, 2, torch.float32)
    assert native.summed_linear(rows, weight, matrices, lists, [], []).shape == (0, 12)
