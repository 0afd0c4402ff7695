"""The names of the splits, in the order in which time passes through them."""

from __future__ import annotations

SPLITS = ("train", "val", "test")
