"""Reads folders of chunks: a metadata file lists the files with the nodes of each type and the edges of each relation.

``metadata.yaml`` (or .yml, .json)::

    nodes:
      user:                             # the order gives type_id
        files: users/*.parquet          # a name, a pattern (sorted, part-2 before part-10), or a list of those
        ids: string
        id: name
        columns: {feat: vector, label: {column: kind, fill: -1}}
      item: {ids: row, count: 1000, columns: {feat: {files: item-feat-*.npy, column: array}}}
    edges:
      user.rates.item:
        files: [ratings/day-1.csv.gz, ratings/day-2.csv.gz]
        delimiter: ","
        src: user
        dst: item
        columns: {weight: stars}
        reverse: rated_by
        duplicates: drop
        self_loops: drop
        dangling: drop

A table has the keys of node types and relations in `data_tools.source.spec`, and the keys of its files (format,
delimiter, header, comment, quote, encoding, rows; `names` for the columns of text without a header). A column may have
separate `files`, with the same keys. A metadata.json of DGL's chunked graph format is read directly, see `chunks_dgl`,
and so are DGL's parts, see `dgl_partitions`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from data_tools.source.formats.chunks_dgl import dgl_spec
from data_tools.source.formats.dgl_partitions import find_book, unpack
from data_tools.source.schema import items
from data_tools.source.spec import SourceSpec
from data_tools.source.spec_file import build_spec
from hpcgnn.graph.decode import decode_json, decode_yaml

NAMES = ("metadata.yaml", "metadata.yml", "metadata.json")
SAME = ("format", "delimiter", "header", "comment", "quote", "encoding", "rows")
LAYOUT = {name: name for name in SAME} | {"names": "columns"}


def load_chunks(folder: pathlib.Path, unpacked: pathlib.Path | None = None) -> SourceSpec:
    """Make the spec of a folder of chunks, or of DGL's parts. Their arrays go to the folder ``unpacked``, which must
    exist for as long as the spec is used. Raises ValueError naming the metadata file and the place."""
    book = find_book(folder)
    path = book or next((folder / name for name in NAMES if (folder / name).is_file()), None)
    if path is None:
        raise ValueError(
            f"{folder}: none of {', '.join(NAMES)} is there; data_tools/source/formats/chunk_folder.py describes it"
        )
    try:
        if book is not None:
            assert unpacked is not None
            return build_spec(unpack(book, unpacked), folder, {})
        decode = decode_json if path.suffix == ".json" else decode_yaml
        data = decode(path.read_text())
        is_dgl = isinstance(data, dict) and "node_type" in data and "edge_type" in data
        return build_spec(dgl_spec(data, folder) if is_dgl else chunk_spec(data), folder, {})
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    except (TypeError, AttributeError, LookupError) as error:  # a value of another type than the format has there
        raise ValueError(f"{path.name}: a value is of a wrong type ({error})") from error


def chunk_spec(data: Any) -> dict[str, Any]:
    """Make a spec of the metadata; tables become lists, and files get names."""
    items("metadata", data)
    spec = {key: value for key, value in data.items() if key not in ("nodes", "edges")} | {"files": {}}
    for kind, key in (("nodes", "type"), ("edges", "relation")):
        spec[kind] = [
            {key: name, **take_files(f"{kind}.{name}", table, spec["files"])}
            for name, table in items(kind, data.get(kind))
        ]
    return spec


def take_files(where: str, table: Any, files: dict[str, Any]) -> dict[str, Any]:
    """Put the files of a table, or of a column, into ``files``; returns it with a name in their place."""
    rest = {key: value for key, value in items(where, table) if key not in LAYOUT}
    layout = {LAYOUT[key]: value for key, value in table.items() if key in LAYOUT}
    if isinstance(layout.get("rows"), int):
        layout["rows"] = [layout["rows"]]
    chunks = rest.pop("files", None)
    if chunks is not None:
        files[where] = {"chunks": [chunks] if isinstance(chunks, str) else chunks, **layout}
        rest["file"] = where
    elif layout:
        raise ValueError(f"{where}: {', '.join(layout)} without files")
    if isinstance(rest.get("columns"), Mapping):
        rest["columns"] = {
            name: take_files(f"{where}.{name}", column, files) if isinstance(column, Mapping) else column
            for name, column in rest["columns"].items()
        }
    return rest
