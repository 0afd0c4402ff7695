"""Append later events, and nodes that are new in them, to a temporal partition set; no node of the set moves.

    hpcgnn append parts/ new.csv

The new files are read by the spec that the set was converted with. A new node goes to the part of the first node that
it meets, unless that part has too much by then. A kill leaves the old set or the new one.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np

from data_tools.cli import ToolParser, run_alone, with_exit_code
from data_tools.convert import convert, describe_counts
from data_tools.graph.book import REMEDY, SetBook, open_book
from data_tools.graph.leftovers import LOCK, SCRATCH, leftovers
from data_tools.graph.narrow import FEATURES, view_encoded
from data_tools.graph.source import EdgeType, NodeType, open_source
from data_tools.new_nodes import IMBALANCE, place_nodes
from data_tools.partition.command import partition
from data_tools.partition.quality import summary
from data_tools.source.event_rows import write_event_rows
from data_tools.source.rewrite import create_table
from data_tools.source.spec import SourceSpec
from data_tools.source.spec_file import build_spec
from data_tools.verify.command import verify
from hpcgnn.graph import durable, files
from hpcgnn.graph.decode import decode_json
from hpcgnn.graph.files import FileFormatError
from hpcgnn.graph.narrow import read_encoding

ANEW = "convert and partition all files anew"


class NodeMatch:
    """The nodes of a type in a set and in a new graph file. rows [new nodes of the file]: their row ids in the grown
    graph; new [k]: rows of the file that the set does not have, which get the row ids behind the set's in this order;
    row_of [N]: row id of every node of the set, in order of global id."""

    def __init__(self, book: SetBook, node_type: NodeType, added: h5py.Group):
        """Raises FileFormatError for a type without ids, or with ids of another kind."""
        where = f"{book.path.parent}: node type {node_type.name}"
        if "id" not in node_type.columns or "id" not in added:
            raise FileFormatError(f"{where} has no ids by which new files name its nodes: {ANEW}")
        self.row_of, ids, found = book.node_column(node_type, "row"), book.node_column(node_type, "id"), added["id"][:]
        if ids.dtype.kind != found.dtype.kind:
            raise FileFormatError(
                f"{where} has ids of {ids.dtype}, the new file of {found.dtype}: convert with one kind"
            )
        order = np.argsort(ids, kind="stable")
        place = order[np.minimum(np.searchsorted(ids, found, sorter=order), len(ids) - 1)]
        is_new = ids[place] != found
        self.new = np.flatnonzero(is_new)
        self.rows = self.row_of[place]
        self.rows[self.new] = node_type.num_nodes + np.arange(len(self.new))
        self.num_nodes = node_type.num_nodes + len(self.new)


def append(
    folder: str | os.PathLike, assigned: dict[str, str], graph: str | os.PathLike | None = None,
    imbalance: float = IMBALANCE,
) -> tuple[str, dict]:  # fmt: skip
    """Append the events of new files to a set. assigned: paths by the names that files have in the set's spec, "": of
    its only file; graph: where the graph file of all events is kept, None: nowhere; imbalance: as `place_nodes` takes
    it. Returns a line that describes the new events, and the quality of the new set.

    Raises FileFormatError or ValueError, and changes nothing then, for a set that is no temporal one or has no spec,
    for events before the set's last one, for columns that differ from the set's, and while another append runs.
    """
    folder = pathlib.Path(folder)
    if not imbalance >= 1:
        raise ValueError(f"--imbalance {imbalance}: must be at least 1, the load of a mean part")
    if not files.book_path(folder).is_file():
        files.refuse_folder(folder)
    busy = f"{folder}: another append to this set is running; wait for its end, and start again"
    with durable.locked(folder / LOCK, busy):
        return append_alone(open_book(folder), assigned, graph, imbalance)


def append_alone(
    book: SetBook, assigned: dict[str, str], graph: str | os.PathLike | None, imbalance: float
) -> tuple[str, dict]:  # fmt: skip
    """Append as `append` does, which holds the lock of the set's folder."""
    folder = book.path.parent
    if book.kind != "temporal":
        raise FileFormatError(f"{folder}: append takes a temporal partition set, this one is {book.kind}: {ANEW}")
    with files.reading(book.path, files.BOOK, REMEDY) as file:
        attributes = {name: str(file.attrs.get(name, "")) for name in ("spec", "sources", "source_name")}
    remove_leftovers(book)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
    try:
        with durable.naming_disk(folder):
            spec = spec_of(folder, attributes["spec"], assigned)
            counts = convert(spec, scratch / "new.h5")
            grown = scratch / pathlib.Path(attributes["source_name"] or "graph.h5").name
            with open_source(scratch / "new.h5").file as file:
                added = as_in_set(book, file)
                matches = grow(book, added, grown, attributes)
                part = place_nodes(*problem_of(book, added, matches), imbalance)
            np.save(scratch / "parts.npy", part)
            balance, seed = tuple(book.options["balance"]), int(book.options["seed"])
            assignment = scratch / "parts.npy"
            quality = partition(
                grown, scratch / "set", book.num_parts, balance=balance, seed=seed, assignment=assignment
            )  # fmt: skip
            problems = verify(scratch / "set", grown)
            if problems:
                raise FileFormatError(f"{folder}: the new set has problems, the old one stays: {problems[0]}")
            if graph is not None:
                shutil.copyfile(grown, scratch / "kept.h5")
                durable.commit(scratch / "kept.h5", graph)
            replace_set(book, scratch / "set")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    num_new = {name: len(match.new) for name, match in matches.items()}
    events, nodes = describe_counts(counts.edges, "relations"), describe_counts(num_new, "types")
    notes = "".join(f"; {note}" for note in counts.notes)
    return f"{folder}: appended events: {events}; new nodes: {nodes}{notes}", quality


def as_in_set(book: SetBook, file: h5py.File) -> Any:
    """Return the graph file of new events as it is read with its features in the narrow forms of the set's. Raises
    FileFormatError."""
    encodings = {}
    with files.reading(book.part_path(0), files.PART, REMEDY) as part:
        for group in (file[kind][name] for kind in ("nodes", "edges") for name in file[kind]):
            place = f"{group.name}/{FEATURES}"
            if place in part and FEATURES in group and (encoding := read_encoding(part[place])):
                encodings[place] = encoding
    return view_encoded(file, encodings)


def remove_leftovers(book: SetBook) -> None:
    """Remove what an append that was stopped has left in the folder; its lock is this process's by now."""
    for path in leftovers(book):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != LOCK:
            path.unlink(missing_ok=True)


def spec_of(folder: pathlib.Path, text: str, assigned: dict[str, str]) -> SourceSpec:
    """Make the spec that a set was converted with, of new files. Raises ValueError where it has none, and for files
    that it does not name or that are missing."""
    if not text:
        raise ValueError(f"{folder}: has no spec by which new files could be read, as it was made of no files: {ANEW}")
    data: Any = decode_json(text)
    names = list(data["files"])
    if "" in assigned:
        if len(names) != 1:
            raise ValueError(f"{folder}: made of the files {', '.join(names)}: give each by --set NAME=PATH")
        assigned = {names[0]: assigned[""]}
    missing = [name for name in names if name not in assigned]
    if missing:
        raise ValueError(f"{folder}: made of the files {', '.join(names)}: give --set {missing[0]}=PATH, too")
    for layout in data["files"].values():
        for key in ("path", "chunks", "rows"):
            layout.pop(key, None)
    return build_spec(without_nan_words(data), folder, assigned)


def without_nan_words(value: Any) -> Any:
    """Turn the words ".nan" of a stored spec back into numbers."""
    if isinstance(value, dict):
        return {name: without_nan_words(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_nan_words(item) for item in value]
    return float("nan") if value == ".nan" else value


def grow(
    book: SetBook, added: h5py.File, path: pathlib.Path, attributes: dict[str, str]
) -> dict[str, NodeMatch]:  # fmt: skip
    """Write the graph file of a set and of a new graph file; returns how the nodes of every type match. attributes:
    spec and sources of the set. Raises FileFormatError where the two do not fit."""
    sources = json.dumps(decode_json(attributes["sources"] or "[]") + decode_json(added.attrs["sources"]))
    check_times(book, added)
    with files.writing(path, files.GRAPH, kind=book.kind, sources=sources, spec=attributes["spec"]) as out:
        matches = {}
        for number, node_type in enumerate(book.types):
            match = matches[node_type.name] = NodeMatch(book, node_type, added["nodes"][node_type.name])
            group = create_table(out, "nodes", node_type.name, match.num_nodes, number)
            columns = [name for name in node_type.columns if name != "row"]
            write_nodes(book, node_type, group, added["nodes"][node_type.name], columns, match)
        for number, relation in enumerate(book.relations):
            count = relation.num_edges + num_rows(added, relation)
            group = create_table(out, "edges", relation.name, count, number)
            write_events(book, relation, group, added["edges"][relation.name], matches)
        if len(book.relations) > 1:
            write_event_rows(out)
    return matches


def num_rows(added: h5py.File, relation: EdgeType) -> int:
    """Count the new events."""
    return len(added["edges"][relation.name]["src"])


def write_nodes(
    book: SetBook, node_type: NodeType, group: h5py.Group, added: h5py.Group, columns: list[str], match: NodeMatch
) -> None:  # fmt: skip
    """Write the nodes of a type: those of the set by row id, then the new ones."""
    check_columns(book, group.name, set(columns), set(added))
    for name in columns:
        old, new = book.node_column(node_type, name), added[name][:][match.new]
        check_layout(book, f"{group.name}/{name}", old, new)
        values = np.empty((match.num_nodes, *old.shape[1:]), np.promote_types(old.dtype, new.dtype))
        values[match.row_of], values[node_type.num_nodes :] = old, new
        dataset = files.create_column(group, name, len(values), values.shape[1:], values.dtype)
        with files.reading(book.part_path(0), files.PART, REMEDY) as file:
            words = copy_attributes(file["nodes"][node_type.name][name], dataset, added[name])
        values[node_type.num_nodes :] = numbered(new, words)
        dataset[:] = values


def write_events(
    book: SetBook, relation: EdgeType, group: h5py.Group, added: h5py.Group, matches: dict[str, NodeMatch]
) -> None:  # fmt: skip
    """Write the events of the set by row id, then the new ones, slab by slab; without their order among all relations,
    which is another one now."""
    made = {"row"} | ({files.EVENT} if len(book.relations) > 1 else set())
    columns, old_count = [name for name in relation.columns if name not in made], relation.num_edges
    check_columns(book, group.name, {*columns, "src", "dst"}, set(added) - made)
    for key in ("time_scale", "dates", "zone"):
        if key in added.attrs:
            group.attrs[key] = added.attrs[key]
    with files.reading(book.part_path(0), files.PART, REMEDY) as file:
        stored, targets, words = file["edges"][relation.name], {}, {}
        for name in (*columns, "src", "dst"):
            dtype = stored[name].dtype
            if len(added["src"]):  # the form of a column without rows is none of the source's
                dtype = np.promote_types(dtype, added[name].dtype)
                check_layout(book, f"{group.name}/{name}", stored[name], added[name])
            shape = int(group.attrs["num_edges"]), stored[name].shape[1:]
            targets[name] = files.create_column(group, name, *shape, dtype)
            words[name] = copy_attributes(stored[name], targets[name], added[name])
    width = sum(files.row_bytes(target) for target in targets.values())
    for start, stop in files.slabs(old_count, width):
        for name, values in events_between(book, relation, targets, matches, start, stop).items():
            targets[name][start:stop] = values
    ends = {"src": relation.src_type.name, "dst": relation.dst_type.name}
    for start, stop in files.slabs(len(added["src"]), width):
        for name, target in targets.items():
            values = added[name][start:stop]
            values = matches[ends[name]].rows[values] if name in ends else numbered(values, words[name])
            target[old_count + start : old_count + stop] = values


def events_between(
    book: SetBook, relation: EdgeType, columns: dict[str, Any], matches: dict[str, NodeMatch], start: int, stop: int
) -> dict[str, np.ndarray]:  # fmt: skip
    """Read the set's events of row ids start .. stop - 1 in order of row id, by column; src and dst as row ids. An
    event is read from the part of its source."""
    values = {name: np.empty((stop - start, *c.shape[1:]), c.dtype) for name, c in columns.items()}
    ends = {"src": relation.src_type, "dst": relation.dst_type}
    for part in range(book.num_parts):
        with files.reading(book.part_path(part), files.PART, REMEDY) as file:
            group = file["edges"][relation.name]
            first, last = np.searchsorted(group["row"][:], (start, stop))
            own = relation.src_type.owner(group["src"][first:last]) == part
            rows = group["row"][first:last][own] - start
            for name, target in values.items():
                column = group[name][first:last][own]
                if name in ends:
                    column = matches[ends[name].name].row_of[column - ends[name].base]
                target[rows] = column
    return values


def check_columns(book: SetBook, where: str, ours: set[str], theirs: set[str]) -> None:
    """Raise FileFormatError where the new file has other columns than the set."""
    if ours != theirs:
        raise FileFormatError(
            f"{book.path.parent}: {where} has the columns {', '.join(sorted(ours))}, the new file "
            f"{', '.join(sorted(theirs))}: give the new file the same columns, or {ANEW}"
        )


def check_layout(book: SetBook, where: str, ours: Any, theirs: Any) -> None:
    """Raise FileFormatError where the rows of a column have another form than the set's."""
    if ours.shape[1:] != theirs.shape[1:] or ours.dtype.kind != theirs.dtype.kind:
        raise FileFormatError(
            f"{book.path.parent}: {where} has {ours.dtype} rows of shape {list(ours.shape[1:])}, the new file "
            f"{theirs.dtype} of shape {list(theirs.shape[1:])}: {ANEW}"
        )


def check_times(book: SetBook, added: h5py.File) -> None:
    """Raise FileFormatError for new times in another unit, and for times before the last one of the set."""
    first, last = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    for relation in book.relations:
        group, ours = added["edges"][relation.name], (relation.time_scale, relation.zone)
        if not len(group["time"]):
            continue
        theirs = group.attrs.get("time_scale"), group.attrs.get("zone")
        if ours != theirs:
            raise FileFormatError(
                f"{book.path.parent}: time scale and zone are {ours}, of the new file {theirs}: {ANEW}"
            )  # fmt: skip
        first = min(first, int(group["time"][0]))
    for part in range(book.num_parts):
        with files.reading(book.part_path(part), files.PART, REMEDY) as file:
            for relation in book.relations:
                last = max([last, *file["edges"][relation.name]["time"][-1:].tolist()])
    if first < last:
        raise FileFormatError(
            f"{book.path.parent}: its last event is at time {last}, the first one of the new file at {first}: only "
            f"later events can be appended; {ANEW}"
        )


def copy_attributes(ours: h5py.Dataset, target: h5py.Dataset, added: h5py.Dataset) -> np.ndarray | None:
    """Copy the attributes of a column; returns for words of classes the set's number of every word of the new file.
    Raises FileFormatError for words that the set does not have."""
    for key, value in ours.attrs.items():
        target.attrs[key] = value
    known, words = files.class_names(ours), files.class_names(added)
    unknown = [word for word in words if word not in known]
    if unknown:
        raise FileFormatError(
            f"{added.name}: the class {unknown[0]!r} is not among the set's, {', '.join(known[:5])}: {ANEW}"
        )
    return np.array([known.index(word) for word in words], np.int64) if words else None


def numbered(values: np.ndarray, words: np.ndarray | None) -> np.ndarray:
    """Turn numbers of a new file's words into the set's; numbers below 0 stay."""
    return values if words is None else np.where(values >= 0, words[np.maximum(values, 0)], values)


def problem_of(
    book: SetBook, added: h5py.File, matches: dict[str, NodeMatch]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Make what `place_nodes` takes: parts, ends of the new events in order, and entries of the set's histories."""
    starts = np.cumsum([0, *(matches[node_type.name].num_nodes for node_type in book.types)])
    part = np.full(starts[-1], -1, np.int32)
    for node_type, start in zip(book.types, starts[:-1], strict=True):
        of_id = np.repeat(np.arange(book.num_parts), np.diff(node_type.offsets))
        part[start + matches[node_type.name].row_of] = of_id
    ends, order = [], []
    for relation in book.relations:
        group = added["edges"][relation.name]
        types = (relation.src_type, group["src"]), (relation.dst_type, group["dst"])
        ends.append(np.stack([starts[kind.index] + matches[kind.name].rows[rows[:]] for kind, rows in types]))
        order.append(group[files.EVENT][:] if files.EVENT in group else np.arange(len(group["src"])))
    src, dst = np.concatenate(ends, axis=1)[:, np.argsort(np.concatenate(order), kind="stable")]
    entries = np.zeros(book.num_parts, np.int64)
    for number in range(book.num_parts):
        with files.reading(book.part_path(number), files.PART, REMEDY) as file:
            entries[number] = sum(len(file["history"][relation.name]["event"]) for relation in book.relations)
    return part, src, dst, entries


def replace_set(book: SetBook, made: pathlib.Path) -> None:
    """Put a finished set in the place of an old one: the parts under new names, then the book, which names them, then
    the old parts leave. The book's rename decides which set is there."""
    folder, edition = book.path.parent, book.edition + 1
    if open_book(folder).set_id != book.set_id:  # where the file system has no locks, or by another command
        raise FileFormatError(f"{folder}: another set has taken its place meanwhile: append again")
    for part in range(book.num_parts):
        durable.commit(files.part_path(made, part), files.part_path(folder, part, edition))
    with h5py.File(files.book_path(made), "r+") as file:
        file.attrs["edition"] = edition
    files.seal(files.book_path(made))
    durable.commit(files.book_path(made), book.path)
    for part in range(book.num_parts):
        book.part_path(part).unlink(missing_ok=True)


def make_parser() -> argparse.ArgumentParser:
    """Declare the command line."""
    parser = ToolParser("append", description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="folder of the temporal partition set")
    parser.add_argument("file", nargs="?", help="file with the new events, where the set was made of one file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=PATH", dest="assignments",
        help="path of a new file by its name in the spec of the set; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--imbalance", type=float, default=IMBALANCE, metavar="LOAD",
        help="a new node joins the part of the first node that it meets, unless nodes or history entries of the part "
        f"exceed this number of means (default: {IMBALANCE})",
    )  # fmt: skip
    parser.add_argument(
        "--graph", metavar="FILE", help="keep the graph file of all events here (default: none is kept)"
    )
    return parser


@with_exit_code
def main(argv: Sequence[str] | None = None) -> int:
    """Append with the options of the command line; returns the exit code."""
    arguments = make_parser().parse_args(argv)
    assigned = dict(text.split("=", 1) for text in arguments.assignments if "=" in text)
    if len(assigned) < len(arguments.assignments) or bool(assigned) == bool(arguments.file):
        raise ValueError("give the file with the new events, or the new files by --set NAME=PATH")
    line, quality = append(arguments.folder, assigned or {"": arguments.file}, arguments.graph, arguments.imbalance)
    print(summary(quality))
    print(line)
    return 0


if __name__ == "__main__":
    sys.exit(run_alone(main))
