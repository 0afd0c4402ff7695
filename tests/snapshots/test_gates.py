"""Steps and products in kept memory: values and gradients are those of plain operations."""

from functools import partial

import pytest
import torch

from hpcgnn.snapshots.model.recurrent import GatedCell, affine, relu

pytestmark = pytest.mark.serial


def plain_step(cell, gate_inputs, hidden):
    """The step of a cell in plain torch, operation by operation."""
    width = hidden.shape[-1]
    update, reset = torch.sigmoid(gate_inputs[..., : 2 * width] + hidden @ cell.gates).chunk(2, dim=-1)
    candidate = torch.tanh(gate_inputs[..., 2 * width :] + (reset * hidden) @ cell.candidate)
    return torch.lerp(candidate, hidden, update)


@pytest.mark.parametrize("rows", [0, 1, 13])
@pytest.mark.parametrize("sequences", [1, 3])
def test_step_is_its_operations(rows, sequences):
    """Over three steps, so that the gradient passes through the state."""
    torch.manual_seed(3)
    cell, width = GatedCell(5).double(), 5
    given = torch.randn(3, rows, sequences, 3 * width, dtype=torch.float64)
    start = torch.randn(rows, sequences, width, dtype=torch.float64)
    found = []
    for step in (cell, partial(plain_step, cell)):
        leaves = given.clone().requires_grad_(), start.clone().requires_grad_()
        hidden = leaves[1]
        for some in leaves[0]:
            hidden = step(some, hidden)
        cell.zero_grad()
        torch.sin(hidden).sum().backward()
        found.append([hidden, *(leaf.grad for leaf in (*leaves, *cell.parameters()))])
    assert all(torch.allclose(a, b, rtol=1e-12, atol=1e-13) for a, b in zip(*found, strict=True))


def test_step_takes_single_precision():
    torch.manual_seed(3)
    cell, given, hidden = GatedCell(4), torch.randn(9, 1, 12), torch.randn(9, 1, 4)
    assert torch.allclose(cell(given, hidden), plain_step(cell, given, hidden), atol=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 70000])
@pytest.mark.parametrize("rectify", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_affine_is_its_operations(rows, rectify, with_bias):
    """Also where rows are so many that their memory is kept, used twice over."""
    torch.manual_seed(4)
    shapes = [(rows, 2, 3), (3, 4), *([(4,)] if with_bias else [])]
    values, found = [torch.randn(shape, dtype=torch.float64) for shape in shapes], []
    for plain in (False, True):
        leaves = [value.clone().requires_grad_() for value in values]
        if plain:
            out = leaves[0] @ leaves[1] + (leaves[2] if with_bias else 0)
            out = torch.relu(torch.relu(out) if rectify else out)
        else:
            out = relu(affine(*leaves, rectify=rectify))
        torch.sin(out).sum().backward()
        found.append([out, *(leaf.grad for leaf in leaves)])
    assert all(torch.allclose(a, b, rtol=1e-10, atol=1e-10) for a, b in zip(*found, strict=True))
