"""Names of nodes and edge types in questions and answers of runs on static graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcgnn.graph.partition import GraphPartition
from hpcgnn.loop.question_file import read_rows
from hpcgnn.loop.session import Session
from hpcgnn.static.schema import NAMES


def original_ids(partition: GraphPartition, kind: int) -> np.ndarray:
    """Return the original ids [n] of this rank's nodes of a type, or their rows where the graph has none."""
    row = partition.flat_row[partition.of_type(kind)] - partition.book.type_base()[kind]
    return partition.columns[kind].get("id", row)


@dataclass(slots=True)
class AskedEdges:
    """The rows of a pairs file: src, dst original ids as text, rel int64 their edge types, None without any, and
    rel_text, as the file has them."""

    path: str
    src: list[str]
    dst: list[str]
    rel: np.ndarray | None = None
    rel_text: list[str] | None = None


def read_pairs(
    path: str, edge_types: int = 1, words: list[str] | Any = (), ends: tuple[str, ...] = ("src", "dst")
) -> AskedEdges:
    """Read a CSV with the columns ``ends`` (of src and dst) and, where there are several edge types, rel. rel is a
    word, where the types were made from ``words``, or a number, unless a word is spelled like it. Raises ValueError
    naming file and row for a missing column, or for a value that is no edge type."""
    rows = read_rows(path, (*ends, "rel") if edge_types > 1 else ends)
    src, dst = ([row[column].strip() for row in rows] if column in ends else [] for column in ("src", "dst"))
    if edge_types == 1:
        return AskedEdges(path, src, dst)
    numbers = {str(number): number for number in range(edge_types)}
    numbers |= {word: number for number, word in enumerate(words)}
    rel = [row["rel"].strip() for row in rows]
    for number, kind in enumerate(rel, 1):
        if kind not in numbers:
            by_word = f", or by name, such as {words[0]}" if words else ""
            raise ValueError(
                f"{path}: row {number}: rel {kind!r} is no edge type: the graph numbers them from 0 to {edge_types - 1}"
                f"{by_word}"
            )
    return AskedEdges(path, src, dst, np.array([numbers[kind] for kind in rel], np.int64), rel)


def edge_types_of(session: Session) -> tuple[int, list[str]]:
    """Return the number of edge types that the decoder distinguishes, and their names, where the graph has them."""
    names = list(session.schema.values[NAMES])
    return (session.goal.num_edge_types, names) if session.config.task.is_typed else (1, [])
