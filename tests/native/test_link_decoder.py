"""The link decoder against its composition in plain torch."""

import pytest
import torch
from layer_checks import PRECISIONS, assert_alike, assert_same_nans, assert_same_on_any_threads, gradients, leaf
from torch.nn.functional import embedding

from hpcgnn.nn.decoders import DotProduct, MlpDecoder, score_at, score_roles

pytestmark = pytest.mark.serial


# (roles, pairs, width)
DECODER = [(3, 300, 100), (2, 17, 9), (5, 1, 33), (3, 0, 4), (4, 270, 1)]


def decoder_case(shape, dtype):
    torch.manual_seed(sum(shape))
    decoder = MlpDecoder(shape[2]).to(dtype)
    return decoder, leaf(*shape, dtype=dtype)


@PRECISIONS
@pytest.mark.parametrize("shape", DECODER)
def test_link_decoder_equals_composition(shape, dtype, tolerance):
    decoder, rows = decoder_case(shape, dtype)
    ours, theirs = score_roles(decoder, rows), decoder(rows[0], rows[1:])
    inputs = [rows, *decoder.parameters()]
    assert_alike([ours], [theirs], tolerance)
    assert_alike(gradients(ours, inputs), gradients(theirs, inputs), tolerance)


# (rows of sources, of destinations), (places of sources), (of destinations), width
PLACES = [
    ((7, 5), (40,), (40,), 9), ((7, 5), (40,), (6, 40), 33), ((7, 5), (6, 40), (40,), 8),
    ((30, 31), (6, 300), (6, 300), 20), ((90, 5), (40,), (3, 40), 16), ((7, 90), (3, 40), (40,), 1),
    ((7, 5), (0,), (3, 0), 4), ((0, 0), (0,), (0,), 4),
]  # fmt: skip


def places_case(rows, source, destination, width):
    torch.manual_seed(len(source) + width)
    decoder = MlpDecoder(width).double()
    tables = [leaf(count, width, dtype=torch.float64) for count in rows]
    return (
        decoder,
        tables,
        [torch.randint(max(1, n), shape) for n, shape in zip(rows, (source, destination), strict=True)],
    )


@pytest.mark.parametrize("case", PLACES)
def test_pairs_of_rows_equal_the_composition_of_their_rows(case):
    decoder, tables, places = places_case(*case)
    ours, inputs = score_at(decoder, tables, places), [*tables, *decoder.parameters()]
    source, destination = (embedding(place, table) for place, table in zip(places, tables, strict=True))
    hidden = torch.relu(
        source @ decoder.source.weight.T + decoder.source.bias + destination @ decoder.destination.weight.T
    )
    theirs = (hidden @ decoder.out.weight.T + decoder.out.bias).squeeze(-1)
    assert_alike([ours], [theirs], 1e-12)
    assert_alike(gradients(ours, inputs), gradients(theirs, inputs), 1e-12)


def test_pairs_of_one_table_add_up_their_gradients():
    decoder, (table, _), (source, destination) = places_case((5, 5), (20,), (4, 20), 6)
    ours, theirs = score_at(decoder, (table, table), (source, destination)), decoder(table[source], table[destination])
    assert_alike(gradients(ours, [table]), gradients(theirs, [table]), 1e-12)


def test_pairs_of_a_decoder_without_a_kernel():
    _, (left, right), (source, destination) = places_case((7, 5), (4, 20), (4, 20), 6)
    assert_alike(
        [score_at(DotProduct(), (left, right), (source, destination))],
        [(left[source] * right[destination]).sum(-1)],
        1e-12,
    )


def test_link_decoder_keeps_nans():
    decoder, rows = decoder_case((3, 40, 9), torch.float64)
    inputs = [rows, *decoder.parameters()]
    assert_same_nans(lambda: score_roles(decoder, rows), lambda: decoder(rows[0], rows[1:]), inputs)


def test_link_decoder_gradcheck():
    decoder, (left, right), places = places_case((3, 4), (5,), (2, 5), 3)
    names, values = zip(*decoder.named_parameters(), strict=True)

    def score(left, right, *values):
        return torch.func.functional_call(decoder, dict(zip(names, values, strict=True)), (left, right))

    decoder.forward = lambda left, right: score_at(decoder, (left, right), places)
    assert torch.autograd.gradcheck(score, (left, right, *values))


def test_link_decoder_does_not_depend_on_threads():
    torch.manual_seed(1)
    decoder, tables = MlpDecoder(70), [leaf(count, 70, dtype=torch.float32) for count in (300, 200)]
    places = torch.randint(300, (700,)), torch.randint(200, (3, 700))

    def compute():
        logits = score_at(decoder, tables, places)
        return [logits, *gradients(logits, [*tables, *decoder.parameters()])]

    assert_same_on_any_threads(compute)


def test_link_decoder_refuses_wrong_arrays():
    decoder, rows = decoder_case((3, 4, 5), torch.float32)
    with pytest.raises(ValueError, match="shape"):
        score_roles(decoder, rows[:, :, :4])
    with pytest.raises(ValueError, match="1 roles"):
        score_roles(decoder, rows[:1])
    with pytest.raises(IndexError, match="destinations are from -1 to 3, where there are 4 rows"):
        score_at(decoder, rows[:2], (torch.arange(4), torch.tensor([3, -1, 0, 0])))
