"""Gather and scatter of rows, and counts, against plain torch."""

import numpy as np
import pytest
import torch

from hpcgnn import native
from hpcgnn.native.dispatch import compute_backend

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
@pytest.mark.parametrize("tail", [(), (1,), (5,), (3, 2)])
def test_gather_and_scatter_rows(dtype, tail):
    table = torch.randint(0, 2, (30, *tail)).to(dtype)
    index = torch.tensor([3, -1, 7, 29])
    rows = native.gather_rows(table, index)
    assert torch.equal(rows[[0, 2, 3]], table[[3, 7, 29]])
    assert not rows[1].any()
    target = torch.zeros_like(table)
    native.scatter_rows(target, index, rows)
    assert torch.equal(target[[3, 7, 29]], table[[3, 7, 29]])
    assert torch.equal(native.gather_rows(table, index[:0]), table[:0])


def test_rows_of_an_empty_table_are_zeros():
    """Whatever its strides are: NumPy's empty arrays may have any."""
    table = torch.empty(0, 3, dtype=torch.float64).as_strided((0, 3), (0, 0))
    assert torch.equal(native.gather_rows(table, torch.tensor([-1, -1])), torch.zeros(2, 3, dtype=torch.float64))


def test_scatter_rows_takes_rows_of_the_table():
    """Others would be read as if they were."""
    table, index = torch.zeros(30, 4), torch.tensor([3, 7])
    for wrong in (torch.ones(2, 4, dtype=torch.int32), torch.ones(2, 2, dtype=torch.float64), torch.ones(2, 5)):
        with pytest.raises(ValueError, match="rows of the table"):
            native.scatter_rows(table, index, wrong)
    with pytest.raises(ValueError, match="contiguous"):
        native.scatter_rows(table[:, :2], index, torch.ones(2, 2))
    assert not table.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [0, 1, 33, 40_000])
def test_count_reaching(width, dtype):
    """Above, and at least; NaN and -inf are neither above nor at least a number; several pieces of a row."""
    scores = torch.randint(-3, 4, (7, width)).to(dtype)
    scores[0, ::3], scores[1, ::2] = torch.nan, -torch.inf
    row, threshold = torch.arange(20) % 7, torch.randint(-3, 4, (20,)).to(dtype)
    threshold[3] = -torch.inf
    expected = (scores[row] > threshold[:, None]).sum(1) + (scores[row] >= threshold[:, None]).sum(1)
    assert torch.equal(native.count_reaching(scores, row, threshold), expected)
    assert native.count_reaching(scores, row[:0], threshold[:0]).shape == (0,)


def test_gather_rows_gradient():
    index = np.array([0, 3, 3, 1], np.int32)
    transpose = [torch.from_numpy(a) for a in native.transpose_index(index, 5)]
    table = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    gather = lambda t: native.GatherRows.apply(t, torch.from_numpy(index).long(), *transpose)  # noqa: E731
    assert torch.autograd.gradcheck(gather, table)


def test_outputs_are_never_copies():
    """A kernel would write a copy of what is not contiguous, and nobody would read it."""
    table, out = torch.ones(4, 2, dtype=torch.uint8), torch.zeros(3, 4, dtype=torch.uint8)
    index = torch.tensor([0, 1, 3])
    kernels, execution = compute_backend(table)
    for wrong in (out[:, ::2], out.to(torch.int32)[:, :2].contiguous()):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            kernels.gather_rows(table, index, wrong, execution)
    kernels.gather_rows(table, index, out[:, :2].contiguous(), execution)
