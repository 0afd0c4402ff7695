"""Tensors in memory that is kept."""

import pytest
import torch

from hpcgnn.native import empty_rows

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_memory_of_large_tensors_is_used_again(dtype):
    like = torch.empty(0, dtype=dtype)
    small, large = empty_rows(like, 3, 5), empty_rows(like, 5000, 100)
    assert (small.shape, large.shape, small.dtype, large.dtype) == ((3, 5), (5000, 100), dtype, dtype)
    large.fill_(1)
    address, other = large.data_ptr(), empty_rows(like, 5000, 100)
    assert other.data_ptr() != address
    del large
    if dtype.is_floating_point:
        again = [empty_rows(like, 5000, 100) for _ in range(20)]  # other tests may have left memory of that size
        assert address in [rows.data_ptr() for rows in again]
