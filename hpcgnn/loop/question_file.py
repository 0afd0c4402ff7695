"""Reads the CSV files that ask ``hpcgnn.predict`` about nodes or pairs, named by their original ids."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.original_ids import OriginalIds

INTEGRAL = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")


def read_rows(path: str, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """Read the rows of a CSV with a header. Raises ValueError naming file and row for a missing column or field."""
    if not Path(path).is_file():
        raise ValueError(f"{path}: no such file")
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:  # spreadsheets write a byte order mark
            reader = csv.DictReader(file)
            header = reader.fieldnames or ()
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV in UTF-8: {error}") from error
    missing = [column for column in columns if column not in header]
    if missing:
        raise ValueError(f"{path}: no column {', '.join(missing)}; it has {', '.join(header)}")
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise ValueError(f"{path}: row {number}: {len(header)} fields expected, as in the header")
    return rows


def read_numbers(path: str, rows: list[dict[str, str]], column: str) -> np.ndarray:
    """Read a column of finite numbers, float64 [n]. Raises ValueError naming file and row for anything else."""
    values = np.empty(len(rows))
    for number, row in enumerate(rows, 1):
        try:
            values[number - 1] = float(row[column])
        except ValueError:
            values[number - 1] = np.nan
        if not np.isfinite(values[number - 1]):
            raise ValueError(f"{path}: row {number}: {column} {row[column]!r} is not a finite number")
    return values


@dataclass(slots=True)
class AskedEdges:
    """The rows of a pairs file: src, dst original ids as text, rel int64 their edge types, None without any, and
    rel_text, as the file has them; numbers [n, F] float64 of further columns, None without any."""

    path: str
    src: list[str]
    dst: list[str]
    rel: np.ndarray | None = None
    rel_text: list[str] | None = None
    numbers: np.ndarray | None = None


def read_edges(
    path: str, edge_types: int = 1, words: Sequence[str] = (), ends: tuple[str, ...] = ("src", "dst"),
    numbers: tuple[str, ...] = (),
) -> AskedEdges:  # fmt: skip
    """Read a CSV with the columns ``ends`` (of src and dst), where there are several edge types rel, and ``numbers``.
    rel is a word, where the types were made from ``words``, or a number, unless a word is spelled like it. Raises
    ValueError naming file and row for a missing column, or for a value that is no edge type, or no number."""
    rows = read_rows(path, (*ends, "rel", *numbers) if edge_types > 1 else (*ends, *numbers))
    src, dst = ([row[column].strip() for row in rows] if column in ends else [] for column in ("src", "dst"))
    columns = np.column_stack([read_numbers(path, rows, name) for name in numbers]) if numbers else None
    if edge_types == 1:
        return AskedEdges(path, src, dst, numbers=columns)
    kinds = {str(number): number for number in range(edge_types)}
    kinds |= {word: number for number, word in enumerate(words)}
    rel = [row["rel"].strip() for row in rows]
    for number, kind in enumerate(rel, 1):
        if kind not in kinds:
            by_word = f", or by name, such as {words[0]}" if words else ""
            raise ValueError(
                f"{path}: row {number}: rel {kind!r} is no edge type: the graph numbers them from 0 to {edge_types - 1}"
                f"{by_word}"
            )
    return AskedEdges(path, src, dst, np.array([kinds[kind] for kind in rel], np.int64), rel, columns)


def find_nodes(
    path: str, column: str, names: list[str], types: list[str], ids_of: Callable[[str], OriginalIds], world: World
) -> np.ndarray:
    """Collective. Find the global ids [n] of the nodes that a file's column names by original id, each of its type;
    ids_of: makes the ``OriginalIds`` of a node type.

    Raises DistributedError naming file and row for an unknown id.
    """
    kinds, ids, text = np.array(types, object), np.full(len(names), -1), np.array(names, str)
    for kind in sorted(set(types)):
        places, known = np.flatnonzero(kinds == kind), ids_of(kind)
        asked = text[places]
        if known.are_integers:  # convert reads 017 and 17.0 as 17
            asked = np.array([_spell_integer(name) for name in asked.tolist()], str)
        ids[places] = known.find(asked)
    with together(world, "look up the nodes"):
        unknown = np.flatnonzero(ids < 0)
        if len(unknown):
            at = unknown[0]
            raise ValueError(
                f"{path}: row {at + 1}: {column} {names[at]!r} is no {types[at]} of this graph "
                f"({len(unknown)} such rows)"
            )
    return ids


def _spell_integer(name: str) -> str:
    """Spell an integral number as integers are written; anything else stays as it is."""
    found = INTEGRAL.fullmatch(name)
    return str(int(found[1])) if found else name


def id_column(names: list[str]) -> np.ndarray:
    """Make a column of ids as a file spells them: integers where all are such, text otherwise."""
    try:
        numbers = np.array([int(name) for name in names], np.int64)
    except (ValueError, OverflowError):
        return np.array(names, str)
    return numbers if list(map(str, numbers)) == names else np.array(names, str)
