"""Specs of files and columns of a source, as `data_tools.source.spec` describes them."""

from __future__ import annotations

import dataclasses
import pathlib
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pyarrow as pa

from data_tools.source.formats.arrow_tables import list_folder
from data_tools.source.formats.dates import UTC, Dates
from data_tools.source.formats.table import Table
from data_tools.source.formats.tables import FORMATS
from data_tools.source.formats.text_stream import UTF8, TextSource
from data_tools.source.formats.values import Reference
from data_tools.source.schema import one_of
from hpcgnn.graph.files import FileFormatError
from hpcgnn.graph.splits import SPLITS

FINITE_COLUMNS = ("feat", "weight")  # models multiply by them: never NaN; other columns of floats may say "not known"
Dtype = Literal["int8", "int16", "int32", "int64", "float32", "float64"]
TableFile = str | dict[str, str]


@dataclass(frozen=True, slots=True)
class FileSpec:
    """One source file and how its text is laid out.

    Attributes:
        path: Path of the file, relative to the spec; .gz, .bz2, .xz, .zst, and .zip with one member, are read without
            unpacking. A folder: its Parquet files follow each other, and the keys of year=2024/part-0.parquet are
            columns.
        chunks: Files, or patterns of files, whose rows follow each other, instead of `path`.
        rows: Number of rows that each chunk must have, or one number for all together.
        archive: Name in `files` of a folder, a .tar(.gz) or a .zip that holds this file, instead of `path`.
        member: End of the file's path inside the archive.
        format: Format of the file. auto: by the suffix.
        delimiter: One character, or `whitespace` (any run of spaces and tabs).
        header: First line. names: it names the columns; skip: it is ignored; none: there is no such line.
        columns: Names of the columns by position, for header skip or none.
        comment: Characters; a line that starts with one of them is skipped.
        quote: none: quotes are part of values, which is the default with tabs; not with whitespace.
        encoding: Encoding of text, such as latin-1 or utf-16.
        dtype: Type of the numbers of a file of format raw.
        width: How many numbers a row of format raw has; 0: the rows are single numbers.
        source: Where the content comes from, such as a URL or a query, as the graph file and predictions keep it.
    """

    path: str | None = None
    chunks: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    archive: str | None = None
    member: str | None = None
    format: Annotated[str, FORMATS] = "auto"
    delimiter: str = ","
    header: Literal["names", "skip", "none"] = "names"
    columns: list[str] = field(default_factory=list)
    comment: str = ""
    quote: Literal[None, "none", '"'] = None
    encoding: str = UTF8
    dtype: Dtype = "float32"
    width: int = 0
    source: str = ""

    def __post_init__(self):
        if self.width < 0 or (self.format != "raw" and (self.width or self.dtype != "float32")):
            raise ValueError("dtype and width: of files of format raw, which have no header; a width is not negative")
        try:
            "".encode(self.encoding)
        except LookupError as error:
            raise ValueError(f"encoding: {error}; such as latin-1, cp1252 or utf-16") from None
        if self.delimiter != "whitespace" and len(self.delimiter) != 1:
            raise ValueError(f"delimiter: {self.delimiter!r} is neither one character nor 'whitespace'")
        if self.quote == '"' and self.delimiter == "whitespace":
            raise ValueError("quote: only with a delimiter of one character")
        if self.format == "lists" and self.header == "names":
            raise ValueError("header: lists have no names of columns; set header: none, or skip to leave out a line")
        if self.columns and self.header == "names":
            raise ValueError("columns: the header names the columns already; set header: skip (or none)")
        if (self.archive is None) != (self.member is None):
            raise ValueError("archive and member go together")
        if self.chunks and (self.path or self.archive):
            raise ValueError("chunks: takes the place of path and archive")
        if len(self.rows) > 1 and not self.chunks:
            raise ValueError("rows: one number, as there are no chunks")

    def pieces(self) -> list[FileSpec]:
        """List the files whose rows follow each other, each with the number of rows it must have, if that is
        declared."""
        if self._is_folder:
            return self._files_of_folder()
        if not self.chunks:
            return [self]
        rows = [[count] for count in self.rows] if len(self.rows) == len(self.chunks) > 1 else [[]] * len(self.chunks)
        return [
            dataclasses.replace(self, path=path, chunks=[], rows=count)
            for path, count in zip(self.chunks, rows, strict=True)
        ]

    @property
    def text(self) -> TextSource:
        """The file itself; it has no chunks."""
        return TextSource(pathlib.Path(str(self.path)), self.member, self.encoding)

    @property
    def _is_folder(self) -> bool:
        return self.path is not None and self.member is None and pathlib.Path(self.path).is_dir()

    def _files_of_folder(self) -> list[FileSpec]:
        """List the Parquet files of a folder. Raises FileFormatError for another format, and for none."""
        folder = pathlib.Path(str(self.path))
        if self.format not in ("auto", "parquet"):
            raise FileFormatError(f"{self.path}: a folder, which is read as Parquet files; list files by chunks")
        layout = {item.name: getattr(self, item.name) for item in dataclasses.fields(FileSpec)} | {"rows": []}
        return [FolderFile(**layout | {"path": str(path)}, keys=keys) for path, keys in list_folder(folder)]

    @property
    def kind(self) -> str:
        """The format: as declared, or by the suffix."""
        by_suffix = (name for name, row in FORMATS.items() if self.text.suffix in row.suffixes)
        return next(by_suffix, "text") if self.format == "auto" else self.format

    def open(self, number: int = 1) -> Table:
        """Make the reader of the file, which has no chunks; number: which of the files with blank nodes it is, from 1.
        Raises FileFormatError for a missing file."""
        source, row = self.text, FORMATS[self.kind]
        source.check()
        if self.member is not None and not row.in_archives:
            raise FileFormatError(f"{source.name}: {self.kind} files are not read inside of archives; unpack it")
        if self.encoding != UTF8 and not row.in_archives:
            raise FileFormatError(f"{source.name}: {self.kind} files are no text; leave out encoding: {self.encoding}")
        assert row.make is not None
        return row.make(source, self, number)

    @property
    def is_quoted(self) -> bool:
        """Whether a value may stand in double quotes: as declared, else where the delimiter is no tab nor white
        space."""
        return self.delimiter not in ("whitespace", "\t") if self.quote is None else self.quote == '"'

    @property
    def title(self) -> str:
        """Its name in messages: its path, or the path of its first chunk and how many there are."""
        if not self.chunks:
            return str(self.path)
        return self.chunks[0] + (f" (and {len(self.chunks) - 1:,} chunks more)" if len(self.chunks) > 1 else "")


@dataclass(frozen=True, slots=True)
class FolderFile(FileSpec):
    """A file of a folder. keys: columns with one value, which the names of its folders give."""

    keys: dict[str, pa.Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileColumn:
    """A column of integers in another file.

    Attributes:
        file: Name of the file in `files`.
        column: Column of that file.
        mask: Whether it is a mask, with 0 or 1 for every row, instead of row numbers.
    """

    file: str
    column: Reference
    mask: bool = False


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """One stored column: where its values come from and their type.

    Attributes:
        column: Name or position of the column, a range of positions ("4:"), or a list of names and positions.
        sparse: Prefix of the arrays of a sparse matrix: data, indices, indptr, shape, or data, row, col, shape.
        sets: Arrays of row numbers or masks by train, val, test, which give a split.
        file: File of the column, with as many rows as the table; default: the table's file.
        dtype: Type to store; feat, label, weight and split have defaults.
        fill: Value stored for empty and NaN values. .nan in labels of floats: not known, left out of loss and metrics.
            Default in label: -1 for classes, .nan for numbers.
        values: Integers by the source's words.
        classes: Number the words in their order and store them as attribute `names` of the column.
        dates: Form of dates, as for times of edges. They are stored as seconds since 1970.
        zone: Time zone of dates that name none (default: UTC). Without `dates`, for a column of the type timestamp or
            date, or of seconds since 1970.
    """

    column: Reference | None = None
    sparse: str | None = None
    sets: dict[str, Reference | FileColumn] = field(default_factory=dict)
    file: str | None = None
    dtype: Dtype | None = None
    fill: float | None = None
    values: dict[str, int] = field(default_factory=dict)
    classes: bool = False
    dates: str = ""
    zone: str = ""

    def __post_init__(self):
        if self.has_dates:
            Dates(self.dates, self.zone or UTC)
            if self.column is None or isinstance(self.column, list) or self.classes or self.values:
                raise ValueError("dates and zone: of one column; leave out classes, values, sparse and sets")
        if (self.column is not None) + (self.sparse is not None) + bool(self.sets) != 1:
            raise ValueError("give exactly one of column, sparse and sets, the place of the values")
        for name in self.sets:
            one_of("sets", name, SPLITS)
        if self.classes and (self.values or self.column is None or isinstance(self.column, list)):
            raise ValueError("classes: numbers the words of one column itself; leave out values, sparse and sets")

    @property
    def has_dates(self) -> bool:
        """Whether the column has dates, or seconds since 1970."""
        return bool(self.dates or self.zone)
