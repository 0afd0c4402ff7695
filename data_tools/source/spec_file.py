"""Reads a spec file: YAML, settings, paths of files, the short forms of columns."""

from __future__ import annotations

import dataclasses
import glob
import math
import pathlib
import string
from collections.abc import Mapping, Set
from typing import Any, Literal

import numpy as np

from data_tools.source.file_spec import FINITE_COLUMNS, ColumnSpec, Dtype, FileColumn, FileSpec
from data_tools.source.formats.text_stream import natural
from data_tools.source.schema import build, items, one_of
from data_tools.source.spec import EdgeSpec, NodeSpec, SourceSpec
from hpcgnn.graph.decode import decode_yaml

PRESETS = pathlib.Path(__file__).parents[1] / "presets"
DEFAULT_DTYPES: dict[str, Dtype] = {"feat": "float32", "label": "int64", "weight": "float32", "split": "int8"}
RESERVED = {"id", "src", "dst", "time", "row"}
RESERVED_OF_EDGES = {"first", "last", "indptr"}  # of snapshots, and of the edges of a part


def preset_names() -> list[str]:
    """List the names of the presets that come with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def load_spec(path: pathlib.Path, assigned: Mapping[str, str], sort: bool = False) -> SourceSpec:
    """Read a spec file, fill in the files of ``--set`` and check everything.

    ``assigned`` maps names of files to paths (relative to the working directory; paths in the spec are
    relative to its folder) and names of settings to values. ``sort`` turns sorting on for every relation that has a
    time. Raises ValueError naming the spec, the place and the allowed values.
    """
    try:
        data = decode_yaml(path.read_text())
        spec = build_spec(data, path.parent, assigned)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    return with_sorting(spec, sort)


def with_sorting(spec: SourceSpec, sort: bool) -> SourceSpec:
    """Turn sorting on for every relation that has a time, if ``sort``."""
    edges = [dataclasses.replace(edge, sort=edge.sort or sort) for edge in spec.edges]
    return dataclasses.replace(spec, edges=edges)


def with_ids(spec: SourceSpec, ids: Literal["int", "string"]) -> SourceSpec:
    """Set the kind of ids of the node types that have ids. Raises ValueError where all ids are row numbers."""
    if all(node.ids == "row" for node in spec.nodes):
        raise ValueError(f"--ids {ids}: the ids of this source are row numbers; leave it out")
    nodes = [node if node.ids == "row" else dataclasses.replace(node, ids=ids) for node in spec.nodes]
    return dataclasses.replace(spec, nodes=nodes)


def build_spec(data: Any, folder: pathlib.Path, assigned: Mapping[str, str]) -> SourceSpec:
    """Make a checked spec of decoded YAML."""
    items("spec", data)
    data, assigned = apply_settings(data, assigned)
    files = {name: build(FileSpec, value or {}, f"files.{name}") for name, value in items("files", data.get("files"))}
    nodes = build_tables(NodeSpec, "nodes", data.get("nodes"))
    edges = build_tables(EdgeSpec, "edges", data.get("edges"))
    spec = build(SourceSpec, {**data, "files": files, "nodes": nodes, "edges": edges}, "")
    return dataclasses.replace(spec, files=place_files(spec, folder, assigned))


def apply_settings(data: Mapping, assigned: Mapping[str, str]) -> tuple[dict, dict[str, str]]:
    """Replace every ``$name`` by its setting; returns the spec without settings, and the entries of ``assigned`` for
    files."""
    settings = dict(items("settings", data.get("settings") or {}))
    files = items("files", data.get("files"))
    own = [name for name, value in files if not (isinstance(value, Mapping) and value.get("archive"))]
    for name, text in assigned.items():
        one_of("--set", name, (*own, *settings))
        if name in settings:
            settings[name] = setting(name, text, settings[name])
    for name, value in settings.items():
        if value is None:
            raise ValueError(f"settings.{name} has no value; pass --set {name}=VALUE")
    rest = {key: value for key, value in data.items() if key != "settings"}
    return substitute(rest, settings), {name: path for name, path in assigned.items() if name not in settings}


def setting(name: str, text: str, usual: Any) -> Any:
    """Read the value of ``--set`` as YAML. In the place of a ``usual`` text, one character stays as it is, and so does
    what begins with %: delimiters and forms of dates are no YAML. Raises ValueError."""
    if isinstance(usual, str) and (len(text) == 1 or text.startswith("%")):
        return text
    try:
        return decode_yaml(text)
    except ValueError:
        raise ValueError(f"--set {name}={text}: not a YAML value; quote it") from None


def substitute(data: Any, settings: Mapping[str, Any]) -> Any:
    """Replace every ``$name`` of a setting in decoded YAML; a text that is just ``$name`` becomes the value."""
    if isinstance(data, Mapping):
        return {key: substitute(value, settings) for key, value in data.items()}
    if isinstance(data, list):
        return [substitute(value, settings) for value in data]
    if not isinstance(data, str) or not settings:
        return data
    if data.startswith("$") and data[1:] in settings:
        return settings[data[1:]]
    return string.Template(data).safe_substitute(settings)


def build_tables(kind: type, what: str, data: Any) -> list:
    """Make the specs of node types or relations, dataclasses ``kind``, with their columns in the long form."""
    if not isinstance(data, list):
        raise ValueError(f"{what}: expected a list, got {type(data).__name__}")
    tables: list = []
    taken = RESERVED | (RESERVED_OF_EDGES if kind is EdgeSpec else set())
    for i, table in enumerate(data):
        where = f"{what}[{i}]"
        items(where, table)
        columns = table.get("columns") or {}
        if isinstance(table.get("count"), Mapping):
            table = {**table, "count": build(FileColumn, table["count"], f"{where}.count")}
        columns = {name: build_column(where, name, value, taken) for name, value in items(where, columns)}
        table = {**table, "columns": columns}
        tables.append(build(kind, table, where))
    return tables


def build_column(where: str, name: str, value: Any, taken: Set[str]) -> ColumnSpec:
    """Make one column of its short form (a reference) or its long form (a mapping), with the default dtype of its
    name, and, of labels, the fill that stands for a label that is not known. Raises ValueError for a name that is
    ``taken``."""
    where = f"{where}.columns.{name}"
    if name in taken or "/" in name:
        other = name.replace("/", "_") + "_"
        raise ValueError(f"{where}: the name {name!r} is taken or not allowed; choose another, such as {other}")
    value = dict(value) if isinstance(value, Mapping) else {"column": value}
    if isinstance(value.get("sets"), Mapping):
        sets = {
            key: build(FileColumn, item, f"{where}.sets.{key}") if isinstance(item, Mapping) else item
            for key, item in value["sets"].items()
        }
        value["sets"] = sets
    column = build(ColumnSpec, value, where)
    dtype = column.dtype or DEFAULT_DTYPES.get(name, "int64" if column.classes or column.has_dates else None)
    if dtype is None:
        raise ValueError(f"{where}: key 'dtype' is missing; only {', '.join(DEFAULT_DTYPES)} have a default")
    check_values(where, name, column, np.dtype(dtype))
    fill = column.fill
    if fill is None and name == "label" and not column.values:
        # NaN in integers makes floats of them: where they are numbers to predict, -1 is one of them.
        has_gaps = dtype in ("float32", "float64") or (column.dtype is None and column.sparse is None)
        fill = -1 if column.classes else math.nan if has_gaps else None
    return dataclasses.replace(column, dtype=dtype, fill=fill)


def check_values(where: str, name: str, column: ColumnSpec, dtype: np.dtype) -> None:
    """Raise ValueError for a fill that a column cannot hold, and for classes that are no integers."""
    if column.has_dates and dtype != np.int64:
        raise ValueError(f"{where}: dates are stored as int64, not {dtype}; leave out dtype")
    if column.classes and dtype.kind != "i":
        raise ValueError(f"{where}: classes are numbered by integers, not {dtype}; leave out dtype")
    if column.fill is None:
        return
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            if np.isinf(dtype.type(column.fill)):
                raise ValueError(f"{where}: fill: {column.fill} is no number that {dtype} holds")
        if math.isnan(column.fill) and name in FINITE_COLUMNS:
            raise ValueError(f"{where}: fill: {name} has a number in every row; give one, such as fill: 0")
    elif math.isnan(column.fill):
        raise ValueError(f"{where}: fill: NaN is no {dtype}; set dtype: float32, or fill: -1 for classes not known")
    elif not (float(column.fill).is_integer() and np.iinfo(dtype).min <= column.fill <= np.iinfo(dtype).max):
        raise ValueError(f"{where}: fill: {column.fill} is no integer that fits into {dtype}")


def place_files(spec: SourceSpec, folder: pathlib.Path, assigned: Mapping[str, str]) -> dict[str, FileSpec]:
    """Give the files their final paths. Raises ValueError for a file that is used but has no path."""
    used = spec.used_files()
    placed = {}
    for name, file in spec.files.items():
        source = name if file.archive is None else file.archive
        one_of(f"files.{name}.archive", source, tuple(spec.files))
        if file.archive is not None and file.path is not None:
            raise ValueError(f"files.{name}: archive takes the place of path")
        own = spec.files[source].path
        if file.chunks:
            placed[name] = dataclasses.replace(file, chunks=find_chunks(name, file.chunks, folder))
            continue
        path = assigned.get(source) or (str(folder / own) if own else None)
        if path is None and name in used:
            raise ValueError(f"files.{source} has no path; pass --set {source}=PATH")
        if file.archive is not None and path is not None and pathlib.Path(path).is_dir():
            # A member of a folder is a file of its own.
            member = str(pathlib.Path(path, str(file.member)))
            placed[name] = dataclasses.replace(file, archive=None, member=None, path=member)
        else:
            placed[name] = dataclasses.replace(file, path=path)
    return placed


def find_chunks(name: str, chunks: list[str], folder: pathlib.Path) -> list[str]:
    """List the files that names and patterns stand for; the files of a pattern are in order of their names, numbers
    in them compared as numbers."""
    paths = []
    for chunk in chunks:
        if not any(mark in chunk for mark in "*?["):
            paths.append(str(folder / chunk))
            continue
        matches = glob.glob(chunk, root_dir=folder)
        if not matches:
            raise ValueError(f"files.{name}.chunks: no file is called {chunk!r} in {folder}")
        paths += [str(folder / match) for match in sorted(matches, key=natural)]
    return paths
