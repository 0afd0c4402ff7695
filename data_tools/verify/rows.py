"""Compare the rows of all parts with each other, and with the graph file when there is one.

Rows of a group increase within every part, so a window of row ids [start, stop) is one slice of each part. Windows of
all parts are compared in bounded memory, every value by its bytes. W rows in a window, k of them in the part at hand.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np

from data_tools.graph.book import SetBook
from data_tools.graph.findings import Findings, each
from data_tools.graph.source import EdgeType, NodeType
from data_tools.team import Team
from hpcgnn.graph import files


def same_rows(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Find which rows [k] of two arrays of one dtype and shape [k, ...] are equal bit by bit."""
    if not len(left):
        return np.zeros(0, bool)
    if not left[0].nbytes:
        return np.ones(len(left), bool)
    as_bytes = (np.ascontiguousarray(a).view(np.uint8).reshape(len(a), -1) for a in (left, right))
    return np.all(np.equal(*as_bytes), axis=1)


@dataclass(slots=True)
class Window:
    """Rows start .. stop-1 as far as they have been seen."""

    start: int
    stop: int
    reference: dict[str, np.ndarray]  # column -> [W, ...], the graph file's values, or those of the first copy
    trusted: bool  # the reference is the graph file's
    copies: np.ndarray = field(init=False)  # [W] int32
    holder: np.ndarray = field(init=False)  # [W] int32, the first part that has the row, -1 for none

    def __post_init__(self):
        self.copies = np.zeros(self.stop - self.start, np.int32)
        self.holder = np.full(self.stop - self.start, -1, np.int32)

    def compare(self, column: str, index: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Find the positions in values [k] that differ from the reference at rows index [k].

        Without a graph file the first copy becomes the reference.
        """
        if not self.trusted:
            if column not in self.reference:
                self.reference[column] = np.zeros((self.stop - self.start, *values.shape[1:]), values.dtype)
            new = self.copies[index] == 0
            self.reference[column][index[new]] = values[new]
        return np.flatnonzero(~same_rows(values, self.reference[column][index]))

    def seen(self, index: np.ndarray, part: int) -> None:
        """Count a copy of rows index [k]."""
        new = index[self.copies[index] == 0]
        self.holder[new] = part
        self.copies[index] += 1


class Cursors:
    """Where every part's next window begins in one group."""

    def __init__(self, book: SetBook, path: str):
        self._book, self._path = book, path
        self._position: dict[int, int] = {}  # by part, of those that a window was read from

    def slices(self, window: Window, findings: Findings) -> Iterator[tuple[int, h5py.Group, int, np.ndarray]]:
        """Yield (part, its group, first position, rows relative to the window [k]) of every usable part."""
        for part in range(self._book.num_parts):
            if part in findings.unusable:
                continue
            path = self._book.part_path(part)
            with findings.reading(path, part), files.open_checked(path, files.PART) as file:
                group = file[self._path]
                begin = self._position.get(part)
                if begin is None:
                    begin = bisect.bisect_left(group["row"], window.start)
                rows = group["row"][begin : begin + window.stop - window.start]
                rows = rows[: np.searchsorted(rows, window.stop)]
                self._position[part] = begin + len(rows)
                yield part, group, begin, rows - window.start


def windows(num_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield row ranges of bounded memory."""
    return files.slabs(num_rows, row_bytes + 32, files.SLAB_BYTES // 2)


def compare_columns(
    window: Window, group: h5py.Group, begin: int, index: np.ndarray, columns: dict[str, np.ndarray], findings: Findings
) -> None:
    """Compare a part's values, columns [k, ...], with the window and note the differences."""
    for name, values in columns.items():
        bad = window.compare(name, index, values)

        def text(i: int, name=name, values=values, bad=bad) -> str:
            other = "the graph file" if window.trusted else f"part-{window.holder[index[bad[i]]]}.h5"
            expected = window.reference[name][index[bad[i]]]
            row = window.start + index[bad[i]]
            return f"{short(values[bad[i]])}, expected {short(expected)} as in {other} (row id {row})"

        findings.add_rows(group.file.filename, f"{group.name}/{name}", begin + bad, text)


def short(value) -> str:
    """Format a value in few characters."""
    text = np.array2string(np.asarray(value), threshold=6, edgeitems=2).replace("\n", "")
    return text if len(text) < 80 else text[:77] + "..."


def compare_nodes(
    team: Team, book: SetBook, node_type: NodeType, source: h5py.File | Any, width: int, findings: Findings
) -> np.ndarray:
    """Collective. Check that every node is in exactly one part, with the graph file's values; width: bytes of a row.

    Returns row ids by global id, relative to the type's first [N_type] int64, -1 where no part has the node.
    """
    path = f"/nodes/{node_type.name}"
    row_of = np.full(node_type.num_nodes, -1, np.int64)
    cursors = Cursors(book, path)
    names = sorted(source[path]) if source else []

    def check(bounds: tuple[int, int], findings: Findings) -> None:
        start, stop = bounds
        window = Window(start, stop, {name: source[path][name][start:stop] for name in names}, trusted=True)
        for part, group, begin, index in cursors.slices(window, findings):
            with findings.reading(group.file.filename, part):
                columns = {name: group[name][begin : begin + len(index)] for name in names}
                compare_columns(window, group, begin, index, columns, findings)
                check_single(window, group, begin, index, findings)
                first = node_type.offsets[part] - node_type.base + begin
                row_of[first : first + len(index)] = index + start
                window.seen(index, part)
        note_lost(book, path, window, "node", findings)

    each(team, findings, list(windows(node_type.num_nodes, width)), check)
    return team.largest(row_of)


def check_single(window: Window, group: h5py.Group, begin: int, index: np.ndarray, findings: Findings) -> None:
    """Check that no node of a part has been seen before."""
    twice = np.flatnonzero(window.copies[index] > 0)
    others = window.holder[index[twice]]
    rows = begin + twice
    findings.add_rows(
        group.file.filename, f"{group.name}/row", rows, lambda i: f"the node is in part-{others[i]}.h5 too"
    )


def note_lost(book: SetBook, path: str, window: Window, what: str, findings: Findings) -> None:
    """Note the rows that no part has, unless a part could not be used: they may be there."""
    if not findings.unusable:
        lost = window.start + np.flatnonzero(window.copies == 0)
        findings.add_rows(book.path.parent, path, lost, lambda i: f"the {what} is in no part")


def compare_edges(
    team: Team,
    book: SetBook,
    relation: EdgeType,
    row_of: dict[str, np.ndarray],
    source: h5py.File | None,
    width: int,
    findings: Findings,
) -> int:
    """Collective. Check that every event is at the owners of its endpoints, with equal values everywhere; returns the
    number of cut events.

    row_of: row ids by global id, per node type, as compare_nodes returns them; width: bytes of a row.
    """
    path = f"/edges/{relation.name}"
    cursors = Cursors(book, path)

    def check(bounds: tuple[int, int], findings: Findings) -> int:
        start, stop = bounds
        window = Window(start, stop, source_edges(relation, source, start, stop), trusted=source is not None)
        owners = np.full((2, stop - start), -1, np.int64)
        for part, group, begin, index in cursors.slices(window, findings):
            with findings.reading(group.file.filename, part):
                columns = {name: group[name][begin : begin + len(index)] for name in ("src", "dst", *relation.columns)}
                for side, (name, node_type) in enumerate((("src", relation.src_type), ("dst", relation.dst_type))):
                    owners[side, index] = node_type.owner(columns[name])
                    if source is not None:
                        columns[name] = row_of[node_type.name][columns[name] - node_type.base]
                compare_columns(window, group, begin, index, columns, findings)
                window.seen(index, part)
        note_lost(book, path, window, "event", findings)
        check_copies(book, path, window, owners, findings)
        return int((owners[0] != owners[1]).sum())

    return sum(each(team, findings, list(windows(relation.num_edges, width)), check))


def source_edges(relation: EdgeType, source: h5py.File | None, start: int, stop: int) -> dict[str, np.ndarray]:
    """Read the graph file's columns of a window; row ids of endpoints as int64."""
    if source is None:
        return {}
    group = source["edges"][relation.name]
    columns = {name: group[name][start:stop] for name in ("src", "dst", *relation.columns)}
    return {**columns, "src": columns["src"].astype(np.int64), "dst": columns["dst"].astype(np.int64)}


def check_copies(book: SetBook, path: str, window: Window, owners: np.ndarray, findings: Findings) -> None:
    """Check that an event is in the part of each endpoint, owners [2, W]; copies elsewhere were noted when the parts
    were read."""
    single = np.flatnonzero((window.copies == 1) & (owners[0] != owners[1]))
    absent = np.where(window.holder[single] == owners[0][single], owners[1][single], owners[0][single])
    for part in np.unique(absent):
        if int(part) not in findings.unusable:
            rows = window.start + single[absent == part]
            file = book.part_path(int(part))
            findings.add_rows(file, f"{path}/row", rows, lambda i: "the event is missing; an endpoint is in this part")
