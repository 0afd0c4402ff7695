"""What a folder of another system gives: the spec of its graph, notes for users, and a second file beside the graph
file."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field

from data_tools.source.spec import SourceSpec


@dataclass(frozen=True, slots=True)
class FolderContent:
    """The spec that reads a folder. notes: lines for users about data that is not used, or changed. names_columns: the
    notes name all columns that are not used. beside: writes what the folder gives besides the graph, into a file beside
    the graph file, and returns a line about it, or nothing; beside_what: a word for it, in the file's name."""

    spec: SourceSpec
    notes: list[str] = field(default_factory=list)
    names_columns: bool = False
    beside: Callable[[pathlib.Path], str] | None = None
    beside_what: str = "negatives"


def path_beside(graph: pathlib.Path, what: str) -> pathlib.Path:
    """Return the path of a second file of a graph file, such as of its negatives."""
    return graph.with_name(f"{graph.stem}.{what}.h5")
