"""Check a partition set exactly: every byte, row and value, alone or against its graph file.

Exit code 0: the set is right; 2: each problem found is a line naming file, dataset and row.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import tempfile
from typing import Any

import h5py
import numpy as np

from data_tools.cli import ToolParser
from data_tools.graph.book import SetBook, read_book
from data_tools.graph.findings import Findings, each
from data_tools.graph.leftovers import describe_leftovers
from data_tools.graph.narrow import read_narrow
from data_tools.graph.source import time_scale
from data_tools.reports import Report
from data_tools.team import Team
from data_tools.verify.edges import compare_static_edges, count_halo
from data_tools.verify.measures import compare_measures
from data_tools.verify.part_files import check_files
from data_tools.verify.rows import compare_edges, compare_nodes
from data_tools.verify.snapshots import check_snapshot_facts, check_snapshot_part, measured_snapshots
from data_tools.verify.static import check_static_part, further_layouts
from data_tools.verify.temporal import Layout, check_part, layout_of, part_layouts
from hpcgnn.graph import durable, files

OWN_COLUMNS = {
    "temporal": {"nodes": ("row",), "edges": ("row", "src", "dst")},
    **{kind: {"nodes": ("row",), "edges": ("indptr", "src", "row")} for kind in files.BY_DESTINATION},
}
COMPARED = ("/nodes/", "/edges/")  # groups with columns of the graph file
CHECK_PART = {"temporal": check_part, "static": check_static_part, "snapshots": check_snapshot_part}


def verify(folder: str | os.PathLike, against: str | os.PathLike | None = None, team: Team | None = None) -> list[str]:
    """Collective. List the problems of a partition set, one line each; empty when all is right. The ranks of a team
    share the work; the lines are the same on all of them, and on any number of ranks.

    Raises FileFormatError when there is no readable graph file at ``against``.
    """
    findings, team = Findings(), team or Team()
    (book,) = each(team, findings, [pathlib.Path(folder)], read_book)
    if book is None:
        return findings.lines
    check_files(team, book, findings)
    with contextlib.ExitStack() as stack:
        source = None
        if against is not None:
            with team.together("open the graph file"):
                source = stack.enter_context(files.open_checked(against, files.GRAPH))
            (fine,) = each(team, findings, [book], lambda item, problems: check_source(item, source, problems))
            if not fine:
                return findings.lines
            source = read_narrow(source, book.options.get("feature_dtype"), team)
        with durable.naming_disk(tempfile.gettempdir()):
            check_content(team, book, source, findings)
    return findings.lines


def check_content(team: Team, book: SetBook, source: h5py.File | None, findings: Findings) -> None:
    """Collective. Check each part alone, then all rows across the parts."""
    (layouts,) = each(team, findings, [book], lambda item, problems: expected_layouts(item, source, problems))
    usable = [part for part in range(book.num_parts) if part not in findings.unusable]
    each(team, findings, usable, lambda part, problems: CHECK_PART[book.kind](book, part, layouts, problems))
    usable = [part for part in usable if part not in findings.unusable]
    (attributes,) = each(team, findings, [usable], lambda parts, problems: expected_attributes(book, parts, source))
    each(team, findings, usable, lambda part, problems: check_attributes(book, part, attributes, problems))
    row_of, cuts = {}, {}
    for node_type in book.types:
        width = row_bytes(layouts[f"/nodes/{node_type.name}"])
        row_of[node_type.name] = compare_nodes(team, book, node_type, source, width, findings)
    for relation in book.relations:
        if book.kind in files.BY_DESTINATION:
            cuts[relation.name] = compare_static_edges(team, book, relation, row_of, source, findings)
        else:
            width = row_bytes(layouts[f"/edges/{relation.name}"])
            cuts[relation.name] = compare_edges(team, book, relation, row_of, source, width, findings)
    measured: Report = {"cut": sum(cuts.values())}
    if book.kind in files.BY_DESTINATION:
        measured |= {"relations": cuts, "halo": count_halo(team, book, findings)}
    if book.kind == "snapshots":
        measured["snapshots"] = measured_snapshots(team, book, findings)
    measured |= derived_measures(book, measured)
    for name, value in measured.items() if not findings.unusable else ():
        if book.quality.get(name) != value:
            findings.add(book.path, "quality", f"{name} is {book.quality.get(name)!r}, the parts have {value}")
    if source is not None and not findings.lines:
        compare_measures(team, book, source.filename, row_of, findings)


def derived_measures(book: SetBook, measured: Report) -> Report:
    """Compute the measures that follow from the counts of nodes and edges, the cut and the halo."""
    num_nodes, num_edges = book.num_nodes, book.num_edges
    whole, more = (num_edges, measured["cut"]) if book.kind == "temporal" else (num_nodes, measured["halo"])
    counts = {"events": num_edges} if book.kind == "temporal" else {"nodes": num_nodes, "edges": num_edges}
    derived = {
        "ranks": book.num_parts,
        "cut_fraction": round(measured["cut"] / max(1, num_edges), 6),
        "replication": round((whole + more) / max(1, whole), 6),
        **counts,
    }
    return {name: value for name, value in derived.items() if name in book.quality}


Attributes = dict[str, dict[str, Any]]  # of the columns of the graph file, by path


def column_attributes(book: SetBook, file: h5py.File) -> Attributes:
    """Read the attributes of the columns that come from the graph file, such as the names of classes."""
    paths = [f"/edges/{relation.name}/{name}" for relation in book.relations for name in relation.columns]
    for node_type in book.types:
        group = file["nodes"][node_type.name]
        paths += [f"{group.name}/{name}" for name in group if name not in OWN_COLUMNS[book.kind]["nodes"]]
    return {path: {key: np.asarray(value).tolist() for key, value in file[path].attrs.items()} for path in paths}


def expected_attributes(book: SetBook, usable: list[int], source: h5py.File | None) -> Attributes:
    """Read the attributes that columns must have: from the graph file, or from the first usable part."""
    if source is not None or not usable:
        return column_attributes(book, source) if source is not None else {}
    with files.open_checked(book.part_path(usable[0]), files.PART) as file:
        return column_attributes(book, file)


def check_attributes(book: SetBook, part: int, expected: Attributes, findings: Findings) -> None:
    """Check the attributes of a part's columns."""
    if part in findings.unusable:
        return
    path = book.part_path(part)
    with findings.reading(path, part), files.open_checked(path, files.PART) as file:
        for column, ours in column_attributes(book, file).items():
            theirs = expected.get(column, {})
            for name in sorted(ours.keys() | theirs.keys()):
                if ours.get(name) != theirs.get(name):
                    text = f"attribute {name} is {ours.get(name)!r}, expected {theirs.get(name)!r}"
                    findings.add(path, column, text)


def row_bytes(layout: Layout) -> int:
    """Count the bytes of one row with all its columns."""
    return sum(np.dtype(dtype).itemsize * int(np.prod(tail, dtype=np.int64)) for dtype, tail in layout.values())


def expected_layouts(book: SetBook, source: h5py.File | None, findings: Findings) -> dict[str, Layout]:
    """Find the columns that every part must have, from the graph file, or from the first readable part; the book names
    them."""
    layouts: dict[str, Layout] = {}
    own = OWN_COLUMNS[book.kind]
    if source is not None:
        for kind, names in (("nodes", book.types), ("edges", book.relations)):
            layouts |= {f"/{kind}/{item.name}": layout_of(source[kind][item.name]) for item in names}
        for relation in book.relations:
            for endpoint in ("src", "dst"):
                layouts[f"/edges/{relation.name}"].pop(endpoint)
    for part in range(book.num_parts):
        if part in findings.unusable or layouts:
            continue
        with findings.reading(book.part_path(part), part), files.open_checked(book.part_path(part), files.PART) as file:
            layouts = {path: columns for path, columns in part_layouts(file).items() if path.startswith(COMPARED)}
    for kind, names in (("nodes", book.types), ("edges", book.relations)):
        for item in names:
            layout = layouts.setdefault(f"/{kind}/{item.name}", {})
            layout.update({name: ("<i8", ()) for name in own[kind]})
    for relation in book.relations:
        path = f"/edges/{relation.name}"
        listed = {*own["edges"], *relation.columns}
        if set(layouts[path]) != listed and book.num_parts > len(findings.unusable):
            findings.add(book.path, f"{path}/columns", f"names {sorted(listed)}, the data has {sorted(layouts[path])}")
            findings.unusable.update(range(book.num_parts))
    if book.kind in files.BY_DESTINATION:
        layouts |= further_layouts(book)
    return layouts


def check_source(book: SetBook, source: h5py.File, findings: Findings) -> bool:
    """Check that the graph file is the one the set was made from; False: the outlines differ, rows cannot be
    compared."""
    digest = files.file_hash(source.filename)
    if digest != book.source_hash:
        findings.add(book.path, "source_hash", f"{book.source_hash}, but {source.filename} has {digest}")
    if book.kind == "snapshots":
        check_snapshot_facts(book, source, findings)
    outlines = (
        ("nodes", [(t.name, t.num_nodes) for t in book.types], files.node_types(source), "num_nodes"),
        ("edges", [(r.name, r.num_edges) for r in book.relations], files.relations(source), "num_edges"),
    )
    fine = True
    for kind, ours, names, attribute in outlines:
        theirs = [(name, int(source[kind][name].attrs[attribute])) for name in names]
        if ours != theirs:
            findings.add(book.path, f"/{kind}", f"{ours}, but {source.filename} has {theirs}")
            fine = False
    for relation in book.relations if fine else ():
        columns = set(source["edges"][relation.name]) - {"src", "dst"}
        if columns != set(relation.columns):
            path, listed = f"/edges/{relation.name}/columns", sorted(relation.columns)
            findings.add(book.path, path, f"{listed}, but {source.filename} has {sorted(columns)}")
            fine = False
        scale = time_scale(source["edges"][relation.name])
        if relation.time_scale != scale:
            path = f"/edges/{relation.name}"
            findings.add(book.path, path, f"time_scale is {relation.time_scale}, but {source.filename} has {scale}")
    return fine


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = ToolParser("verify", description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="folder of the partition set")
    parser.add_argument(
        "--against", metavar="GRAPH", help="graph file that the set was made from, to compare with (default: none)"
    )
    return parser


def main(argv: list[str] | None = None, team: Team | None = None) -> int:
    """Command line: ``hpcgnn verify parts/ --against graph.h5``, or with ``mpirun -np 4`` before."""
    team = team or Team()
    args = make_parser().parse_args(argv)
    lines = verify(args.folder, args.against, team)
    if team.rank:
        return 2 if lines else 0
    for line in lines:
        print(line)
    if lines:
        print(f"{args.folder}: {len(lines)} problems")
        return 2
    book: Any = read_book(pathlib.Path(args.folder), Findings())
    num_nodes, num_edges = book.num_nodes, book.num_edges
    what = "events" if book.kind == "temporal" else "edges"
    compared = f", equal to {args.against}" if args.against else ""
    print(f"{args.folder}: fine; {book.num_parts} parts, {num_nodes} nodes, {num_edges} {what}{compared}")
    if note := describe_leftovers(book):
        print(note)
    return 0
