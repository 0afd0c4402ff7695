"""The link decoder against its composition in plain torch."""

import pytest
import torch
from layer_checks import PRECISIONS, assert_alike, assert_same_nans, assert_same_on_any_threads, gradients, leaf

from hpcgnn.nn.decoders import MlpDecoder, score_roles

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
    decoder, embedding = decoder_case(shape, dtype)
    ours, theirs = score_roles(decoder, embedding), decoder(embedding[0], embedding[1:])
    inputs = [embedding, *decoder.parameters()]
    assert_alike([ours], [theirs], tolerance)
    assert_alike(gradients(ours, inputs), gradients(theirs, inputs), tolerance)


def test_link_decoder_keeps_nans():
    decoder, embedding = decoder_case((3, 40, 9), torch.float64)
    inputs = [embedding, *decoder.parameters()]
    assert_same_nans(lambda: score_roles(decoder, embedding), lambda: decoder(embedding[0], embedding[1:]), inputs)


def test_link_decoder_gradcheck():
    decoder, embedding = decoder_case((3, 4, 3), torch.float64)
    names, values = zip(*decoder.named_parameters(), strict=True)

    def score(embedding, *values):
        return torch.func.functional_call(decoder, dict(zip(names, values, strict=True)), (embedding,))

    decoder.forward = lambda embedding: score_roles(decoder, embedding)
    assert torch.autograd.gradcheck(score, (embedding, *values))


def test_link_decoder_does_not_depend_on_threads():
    decoder, embedding = decoder_case((3, 700, 40), torch.float32)

    def compute():
        logits = score_roles(decoder, embedding)
        return [logits, *gradients(logits, [embedding, *decoder.parameters()])]

    assert_same_on_any_threads(compute)


def test_link_decoder_refuses_wrong_arrays():
    decoder, embedding = decoder_case((3, 4, 5), torch.float32)
    with pytest.raises(ValueError, match="shape"):
        score_roles(decoder, embedding[:, :, :4])
    with pytest.raises(ValueError, match="1 roles"):
        score_roles(decoder, embedding[:1])
