"""Readers of files of typed columns: Parquet, folders of Parquet files, Arrow IPC and Feather."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.dataset
import pyarrow.ipc
import pyarrow.parquet

from data_tools.source.formats.selection import pick, select_all
from data_tools.source.formats.table import NUMBER_BYTES, Size, Table, naming
from data_tools.source.formats.text_stream import natural
from data_tools.source.formats.values import Raw, Reference
from hpcgnn.graph.files import FileFormatError

PARQUET_ROWS, PARQUET_TEXT_ROWS = 1 << 17, 1 << 14  # of a batch; text may be much shorter in the file
PARQUET_BYTES = 32 << 20  # of the numbers of a batch


class ParquetTable(Table):
    """A parquet file; a reference is a name, a position, a range or a list of names and positions."""

    value_bytes = 1

    @property
    def _keys(self) -> Mapping[str, pa.Scalar]:
        """Columns with one value, of a file in a folder (`list_folder`)."""
        return getattr(self.spec, "keys", {})

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        try:
            with pyarrow.parquet.ParquetFile(self.source.path) as file:
                own = file.schema_arrow.names
                names = [*own, *self._keys]
                chosen, needed = select_all(self.name, references, names, len(names))
                rows, stored = batch_rows(file.metadata), [names[p] for p in needed if p < len(own)]
                for batch in file.iter_batches(rows, columns=stored, use_threads=False):
                    keys = {name: pa.repeat(value, batch.num_rows) for name, value in self._keys.items()}
                    columns = {p: batch.column(names[p]) if p < len(own) else keys[names[p]] for p in needed}
                    yield pick(chosen, columns, batch.num_rows, is_exact=True)
        except (pa.ArrowException, OSError) as error:  # OSError: what is compressed cannot be unpacked
            reason = " ".join(str(error).split())
            raise FileFormatError(
                f"{self.name}: not a readable parquet file ({reason}); fetch or write it anew"
            ) from None

    def names(self, references: Mapping[str, Reference]) -> list[str]:
        """List the names of the columns, with the keys of folders."""
        with naming(self.name, "parquet"):
            return [*pyarrow.parquet.read_schema(self.source.path).names, *self._keys]

    def memory(self) -> int:
        """Count the bytes of the largest group of rows, packed and unpacked."""
        with naming(self.name, "parquet"):
            footer = pyarrow.parquet.read_metadata(self.source.path)
            groups = (footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
            return 2 * max(groups, default=0)

    def size(self, reference: Reference) -> Size:
        """Measure the file by its footer: numbers by their bytes in memory, text by its bytes in the file, where equal
        texts may be stored once."""
        with naming(self.name, "parquet"):
            footer, num_bytes = pyarrow.parquet.read_metadata(self.source.path), 0
            for column in footer_columns(footer):
                is_text = column.physical_type == "BYTE_ARRAY"
                num_bytes += NUMBER_BYTES * column.num_values + (column.total_uncompressed_size if is_text else 0)
            num_bytes += NUMBER_BYTES * len(self._keys) * footer.num_rows
            num_batches = 1 + footer.num_row_groups + footer.num_rows // PARQUET_TEXT_ROWS
            return Size(footer.num_rows, num_bytes, num_batches)


class ArrowTable(Table):
    """A file of Arrow IPC, as Feather is; references as for Parquet."""

    value_bytes = 1

    @contextlib.contextmanager
    def _open(self) -> Iterator[pa.RecordBatchFileReader]:
        """Map the file into memory; raises FileFormatError, also while the caller reads."""
        try:
            with pa.memory_map(os.fspath(self.source.path)) as file, pyarrow.ipc.open_file(file) as reader:
                yield reader
        except (pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())
            raise FileFormatError(
                f"{self.name}: not a readable Arrow file ({reason}); write it anew, such as by pandas' to_feather"
            ) from None

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        with self._open() as reader:
            names = reader.schema.names
            chosen, needed = select_all(self.name, references, names, len(names))
            for number in range(reader.num_record_batches):
                whole = reader.get_batch(number)
                whole.validate(full=True)  # offsets of a damaged file lead anywhere
                for start in range(0, whole.num_rows, PARQUET_TEXT_ROWS):
                    batch = whole.slice(start, PARQUET_TEXT_ROWS)
                    yield pick(chosen, {p: batch.column(p) for p in needed}, batch.num_rows, is_exact=True)

    def names(self, references: Mapping[str, Reference]) -> list[str]:
        """List the names of the columns."""
        with self._open() as reader:
            return reader.schema.names

    def memory(self) -> int:
        """Count the bytes of the largest batch of the file, unpacked, and of the pages of the file."""
        with self._open() as reader:
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
            return os.path.getsize(self.source.path) + max(
                (batch.get_total_buffer_size() for batch in batches), default=0
            )

    def size(self, reference: Reference) -> Size:
        """Measure the file by its batches."""
        total = Size()
        with self._open() as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                total += Size(batch.num_rows, batch.get_total_buffer_size(), 1 + batch.num_rows // PARQUET_TEXT_ROWS)
        return total


def list_folder(folder: pathlib.Path) -> list[tuple[pathlib.Path, dict[str, pa.Scalar]]]:
    """List the Parquet files below a folder, in order of their names with part-2 before part-10. The keys of folders
    named ``key=value`` (Hive) come with each, of one type for all files.

    Raises FileFormatError without such a file, and for files that differ in their columns.
    """
    shown = (path for path in folder.rglob("*.parquet") if path.name[0] not in "._")
    paths = sorted(shown, key=lambda path: natural(str(path.relative_to(folder))))
    if not paths:
        raise FileFormatError(f"{folder}: a folder without Parquet files; list files of other formats by chunks")
    with naming(str(folder), "Parquet"):
        first = pyarrow.parquet.read_schema(paths[0])
        for key in (part.partition("=")[0] for part in paths[0].relative_to(folder).parts[:-1]):
            if key in first.names:
                raise FileFormatError(f"{paths[0]}: {key} is a column and a key of the folder; rename one of them")
        keys = pyarrow.dataset.HivePartitioning.discover()
        table = pyarrow.dataset.dataset(list(map(str, paths)), partitioning=keys, partition_base_dir=str(folder))
        pieces = list(table.get_fragments())
    listed = []
    for path, piece in zip(paths, pieces, strict=True):
        if piece.physical_schema.names != first.names:
            raise FileFormatError(
                f"{path}: has the columns {', '.join(piece.physical_schema.names)}, but {paths[0].name} has "
                f"{', '.join(first.names)}; all files of a folder need the same columns"
            )
        found = pyarrow.dataset.get_partition_keys(piece.partition_expression)
        typed = {field.name: pa.scalar(found[field.name], field.type) for field in table.schema if field.name in found}
        listed.append((path, typed))
    return listed


def batch_rows(footer: pyarrow.parquet.FileMetaData) -> int:
    """Choose how many rows of a parquet file to read at a time."""
    columns = footer_columns(footer)
    has_text = any(column.physical_type == "BYTE_ARRAY" for column in columns)
    width = NUMBER_BYTES * sum(column.num_values for column in columns) // max(1, footer.num_rows)
    return max(1, min(PARQUET_TEXT_ROWS if has_text else PARQUET_ROWS, PARQUET_BYTES // max(1, width)))


def footer_columns(footer: pyarrow.parquet.FileMetaData) -> list[pyarrow.parquet.ColumnChunkMetaData]:
    """List the footer's entries of every column of every group of rows of a parquet file."""
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    return [group.column(i) for group in groups for i in range(group.num_columns)]
