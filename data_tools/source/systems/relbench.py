"""Reads the folder of a relational database of RelBench as a heterogeneous graph: a type for each table.

Database.save and Table.save of relbench/base/{database,table}.py (github.com/snap-stanford/relbench, dd8d6ef) write
<table>.parquet. Its schema's metadata has, in JSON, pkey_col, fkey_col_to_pkey_table and time_col. The relations are
called as make_pkey_fkey_graph of relbench/modeling/graph.py calls them: f2p_<column> from the row with a foreign key to
the row with the primary key, and its reverse rev_f2p_<column>.

Columns of numbers are features; the time becomes a column in seconds since 1970. Other columns are not used, and rows
without a foreign key have no edge by it.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from data_tools.source.formats.chunks_dgl import local_name
from data_tools.source.formats.dates import UTC
from data_tools.source.formats.dgl_partitions import Chunks
from data_tools.source.schema import one_of
from data_tools.source.spec_file import RESERVED, build_spec
from data_tools.source.systems.content import FolderContent
from hpcgnn.graph.files import FileFormatError, relation_name

KEYS = ("pkey_col", "fkey_col_to_pkey_table", "time_col")
SETTINGS = ("folder", "fill", "missing_ids")
BATCH_ROWS = 1 << 18
NO_TIME = np.iinfo(np.int64).min  # stored where a row has no time
LISTED = 8  # columns that a note names


@dataclass(frozen=True)
class SourceTable:
    """A table of the database. features: columns of numbers; others: columns that are not used; has_dates: its time
    is a date."""

    name: str
    path: pathlib.Path
    key: str | None
    foreign: dict[str, str]
    time: str | None
    features: list[str]
    others: list[str]
    num_rows: int
    text_key: bool = False
    has_dates: bool = False
    missing: dict[str, int] = field(default_factory=dict)


def read_relbench(assigned: Mapping[str, str], unpacked: pathlib.Path) -> FolderContent:
    """Make the spec of a database; ``assigned``: folder; fill, which is stored for missing numbers (default 0); and
    missing_ids, which is drop to leave out rows without a primary key (default error). Arrays are written to the folder
    ``unpacked``. Raises ValueError naming table, column, row and remedy."""
    for name in assigned:
        one_of("--set", name, SETTINGS)
    if "folder" not in assigned:
        raise ValueError("--preset relbench: give --set folder=FOLDER with the parquet files of the tables")
    try:
        fill = float(assigned.get("fill", "0"))
    except ValueError:
        raise ValueError(f"--set fill={assigned['fill']}: not a number") from None
    if not np.isfinite(fill):
        raise ValueError(f"--set fill={assigned['fill']}: features are finite numbers")
    missing_ids = assigned.get("missing_ids", "error")
    one_of("--set missing_ids", missing_ids, ("error", "drop"))
    tables = read_tables(pathlib.Path(assigned["folder"]))
    writer = Chunks(unpacked)
    for table in tables.values():
        unpack_table(table, tables, writer, fill)
    spec: dict[str, Any] = {"kind": "static", "nodes": [], "edges": []}
    for table in tables.values():
        name = local_name(table.name)
        entry: dict[str, Any] = {"type": name, "ids": "row", "count": table.num_rows}
        if table.key is not None:
            writer.files[f"keys.{name}"] = {"path": str(table.path.resolve()), "format": "parquet"}
            ids = "string" if table.text_key else "int"
            entry = {"type": name, "ids": ids, "id": table.key, "file": f"keys.{name}", "missing_ids": missing_ids}
        columns = writer.columns(f"nodes.{name}")
        if table.has_dates and table.num_rows:
            columns[time_column(str(table.time))]["zone"] = UTC
        spec["nodes"].append(entry | {"columns": columns})
        for column, target in table.foreign.items():
            relation = f"f2p_{local_name(column)}"
            file = f"edges.{name}.{relation}"
            if file not in writer.files:
                continue
            ends = {"src": "src", "dst": "dst", "dangling": "drop"}
            edge = {"relation": relation_name(name, relation, local_name(target)), "file": file, **ends}
            spec["edges"].append(edge | {"reverse": f"rev_{relation}"})
    notes = [note for table in tables.values() for note in describe(table, fill)]
    return FolderContent(build_spec(spec | {"files": writer.files}, pathlib.Path(), {}), notes, names_columns=True)


def read_tables(folder: pathlib.Path) -> dict[str, SourceTable]:
    """Read the schemas of the tables of a folder, or of its folder db/, by name. Raises FileFormatError."""
    folder = folder / "db" if (folder / "db").is_dir() else folder
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise FileFormatError(f"{folder}: no parquet files, which Database.save of RelBench writes")
    tables = {path.stem: read_table(path) for path in paths}
    for table in tables.values():
        for column, target in table.foreign.items():
            if target not in tables or tables[target].key is None:
                what = "has no primary key" if target in tables else "is not in the folder"
                raise FileFormatError(f"{table.path}: column {column!r} names rows of table {target!r}, which {what}")
    return tables


def read_table(path: pathlib.Path) -> SourceTable:
    """Read the schema of a table. Raises FileFormatError for a file without the metadata of RelBench."""
    try:
        footer, schema = pyarrow.parquet.read_metadata(path), pyarrow.parquet.read_schema(path)
        metadata = {key: json.loads((schema.metadata or {})[key.encode()]) for key in KEYS}
    except (pa.ArrowException, OSError) as error:
        raise FileFormatError(f"{path}: not a readable parquet file ({' '.join(str(error).split())})") from None
    except (KeyError, ValueError) as error:
        raise FileFormatError(
            f"{path}: its metadata lacks {error}; write the tables with Database.save of RelBench"
        ) from None
    key, foreign, time = metadata["pkey_col"], metadata["fkey_col_to_pkey_table"] or {}, metadata["time_col"]
    for name in ("pkey_col", "time_col"):
        if not isinstance(metadata[name], str | None):
            raise FileFormatError(f"{path}: its metadata has {name} {metadata[name]!r}, expected text or null")
    if not isinstance(foreign, dict) or not all(isinstance(target, str) for target in foreign.values()):
        raise FileFormatError(
            f"{path}: its metadata has fkey_col_to_pkey_table {foreign!r}, expected tables by column, or null"
        )
    for column in [*foreign, *(name for name in (key, time) if name is not None)]:
        if column not in schema.names:
            raise FileFormatError(f"{path}: its metadata names a column {column!r}, which it lacks")
    if key is not None and not (is_text(schema.field(key).type) or pa.types.is_integer(schema.field(key).type)):
        raise FileFormatError(f"{path}: the primary key {key!r} is {schema.field(key).type}: make it integers or text")
    rest = [item for item in schema if item.name not in (key, time, *foreign)]
    numbers = [item.name for item in rest if is_number(item.type)]
    others = [item.name for item in rest if not is_number(item.type)]
    text_key = key is not None and is_text(schema.field(key).type)
    has_dates = time is not None and is_date(schema.field(time).type)
    return SourceTable(path.stem, path, key, foreign, time, numbers, others, footer.num_rows, text_key, has_dates)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type of Arrow is text."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_number(kind: pa.DataType) -> bool:
    """Whether a type of Arrow is a number, or true and false."""
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(test(kind) for test in tests)


def is_date(kind: pa.DataType) -> bool:
    """Whether a type of Arrow is a date or a timestamp."""
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)


def unpack_table(table: SourceTable, tables: Mapping[str, SourceTable], writer: Chunks, fill: float) -> None:
    """Write the arrays of a table, a batch of rows at a time: features, times, and ends of edges."""
    name, first_row = local_name(table.name), 0
    needed = list(dict.fromkeys([*table.features, *table.foreign, *filter(None, (table.key, table.time))]))
    with pyarrow.parquet.ParquetFile(table.path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=needed, use_threads=False) if needed else ():
            if table.features:
                writer.add(f"nodes.{name}.feat", read_features(table, batch, fill, first_row))
            if table.time is not None:
                writer.add(f"nodes.{name}.{time_column(table.time)}", read_times(table, batch))
            src: Any = pa.array(np.arange(first_row, first_row + batch.num_rows))
            if table.key is not None:
                src = as_ids(table, table.key, batch, table.text_key)
            keyed = pc.is_valid(src).to_numpy(zero_copy_only=False)
            for column, target in table.foreign.items():
                dst = as_ids(table, column, batch, tables[target].text_key)
                there = pc.is_valid(dst).to_numpy(zero_copy_only=False)
                table.missing[column] = table.missing.get(column, 0) + int((~there).sum())
                there &= keyed  # rows without a primary key are refused or left out as nodes
                if there.any():
                    ends = {"src": numpy_of(src.filter(there)), "dst": numpy_of(dst.filter(there))}
                    writer.add_arrays(f"edges.{name}.f2p_{local_name(column)}", ends)
            first_row += batch.num_rows


def read_features(table: SourceTable, batch: pa.RecordBatch, fill: float, first_row: int) -> np.ndarray:
    """Make the columns of numbers of a batch a matrix [n, columns] float32, with ``fill`` for missing ones, which are
    counted. Raises FileFormatError for a number that float32 cannot hold."""
    matrix = np.empty((batch.num_rows, len(table.features)), np.float32)
    for position, column in enumerate(table.features):
        values = batch.column(column)
        values = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
        numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        missing = np.isnan(numbers)
        table.missing[column] = table.missing.get(column, 0) + int(missing.sum())
        with np.errstate(over="ignore"):
            matrix[:, position] = np.where(missing, fill, numbers)
        if len(bad := np.flatnonzero(~np.isfinite(matrix[:, position]))):
            row = int(bad[0])
            raise FileFormatError(
                f"{table.path}: column {column!r}, row {first_row + row + 1}: {numbers[row]} is no number that float32 "
                "holds: mend it, or make it missing"
            )
    return matrix


def read_times(table: SourceTable, batch: pa.RecordBatch) -> np.ndarray:
    """Make the times of a batch [n] int64, in seconds since 1970; integers stay as they were. Missing ones, which are
    counted, become NO_TIME."""
    assert table.time is not None
    values = batch.column(table.time)
    if is_date(values.type):
        values = values.cast(pa.timestamp("s", getattr(values.type, "tz", None)), safe=False).cast(pa.int64())
    if not pa.types.is_integer(values.type):
        raise FileFormatError(
            f"{table.path}: the time {table.time!r} is {values.type}: make it a timestamp or integers"
        )
    table.missing[table.time] = table.missing.get(table.time, 0) + values.null_count
    return values.cast(pa.int64()).fill_null(NO_TIME).to_numpy(zero_copy_only=False)


def time_column(name: str) -> str:
    """Name the stored column of a time, which is none of the names that training reads."""
    name = local_name(name)
    return f"{name}_time" if name in {*RESERVED, "feat", "label", "split", "ends", "weight"} else name


def as_ids(table: SourceTable, column: str, batch: pa.RecordBatch, text: bool) -> pa.Array:
    """Make a column of keys integers or text, as the primary keys are that it holds. Raises FileFormatError."""
    values = batch.column(column)
    if pa.types.is_floating(values.type):  # integers of which some are missing, as pandas stores them
        values = pc.if_else(pc.is_nan(values), None, values)
    if values.null_count == len(values):  # pandas stores them in a column of another type
        return pa.nulls(len(values), pa.large_string() if text else pa.int64())
    try:
        if text == is_text(values.type):
            return values.cast(pa.large_string() if text else pa.int64())
    except pa.ArrowInvalid as error:
        raise FileFormatError(f"{table.path}: column {column!r}: {error}") from None
    expected = "text" if text else "integers"
    raise FileFormatError(
        f"{table.path}: column {column!r} is {values.type}, but the primary keys it holds are {expected}"
    )


def numpy_of(values: pa.Array) -> np.ndarray:
    """Return keys, of which none is missing, as integers or text."""
    array = values.to_numpy(zero_copy_only=False)
    return array.astype(str) if is_text(values.type) else array


def describe(table: SourceTable, fill: float) -> list[str]:
    """Say what became of the columns of a table."""
    listed = ", ".join(table.others[:LISTED]) + (
        f" and {len(table.others) - LISTED:,} more" * (len(table.others) > LISTED)
    )
    notes = [f"{table.name}: feat: {', '.join(table.features) or 'none'}"]
    if table.others:
        notes.append(f"{table.name}: {len(table.others)} columns that are not used: {listed}")
    if table.foreign and not table.num_rows:
        notes.append(f"{table.name}: no rows, so its foreign keys make no relations")
    for column, count in table.missing.items():
        if not count:
            continue
        what = f"stored as {fill:g}"
        if column in table.foreign:
            what = "no edge" + ", so it makes no relation" * (count == table.num_rows)
        elif column == table.time:
            what = f"stored as {NO_TIME}"
        notes.append(f"{table.name}: column {column}: {count:,} missing value{'s' * (count > 1)}: {what}")
    return notes
