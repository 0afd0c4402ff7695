"""Finds the columns of a table that a reference selects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from data_tools.source.formats.values import Raw, Reference
from hpcgnn.graph.files import FileFormatError


@dataclass(frozen=True, slots=True)
class Selection:
    """Positions of the columns that a reference selects; ``scalar`` means one column of numbers, not a matrix."""

    positions: list[int]
    labels: list[str]
    scalar: bool


def select(file: str, reference: Reference, names: list[str], width: int) -> Selection:
    """Resolve a reference in a table of ``width`` columns, of which the first ``len(names)`` have names.

    Raises FileFormatError naming the available columns when there is no such column.
    """
    if isinstance(reference, str) and (span := re.fullmatch(r"(\d*):(\d*)", reference)):
        start, stop = (int(text) if text else None for text in span.groups())
        positions = list(range(width))[start:stop]
        return Selection(positions, [f"#{i}" for i in positions], False)
    items = reference if isinstance(reference, list) else [reference]
    positions = [position(file, item, names, width) for item in items]
    return Selection(positions, [repr(item) for item in items], not isinstance(reference, list))


def position(file: str, item: int | str, names: list[str], width: int) -> int:
    """Find the position of one column by its name or position."""
    if isinstance(item, int) and 0 <= item < width:
        return item
    if isinstance(item, str) and item in names:
        if names.count(item) > 1:
            raise FileFormatError(f"{file}: the column name {item!r} occurs {names.count(item)} times; use positions")
        return names.index(item)
    listed = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
    raise FileFormatError(
        f"{file}: no column {item!r}; it has {width} columns" + (f", named {listed}" if names else "") + hint(names)
    )


def hint(names: list[str]) -> str:
    """Render a remedy for a column that is not found."""
    if len(names) == 1 and (marks := [mark for mark in ";\t|, " if mark in names[0]]):
        value = "whitespace" if marks[0].isspace() else marks[0]
        return f'; is {marks[0]!r} the delimiter? --set delimiter="{value}" with csv presets says so, or a spec'
    return "; a spec (--spec) says which column is what, docs/own_data.md has one" if names else ""


def select_all(
    file: str, references: Mapping[str, Reference], names: list[str], width: int
) -> tuple[dict[str, Selection], list[int]]:
    """Resolve several references; returns the selections, and the positions that they need, each once."""
    chosen = {key: select(file, reference, names, width) for key, reference in references.items()}
    return chosen, sorted({p for selection in chosen.values() for p in selection.positions})


def pick(
    chosen: Mapping[str, Selection],
    columns: Mapping[int, pa.Array | np.ndarray],
    num_rows: int,
    is_exact: bool = False,
) -> dict[str, Raw]:
    """Pick the selected columns of one batch."""
    return {
        key: Raw([columns[p] for p in item.positions], item.labels, item.scalar, num_rows, is_exact)
        for key, item in chosen.items()
    }
