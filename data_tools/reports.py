"""Reports on files of hpcgnn as plain values: shapes, attributes, first and last times; the data itself is not read."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

import h5py
import numpy as np

from hpcgnn.graph import files
from hpcgnn.graph.narrow import read_encoding

Report = dict
MOST_NAMES, LONGEST_NAME = 20, 40  # of classes that a report shows, and characters of one
UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
EARLIEST, LATEST = np.datetime64("1990", "s"), np.datetime64("2100", "s")  # of what is taken for a date without a mark


def describe_root(file: h5py.File) -> Report:
    """Describe path, size, format and kind of a file."""
    path = pathlib.Path(file.filename)
    names = ("format", "format_version", "created_by", "kind")
    report = {name: plain(file.attrs[name]) for name in names if name in file.attrs}
    if "num_snapshots" in file.attrs:
        report["num_snapshots"] = plain(file.attrs["num_snapshots"])
        report["splits"] = files.json_attribute(file, "splits") or {}
        if clock := files.json_attribute(file, files.CLOCK):
            ends = np.array([clock["first"], clock["first"] + clock["step"] * (report["num_snapshots"] - 1)])
            report["dates"] = to_dates(ends, "s")
    return {"path": str(path), "bytes": path.stat().st_size, **report}


def plain(value):
    """Turn a NumPy scalar into Python's; anything else stays."""
    return value.item() if hasattr(value, "item") else value


def columns(group: h5py.Group) -> dict[str, str]:
    """Describe every dataset of a group: type and shape, such as ``float32 [157474, 172]``, "per snapshot" where it is,
    the narrow form of features with their bytes, and the names of classes."""
    return {name: describe_column(data) for name, data in group.items() if isinstance(data, h5py.Dataset)}


def describe_column(data: h5py.Dataset) -> str:
    """Describe one dataset."""
    kind = f"text of {data.dtype.itemsize} bytes" if data.dtype.kind == "S" else data.dtype.name
    encoding = read_encoding(data)
    kind = encoding.name if encoding else kind
    names, form = files.class_names(data), f"{kind} {list(data.shape)}"
    form += f" (narrow, {data.nbytes:,} bytes, {4 * data.size:,} as float32)" * bool(encoding)
    form += " per snapshot" * bool(data.attrs.get("per_snapshot", False))
    if not names:
        return form
    shown = [f"{number} {shorten(name)}" for number, name in enumerate(names[:MOST_NAMES])]
    return f"{form} ({', '.join(shown)}{f', ... {len(names)} in all' * (len(names) > MOST_NAMES)})"


def shorten(name: str) -> str:
    """Leave out the middle of a long name: names of relations often begin alike."""
    half = (LONGEST_NAME - 3) // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}...{name[-half:]}"


def describe_dates(times: Sequence[int] | None, scale: float, are_dates: bool) -> str:
    """Describe first and last time as dates in UTC: where times / scale are seconds since 1970 (``are_dates``), or,
    with an "if", where a usual unit makes them dates of our time; else empty."""
    if times is None:
        return ""
    seconds = np.array(times) / scale
    if are_dates:
        return to_dates(seconds, "s")
    for unit, name in UNITS.items():
        limits = np.array([EARLIEST, LATEST]).astype(f"M8[{unit}]").astype(np.int64)
        if limits[0] <= seconds.min() and seconds.max() < limits[1]:
            return f"{to_dates(seconds, unit)}, if these are {name} since 1970"
    return ""


def date_attributes(group: h5py.Group) -> tuple[float, bool]:
    """Read the scale of the times of a relation, and whether they come from dates."""
    return float(group.attrs.get("time_scale", 1)), bool(group.attrs.get("dates", False))


def to_dates(times: np.ndarray, unit: str) -> str:
    """Write first and last of times [2] since 1970 as dates, to the second."""
    first, last = np.round(times).astype(np.int64).astype(f"M8[{unit}]").astype("M8[s]")
    return f"{first} to {last} UTC"


def time_range(group: h5py.Group) -> list[int] | None:
    """Read the first and last time of a relation; None without times or without edges."""
    times = group.get("time")
    return None if times is None or not len(times) else [int(times[0]), int(times[-1])]


def describe_tables(file: h5py.File) -> Report:
    """Describe node types and relations, in order of their ids, with their counts."""
    nodes = [
        {"name": name, "count": int(file["nodes"][name].attrs["num_nodes"]), "columns": columns(file["nodes"][name])}
        for name in (files.node_types(file) if "nodes" in file else [])
    ]
    edges = [
        {
            "name": name,
            "count": int(file["edges"][name].attrs["num_edges"]),
            "columns": columns(file["edges"][name]),
            "times": time_range(file["edges"][name]),
            "dates": describe_dates(time_range(file["edges"][name]), *date_attributes(file["edges"][name])),
            "time_scale": plain(file["edges"][name].attrs.get("time_scale")),
            "zone": plain(file["edges"][name].attrs.get("zone")),
        }
        for name in (files.relations(file) if "edges" in file else [])
    ]
    return {"nodes": nodes, "edges": edges}


def describe_graph(file: h5py.File) -> Report:
    """Describe a graph file."""
    return {**describe_root(file), **describe_origin(file), **describe_tables(file)}


def describe_origin(file: h5py.File) -> Report:
    """Describe the source files of a graph, and how they were read, as far as that is known."""
    found = {name: files.json_attribute(file, name) for name in files.ORIGIN}
    return {"sources": [], **{name: value for name, value in found.items() if value}}


def describe_book(file: h5py.File) -> Report:
    """Describe the book of a partition set."""
    names = ("num_parts", "set_id", "seed", "method", "source_name", "source_hash")
    stored = {name: plain(file.attrs[name]) for name in names if name in file.attrs}
    decoded = {name: files.json_attribute(file, name) or {} for name in ("options", "quality")}
    report = {**describe_root(file), **stored, **decoded, **describe_origin(file), **describe_tables(file)}
    for table in report["edges"]:
        names = file["edges"][table["name"]].get("columns")
        table["columns"] = {} if names is None else {name.decode(): "" for name in names[...]}
    return report


def describe_part(file: h5py.File) -> Report:
    """Describe one part of a partition set. Relations and types have no ids here, so they come in order of their
    names."""
    stored = {name: plain(file.attrs[name]) for name in ("part", "num_parts", "set_id")}
    tables: dict[str, list[Report]] = {}
    for kind in ("nodes", "edges", *(kind for kind in ("history", "out", "cache") if kind in file)):
        groups = sorted(file[kind].items()) if kind in file else []
        tables[kind] = []
        for name, group in groups:
            # The rows of a table, the entries of a history, or the nodes of a cache ranking.
            count = next((len(group[column]) for column in ("row", "event", "id") if column in group), 0)
            tables[kind].append({"name": name, "count": count, "columns": columns(group)})
    for table in tables["edges"]:
        table["times"] = time_range(file["edges"][table["name"]])
    return {**describe_root(file), **stored, **tables}


def describe_set(folder: pathlib.Path) -> Report:
    """Describe a partition set: its book, and the size of every part; parts that are missing or foreign are marked as
    such."""
    with files.open_checked(files.book_path(folder), files.BOOK) as book:
        report, edition = describe_book(book), int(book.attrs.get("edition", 0))
    paths = [files.part_path(folder, part, edition) for part in range(report["num_parts"])]
    report["parts"] = [describe_member(path, part, report["set_id"]) for part, path in enumerate(paths)]
    return report | {"path": str(folder), "bytes": report["bytes"] + sum(p.get("bytes", 0) for p in report["parts"])}


def describe_member(path: pathlib.Path, part: int, set_id: str) -> Report:
    """Describe the sizes of one part of a set, or its damage."""
    if not path.exists():
        return {"part": part, "state": "missing"}
    try:
        with files.open_checked(path, files.PART) as file:
            report = describe_part(file)
    except files.FileFormatError as error:
        return {"part": part, "state": str(error)}
    sizes = {kind: sum(table["count"] for table in report[kind]) for kind in ("nodes", "edges")}
    state = "ok" if report["set_id"] == set_id else "of another set"
    return {"part": part, "state": state, **sizes, "bytes": report["bytes"]}
