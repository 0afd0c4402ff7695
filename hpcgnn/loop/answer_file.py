"""Writes columns of answers that are spread over the ranks into one file, in the format of its suffix."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcgnn.comm.group import DistributedError
from hpcgnn.comm.together import together
from hpcgnn.comm.world import World
from hpcgnn.graph import durable
from hpcgnn.loop.session import Session
from hpcgnn.loop.source_times import date_texts, date_width, zoned

if TYPE_CHECKING:
    import pyarrow as pa

SLAB = 1 << 16
LIKELY = "probability"  # begin of the names of columns of probabilities
METADATA = "hpcgnn"  # key of the provenance in the metadata of a parquet file


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of text [n] as Arrow holds it: NumPy's takes the longest text's bytes for each. width: characters of the
    longest text of all ranks. A slice of it is an array of NumPy."""

    values: pa.ChunkedArray
    width: int

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.asarray(self.values[rows].to_numpy(), self.dtype)

    def take(self, rows: np.ndarray) -> TextColumn:
        """Choose rows [m], repeated or not."""
        return TextColumn(self.values.take(rows), self.width)

    @property
    def dtype(self) -> np.dtype:
        """Type of the arrays."""
        return np.dtype(f"U{self.width}")

    @property
    def shape(self) -> tuple[int]:
        """[n]."""
        return (len(self),)


@dataclass(frozen=True, slots=True)
class AnswerColumns:
    """Columns [n, ...] of this rank's answers, by name, in order of the answers' row [n] in the file; total: answers of
    all ranks, N. Dates are datetime64 in UTC, and written in their zone."""

    row: np.ndarray
    total: int
    columns: dict[str, Any]  # arrays, or TextColumn
    classes: Sequence[str] = ()  # names of the classes that vectors of probabilities are of; empty: they have none
    zone: str = ""  # of dates

    def placed(self, columns: dict[str, Any], count: int) -> AnswerColumns:
        """Make ``count`` answers of each, of some columns [n, ...] of this rank, with the column place, from 1."""
        asked = np.arange(len(self.row)).repeat(count)
        repeated = {name: column.take(asked) for name, column in columns.items()}
        repeated["place"] = np.tile(np.arange(1, count + 1), len(self.row))
        row = (self.row[:, None] * count + np.arange(count)).ravel()
        return AnswerColumns(row, self.total * count, repeated, zone=self.zone)

    def slab(self, name: str, first: int, world: World) -> np.ndarray | Any:
        """Collective. Gather a column of the answers first .. first + SLAB - 1, in order of row, on rank 0 (None
        elsewhere)."""
        own = slice(*np.searchsorted(self.row, (first, first + SLAB)))
        rows, values = world.gather_rows(self.row[own]), world.gather_rows(self.columns[name][own])
        return None if rows is None else values[np.argsort(rows)]

    def share(self, name: str, first: int, world: World) -> np.ndarray:
        """Collective. Bring this rank the share of a slab's column that it turns into text: consecutive rows, in rank
        order."""
        own = slice(*np.searchsorted(self.row, (first, first + SLAB)))
        counts = np.bincount((self.row[own] - first) * world.size // SLAB, minlength=world.size)
        (rows, _), (values, _) = (world.exchange(part[own], counts) for part in (self.row, self.columns[name]))
        return values[np.argsort(rows)]


def logistic(score: np.ndarray) -> np.ndarray:
    """Compute 1 / (1 + exp(-score)), without overflow."""
    return np.exp(-np.logaddexp(0, -score))


def text(ids: np.ndarray) -> np.ndarray:
    """Decode bytes to text of a width that is the same on all ranks; ids of other types stay unchanged."""
    return np.char.decode(ids, "utf-8").astype(f"U{ids.dtype.itemsize}") if ids.dtype.kind == "S" else ids


def class_columns(
    output: np.ndarray, words: list[str], probabilities: bool = False, several: bool = False
) -> dict[str, np.ndarray]:
    """Make the columns of predicted classes from outputs [n, C]: class, as a word where labels were made of ``words``,
    with class_id, its number; and output, or, on request, probability [n, C]. several: a node may have several labels,
    each with its own probability; there is no class then."""
    columns = {} if several else _named_classes(output.argmax(axis=1), words, output.shape[1])
    if not probabilities:
        return columns | {"output": output}
    if several:
        return columns | {"probability": logistic(output)}
    shares = np.exp(output - output.max(axis=1, keepdims=True))
    return columns | {"probability": shares / shares.sum(axis=1, keepdims=True)}


def _named_classes(number: np.ndarray, words: Sequence[str], count: int, ending: str = "") -> dict[str, np.ndarray]:
    """Make the columns of classes from their numbers [n], below ``count``, with an ending of their names: class, and,
    where labels were made of ``words``, class_id beside it."""
    if not words:
        return {f"class{ending}": number}
    further = map(str, range(len(words), count))
    return {f"class{ending}": np.array([*words, *further])[number], f"class_id{ending}": number}


def best_classes(answers: AnswerColumns, words: Sequence[str], count: int) -> AnswerColumns:
    """Choose the ``count`` most probable classes of each answer, one a row, the best first; of equal ones the lower
    number comes first. Columns are the ones that name the question, place from 1, and class, class_id where there are
    ``words``, and probability, for each column of probabilities [n, C] of the answers with its ending."""
    endings = [name.removeprefix(LIKELY) for name in answers.columns if name.startswith(LIKELY)]
    likely = {ending: answers.columns[LIKELY + ending] for ending in endings}
    question = {name: column for name, column in answers.columns.items() if not name.startswith(("class", LIKELY))}
    placed = answers.placed(question, min(count, likely[endings[0]].shape[1]))
    for ending, shares in likely.items():
        best, values = largest(shares, count)
        placed.columns.update(_named_classes(best, words, shares.shape[1], ending))
        placed.columns[LIKELY + ending] = values
    return placed


def largest(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the ``count`` largest of each row of values [n, C], one row after the other, the largest first; of equal
    ones the first. Returns their columns and values [n * min(count, C)]."""
    best = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return best.ravel(), np.take_along_axis(values, best, axis=1).ravel()


def refuse_probabilities(arguments: Namespace, classifies: bool, loss: str = "") -> None:
    """Raise ValueError for ``--probabilities`` of answers that are no classes, or scores of links that were learned by
    another ``loss`` than binary; empty: no scores of links."""
    if not arguments.probabilities or classifies or loss == "binary":
        return
    if loss:
        raise ValueError(
            f"--probabilities: this run has task.loss {loss}, which compares scores of pairs with each other; only "
            "task.loss binary learns the probability of a pair: leave it out"
        )
    raise ValueError("--probabilities is for classes, which this command does not write for this run: leave it out")


def check_out(path: str) -> None:
    """Raise ValueError for a path whose suffix names no format, and where the JSON file beside the answers would
    replace one of another program."""
    if Path(path).suffix not in WRITERS:
        raise ValueError(f"--out {path}: the suffix sets the format, and must be one of {', '.join(WRITERS)}")
    beside = Path(f"{path}.json")
    if WRITERS[Path(path).suffix] is not _write_parquet and beside.exists() and not _is_provenance(beside):
        raise ValueError(f"{beside}: not written by hpcgnn, and --out {path} would replace it: choose another name")


def write_answers(path: str, answers: AnswerColumns, world: World, provenance: dict[str, Any] | None = None) -> None:
    """Collective. Write the answers of all ranks in order of row, in the format of the path's suffix. They are arrays
    (.npz), or a table with a column for each entry of a vector (.csv, .parquet). All ranks turn their shares into text;
    rank 0 writes, under a temporary name first, and never holds more than a slab. provenance: where the answers come
    from, None: nothing is written about it. Parquet files keep it in their metadata, of other formats it is a JSON file
    beside the answers, named as they are with ``.json`` behind.

    Raises DistributedError where this JSON file would replace one of another program."""
    temporary, beside = Path(path + ".tmp"), Path(f"{path}.json")
    writer = WRITERS[Path(path).suffix]
    writes_beside = bool(provenance) and writer is not _write_parquet
    with together(world, f"write {path}"):
        if world.rank == 0 and provenance:
            check_out(path)
    try:
        metadata = {METADATA: json.dumps(provenance)} if provenance else {}
        writer(temporary, answers, world, metadata)
        with together(world, f"write {path}"):
            if world.rank == 0:
                if _is_provenance(beside):  # of older answers
                    beside.unlink()
                durable.commit(temporary, Path(path))
                if writes_beside:
                    durable.write_text(beside, json.dumps(provenance, indent=1) + "\n")
    except DistributedError:
        if world.rank == 0:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        raise


def _is_provenance(path: Path) -> bool:
    """Say whether a file holds the provenance of answers."""
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(known, dict) and {"hpcgnn", "run", "graph"} <= known.keys()


def _write_csv(path: Path, answers: AnswerColumns, world: World, _: dict[str, str]) -> None:
    """Collective."""
    with _on_rank_0(world, lambda: open(path, "wb")) as file:
        for first in range(0, max(1, answers.total), SLAB):
            world.working(f"write {path}", first)
            columns = _by_entry({name: answers.share(name, first, world) for name in answers.columns}, answers.classes)
            lines = io.StringIO(newline="")
            writer = csv.writer(lines)
            if first == world.rank == 0:
                writer.writerow(columns)
            writer.writerows(zip(*(_spelled(column, answers.zone) for column in columns.values()), strict=True))
            content = world.gather_rows(np.frombuffer(lines.getvalue().encode(), np.uint8))
            with together(world, f"write {path}"):
                if file:
                    file.write(content)


def _spelled(column: np.ndarray, zone: str) -> list:
    """Return a column as values that a CSV spells as short as they can be read back; zone: of dates."""
    column = date_texts(column, zone) if column.dtype.kind == "M" else column
    return list(map(str, column)) if column.dtype == np.float32 else column.tolist()


def _write_parquet(path: Path, answers: AnswerColumns, world: World, metadata: dict[str, str]) -> None:
    """Collective. Write a row group a slab; metadata: texts by name that the file keeps."""
    import pyarrow as pa  # takes a second to load, and few answers are parquet
    from pyarrow import parquet

    def arrays(columns: dict[str, np.ndarray]) -> dict[str, pa.Array]:
        singles = _by_entry(columns, answers.classes)
        return {
            name: zoned(column, answers.zone) if column.dtype.kind == "M" else pa.array(column)
            for name, column in singles.items()
        }

    kinds = arrays({name: column[:0] for name, column in answers.columns.items()})
    schema = pa.schema([(name, column.type) for name, column in kinds.items()], metadata)
    with _on_rank_0(world, lambda: parquet.ParquetWriter(path, schema)) as file:
        for first in range(0, max(1, answers.total), SLAB):
            world.working(f"write {path}", first)
            slabs = {name: answers.slab(name, first, world) for name in answers.columns}
            with together(world, f"write {path}"):
                if file:
                    file.write_table(pa.table(arrays(slabs), schema))


def _by_entry(columns: dict[str, np.ndarray], classes: Sequence[str]) -> dict[str, np.ndarray]:
    """Make a column of each entry of vectors, named by number, or, of a probability, by its class."""
    singles: dict[str, np.ndarray] = {}
    for name, column in columns.items():
        if column.ndim == 1:
            singles[name] = column
        else:
            words = dict(enumerate(classes)) if name.startswith(LIKELY) else {}
            singles |= {f"{name}_{words.get(place, place)}": entries for place, entries in enumerate(column.T)}
    return singles


def _write_npz(path: Path, answers: AnswerColumns, world: World, _: dict[str, str]) -> None:
    """Collective. Write one array after the other, slab by slab; dates as text, as NumPy's have no zone."""
    with _on_rank_0(world, lambda: zipfile.ZipFile(path, "w")) as archive:
        for name, column in answers.columns.items():
            opened = lambda name=name: archive.open(f"{name}.npy", "w", force_zip64=True)  # noqa: E731
            with _on_rank_0(world, opened) as file:
                are_dates = column.dtype.kind == "M"
                kind = date_width(column.dtype) if are_dates else column.dtype
                with together(world, f"write {path}"):
                    if file:
                        np.lib.format.write_array_header_2_0(file, {
                            "descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False,
                            "shape": (answers.total, *column.shape[1:]),
                        })  # fmt: skip
                for first in range(0, answers.total, SLAB):
                    world.working(f"write {path}", first)
                    values = answers.slab(name, first, world)
                    with together(world, f"write {path}"):
                        if file:
                            values = date_texts(values, answers.zone) if are_dates else values
                            file.write(np.ascontiguousarray(values).tobytes())


WRITERS = {".csv": _write_csv, ".npz": _write_npz, ".parquet": _write_parquet}


@contextmanager
def _on_rank_0(world: World, make) -> Iterator:
    """Collective. Open a file by ``make()`` on rank 0 (None elsewhere) and close it at the end of the block, which all
    ranks leave with the same error."""
    opened = None
    with together(world, "write the answers"):
        opened = make() if world.rank == 0 else None
    try:
        yield opened
    except DistributedError:
        if opened is not None:
            with suppress(OSError, ValueError):  # the error that counts is under way
                opened.close()
        raise
    with together(world, "write the answers"):
        if opened is not None:
            opened.close()


def answer_with(
    path: str, answers: AnswerColumns, what: str, session: Session, classes: Sequence[str] = (), best: int = 0
) -> None:  # fmt: skip
    """Collective. Write the answers of a session into a file, whose folder is made if need be, with where they come
    from, and print how many there are of ``what``. classes: names of classes, empty if they have none; best: number of
    most probable classes to write of each answer, 0: answers are written as they are."""
    world = session.world
    if best:
        answers, what = best_classes(answers, classes, best), "best classes"
    with together(world, f"write {path}"):
        if world.rank == 0:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_answers(path, replace(answers, classes=classes), world, session.provenance)
    if world.rank == 0:
        print(f"{path}: {answers.total} {what}")
