"""The elementwise part of a gated recurrent unit against plain torch."""

import pytest
import torch

from hpcgnn import native

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gru_gates_equal_reference(dtype):
    given, kept = (4 * torch.randn(37, 21, dtype=dtype) for _ in range(2))
    state = torch.randn(37, 7, dtype=dtype)
    given[0], kept[1] = 500, -500  # saturated
    tolerance = 1e-5 if dtype is torch.float32 else 1e-13
    results = []
    for function in (native.GruGates.apply, native.gru_gates_reference):
        inputs = [given.clone().requires_grad_(), kept.clone().requires_grad_()]
        out = function(*inputs, state)
        results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    for mine, reference in zip(*results, strict=True):
        assert torch.allclose(mine, reference, atol=tolerance, rtol=tolerance)


def test_gru_gates_gradcheck():
    given, kept = (torch.randn(3, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    state = torch.randn(3, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda g, k: native.GruGates.apply(g, k, state), (given, kept))
