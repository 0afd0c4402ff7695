"""Products in kept memory: the same values and gradients as plain torch, whatever the pieces."""

from __future__ import annotations

import pytest
import torch

from hpcgnn.snapshots.model import recurrent as affine

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize(("rows", "piece_bytes"), [(0, 1 << 19), (5, 1), (100, 700), (100, 1 << 19)])
def test_a_perceptron_in_pieces_is_two_plain_layers(monkeypatch, rows, piece_bytes, outputs):
    monkeypatch.setattr(affine, "_PIECE_BYTES", piece_bytes)
    torch.manual_seed(0)
    given = torch.randn(rows, 2, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    output = torch.nn.Linear(6, outputs, dtype=torch.float64)
    leaves = [given, weight, *output.parameters()]
    expected = output(torch.relu(given @ weight))
    found = affine.perceptron(given, weight, output)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    toward = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad(found, leaves, toward), torch.autograd.grad(expected, leaves, toward), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
