"""Reads lists of ids: a line ``u i1 i2 ...`` a node, as rows of pairs, and JSON ``{row: [column, ...]}`` as a
matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from data_tools.source.file_spec import FileSpec, Reference
from data_tools.source.formats.text_stream import CleanText, TextSource
from data_tools.source.formats.values import Raw, text_array
from data_tools.source.selection import pick, select_all
from hpcgnn.graph.decode import decode_json
from hpcgnn.graph.files import FileFormatError

MOST = 1 << 62  # that a number of a row or column may be


class ListsTable:
    """Text of lines ``a b c ...`` as the rows (a, b), (a, c), ...; rows are counted over these pairs."""

    def __init__(self, source: TextSource, spec: FileSpec):
        self.name = source.name
        self._source = source
        self._spec = spec
        self._whitespace = spec.delimiter == "whitespace"
        self._delimiter = b" " if self._whitespace else spec.delimiter.encode()

    def batches(self, references: Mapping[str, Reference]) -> Iterator[dict[str, Raw]]:
        chosen, _ = select_all(self.name, references, list(self._spec.columns), 2)
        with self._source.open() as raw:
            stream = CleanText(raw, self._spec.comment, self._whitespace)
            if self._spec.header != "none":
                stream.next_line()
            for block in stream.blocks():
                first, others = self._pairs(block)
                yield pick(chosen, {0: first, 1: others}, len(others))

    def _pairs(self, block: bytes) -> tuple[pa.Array, pa.Array]:
        """Both ends of the pairs of whole lines, as text."""
        lines = [line.split(self._delimiter) for line in block.splitlines()]
        counts = np.array([len(line) - 1 for line in lines])
        heads = text_array(self.name, [line[0] for line in lines])
        others = text_array(self.name, [item for line in lines for item in line[1:]])
        return heads.take(np.repeat(np.arange(len(lines)), counts)), others


def load_id_lists(source: TextSource) -> dict[str, np.ndarray]:
    """Read the 0-1 matrix of a JSON object ``{"row": [column, ...], ...}``: arrays data, row, col, shape.

    Its shape goes up to the largest row and column; a column named twice in a row counts once.
    Raises FileFormatError for other JSON and for ids that are not 0, 1, ...
    """
    try:
        with source.open() as file:
            lists = decode_json(file.read())
    except ValueError as error:
        raise FileFormatError(f"{source.name}: not JSON ({error}); is it truncated?") from None
    if not isinstance(lists, dict):
        raise FileFormatError(f"{source.name}: expected an object of lists, {{row: [column, ...]}}")
    rows = []
    for key, columns in lists.items():
        is_list = isinstance(columns, list) and all(type(column) is int and 0 <= column < MOST for column in columns)
        if not (key.isdecimal() and int(key) < MOST and is_list):
            shown = str(columns)[:60]
            raise FileFormatError(f"{source.name}: row {key!r}: expected a list of numbers 0, 1, ..., got {shown}")
        rows += [(int(key), column) for column in set(columns)]
    row, col = np.array(sorted(rows), np.int64).reshape(-1, 2).T
    height = 1 + max(map(int, lists), default=-1)
    shape = np.array([height, 1 + col.max(initial=-1)])
    return {"data": np.ones(len(row), np.float32), "row": row, "col": col, "shape": shape}
