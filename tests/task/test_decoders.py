"""Decoders and losses of links: plain references, all pairs, what negatives weigh."""

import pytest
import torch
from layer_checks import assert_alike

from hpcgnn.choices import check_choice
from hpcgnn.nn import decoders
from hpcgnn.nn.decoders import DECODERS, DecoderSizes
from hpcgnn.task import losses as functions

# Scores of embeddings alone; test_paths.py is about states.
SCORED = [name for name, row in DECODERS.items() if not (row.needs_events or row.of_paths)]

pytestmark = pytest.mark.serial


@pytest.mark.parametrize("kind", SCORED)
def test_decoders_score_pairs_and_negatives_alike(kind):
    torch.manual_seed(0)
    decoder = DECODERS[kind].make(DecoderSizes(6, 3))
    source, destination = torch.randn(5, 6, requires_grad=True), torch.randn(4, 5, 6)
    relation = torch.tensor([0, 2, 1, 1, 0])
    scores = decoder(source, destination, relation)
    assert scores.shape == (4, 5)
    one_by_one = [decoder(source, rows, relation) for rows in destination]
    assert_alike([scores], [torch.stack(one_by_one)], 1e-6)
    for decoded in (decoder(source, destination, relation), decoder(source[:0], destination[:, :0], relation[:0])):
        decoded.sum().backward()


def test_decoders_are_what_they_are_called():
    a, b = torch.randn(5, 6), torch.randn(5, 6)
    assert torch.allclose(decoders.DotProduct()(a, b), (a * b).sum(1))
    cosine = torch.nn.functional.cosine_similarity(a, b)
    assert torch.allclose(decoders.Cosine(0.5)(a, b), 2 * cosine)
    distmult = decoders.DistMult(2, 6)
    with torch.no_grad():
        assert torch.allclose(distmult(a, b, torch.ones(5).long()), (a * b * distmult.relation.weight[1]).sum(1))
    complex_ = decoders.ComplEx(2, 6)
    x, y, r = (
        torch.view_as_complex(rows.unflatten(1, (2, 3)).mT.contiguous()) for rows in (a, b, complex_.relation.weight)
    )
    assert torch.allclose(complex_(a, b, torch.ones(5).long()), (x * r[1] * y.conj()).sum(1).real, atol=1e-6)
    transe, kinds = decoders.TransE(2, 6, distance="l2", offset=4.0), torch.ones(5).long()
    length = (a + transe.relation.weight[1] - b).square().sum(1).sqrt()
    assert torch.allclose(transe(a, b, kinds), 4 - length)
    rotate = decoders.RotatE(2, 6, offset=4.0)
    turned = x * torch.polar(torch.ones(3), rotate.relation.weight[1])
    assert torch.allclose(rotate(a, b, kinds), 4 - (turned - y).abs().sum(1), atol=1e-5)
    with pytest.raises(ValueError, match="even width, got 5"):
        decoders.RotatE(2, 5)
    with pytest.raises(ValueError, match="dot, cosine"):
        check_choice("task.decoder", "bilinear", DECODERS)


def test_gradients_of_sums_of_absolute_values():
    """Also where two rows are equal."""
    torch.manual_seed(0)
    decoder = decoders.RotatE(1, 6).double()
    rows, others = torch.randn(4, 6).double().requires_grad_(), torch.randn(3, 6).double().requires_grad_()
    assert torch.autograd.gradcheck(decoder.match, (rows, others))
    decoder.match(rows[:1].detach().requires_grad_(), equal := rows[:1].detach().requires_grad_()).sum().backward()
    assert torch.all(equal.grad == 0)


@pytest.mark.parametrize("kind", [kind for kind in SCORED if DECODERS[kind].typed])
def test_reciprocal_decoders_ask_for_sources_by_the_second_rows(kind):
    torch.manual_seed(0)
    decoder = DECODERS[kind].make(DecoderSizes(6, 3, reciprocal=True)).double()
    assert len(decoder.relation.weight) == 6
    one, other, relation = torch.randn(5, 6).double(), torch.randn(4, 6).double(), torch.tensor([0, 2, 1, 1, 0])
    back = decoder.all_pairs(one, other, relation, reverse=True)
    assert torch.allclose(back, decoder.all_pairs(one, other, relation + 3))
    assert not torch.allclose(back, decoder.all_pairs(one, other, relation))


def test_losses_are_sums_over_seeds():
    torch.manual_seed(0)
    positive, negative = torch.randn(6).double(), torch.randn(3, 6).double()
    losses = [
        lambda seeds: functions.binary_loss(positive[seeds], negative[:, seeds]),
        lambda seeds: functions.binary_loss(positive[seeds], negative[:, seeds], 3.0),
        lambda seeds: functions.margin_loss(positive[seeds], negative[:, seeds], 0.5),
        lambda seeds: functions.softmax_loss(positive[seeds], negative[:, seeds]),
        lambda seeds: functions.binary_loss(positive[seeds], negative[:, seeds], adversarial=2.0),
    ]
    for loss in losses:
        assert torch.allclose(loss(slice(0, 2)) + loss(slice(2, 6)), loss(slice(0, 6)), rtol=1e-12)
        assert loss(slice(0, 0)) == 0
    expected = -torch.log(torch.sigmoid(positive)).sum() - torch.log(torch.sigmoid(-negative)).mean(0).sum()
    assert torch.allclose(losses[0](slice(0, 6)), expected)
    heavier = expected - 2 * torch.log(torch.sigmoid(positive)).sum()
    assert torch.allclose(losses[1](slice(0, 6)), heavier)
    higher = torch.ones_like(negative)
    triplets = torch.nn.functional.margin_ranking_loss(
        positive.expand(3, 6), negative, higher, margin=0.5, reduction="none"
    )
    assert torch.allclose(losses[2](slice(0, 6)), triplets.mean(0).sum())
    everyone = torch.cat([positive[None], negative]).T
    expected = torch.nn.functional.cross_entropy(everyone, torch.zeros(6).long(), reduction="sum")
    assert torch.allclose(losses[3](slice(0, 6)), expected)


@pytest.mark.parametrize(
    "loss",
    [
        functions.softmax_loss,
        functions.binary_loss,
        functions.margin_loss,
        lambda positive, negative: functions.binary_loss(positive, negative, adversarial=0.5),
        lambda positive, negative: functions.margin_loss(positive, negative, adversarial=0.5),
    ],
)
def test_negatives_that_are_none_count_nowhere(loss):
    """Neither in the loss nor in its gradient, and a pair may have none at all."""
    none = float("-inf")
    positive = torch.tensor([1.0, 0.3], requires_grad=True)
    negative = torch.tensor([[2.0, none], [none, none], [3.0, none]], requires_grad=True)
    loss(positive, negative).backward()
    few, alone = torch.tensor([[2.0], [3.0]], requires_grad=True), torch.tensor([1.0], requires_grad=True)
    loss(alone, few).backward()
    assert torch.allclose(negative.grad[[0, 2], 0], few.grad[:, 0])
    assert torch.allclose(positive.grad[0], alone.grad[0])
    assert torch.all(negative.grad[:, 1] == 0)
    assert negative.grad[1, 0] == 0
    assert torch.isfinite(positive.grad).all()


def test_hard_negatives_weigh_more():
    negative = torch.tensor([[1.0], [3.0]])
    weight = torch.softmax(torch.tensor([2.0, 6.0]), 0)
    expected = (
        torch.nn.functional.softplus(torch.tensor(-0.5)) + (weight * torch.nn.functional.softplus(negative[:, 0])).sum()
    )
    assert torch.allclose(functions.binary_loss(torch.tensor([0.5]), negative, adversarial=2.0), expected)


EITHER_END = [kind for kind in SCORED if DECODERS[kind].shares_negatives and not DECODERS[kind].reciprocal]


@pytest.mark.parametrize("kind", EITHER_END)
def test_decoders_score_all_pairs_from_either_end(kind):
    torch.manual_seed(0)
    decoder = DECODERS[kind].make(DecoderSizes(6, 3, 0.5)).double()
    one, other, relation = torch.randn(5, 6).double(), torch.randn(4, 6).double(), torch.tensor([0, 2, 1, 1, 0])
    several = other.unsqueeze(1).expand(4, 5, 6)
    assert torch.allclose(decoder.all_pairs(one, other, relation).T, decoder(one, several, relation))
    assert torch.allclose(decoder.all_pairs(one, other, relation, True).T, decoder(several, one, relation))
