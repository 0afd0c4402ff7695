"""Marks cases of a test that the short suite leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def long_but(cases: Iterable[Any], is_short: Callable[[Any], bool]) -> list[Any]:
    """Mark all cases long but the ones for which ``is_short`` is true, which stand for them in the short suite."""
    return [case if is_short(case) else pytest.param(case, marks=pytest.mark.long) for case in cases]
