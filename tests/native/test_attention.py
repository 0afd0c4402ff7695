"""Fused temporal attention of the CUDA build against plain torch."""

from types import SimpleNamespace

import pytest
import torch
from layer_checks import assert_alike, leaf
from test_attention_layer import random_plan

from hpcgnn.native import temporal_attention
from hpcgnn.native.attention import plain_attention
from hpcgnn.temporal.model.time_encoding import TimeEncoding

pytestmark = pytest.mark.serial

# (roots, slots, unique, node width, edge width, time width, heads)
SHAPES = pytest.mark.parametrize(
    "shape", [(300, 10, 250, 100, 0, 100, 2), (37, 3, 20, 7, 5, 9, 3), (19, 1, 11, 0, 4, 16, 1),
              (70, 13, 9, 33, 17, 5, 6), (0, 4, 3, 6, 2, 4, 2)]
)  # fmt: skip


def make_case(shape, dtype):
    """(query, node, phase, edge, frequency, plan), the first three of which want gradients."""
    roots, slots, unique, node_width, edge_width, time_width, heads = shape
    torch.manual_seed(sum(shape))
    _, _, plan = random_plan(roots, slots, unique, 3 * roots)
    query = leaf(roots, heads, node_width + edge_width + time_width, dtype=dtype)
    node, phase = leaf(unique, node_width, dtype=dtype), leaf(time_width, dtype=dtype)
    return (
        query,
        node,
        phase,
        torch.randn((3 * roots, edge_width), dtype=dtype),
        TimeEncoding(time_width).frequency,
        plan,
    )


def test_roots_without_neighbors_need_no_features():
    """As in the first step of an epoch, of which no event came before: there is not one row of features."""
    none = torch.full((2, 4), -1, dtype=torch.int32)
    plan = SimpleNamespace(slot=none, edge_of=none, count=torch.zeros(2, dtype=torch.int32), dt=none.long())
    query, node, phase = torch.randn(2, 1, 3 + 5 + 6), torch.randn(2, 3), torch.zeros(6)
    assert torch.equal(
        plain_attention(query, node, phase, torch.empty(0, 5), torch.ones(6), plan), torch.zeros(2, 1, 14)
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.float64, 1e-9)])
@SHAPES
def test_kernels_equal_plain_torch(device, shape, dtype, tolerance):
    query, node, phase, edge, frequency, plan = make_case(shape, dtype)
    names = ("slot", "count", "dt", "edge_of", "slot_indptr", "slot_order")
    there = type(plan)(*(device.put(getattr(plan, name)) for name in names))
    leaves = [device.put(tensor).requires_grad_() for tensor in (query, node, phase)]
    case = (*leaves, *device.put_all(edge, frequency), there)
    theirs = plain_attention(*case)
    weight = torch.randn_like(theirs)
    expected = torch.autograd.grad((theirs * weight).sum(), leaves)
    with device:
        ours, again = temporal_attention(*case), temporal_attention(*case)
        found, repeated = (torch.autograd.grad((result * weight).sum(), leaves) for result in (ours, again))
    assert_alike([ours, *found], [theirs, *expected], tolerance)
    assert torch.equal(ours, again)
    assert all(map(torch.equal, found, repeated))
