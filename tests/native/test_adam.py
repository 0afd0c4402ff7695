"""The optimizer's step against torch's."""

import pytest
import torch

from hpcgnn.native.adam import adam_step

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_steps_equal_those_of_torch(optimizer, dtype, tolerance):
    torch.manual_seed(0)
    theirs = torch.nn.Parameter(torch.randn(1003, dtype=dtype))
    mine = theirs.detach().clone()
    mean, square = torch.zeros_like(mine), torch.zeros_like(mine)
    options = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    torch_optimizer = optimizer([theirs], **options)
    for step in range(1, 6):
        theirs.grad = torch.randn_like(mine)
        torch_optimizer.step()
        adam_step(mine, theirs.grad, mean, square, step, **options, decoupled=optimizer is torch.optim.AdamW)
        assert torch.allclose(mine, theirs, rtol=tolerance, atol=tolerance)
