"""The time encoding against plain torch."""

import pytest
import torch

from hpcgnn import native

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_time_encode_is_exact_for_large_times(dtype):
    dt = torch.randint(0, 10**9, (500,))
    frequency = torch.logspace(0, -9, 30, dtype=torch.float64)
    phase = torch.randn(30, dtype=torch.float64)
    value = native.TimeEncode.apply(dt, frequency, phase, dtype)
    expected = native.time_encode_reference(dt, frequency, phase, torch.float64)
    assert (value.double() - expected).abs().max() < (3e-7 if dtype is torch.float32 else 1e-15)
