"""Id spaces whose ids do not fit into memory: sorted and joined on disk, in buckets that do.

While files stream by, the ids of every column are written in buckets by their hash. When all are read, each bucket is
made distinct and sorted. The sorted buckets are merged, which numbers the ids as `id_spaces` does. Then the ids of each
column are looked up, bucket by bucket. N ids, K buckets.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_tools.source.formats.values import Raw
from data_tools.source.id_spaces import MISSING, UNKNOWN, IdColumn, IdSpace, fixed_width, unknown_id
from data_tools.source.segments import ArraySegments, IdSegments, hash_text, mix, text_parts, to_buckets
from data_tools.source.spool import Spool, forget
from hpcgnn.graph.files import slabs

LOOKUP_ROWS, LOOKUP_BYTES = 1 << 18, 32 << 20
HEAD_BYTES = 8 << 20  # of the blocks that are merged, one of each bucket
PLACE_BYTES = 24  # of an id in memory, besides its text


class DiskIds(IdSpace):
    """Integer ids, or ids that are text."""

    def __init__(self, node_type: str, text: bool, folder: pathlib.Path, num_buckets: int):
        super().__init__(node_type, text=text)
        self.folder = folder
        self.num_buckets = num_buckets
        self._columns: list[DiskColumn] = []
        self._naming: list[DiskColumn] = []  # the columns whose ids are nodes: those made before it was sealed

    def column(self, drop: bool = False, leave_out: bool = False) -> DiskColumn:
        column = DiskColumn(self, drop, leave_out)
        self._columns.append(column)
        if not self.sealed:
            self._naming.append(column)
        return column

    def finish(self, folder: pathlib.Path | None = None) -> None:
        """Number the ids and look up the ids of all columns."""
        runs = Runs(self.folder, self.text, HEAD_BYTES // self.num_buckets)
        for bucket in range(self.num_buckets):
            distinct_ids = pa.array([], pa.large_string() if self.text else pa.int64())
            for column in self._naming:
                for _, ids in column.pieces(bucket):
                    distinct_ids = pc.unique(pa.concat_arrays([distinct_ids, pc.unique(ids)]))
            runs.append(distinct_ids.take(pc.sort_indices(distinct_ids)))
        self.num_nodes = runs.starts[-1]
        ranks = self._merge(runs)
        for bucket in range(self.num_buckets):
            distinct_ids, here = runs.read(bucket), np.array(ranks[runs.starts[bucket] : runs.starts[bucket + 1]])
            for column in self._columns:
                column.look_up(bucket, distinct_ids, here)

    def _merge(self, runs: Runs) -> np.ndarray:
        """Write all ids in order; returns the row id of each id of each run [N], run after run."""
        ids, ranks = Spool(self.folder), Spool(self.folder)
        for start, stop in slabs(self.num_nodes, 8):
            ranks.append(np.zeros(stop - start, np.int64))
        rank_of = ranks.column()
        cursor = np.array(runs.starts[:-1])
        dtype = np.dtype(f"S{runs.widest}") if self.text else np.dtype(np.int64)
        ids.append(np.empty(0, dtype))
        base = 0
        for values, sources in runs.merged():
            for start, stop in slabs(len(values), dtype.itemsize, HEAD_BYTES):
                piece = values[start:stop]
                ids.append(fixed_width(piece, dtype) if self.text else piece.to_numpy())
            order = np.argsort(sources, kind="stable")
            counts = np.bincount(sources, minlength=self.num_buckets)
            # The how many-th of its run each id is, here: the ids of a run come in their order.
            nth = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
            rank_of[cursor[sources[order]] + nth] = base + order
            forget(rank_of)
            cursor += counts
            base += len(values)
        self.ids = ids.column()
        return rank_of


class DiskColumn(IdColumn):
    """One column of ids of a space: first the ids that were read, later their row ids."""

    _space: DiskIds

    def __init__(self, space: DiskIds, drop: bool, leave_out: bool):
        super().__init__(space, drop, leave_out)
        self._ids = IdSegments(space.folder, space.text)
        self._rows = ArraySegments(space.folder)
        self._places: list[tuple[Raw, str, int, int]] = []  # of a piece, and where its codes begin
        self._num_codes = 0

    def __call__(self, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """Store a piece of the column; returns the buckets [n] int64 of its ids, MISSING for a row without one."""
        codes = super().__call__(raw, file, first_row)
        self._num_codes += len(codes)
        return codes

    def _encode(self, ids: Any, rows: np.ndarray, raw: Raw, file: str, first_row: int) -> np.ndarray:
        """Store the ids of some rows [m] of a piece; returns their buckets [m] int64."""
        hashes = hash_text(ids) if self._space.text else mix(ids)
        ids = ids.cast(pa.large_string()) if self._space.text else pa.array(ids)
        buckets, order, bounds = to_buckets(hashes, self._space.num_buckets)
        self._ids.append(ids.take(pa.array(order)), bounds)
        self._rows.append(np.zeros(len(ids), np.int64), bounds)
        self._places.append((Raw([], raw.labels, raw.scalar, raw.num_rows), file, first_row, self._num_codes))
        return buckets

    def pieces(self, bucket: int) -> Iterator[tuple[list[int], pa.Array]]:
        """Read the ids of a bucket, many batches together; and which batches."""
        batches: list[int] = []
        arrays: list[pa.Array] = []
        count = size = 0
        for batch in range(self._ids.num_batches):
            batches.append(batch)
            arrays.append(self._ids.read(batch, bucket))
            count, size = count + len(arrays[-1]), size + arrays[-1].nbytes
            if count >= LOOKUP_ROWS or size >= LOOKUP_BYTES or batch == self._ids.num_batches - 1:
                yield batches, pa.concat_arrays(arrays)
                batches, arrays, count, size = [], [], 0, 0

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
        """Replace the codes [N] that `__call__` returned, in one piece, by row ids; FileFormatError for an unknown
        id."""
        for batch, (raw, file, first_row, begin) in enumerate(self._places):
            start, stop = self._rows.starts[batch : batch + 2]
            piece = codes[begin : begin + raw.num_rows]
            present = np.flatnonzero(piece != MISSING)
            buckets = np.array(piece[present])
            order = np.argsort(buckets, kind="stable")
            rows = np.empty(stop - start, np.int64)
            rows[order] = self._rows.get(start, stop)
            if not self._drop and len(unknown := np.flatnonzero(rows == UNKNOWN)):
                row = int(unknown[0])
                # The batch is stored in order of its buckets, and within a bucket in order of its rows.
                place = np.flatnonzero(buckets == buckets[row]).tolist().index(row)
                value = self._ids.read(batch, int(buckets[row]))[place].as_py()
                raise unknown_id(raw, file, first_row + int(present[row]), value, self._space)
            piece[present] = rows
            forget(codes)


class Runs:
    """Sorted ids of each bucket on disk, in blocks so small that one block of each fits into memory. No id is
    in two buckets."""

    def __init__(self, folder: pathlib.Path, text: bool, block_bytes: int):
        self.starts = [0]  # first id of each run, and the number of all ids
        self.widest = 1
        self._ids = IdSegments(folder, text)
        self._block_bytes = block_bytes
        self._firsts: list[pa.Array] = []  # the first id of each block
        self._blocks: list[np.ndarray] = []  # run and number of each block [b, 2]

    def append(self, ids: pa.Array) -> None:
        """Add the sorted ids of the next bucket."""
        ends = np.arange(1, len(ids) + 1) * PLACE_BYTES
        if self._ids.text:
            lengths = np.diff(text_parts(ids)[0])
            self.widest = max(self.widest, int(lengths.max(initial=1)))
            ends += np.cumsum(lengths)
        num_blocks = max(1, -(-int(ends.max(initial=0)) // self._block_bytes))
        starts = np.unique(np.searchsorted(ends, np.arange(num_blocks) * self._block_bytes))
        self._ids.append(ids, np.append(starts, len(ids)))
        if len(ids):
            self._firsts.append(ids.take(pa.array(starts)))
            self._blocks.append(np.stack([np.full(len(starts), len(self.starts) - 1), np.arange(len(starts))], axis=1))
        self.starts.append(self.starts[-1] + len(ids))

    def read(self, run: int) -> pa.Array:
        """Read a whole run."""
        return pa.concat_arrays([self._ids.read(run, block) for block in range(self._ids.num_buckets(run))])

    def merged(self) -> Iterator[tuple[pa.Array, np.ndarray]]:
        """Merge the runs: pieces of ids in order, with the run that each id comes from [n].

        Blocks are read in order of their first ids, so all ids below the first id of the next one are complete. At most
        one block of each run is incomplete at a time.
        """
        if not self._firsts:
            return
        firsts = pa.concat_arrays(self._firsts)
        order = pc.sort_indices(firsts).to_numpy()
        blocks = np.concatenate(self._blocks)[order]
        values, sources = firsts[:0], np.empty(0, np.int64)
        step = len(self.starts) - 1
        for start in range(0, len(blocks), step):
            arrays = [self._ids.read(run, block) for run, block in blocks[start : start + step]]
            runs = np.repeat(blocks[start : start + step, 0], list(map(len, arrays)))
            values, sources = pa.concat_arrays([values, *arrays]), np.concatenate([sources, runs])
            place = pc.sort_indices(values)
            values, sources = values.take(place), sources[place.to_numpy()]
            complete = len(values)
            if start + step < len(blocks):
                complete = pc.sum(pc.less(values, firsts[int(order[start + step])])).as_py()
            yield values[:complete], sources[:complete]
            values, sources = values[complete:], sources[complete:]
