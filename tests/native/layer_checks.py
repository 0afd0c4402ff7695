"""What tests of layers share: random leaves, all gradients, comparison within a tolerance, any number of threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.float64, 1e-10)])


def leaf(*shape, dtype):
    return torch.randn(shape, dtype=dtype).requires_grad_()


def gradients(out, inputs):
    """Gradients of a fixed random functional of ``out``."""
    weight = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1)).to(out.device)
    return torch.autograd.grad((out * weight).sum(), inputs)


def assert_alike(ours, theirs, tolerance):
    for mine, expected in zip(ours, theirs, strict=True):
        scale = expected.abs().max().item() if expected.numel() else 0
        assert torch.allclose(mine, expected, rtol=tolerance, atol=tolerance * max(1, scale))


def assert_same_on_any_threads(compute: Callable[[], list[torch.Tensor]]) -> None:
    """compute() gives the same tensors, bit for bit, whatever the number of threads."""
    before, results = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(compute())
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def assert_same_nans(
    ours: Callable[[], torch.Tensor], theirs: Callable[[], torch.Tensor], inputs: Sequence[torch.Tensor]
) -> None:
    """A NaN in any of the inputs shows in the same outputs of both: nothing turns it into a number."""
    for value in inputs:
        if not value.numel():
            continue
        with torch.no_grad():
            before = value.flatten()[0].item()
            value.view(-1)[0] = math.nan
            poisoned, expected = ours(), theirs()
            value.view(-1)[0] = before
        assert torch.equal(poisoned.isnan(), expected.isnan())
        assert expected.isnan().any()
