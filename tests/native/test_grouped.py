"""Products of groups of rows against a product a group."""

import numpy as np
import pytest
import torch
from layer_checks import PRECISIONS, assert_alike, assert_same_on_any_threads, gradients, leaf

from hpcgnn import native

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
