"""Records of the edges of a static set's parts in scratch files (in the system's temporary folder), one for each window
of row ids, so that windows can be compared in bounded memory. k records.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

import numpy as np

from data_tools.team import Team
from data_tools.verify.book import BookRelation, BookView
from data_tools.verify.findings import Findings, put_together
from hpcgnn.graph import files

PART, POSITION = "#part", "#position"  # fields of a record that no column can be named like
HEAD = [("row", "<i8"), (PART, "<i4"), (POSITION, "<i8"), ("src", "<i8"), ("dst", "<i8")]


class PairSpool:
    """Records of edges by windows of row ids, those of some of the windows."""

    def __init__(self, stack: contextlib.ExitStack, dtype: np.dtype, windows: range, window: int):
        self.dtype, self.window, self._windows = dtype, window, windows
        self._files = {index: stack.enter_context(tempfile.TemporaryFile(buffering=0)) for index in windows}

    def add(self, records: np.ndarray) -> None:
        """Put records [k] away."""
        window = records["row"] // self.window
        order = np.argsort(window, kind="stable")
        bounds = np.searchsorted(window[order], np.arange(self._windows.start, self._windows.stop + 1))
        for index in np.flatnonzero(np.diff(bounds)):
            records[order[bounds[index] : bounds[index + 1]]].tofile(self._files[self._windows[index]])

    def records(self, index: int) -> np.ndarray:
        """The records of a window, by part and position."""
        file = self._files[index]
        file.seek(0)
        records = np.fromfile(file, self.dtype)
        return records[np.lexsort((records[POSITION], records[PART]))]


def spool_parts(
    team: Team,
    view: BookView,
    relation: BookRelation,
    path: str,
    other: str,
    names: list[str],
    spool: PairSpool,
    num_windows: int,
    findings: Findings,
) -> None:
    """Collective. Put the edges of a group of all usable parts away, every rank reading some of the parts, with the
    rank that has their window; ``other`` is the endpoint that the group has as a column."""
    usable = [part for part in range(view.num_parts) if part not in findings.unusable]
    part_findings = [(part, Findings()) for part in usable[slice(*team.share(0, len(usable)))]]
    pieces = (
        records
        for part, problems in part_findings
        for records in part_records(view, relation, path, other, part, names, spool.dtype, problems)
    )
    bounds = np.arange(team.size + 1) * num_windows // team.size
    records = next(pieces, None)
    while any(team.everyone(records is not None)):
        records = np.empty(0, spool.dtype) if records is None else records
        window = np.clip(records["row"] // max(1, spool.window), 0, max(0, num_windows - 1))
        rank = np.searchsorted(bounds, window, side="right") - 1
        order = np.argsort(rank, kind="stable")
        spool.add(team.exchange(records[order], np.bincount(rank, minlength=team.size))[0])
        records = next(pieces, None)
    put_together(team, findings, [problems for _, problems in part_findings])


def part_records(
    view: BookView,
    relation: BookRelation,
    path: str,
    other: str,
    part: int,
    names: list[str],
    dtype: np.dtype,
    findings: Findings,
) -> Iterator[np.ndarray]:
    """Records of the edges of a group of one part, in slabs."""
    owners = relation.dst_type if other == "src" else relation.src_type
    file_name = view.part_path(part)
    with findings.reading(file_name, part), files.open_checked(file_name, files.PART) as file:
        group = file[path]
        indptr = group["indptr"][:]
        for start, stop in files.slabs(len(group["row"]), dtype.itemsize, files.SLAB_BYTES // 2):
            records = np.zeros(stop - start, dtype)
            records["row"], records[PART], records[POSITION] = (
                group["row"][start:stop],
                part,
                np.arange(start, stop),
            )
            records[other] = group[other][start:stop]
            own = np.searchsorted(indptr, np.arange(start, stop), side="right") - 1 + owners.offsets[part]
            records["dst" if other == "src" else "src"] = own
            for name in names:
                records[name] = group[name][start:stop]
            yield records
