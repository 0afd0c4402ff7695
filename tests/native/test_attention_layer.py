"""The layer of temporal attention against its composition in plain torch."""

import pytest
import torch
from layer_checks import PRECISIONS, assert_alike, assert_same_nans, assert_same_on_any_threads, gradients, leaf
from torch import nn

from hpcgnn import native
from hpcgnn.native import AttentionPlan, Random
from hpcgnn.native.layers import KeyedDropout, kernels_for
from hpcgnn.temporal.model.readout import TemporalAttentionLayer
from hpcgnn.temporal.model.time_encoding import TimeEncoding

pytestmark = pytest.mark.serial


def random_plan(roots, slots, unique, edges):
    """(root, root_transpose, plan), some roots without slots."""
    count = torch.randint(0, slots + 1, (roots,), dtype=torch.int32)
    valid = torch.arange(slots) < count.unsqueeze(1)
    pick = lambda n: torch.where(valid, torch.randint(0, max(n, 1), (roots, slots)), -1).to(torch.int32)  # noqa: E731
    slot, root = pick(unique), torch.randint(0, unique, (roots,))
    transpose = lambda index: tuple(map(torch.from_numpy, native.transpose_index(index.numpy(), unique)))  # noqa: E731
    dt = torch.randint(0, 3_000_000, (roots, slots))
    plan = AttentionPlan(slot, count, dt, pick(edges), *transpose(slot.flatten()))
    return root, transpose(root.to(torch.int32)), plan


# (roots, slots, unique, node width, edge width, time width, out width, heads)
ATTENTION = [
    (300, 10, 250, 100, 0, 100, 100, 2), (37, 3, 20, 7, 5, 9, 12, 3), (19, 1, 11, 0, 4, 16, 8, 1),
    (700, 13, 90, 33, 17, 5, 40, 4), (0, 4, 3, 6, 2, 4, 8, 2), (5, 9, 1, 130, 1, 140, 200, 8),
]  # fmt: skip


def attention_case(shape, dtype):
    roots, slots, unique, node_width, edge_width, time_width, out_width, heads = shape
    torch.manual_seed(sum(shape))
    layer = TemporalAttentionLayer(node_width, edge_width, out_width, heads, TimeEncoding(time_width, True)).to(dtype)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    root, transpose, plan = random_plan(roots, slots, unique, 3 * roots)
    edge = torch.randn((3 * roots, edge_width), dtype=dtype)
    dropout = KeyedDropout(Random(3, 3, step=roots), torch.randint(0, 1 << 47, (roots,)), 0.3)
    return layer, leaf(unique, node_width, dtype=dtype), root, transpose, edge, plan, dropout


def embed_plainly(layer, node, root, transpose, edge, plan, dropout):
    mask = native.dropout_mask(dropout.random, dropout.identity, layer.merge.out_features, dropout.p, node.dtype)
    return layer(node, native.GatherRows.apply(node, root, *transpose), edge, plan, mask)


@PRECISIONS
@pytest.mark.parametrize("shape", ATTENTION)
def test_attention_layer_equals_composition(shape, dtype, tolerance):
    layer, node, *rest = attention_case(shape, dtype)
    inputs = [node, *layer.parameters()]
    ours, theirs = layer.embed(node, *rest), embed_plainly(layer, node, *rest)
    assert_alike([ours], [theirs], tolerance)
    assert_alike(gradients(ours, inputs), gradients(theirs, inputs), tolerance)


def test_attention_layer_without_dropout_and_phase_gradient():
    layer, node, *rest, _ = attention_case(ATTENTION[1], torch.float64)
    layer.time.phase.requires_grad_(False)
    root, transpose, edge, plan = rest
    inputs = [node, layer.key, layer.value, layer.query.weight, layer.merge.weight, layer.norm.bias]
    ours = layer.embed(node, *rest)
    theirs = layer(node, native.GatherRows.apply(node, root, *transpose), edge, plan)
    assert_alike(gradients(ours, inputs), gradients(theirs, inputs), 1e-10)


def test_attention_layer_keeps_nans():
    layer, node, root, transpose, edge, plan, _ = attention_case(ATTENTION[1], torch.float64)
    assert_same_nans(
        lambda: layer.embed(node, root, transpose, edge, plan),
        lambda: layer(node, native.GatherRows.apply(node, root, *transpose), edge, plan),
        [node, *layer.parameters()],
    )
    edge[int(plan.edge_of.max())] = torch.nan
    ours = layer.embed(node, root, transpose, edge, plan)
    assert ours.isnan().any()
    assert torch.equal(ours.isnan(), layer(node, node[root], edge, plan).isnan())


def test_attention_layer_gradcheck():
    layer, node, *rest = attention_case((4, 3, 5, 3, 2, 4, 4, 2), torch.float64)
    rest[3].dt.remainder_(5)
    names, values = zip(*layer.named_parameters(), strict=True)

    def embed(node, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (node,))

    layer.forward = lambda node: layer.embed(node, *rest)
    assert torch.autograd.gradcheck(embed, (node, *values))


@pytest.mark.parametrize("shape", ATTENTION[:4])
def test_attention_layer_does_not_depend_on_threads(shape):
    layer, node, *rest = attention_case(shape, torch.float32)

    def compute():
        out = layer.embed(node, *rest)
        return [out, *gradients(out, [node, *layer.parameters()])]

    assert_same_on_any_threads(compute)


def test_keys_have_the_width_of_what_they_are_made_of():
    layer, node, root, transpose, edge, plan, dropout = attention_case(ATTENTION[1], torch.float64)
    wide = torch.cat([node, node], dim=1)
    with pytest.raises(ValueError, match=r"keys are 21 wide, node, edge and time 14 \+ 5 \+ 9"):
        layer.embed(wide, root, transpose, edge, plan, dropout)


def test_layers_are_of_two_precisions():
    with pytest.raises(ValueError, match=r"native on the CPU in float32 and float64, not for torch\.bfloat16 cpu"):
        kernels_for(torch.ones(2, dtype=torch.bfloat16))


def test_probabilities_of_dropout_are_checked():
    with pytest.raises(ValueError, match="probability"):
        KeyedDropout(Random(0, 0), torch.arange(3), 1.0)
