"""Reads the folder of parts that graphlearn-for-pytorch writes, and joins them to one graph.

The layout is that of graphlearn_torch/python/partition/base.py (github.com/alibaba/graphlearn-for-pytorch, 26fe3d4)::

    META                            a pickle, which is not read: the names below say as much
    node_pb.pt, edge_pb.pt          the part of every node and edge; with types node_pb/<type>.pt, edge_pb/<a__r__b>.pt
    part<i>/graph/                  rows.pt, cols.pt, eids.pt, weights.pt; with types in folders <a__r__b>/
    part<i>/node_feat/, edge_feat/  feats and ids, .pkl (pickles of tensors, one after the other) or .pt, in folders of
                                    types; cache_feats.pt and cache_ids.pt are copies of rows of other parts
    graph/                          the whole graph, in place of part<i>/graph/, by graph_caching

Nodes and edges get their numbers before the partition, and column ``part`` keeps the part of a node. Labels are not in
such a folder.
"""

from __future__ import annotations

import io
import pathlib
from collections import OrderedDict
from typing import Any

import numpy as np

from data_tools.source.formats.arrays import open_tensors
from data_tools.source.object_columns import array_of
from data_tools.source.objects import NODE
from data_tools.source.systems.joined_parts import ENDS, JoinedParts
from data_tools.source.systems.pyg_parts import ONLY
from hpcgnn.graph.files import FileFormatError
from hpcgnn.graph.unpickle import Admitted, load_pickles, load_torch

BOOK, EDGE_BOOK = "node_pb", "edge_pb"


def is_graphlearn(folder: pathlib.Path) -> bool:
    """Whether a folder has parts of graphlearn-for-pytorch."""
    return (folder / f"{BOOK}.pt").is_file() or (folder / BOOK).is_dir()


def unpack_graphlearn(folder: pathlib.Path, unpacked: pathlib.Path) -> dict[str, Any]:
    """Write the arrays of all parts to a folder; returns the spec that reads them. Raises FileFormatError naming the
    file."""
    is_typed = (folder / BOOK).is_dir()
    books, edge_books = find_books(folder, BOOK), find_books(folder, EDGE_BOOK)
    node_parts = {kind: array_of(open_tensors(path)) for kind, path in books.items()}
    edge_parts = {relation_of(path) if is_typed else ONLY: array_of(open_tensors(path)) for path in edge_books.values()}
    numbers = sorted({int(part) for book in (*node_parts.values(), *edge_parts.values()) for part in np.unique(book)})
    parts = [folder / f"part{number}" for number in numbers]
    whole = [folder] if (folder / "graph").is_dir() else parts
    for part in whole:
        if not part.is_dir():
            number = part.name.removeprefix("part")
            raise FileFormatError(f"{part}: no such folder, but nodes or edges are in part {number}: is it missing?")
    counts = {relation: len(book) for relation, book in edge_parts.items()}
    joined = JoinedParts(unpacked, {kind: len(book) for kind, book in node_parts.items()}, counts)
    for kind, book in node_parts.items():
        joined.put(kind, "part", np.arange(len(book)), book.astype(np.int32), books[kind])
    for part in whole:
        for graph in sorted(part.glob("graph/*/" if is_typed else "graph")):
            put_edges(joined, relation_of(graph) if is_typed else ONLY, graph)
    for part in parts:
        for name, only in (("node_feat", NODE), ("edge_feat", ONLY)):
            tables = sorted((part / name).glob("*/")) if is_typed else [part / name]
            for table in tables:
                key = (relation_of(table) if name == "edge_feat" else table.name) if is_typed else only
                put_features(joined, key, table)
    return joined.spec()


def find_books(folder: pathlib.Path, name: str) -> dict[str, pathlib.Path]:
    """Find the files with the part of each node, or edge, by type; without types it is one file. Raises FileFormatError
    where there is none."""
    if not (folder / BOOK).is_dir():
        return {NODE: folder / f"{name}.pt"}
    paths = {path.stem: path for path in sorted((folder / name).glob("*.pt"))}
    if not paths:
        raise FileFormatError(f"{folder / name}: no files in it, with the part of every node or edge")
    return paths


def relation_of(path: pathlib.Path) -> tuple[str, str, str]:
    """Take the name of a folder, or file, of a relation apart."""
    names = path.name.removesuffix(".pt").split("__")
    if len(names) != 3:
        raise FileFormatError(f"{path}: its name is not of the form source__relation__destination")
    return names[0], names[1], names[2]


def put_edges(joined: JoinedParts, key: tuple[str, str, str], folder: pathlib.Path) -> None:
    """Put the edges of a folder, and their weights, into a relation. A whole graph without ids is in order of them."""
    src, dst = (array_of(open_tensors(folder / f"{name}.pt")) for name in ("rows", "cols"))
    ids = np.arange(len(src)) if not (folder / "eids.pt").is_file() else open_tensors(folder / "eids.pt")
    if len(src) != len(dst):
        raise FileFormatError(f"{folder}: {len(src)} rows, but {len(dst)} cols")
    joined.put(key, ENDS, ids, np.stack([src, dst], axis=1), folder)
    if (folder / "weights.pt").is_file():
        joined.put(key, "weight", ids, open_tensors(folder / "weights.pt"), folder)


def put_features(joined: JoinedParts, key: Any, folder: pathlib.Path) -> None:
    """Put the features of a folder, if it has any, into a type or relation."""
    found = [read_rows(folder / name) for name in ("ids", "feats")]
    if [len(pieces) for pieces in found] != [len(found[0])] * 2:
        raise FileFormatError(f"{folder}: ids in {len(found[0])} pieces, feats in {len(found[1])}: a file is cut short")
    if all(found):
        for ids, feats in zip(*found, strict=True):
            joined.put(key, "feat", ids, feats, folder)


def read_rows(path: pathlib.Path) -> list[np.ndarray]:
    """Read the tensors of a file without its suffix, which are pieces of one."""
    if path.with_suffix(".pt").is_file():
        return [array_of(open_tensors(path.with_suffix(".pt")))]
    path = path.with_suffix(".pkl")
    if not path.is_file():
        return []
    try:
        with open(path, "rb") as file:
            return [array_of(tensor) for tensor in load_pickles(file, TENSORS)]
    except Exception as error:  # a damaged pickle raises nearly anything
        raise FileFormatError(f"{path}: not readable pickles of tensors ({error})") from None


def _storage(data: bytes) -> Any:
    return load_torch(io.BytesIO(data))


def _tensor(storage: Any, offset: int, size: tuple, stride: tuple, *_: Any) -> Any:
    import torch

    if not isinstance(storage, torch.storage.TypedStorage):
        raise ValueError(f"a tensor of a {type(storage).__name__}")
    return torch._utils._rebuild_tensor_v2(storage, offset, size, stride, False, OrderedDict())


# Names in pickles of tensors, which torch finds in its weights-only reader, too.
TENSORS: Admitted = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch.storage", "_load_from_bytes"): _storage,
    ("collections", "OrderedDict"): OrderedDict,
}
