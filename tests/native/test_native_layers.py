"""The fused layers against their plain torch compositions: values, all gradients, odd shapes, any number of threads."""

import pytest
import torch
from torch import nn

from hpcgnn import native
from hpcgnn.native import AttentionPlan, Random
from hpcgnn.native.layers import KeyedDropout
from hpcgnn.nn.decoder import LinkDecoder
from hpcgnn.nn.time_encoding import TimeEncoding
from hpcgnn.temporal.model.attention import TemporalAttentionLayer
from hpcgnn.temporal.model.updater import GruUpdater, RnnUpdater

pytestmark = pytest.mark.serial

PRECISIONS = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.float64, 1e-10)])


@pytest.fixture
def threads():
    """Sets the number of threads, and resets it."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


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


def leaf(*shape, dtype):
    return torch.randn(shape, dtype=dtype).requires_grad_()


def gradients(out, inputs):
    """Gradients of a fixed random functional of ``out``."""
    weight = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    return torch.autograd.grad((out * weight).sum(), inputs)


def assert_alike(ours, theirs, tolerance):
    for mine, expected in zip(ours, theirs, strict=True):
        scale = expected.abs().max().item() if expected.numel() else 0
        assert torch.allclose(mine, expected, rtol=tolerance, atol=tolerance * max(1, scale))


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


def test_attention_layer_gradcheck():
    layer, node, *rest = attention_case((4, 3, 5, 3, 2, 4, 4, 2), torch.float64)
    rest[3].dt.remainder_(5)
    names, values = zip(*layer.named_parameters(), strict=True)

    def embed(node, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (node,))

    layer.forward = lambda node: layer.embed(node, *rest)
    assert torch.autograd.gradcheck(embed, (node, *values))


@pytest.mark.parametrize("shape", ATTENTION[:4])
def test_attention_layer_does_not_depend_on_threads(shape, threads):
    layer, node, *rest = attention_case(shape, torch.float32)
    results = []
    for count in (1, 2, 3):
        threads(count)
        out = layer.embed(node, *rest)
        results.append([out, *gradients(out, [node, *layer.parameters()])])
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


# (table rows, updated rows or None, state width, mail width, time width)
RECURRENT = [
    (600, 500, 100, 200, 100),
    (40, None, 5, 7, 3),
    (30, 70, 1, 0, 17),
    (9, 0, 4, 3, 2),
    (300, None, 33, 50, 1),
]
UPDATERS = pytest.mark.parametrize("updater_type", [GruUpdater, RnnUpdater])


def recurrent_case(updater_type, shape, dtype):
    total, rows, width, mail_width, time_width = shape
    torch.manual_seed(total)
    updater = updater_type(mail_width, width, TimeEncoding(time_width, True)).to(dtype)
    for parameter in updater.parameters():
        nn.init.normal_(parameter, std=0.3)
    mailed, updated = torch.randint(0, 3_000_000, (2, total))
    tables = [torch.randn((total, width), dtype=dtype), torch.randn((total, mail_width), dtype=dtype), mailed, updated]
    index = None if rows is None else torch.randint(0, total, (rows,))
    return updater, tables, torch.rand(total) < 0.7, index


def update_plainly(updater, tables, has_mail, index):
    """Every row through the torch path, which a state that wants a gradient asks for."""
    state, mail, mailed, updated = tables if index is None else [table[index] for table in tables]
    return updater(
        state.clone().requires_grad_(), mail, mailed - updated, has_mail if index is None else has_mail[index]
    )


def update(updater, tables, has_mail, index):
    if index is not None:
        return updater.update_rows(index, *tables, has_mail.long())
    state, mail, mailed, updated = tables
    return updater(state, mail, mailed - updated, has_mail)


@PRECISIONS
@UPDATERS
@pytest.mark.parametrize("shape", RECURRENT)
def test_recurrent_update_equals_composition(updater_type, shape, dtype, tolerance):
    case = recurrent_case(updater_type, shape, dtype)
    ours, theirs = update(*case), update_plainly(*case)
    assert_alike([ours], [theirs], tolerance)
    inputs = list(case[0].parameters())
    if theirs.numel():
        assert_alike(gradients(ours, inputs), gradients(theirs, inputs), tolerance)


@PRECISIONS
@UPDATERS
@pytest.mark.parametrize("shape", [RECURRENT[0], (300, None, 33, 50, 1), (30, 70, 4, 4, 17)])
def test_recurrent_update_where_mails_begin_with_the_state(updater_type, shape, dtype, tolerance):
    updater, (state, mail, *times), has_mail, index = recurrent_case(updater_type, shape, dtype)
    mail[:, : state.shape[1]] = state
    tables, updater.state_first = (state, mail, *times), True
    ours = updater.update_rows(index, *tables, has_mail.long())
    theirs = update_plainly(updater, tables, has_mail, index)
    assert_alike([ours], [theirs], tolerance)
    inputs = list(updater.parameters())
    assert_alike(gradients(ours, inputs), gradients(theirs, inputs), tolerance)


@UPDATERS
def test_recurrent_update_equals_cell(updater_type):
    """And so does torch's own cell."""
    updater, (state, mail, mailed, updated), _, _ = recurrent_case(updater_type, RECURRENT[4], torch.float64)
    everyone = torch.ones(len(state), dtype=torch.bool)
    ours = updater(state, mail, mailed - updated, everyone)
    theirs = updater.cell(torch.cat([mail, updater.time(mailed - updated)], dim=1), state)
    assert_alike([ours], [theirs], 1e-10)


@UPDATERS
def test_recurrent_update_without_any_mail_keeps_states(updater_type):
    updater, tables, _, index = recurrent_case(updater_type, RECURRENT[0], torch.float32)
    nobody = torch.zeros(len(tables[0]), dtype=torch.int64)
    out = updater.update_rows(index, *tables, nobody)
    assert torch.equal(out, tables[0][index])
    assert all((g == 0).all() for g in gradients(out, list(updater.parameters())))


@UPDATERS
def test_recurrent_update_with_a_gradient_to_the_mail(updater_type):
    """Mail that a message function made: the torch path, differentiable in the mail of rows that have some."""
    updater, (state, mail, mailed, updated), has_mail, _ = recurrent_case(updater_type, RECURRENT[1], torch.float64)
    mail.requires_grad_()
    out = updater(state, mail, mailed - updated, has_mail)
    assert_alike([out], [updater(state, mail.detach(), mailed - updated, has_mail)], 1e-10)
    (gradient,) = gradients(out, [mail])
    assert torch.equal(gradient.abs().sum(1) > 0, has_mail)


@UPDATERS
def test_recurrent_update_gradcheck(updater_type):
    updater, tables, has_mail, index = recurrent_case(updater_type, (5, 7, 2, 3, 4), torch.float64)
    tables[2] = tables[3] + torch.arange(5)
    names, values = zip(*updater.named_parameters(), strict=True)
    updater.forward = lambda: updater.update_rows(index, *tables, has_mail.long())
    call = lambda *given: torch.func.functional_call(updater, dict(zip(names, given, strict=True)), ())  # noqa: E731
    assert torch.autograd.gradcheck(call, values)


# (roles, pairs, width)
DECODER = [(3, 300, 100), (2, 17, 9), (5, 1, 33), (3, 0, 4), (4, 270, 1)]


def decoder_case(shape, dtype):
    torch.manual_seed(sum(shape))
    decoder = LinkDecoder(shape[2]).to(dtype)
    return decoder, leaf(*shape, dtype=dtype)


@PRECISIONS
@pytest.mark.parametrize("shape", DECODER)
def test_link_decoder_equals_composition(shape, dtype, tolerance):
    decoder, embedding = decoder_case(shape, dtype)
    ours, theirs = decoder.score(embedding), decoder(embedding[0], embedding[1:])
    inputs = [embedding, *decoder.parameters()]
    assert_alike([ours], [theirs], tolerance)
    assert_alike(gradients(ours, inputs), gradients(theirs, inputs), tolerance)


def test_link_decoder_gradcheck():
    decoder, embedding = decoder_case((3, 4, 3), torch.float64)
    names, values = zip(*decoder.named_parameters(), strict=True)

    def score(embedding, *values):
        return torch.func.functional_call(decoder, dict(zip(names, values, strict=True)), (embedding,))

    decoder.forward = lambda embedding: decoder.score(embedding)
    assert torch.autograd.gradcheck(score, (embedding, *values))


def test_update_and_decoder_do_not_depend_on_threads(threads):
    decoder, embedding = decoder_case((3, 700, 40), torch.float32)
    case = recurrent_case(GruUpdater, (2000, 1700, 40, 60, 20), torch.float32)
    results = []
    for count in (1, 2, 3):
        threads(count)
        logits, state = decoder.score(embedding), update(*case)
        results.append(
            [
                logits,
                state,
                *gradients(logits, [embedding, *decoder.parameters()]),
                *gradients(state, list(case[0].parameters())),
            ]
        )
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def test_layers_refuse_wrong_arrays():
    decoder, embedding = decoder_case((3, 4, 5), torch.float32)
    with pytest.raises(ValueError, match="shape"):
        decoder.score(embedding[:, :, :4])
    with pytest.raises(ValueError, match="1 roles"):
        decoder.score(embedding[:1])
    updater, (state, mail, mailed, updated), has_mail, index = recurrent_case(GruUpdater, RECURRENT[0], torch.float32)
    with pytest.raises(ValueError, match="int64"):
        updater.update_rows(index.int(), state, mail, mailed, updated, has_mail.long())
    with pytest.raises(ValueError, match="probability"):
        KeyedDropout(Random(0, 0), index, 1.0)
