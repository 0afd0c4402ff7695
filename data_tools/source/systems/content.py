"""What a folder of another system gives: the spec of its graph, notes for users, and negatives beside the graph."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field

from data_tools.source.spec import SourceSpec


@dataclass(frozen=True, slots=True)
class FolderContent:
    """The spec that reads a folder. notes: lines for users about data that is not used, or changed. names_columns: the
    notes name all columns that are not used. negatives: writes the negatives that the folder gives beside a graph
    file, and returns a line about them, or nothing."""

    spec: SourceSpec
    notes: list[str] = field(default_factory=list)
    names_columns: bool = False
    negatives: Callable[[pathlib.Path], str] | None = None
