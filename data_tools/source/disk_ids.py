"""Id spaces whose ids do not fit into memory: sorted and joined on disk, in buckets that do.

While files stream by, the ids of every column are written in buckets by their hash. When all are read, each bucket is
made distinct and sorted, the sorted buckets are merged, which numbers the ids as `id_spaces` does, and then each
bucket's ids are looked up among its own. N ids, K buckets.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_tools.source.formats.values import Raw
from data_tools.source.id_spaces import UNKNOWN, IdColumn, IdSpace, unknown_id
from data_tools.source.segments import ArraySegments, IdSegments, hash_text, mix, text_parts, to_buckets
from data_tools.source.spool import Spool, forget
from hpcgnn.graph.files import slabs

LOOKUP_ROWS = 1 << 18
BLOCK_ROWS = 1 << 14


class DiskIds(IdSpace):
    """Integer ids, or ids that are text."""

    def __init__(self, node_type: str, text: bool, folder: pathlib.Path, num_buckets: int):
        super().__init__(node_type, text=text)
        self.folder = folder
        self.num_buckets = num_buckets
        self._columns: list[DiskColumn] = []
        self._naming: list[DiskColumn] = []  # the columns whose ids are nodes: those made before it was sealed

    def column(self, drop: bool = False) -> DiskColumn:
        column = DiskColumn(self, drop)
        self._columns.append(column)
        if not self.sealed:
            self._naming.append(column)
        return column

    def finish(self) -> None:
        """Number the ids and look up the ids of all columns."""
        runs = IdSegments(self.folder, self.text)
        starts, widest = [0], 1
        for bucket in range(self.num_buckets):
            distinct_ids = pa.array([], pa.large_string() if self.text else pa.int64())
            for column in self._naming:
                for _, ids in column.pieces(bucket):
                    distinct_ids = pc.unique(pa.concat_arrays([distinct_ids, pc.unique(ids)]))
            distinct_ids = distinct_ids.take(pc.sort_indices(distinct_ids))
            if self.text and len(distinct_ids):
                widest = max(widest, int(np.diff(text_parts(distinct_ids)[0]).max()))
            bounds = np.arange(0, len(distinct_ids) + 2 * BLOCK_ROWS, BLOCK_ROWS)
            runs.append(distinct_ids, np.minimum(bounds, len(distinct_ids)))
            starts.append(starts[-1] + len(distinct_ids))
        self.num_nodes = starts[-1]
        ranks = self._merge(runs, starts, np.dtype(f"S{widest}") if self.text else np.dtype(np.int64))
        for bucket in range(self.num_buckets):
            distinct_ids = pa.concat_arrays(list(blocks(runs, bucket, starts)))
            here = np.array(ranks[starts[bucket] : starts[bucket + 1]])
            for column in self._columns:
                column.look_up(bucket, distinct_ids, here)

    def _merge(self, runs: IdSegments, starts: list[int], dtype: np.dtype) -> np.ndarray:
        """Write all ids in order; returns the row id of each id of each run [N], run after run."""
        ids, ranks = Spool(self.folder), Spool(self.folder)
        for start, stop in slabs(self.num_nodes, 8):
            ranks.append(np.zeros(stop - start, np.int64))
        rank_of = ranks.column()
        cursor = np.array(starts[:-1])
        ids.append(np.empty(0, dtype))
        base = 0
        for values, sources in merged([blocks(runs, run, starts) for run in range(self.num_buckets)]):
            ids.append(fixed_width(values, dtype) if self.text else values.to_numpy())
            order = np.argsort(sources, kind="stable")
            count = np.bincount(sources, minlength=self.num_buckets)
            begin = np.cumsum(count) - count
            for run in np.flatnonzero(count):
                here = order[begin[run] : begin[run] + count[run]]
                rank_of[cursor[run] : cursor[run] + count[run]] = base + here
            cursor += count
            base += len(values)
        self.ids = ids.column()
        return rank_of


class DiskColumn(IdColumn):
    """One column of ids of a space: first its ids as they are read, later their row ids."""

    _space: DiskIds

    def __init__(self, space: DiskIds, drop: bool):
        super().__init__(space, drop)
        self._ids = IdSegments(space.folder, space.text)
        self._rows = ArraySegments(space.folder)
        self._places: list[tuple[Raw, str, int]] = []

    def __call__(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """Store a piece of the column; returns the buckets [n] int64 of its ids."""
        ids = self._space.parse(raw, file, first_row)
        hashes = hash_text(ids) if self._space.text else mix(ids)
        ids = ids.cast(pa.large_string()) if self._space.text else pa.array(ids)
        buckets, order, bounds = to_buckets(hashes, self._space.num_buckets)
        self._ids.append(ids.take(pa.array(order)), bounds)
        self._rows.append(np.zeros(len(ids), np.int64), bounds)
        self._places.append((Raw([], raw.labels, raw.scalar, 0), file, first_row))
        return buckets

    def pieces(self, bucket: int) -> Iterator[tuple[list[int], pa.Array]]:
        """Read the ids of a bucket, many batches together; and which batches."""
        batches: list[int] = []
        arrays: list[pa.Array] = []
        count = 0
        for batch in range(self._ids.num_batches):
            batches.append(batch)
            arrays.append(self._ids.read(batch, bucket))
            count += len(arrays[-1])
            if count >= LOOKUP_ROWS or batch == self._ids.num_batches - 1:
                yield batches, pa.concat_arrays(arrays)
                batches, arrays, count = [], [], 0

    def look_up(self, bucket: int, distinct_ids: pa.Array, ranks: np.ndarray) -> None:
        """Store the row ids of the ids of a bucket, whose distinct ones are ``distinct_ids`` [n] with rows ``ranks``
        [n]."""
        for batches, ids in self.pieces(bucket):
            places = pc.fill_null(pc.index_in(ids, value_set=distinct_ids), -1).to_numpy(zero_copy_only=False)
            rows = np.where(places < 0, UNKNOWN, ranks[places]) if len(ranks) else np.full(len(places), UNKNOWN)
            start = 0
            for batch in batches:
                low, high = self._rows.span(batch, bucket)
                self._rows.put(low, rows[start : start + high - low])
                start += high - low

    def resolve(self, codes: np.ndarray) -> None:
        """Replace what `__call__` gave [N], in one piece, by row ids; FileFormatError for an unknown id."""
        for batch, (raw, file, first_row) in enumerate(self._places):
            start, stop = self._rows.starts[batch : batch + 2]
            buckets = np.array(codes[start:stop])
            order = np.argsort(buckets, kind="stable")
            rows = np.empty(stop - start, np.int64)
            rows[order] = self._rows.get(start, stop)
            if not self._drop and len(unknown := np.flatnonzero(rows == UNKNOWN)):
                row = int(unknown[0])
                # The batch is stored in order of its buckets, and within a bucket in order of its rows.
                place = np.flatnonzero(buckets == buckets[row]).tolist().index(row)
                value = self._ids.read(batch, int(buckets[row]))[place].as_py()
                raise unknown_id(raw, file, first_row + row, value, self._space.type)
            codes[start:stop] = rows
            forget(codes)


def blocks(runs: IdSegments, run: int, starts: list[int]) -> Iterator[pa.Array]:
    """Read the blocks of a sorted run; there is at least one, which may be empty."""
    for block in range(max(1, -(-(starts[run + 1] - starts[run]) // BLOCK_ROWS))):
        yield runs.read(run, block)


def merged(runs: list[Iterator[pa.Array]]) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """Merge sorted runs: pieces of ids in order, with the run that each id comes from [n]."""
    heads = [next(run) for run in runs]
    while True:
        for run, head in enumerate(heads):
            if not len(head):
                heads[run] = next(runs[run], head)
        # What is not above the smallest last id of the heads is complete.
        last = [head[-1] for head in heads if len(head)]
        if not last:
            return
        bound = min(last, key=lambda item: item.as_py())
        counts = [pc.sum(pc.less_equal(head, bound)).as_py() or 0 for head in heads]
        values = pa.concat_arrays([head[:count] for head, count in zip(heads, counts, strict=True)])
        order = pc.sort_indices(values)
        yield values.take(order), np.repeat(np.arange(len(heads)), counts)[order.to_numpy()]
        heads = [head[count:] for head, count in zip(heads, counts, strict=True)]


def fixed_width(text: pa.Array, dtype: np.dtype) -> np.ndarray:
    """Make bytes of fixed width of strings [n]."""
    offsets, data = text_parts(text)
    lengths = np.diff(offsets)
    matrix = np.zeros((len(text), dtype.itemsize), np.uint8)
    matrix[np.repeat(np.arange(len(text)), lengths), np.arange(len(data)) - np.repeat(offsets[:-1], lengths)] = data
    return matrix.reshape(-1).view(dtype)
