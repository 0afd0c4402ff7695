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


def test_time_encode_learns_frequencies():
    dt, phase = torch.randint(0, 100, (50,)), torch.randn(6, dtype=torch.float64)
    frequency = torch.rand(6, dtype=torch.float64, requires_grad=True)
    learned = [
        encode(dt, frequency, phase, torch.float64) for encode in (native.time_encode, native.time_encode_reference)
    ]
    ours, theirs = (torch.autograd.grad(value.sum(), frequency)[0] for value in learned)
    assert torch.allclose(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_time_encode_is_a_cosine_of_the_largest_times(dtype):
    """Of nanoseconds, and with frequencies above 1, phases are so far apart that the next double is turns away; the
    gradient is that of the sine."""
    dt = torch.cat([torch.randint(0, 2**62, (500,)), torch.tensor([2**63 - 1, -(2**63), 3 * 10**16])])
    frequency, phase = torch.logspace(3, -2, 6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    phase.requires_grad_()
    value = native.TimeEncode.apply(dt, frequency, phase, dtype)
    expected = native.time_encode_reference(dt, frequency, phase, torch.float64)
    assert (value.double() - expected).abs().max() < (3e-7 if dtype is torch.float32 else 1e-9)
    (gradient,) = torch.autograd.grad(value.double().sum(), phase)
    (correct,) = torch.autograd.grad(expected.sum(), phase)
    assert torch.allclose(gradient, correct, rtol=1e-5, atol=1e-5 * len(dt))
