"""Reads the files that ask ``hpcgnn.predict`` about nodes or pairs, named by their original ids: CSV, packed by gzip or
not, or Parquet.

Rank 0 reads a file in blocks of rows. All ranks look the names of a block up, and each keeps its share of the rows: the
numbers of the nodes, and the names as Arrow has them, which is a fifth of what Python's strings take. m rows of this
rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph.original_ids import OriginalIds
from hpcgnn.graph.text_table import Block, read_blocks
from hpcgnn.loop.answer_file import TextColumn
from hpcgnn.loop.launch import on_first_rank
from hpcgnn.loop.source_times import LAST_DATE, TimeUnit, date_seconds

if TYPE_CHECKING:  # pyarrow takes a second to load, and most commands read no questions
    import pyarrow as pa

MOST = np.iinfo(np.int64).max  # that a time may be
TOLERANCE = Decimal("1e-6")  # of a unit of the graph's time, as where graphs are converted
INTEGRAL, CANONICAL = r"^(?:\+|(-))?(\d+)(?:\.0*)?$", r"^(0|-?[1-9]\d{0,18})$"

Parse = Callable[[str, int, Block], dict[str, np.ndarray]]


@dataclass(slots=True)
class Questions:
    """This rank's share of the rows of a file: every R-th row. row [m] int64: their places in the file; total: rows of
    all ranks. node: global ids [m] by column of names; value: numbers [m, ...] by name; shown: columns of names as the
    file has them, integers where all are such."""

    path: str
    row: np.ndarray
    total: int
    node: dict[str, np.ndarray]
    value: dict[str, np.ndarray]
    shown: dict[str, np.ndarray | TextColumn]


@dataclass(frozen=True, slots=True)
class Named:
    """A column of node names. types: node types that a row may name; ids_of: what finds the nodes of each; number: name
    of the parsed column with the number of each row's type, empty where there is one."""

    types: Sequence[str]
    ids_of: Callable[[str], OriginalIds]
    number: str = ""


def read_questions(
    path: str, named: dict[str, Named], world: World, further: Sequence[str] = (), optional: Sequence[str] = (),
    parse: Parse | None = None, shown: Sequence[str] = (),
) -> Questions:  # fmt: skip
    """Collective. Read a file of questions. named: columns of nodes; further: other columns that it needs; optional:
    columns that may be missing. parse: makes numbers of the columns [b, ...] of a block, which begins at row 1 or
    later, or raises ValueError; shown: further columns to keep as text, where they are there.

    Raises DistributedError naming file and row for a missing column or field, and for a name that no node has.
    """
    blocks = read_blocks(path, (*named, *further), optional)
    finders = {name: _Finder(path, name, column, world) for name, column in named.items()}
    kept: dict[str, list] = {}
    nodes: dict[str, list] = {name: [] for name in named}
    values: list[dict[str, np.ndarray]] = []
    rows: list[np.ndarray] = [np.empty(0, np.int64)]
    total = 0

    def read() -> tuple[dict[str, pa.Array], dict[str, np.ndarray]] | None:
        text = next(blocks, None)
        if text is None:
            return None
        kept_text = {name: text[name] for name in (*named, *shown) if name in text}
        return kept_text, parse(path, total + 1, text) if parse else {}

    while (block := on_first_rank(world, "read the questions", read)) is not None:
        world.working("read the questions", total)
        text, numbers = block
        size = len(text[next(iter(named))])
        own = np.arange((world.rank - total) % world.size, size, world.size)
        for name, finder in finders.items():
            nodes[name].append(finder.find(total, text[name], numbers)[own])
        for name, column in text.items():
            kept.setdefault(name, []).append(column.take(own))
        values.append({name: column[own] for name, column in numbers.items()})
        rows.append(total + own)
        total += size
    for finder in finders.values():
        finder.check()
    return Questions(
        path, np.concatenate(rows), total, {name: np.concatenate(pieces) for name, pieces in nodes.items()},
        {name: np.concatenate([part[name] for part in values]) for name in values[0]},
        {name: id_column(pieces, world) for name, pieces in kept.items()},
    )  # fmt: skip


def read_edges(
    path: str, ends: dict[str, Named], world: World, edge_types: int = 1, words: Sequence[str] = (),
    further: Sequence[str] = (), times: Callable[[str, int, pa.Array], np.ndarray] | None = None,
) -> Questions:  # fmt: skip
    """Collective. Read a file with the columns of ``ends`` and, where there are several edge types, rel, whose numbers
    become the value "rel". rel is a word, where the types were made from ``words``, or a number, unless a word is
    spelled like it. further: columns of numbers, which become the value "numbers" [m, F] float64. times: reads the
    optional column time, from a row of the file on, as the value "time"; it is shown, too.

    Raises DistributedError naming file and row for a missing column, an unknown node, or a value that is no edge type,
    or no number.
    """
    kinds = {str(number): number for number in range(edge_types)}
    kinds |= {word: number for number, word in enumerate(words)}
    typed = ["rel"] if edge_types > 1 else []
    by_word = f", or by name, such as {words[0]}" if words else ""

    def refuse(kind: str) -> str:
        return f"rel {kind!r} is no edge type: the graph numbers them from 0 to {edge_types - 1}{by_word}"

    def parse(path: str, first: int, text: Block) -> dict[str, np.ndarray]:
        values = {name: numbers_of(path, first, text[name], kinds, refuse) for name in typed}
        numbers = [finite_numbers(path, first, name, text[name]) for name in further]
        values |= {"numbers": np.column_stack(numbers)} if numbers else {}
        return values | ({"time": times(path, first, text["time"])} if times and "time" in text else {})

    optional = ["time"] if times and "time" not in further else []
    return read_questions(path, ends, world, [*typed, *further], optional, parse, [*typed, *optional])


def numbers_of(
    path: str, first: int, words: pa.Array, numbers: Mapping[str, int], refuse: Callable[[str], str]
) -> np.ndarray:
    """Replace words [b] by their numbers, int64. Raises ValueError naming file and row for another word, with what
    ``refuse`` has to say about it."""
    return each_value(path, first, words, lambda word: numbers[word] if word in numbers else refuse(word), np.int64)


def finite_numbers(path: str, first: int, column: str, text: pa.Array) -> np.ndarray:
    """Read a column of finite numbers, float64 [b]. Raises ValueError naming file and row for anything else."""

    def number(word: str) -> float | str:
        try:
            value = float(word)
        except ValueError:
            value = np.nan
        return value if np.isfinite(value) else f"{column} {word!r} is not a finite number"

    return each_value(path, first, text, number, np.float64)


def each_value(path: str, first: int, text: pa.Array, value_of: Callable[[str], Any], dtype: Any) -> np.ndarray:
    """Replace each text [b] by its value, computed once for equal ones. A value that is text is what is wrong with the
    row: raises ValueError with it, naming file and row."""
    encoded = text.dictionary_encode()
    values = [value_of(word) for word in encoded.dictionary.to_pylist()]
    number = encoded.indices.to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(np.array([isinstance(value, str) for value in values], bool)[number])
    if len(wrong):
        raise ValueError(f"{path}: row {first + wrong[0]}: {values[number[wrong[0]]]}")
    return np.array(values, dtype)[number]


def read_times(
    path: str, first: int, text: pa.Array, missing: int, unit: TimeUnit,
    stored: Callable[[Decimal], int] | None = None, most: float = MOST,
) -> np.ndarray:  # fmt: skip
    """Read times [b] of the graph's source, numbers or, where its times come from dates, dates, from row ``first`` of a
    file on, as times int64 of the graph; ``missing`` where there is none. stored: makes an integer of each time, which
    is at most ``most``; None: times must be integers in the graph.

    Raises ValueError naming file and row for a bad time.
    """
    needed = f"a number that times the graph's time_scale, {unit.scale:g}, is an integer"
    needed = "a number" if stored else "an integer" if unit.scale == 1 else needed
    scale = Decimal(repr(unit.scale))

    def time(word: str) -> int | str:
        if not word:
            return missing
        wrong = needed
        try:
            exact = Decimal(word) * scale
        except ArithmeticError:
            date = date_seconds(word, unit.zone)
            if date is None:
                return f"time {word!r} is not {needed}" + (", and no date in ISO 8601" if unit.zone else "")
            if not unit.zone:
                return (
                    f"time {word!r} is a date, and the times of this graph are not known to come from dates: give "
                    "numbers in the unit of its source, or convert and partition the source's dates again"
                )
            exact, wrong = date * scale, f"a time of the graph, whose unit is {1 / unit.scale:g} s"
        if not exact.is_finite():
            return f"time {word!r} is not {wrong}"
        if abs(exact) > most:
            return f"time {word} does not fit 64 bits"
        if unit.zone and abs(exact) > LAST_DATE * scale:
            return f"time {word} is no date from 1678 to 2262, as the times of this graph are"
        if stored is None and abs(exact - exact.to_integral_value()) > TOLERANCE:
            return f"time {word!r} is not {wrong}"
        return stored(exact) if stored else int(exact.to_integral_value())

    return each_value(path, first, text, time, np.int64)


@dataclass(slots=True)
class _Finder:
    """Finds the nodes that a column names, block by block, and keeps the first name that no node has."""

    path: str
    column: str
    named: Named
    world: World
    ids: dict[str, OriginalIds] = field(default_factory=dict)
    unknown: tuple[int, str, str] | None = None
    num_unknown: int = 0

    def find(self, start: int, names: pa.Array, numbers: Mapping[str, np.ndarray]) -> np.ndarray:
        """Collective. Find the global ids [b] of names [b], alike on all ranks; -1 for unknown ones. start: row of the
        file, from 0, that the block begins with."""
        kinds = numbers[self.named.number] if self.named.number else np.zeros(len(names), np.int64)
        found = np.full(len(names), -1)
        for kind in np.unique(kinds):
            name = self.named.types[kind]
            if name not in self.ids:
                self.ids[name] = self.named.ids_of(name)
            places = np.flatnonzero(kinds == kind)
            encoded = names.take(places).dictionary_encode()
            unique = _find(self.ids[name], encoded.dictionary)
            found[places] = unique[encoded.indices.to_numpy(zero_copy_only=False)]
        wrong = np.flatnonzero(found < 0)
        if len(wrong) and self.unknown is None:
            self.unknown = start + wrong[0], names[wrong[0]].as_py(), self.named.types[kinds[wrong[0]]]
        self.num_unknown += len(wrong)
        return found

    def check(self) -> None:
        """Collective. Raise DistributedError naming file and row for an unknown name."""
        with together(self.world, "look up the nodes"):
            if self.unknown is not None:
                row, name, kind = self.unknown
                raise ValueError(
                    f"{self.path}: row {row + 1}: {self.column} {name!r} is no {kind} of this graph "
                    f"({self.num_unknown} such rows)"
                )


def _find(ids: OriginalIds, names: pa.Array) -> np.ndarray:
    """Collective. Find the global ids of unique names; -1 where no node has one."""
    import pyarrow.compute as pc

    if not ids.are_integers:
        return ids.find(names.cast("binary").to_numpy(zero_copy_only=False).astype(np.bytes_))
    plain = pc.replace_substring_regex(names, INTEGRAL, r"\1\2")  # convert reads 017 and 17.0 as 17
    is_integer = pc.match_substring_regex(plain, r"^-?\d+$").to_numpy(zero_copy_only=False)
    numbers, fits = _integers(pc.if_else(is_integer, plain, "0"))
    return np.where(is_integer & fits, ids.find(numbers), -1)


def _integers(text: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Read spelled integers, int64, and which of them 64 bits hold."""
    import pyarrow as pa

    try:
        return text.cast(pa.int64()).to_numpy(), np.ones(len(text), bool)
    except pa.ArrowInvalid:
        numbers = [int(word) for word in text.to_pylist()]
        fits = np.array([-(1 << 63) <= number < 1 << 63 for number in numbers], bool)
        return np.array([number if fit else 0 for number, fit in zip(numbers, fits, strict=True)], np.int64), fits


def id_column(pieces: Sequence[pa.Array], world: World) -> np.ndarray | TextColumn:
    """Collective. Make a column of ids as a file spells them, from this rank's pieces: integers where all ids of all
    ranks are spelled as such, text otherwise."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = pa.chunked_array(pieces, pa.string())
    if not world.any(not pc.all(pc.match_substring_regex(column, CANONICAL), min_count=0).as_py()):
        read = [_integers(piece) for piece in column.chunks]
        if not world.any(not all(fits.all() for _, fits in read)):
            return np.concatenate([np.empty(0, np.int64), *(numbers for numbers, _ in read)])
    longest = pc.max(pc.utf8_length(column)).as_py() or 1
    return TextColumn(column, int(world.reduce_array(np.array([longest]), "max")[0]))
