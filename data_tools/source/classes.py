"""Numbers the words of a column 0, 1, ... in their order."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from data_tools.source.formats.values import Raw, parse_names, single, to_text
from data_tools.source.spool import forget
from hpcgnn.graph.files import FileFormatError, slabs


class Classes:
    """Converts a column of words to codes while it is read; `finish` then puts them in order.

    Words that are all integers are ordered as such, others by their UTF-8 bytes. Empty words become ``fill``.
    """

    def __init__(self, dtype: str = "int64", fill: float | None = None):
        self._dtype = np.dtype(dtype)
        self._fill = fill
        self._codes: dict[str, int] = {}

    def __call__(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """Give the codes [n] of a piece of the column, in order of first appearance, -1 for empty words."""
        if self._fill is None:
            part, place = single(raw, file, first_row)
            empty = pc.equal(pc.fill_null(to_text(part, place), ""), "").to_numpy(zero_copy_only=False)
            if empty.any():
                remedy = "mend the row, or declare a fill for the column, such as fill: -1"
                raise place.error(int(np.argmax(empty)), f"the word is missing; {remedy}")
            words = parse_names(raw, file, first_row)
        else:
            words = pc.utf8_trim_whitespace(pc.fill_null(to_text(*single(raw, file, first_row)), ""))
        words = words.dictionary_encode()
        numbers = self._codes
        codes = [numbers.setdefault(word, len(numbers)) if word else -1 for word in words.dictionary.to_pylist()]
        if len(self._codes) > np.iinfo(self._dtype).max:
            raise FileFormatError(f"{file}: column {raw.labels[0]}: more classes than {self._dtype} can number")
        return np.array(codes, self._dtype)[words.indices.to_numpy(zero_copy_only=False)]

    def finish(self, column: np.ndarray) -> list[str]:
        """Replace the codes of a column [n] in place by the final numbers, and return the words in their order."""
        are_integers = all(word.removeprefix("-").isdecimal() for word in self._codes)
        words = sorted(self._codes, key=int if are_integers else str.encode)
        number = np.empty(len(words) + 1, column.dtype)
        number[[self._codes[word] for word in words]] = np.arange(len(words))
        number[-1] = 0 if self._fill is None else self._fill
        for start, stop in slabs(len(column), column.dtype.itemsize):
            column[start:stop] = number[column[start:stop]]
            forget(column)
        return words
