"""Check the numbers of snapshots, and the columns with a value for each, of a partition set of a snapshot graph.

S snapshots, m edges of a part.
"""

from __future__ import annotations

import h5py
import numpy as np

from data_tools.graph.book import SetBook
from data_tools.graph.findings import Findings, each
from data_tools.graph.source import FACTS, stamps
from data_tools.partition.quality import count_cut, halo_rows
from data_tools.team import Team
from data_tools.verify.static import check_static_part
from data_tools.verify.temporal import Layout
from hpcgnn.graph import files


def check_snapshot_part(book: SetBook, part: int, layouts: dict[str, Layout], findings: Findings) -> None:
    """Check a part as `check_static_part` does, that edges are in snapshots that there are, and that columns of
    snapshots have one value each."""
    check_static_part(book, part, layouts, findings)
    path, num_snapshots = book.part_path(part), book.facts["num_snapshots"]
    if part in findings.unusable:
        return
    with findings.reading(path, part), files.open_checked(path, files.PART) as file:
        for relation in book.relations:
            _check_stamps(file, f"/edges/{relation.name}", num_snapshots, findings)
        for node_type in book.types:
            for column in file[f"/nodes/{node_type.name}"].values():
                if column.attrs.get("per_snapshot", False) and column.shape[1:2] != (num_snapshots,):
                    text = f"shape {column.shape}, expected {num_snapshots} snapshots as the book tells"
                    findings.add(file.filename, column.name, text)


def _check_stamps(file: h5py.File, path: str, num_snapshots: int, findings: Findings) -> None:
    first, last = stamps(file[path])
    bad = np.flatnonzero((first < 0) | (last < first) | (last >= num_snapshots))
    text = lambda i: f"snapshots {first[bad[i]]} to {last[bad[i]]} of 0 to {num_snapshots - 1}"  # noqa: E731
    findings.add_rows(file.filename, f"{path}/first", bad, text)


def check_snapshot_facts(book: SetBook, source: h5py.File, findings: Findings) -> None:
    """Check that the book has the graph file's number of snapshots and splits."""
    for name in FACTS:
        ours, theirs = book.facts.get(name), source.attrs.get(name)
        if ours != theirs:
            findings.add(book.path, name, f"{ours}, but {source.filename} has {theirs}")


def measured_snapshots(team: Team, book: SetBook, findings: Findings) -> dict:
    """Collective. Measure edges, cut and halo rows over all snapshots, from the parts that can be used."""
    usable = [part for part in range(book.num_parts) if part not in findings.unusable]
    counted = each(team, findings, usable, lambda part, problems: _measured_part(book, part, problems))
    sums = {name: sum(counts.get(name, 0) for counts in counted) for name in ("edges", "cut", "halo_rows")}
    return {"num_snapshots": book.facts["num_snapshots"], **sums}


def _measured_part(book: SetBook, part: int, findings: Findings) -> dict[str, int]:
    (relation,), (node_type,), path = book.relations, book.types, book.part_path(part)
    with findings.reading(path, part), files.open_checked(path, files.PART) as file:
        group = file["edges"][relation.name]
        src, (first, last) = group["src"][:], stamps(group)
        owner, here = node_type.owner(src), np.full(len(src), part)
        return {**count_cut(owner != part, first, last), "halo_rows": halo_rows(src, owner, here, first, last)}
    return {}
