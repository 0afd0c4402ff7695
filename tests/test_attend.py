"""Fused temporal attention of the CUDA build against plain torch: its element functions on the host, the kernels where
there is a GPU."""

import ctypes

import pytest
import torch
from compiled_elements import compile_elements
from test_native_layers import assert_alike, leaf, random_plan

from hpcgnn.native import temporal_attention
from hpcgnn.native.attention import plain_attention
from hpcgnn.nn.time_encoding import TimeEncoding

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


class Input(ctypes.Structure):
    """AttentionInput<double>."""

    _fields_ = (
        [(name, ctypes.c_int64) for name in ("roots", "unique")]
        + [(name, ctypes.c_int32) for name in ("slots", "heads", "node_width", "edge_width", "time_width")]
        + [(name, ctypes.c_void_p) for name in "query node slot count edge_of edge dt frequency phase".split()]
    )


@pytest.fixture(scope="module")
def elements(tmp_path_factory):
    """The element functions, compiled for the host."""
    return compile_elements("attend_elements.cpp", tmp_path_factory.mktemp("elements"))


def pointers(*tensors):
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]


@SHAPES
def test_elements_equal_plain_torch(elements, shape):
    query, node, phase, edge, frequency, plan = case = make_case(shape, torch.float64)
    tensors = (query, node, plan.slot, plan.count, plan.edge_of, edge, plan.dt, frequency, phase)
    given = Input(shape[0], *shape[2:3], shape[1], shape[6], *shape[3:6], *(tensor.data_ptr() for tensor in tensors))
    expected = plain_attention(*case)
    aggregate, weight = torch.empty_like(query), torch.empty((*query.shape[:2], shape[1]), dtype=torch.float64)
    elements.forward(ctypes.byref(given), *pointers(aggregate, weight))
    assert_alike([aggregate], [expected], 1e-10)
    gradient = torch.randn_like(expected)
    grad_score, found = torch.empty_like(weight), [torch.empty_like(t) for t in (query, node, phase)]
    arrays = pointers(weight, gradient, plan.slot_indptr, plan.slot_order, grad_score, *found)
    elements.backward(ctypes.byref(given), *arrays)
    assert_alike(found, torch.autograd.grad((expected * gradient).sum(), (query, node, phase)), 1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.float64, 1e-9)])
@SHAPES
def test_kernels_equal_plain_torch(shape, dtype, tolerance):
    query, node, phase, edge, frequency, plan = make_case(shape, dtype)
    names = ("slot", "count", "dt", "edge_of", "slot_indptr", "slot_order")
    on_gpu = type(plan)(*(getattr(plan, name).cuda() for name in names))
    leaves = [tensor.detach().cuda().requires_grad_() for tensor in (query, node, phase)]
    case = (*leaves, edge.cuda(), frequency.cuda(), on_gpu)
    ours, theirs = temporal_attention(*case), plain_attention(*case)
    assert_alike([ours], [theirs], tolerance)
    weight = torch.randn_like(ours)
    found = torch.autograd.grad((ours * weight).sum(), leaves)
    assert_alike(found, torch.autograd.grad((theirs * weight).sum(), leaves), tolerance)
    again = temporal_attention(*case)
    assert torch.equal(ours, again)
    assert all(map(torch.equal, found, torch.autograd.grad((again * weight).sum(), leaves)))
