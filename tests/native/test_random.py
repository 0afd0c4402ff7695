"""Keyed random integers and dropout masks."""

import numpy as np
import pytest
import torch

from hpcgnn import native
from hpcgnn.native import Random, Stream, random

pytestmark = pytest.mark.serial


def test_philox_equals_numpy():
    """Against NumPy's Philox would need 4x64; the published known-answer vectors of Philox4x32-10 instead (zero and
    ones)."""
    zero = native.random_integers(Random(0, 0), np.zeros(1, np.int64), 4, (1 << 32) - 1)
    words = np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], np.uint64)
    assert zero[0].tolist() == ((words * np.uint64((1 << 32) - 1)) >> np.uint64(32)).tolist()


def test_random_integers_are_unbiased_at_awkward_bounds():
    """With bound = 3 * 2^30, plain multiply-shift would hit every third value twice as often."""
    bound = 3 << 30
    values = native.random_integers(Random(5, Stream.NEGATIVE), np.arange(60_000), 4, bound)
    thirds = np.bincount((values.ravel() % 3), minlength=3)
    assert values.min() >= 0
    assert values.max() < bound
    assert np.abs(thirds - 80_000).max() < 5 * np.sqrt(80_000)


@pytest.mark.parametrize("field", ["seed", "step", "epoch", "hop", "relation", "stream"])
def test_random_fields_out_of_range_are_refused(field):
    with pytest.raises(ValueError, match=field):
        Random(**{"seed": 0, "stream": 0, field: 1 << 60})


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_probabilities_out_of_range_are_refused(p):
    with pytest.raises(ValueError, match=r"dropout probability must be in \[0, 1\), got"):
        native.dropout_mask(Random(1, Stream.DROPOUT), torch.arange(3), 2, p, torch.float32)


def test_later_masks_have_the_shapes_of_those_before():
    key, identity = Random(1, Stream.DROPOUT), torch.arange(3)
    with random.noted_masks() as noted:
        native.dropout_mask(key, identity, 2, 0.5, torch.float32)
    with random.later_masks(noted), pytest.raises(ValueError, match=r"shape \(3, 4\) where one of \(3, 2\) was made"):
        native.dropout_mask(key, identity, 4, 0.5, torch.float32)


def test_dropout_mask_is_keyed_by_row_identity_and_keeps_the_mean():
    key = Random(1, Stream.DROPOUT, step=9, relation=2)
    identity = torch.arange(5000)
    mask = native.dropout_mask(key, identity, 50, 0.3, torch.float64)
    assert set(mask.unique().tolist()) == {0.0, 1 / (1 - 0.3)}
    assert abs(mask.mean().item() - 1) < 5e-3
    order = torch.randperm(5000)
    assert torch.equal(native.dropout_mask(key, identity[order], 50, 0.3, torch.float64), mask[order])
