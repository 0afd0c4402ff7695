"""The names of the splits, in the order in which time passes through them."""

from __future__ import annotations

SPLITS = ("train", "val", "test")
TRAIN_SPLIT = "train_split"  # the training split, where it is scored as validation is; its metrics begin with train_
