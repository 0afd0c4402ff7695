"""A graph file as the partitioner and the verifier see it: nodes of all types numbered together, events in slabs.

N nodes (all types), E events of one relation. ``node`` below is an index in [0, N): row id plus the base of the type.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import h5py
import numpy as np

from data_tools.team import Team
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError

SLAB_BYTES = files.SLAB_BYTES // 4  # several columns and their permutations are in memory together
LEAST_BYTES = 2 << 20  # of a rank's share of a slab: less would make many small exchanges
STAMPS = {"temporal": ("time",), "snapshots": ("first",)}  # columns of edges that a kind needs
STAMPS_BESIDE = {"snapshots": ("last",)}  # and that it may have


@dataclass(frozen=True, slots=True)
class NodeType:
    """A node type: its rows are the nodes base .. base + num_nodes - 1."""

    name: str
    num_nodes: int
    base: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceRelation:
    """A relation: endpoint types by position in ``Source.types``; columns are all datasets but src and dst."""

    name: str
    num_edges: int
    src_type: int
    dst_type: int
    columns: tuple[str, ...]
    time_scale: np.generic | None


@dataclass(frozen=True, slots=True)
class Source:
    """An open graph file and its outline. Types and relations are in order of their ids."""

    file: h5py.File
    kind: str
    types: tuple[NodeType, ...]
    relations: tuple[SourceRelation, ...]

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(node_type.num_nodes for node_type in self.types)

    @property
    def num_edges(self) -> int:
        """Edges of all relations."""
        return sum(relation.num_edges for relation in self.relations)

    @property
    def snapshots(self) -> dict[str, int]:
        """The attribute ``num_snapshots`` of a snapshot graph, else nothing."""
        return {"num_snapshots": int(self.file.attrs["num_snapshots"])} if self.kind == "snapshots" else {}

    @property
    def splits(self) -> dict[str, str]:
        """The attribute ``splits`` of a snapshot graph that has one, else nothing."""
        return {"splits": str(self.file.attrs["splits"])} if "splits" in self.file.attrs else {}

    def edges(self, relation: SourceRelation) -> h5py.Group:
        """Return the group of a relation."""
        return self.file["edges"][relation.name]

    def nodes(self, node_type: NodeType) -> h5py.Group:
        """Return the group of a node type."""
        return self.file["nodes"][node_type.name]

    def types_in(self, nodes: range) -> Iterator[tuple[int, NodeType, range, slice]]:
        """Yield of every node type: its id, the type, the rows that the consecutive nodes have of it, and where they
        lie among those nodes."""
        for type_id, node_type in enumerate(self.types):
            start, stop = (min(max(end - node_type.base, 0), node_type.num_nodes) for end in (nodes.start, nodes.stop))
            first = node_type.base + start - nodes.start
            yield type_id, node_type, range(start, stop), slice(first, first + stop - start)

    def edge_slabs(self, relation: SourceRelation, row_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield positions (start, stop) of the edges of a relation, in slabs."""
        return files.slabs(relation.num_edges, row_bytes, SLAB_BYTES)

    def node_slabs(self, node_type: NodeType, row_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield positions (start, stop) of the nodes of a type, in slabs."""
        return files.slabs(node_type.num_nodes, row_bytes, SLAB_BYTES)

    def edge_rows(self, relation: SourceRelation, start: int, stop: int) -> np.ndarray:
        """Return the row ids [stop - start] of the edges at positions start .. stop - 1."""
        return np.arange(start, stop)

    def node_rows(self, node_type: NodeType, start: int, stop: int) -> np.ndarray:
        """Return the row ids [stop - start] of the nodes at positions start .. stop - 1."""
        return np.arange(start, stop)

    def node_parts(self, layout, node_type: NodeType, start: int, stop: int) -> np.ndarray:
        """Return the parts [stop - start] of the nodes at positions start .. stop - 1."""
        return layout.part[node_type.base + start : node_type.base + stop]


def open_source(path: str | os.PathLike) -> Source:
    """Open a graph file and read its outline; the caller closes it. FileFormatError names what is wrong."""
    file = files.open_checked(path, files.GRAPH)
    try:
        with files.naming(path, "write it anew with data_tools.convert"):
            return outline(file)
    except BaseException:
        file.close()
        raise


def outline(file: h5py.File) -> Source:
    """Read types, relations and columns, and check that all columns have the length that their group declares."""
    kind = str(file.attrs.get("kind"))
    if kind not in files.KINDS:
        raise FileFormatError(f"{file.filename}: kind is {kind!r}, expected one of {', '.join(files.KINDS)}")
    if kind == "snapshots":
        check_snapshots(file)
    for name in ("nodes", "edges"):
        if name not in file:
            raise FileFormatError(f"{file.filename}: group /{name} is missing; write it anew with data_tools.convert")
    types, base = [], 0
    for name in files.node_types(file):
        count = checked_count(file["nodes"][name], "num_nodes")
        types.append(NodeType(name, count, base, tuple(sorted(file["nodes"][name]))))
        base += count
    position = {node_type.name: index for index, node_type in enumerate(types)}
    relations = tuple(read_relation(file, name, position, kind) for name in files.relations(file))
    return Source(file, kind, tuple(types), relations)


def read_relation(file: h5py.File, name: str, position: dict[str, int], kind: str) -> SourceRelation:
    """Read the outline of one relation and check its required columns."""
    group = file["edges"][name]
    src, _, dst = files.split_relation(name)
    for endpoint in (src, dst):
        if endpoint not in position:
            raise FileFormatError(f"{file.filename}: {group.name}: node type {endpoint!r} is not in /nodes")
    needed = ("src", "dst", *STAMPS.get(kind, ()))
    remedy = f"write the file anew with data_tools.{'snapshots' if kind == 'snapshots' else 'convert'}"
    for column in needed:
        if column not in group:
            raise FileFormatError(
                f"{file.filename}: {group.name}/{column} is missing; a {kind} graph needs it: {remedy}"
            )
    for column in (*needed, *STAMPS_BESIDE.get(kind, ())):
        if column in group and (group[column].dtype.kind not in "iu" or group[column].ndim != 1):
            raise FileFormatError(
                f"{file.filename}: {group.name}/{column} has dtype {group[column].dtype} and shape "
                f"{group[column].shape}, expected one integer a row; {remedy}"
            )
    count = checked_count(group, "num_edges")
    columns = tuple(column for column in sorted(group) if column not in ("src", "dst"))
    scale = group.attrs.get("time_scale", group["time"].attrs.get("time_scale") if "time" in group else None)
    return SourceRelation(name, count, position[src], position[dst], columns, scale)


def checked_count(group: h5py.Group, attribute: str) -> int:
    """Return the declared number of rows of a group, after comparing every dataset with it."""
    file = group.file.filename
    if attribute not in group.attrs:
        raise FileFormatError(f"{file}: {group.name}: attribute {attribute} is missing; write the file anew")
    count = int(group.attrs[attribute])
    for name, dataset in group.items():
        if not isinstance(dataset, h5py.Dataset) or dataset.ndim < 1 or dataset.shape[0] != count:
            shape = getattr(dataset, "shape", "a group")
            raise FileFormatError(
                f"{file}: {group.name}/{name} has shape {shape}, expected {count} rows ({attribute}); write it anew"
            )
        if name == "row" or dataset.dtype.kind not in "biufS":
            raise FileFormatError(
                f"{file}: {group.name}/{name} (dtype {dataset.dtype}) cannot be a column: 'row' is reserved, "
                "and values must be numbers or fixed-width bytes; rename or convert it"
            )
    return count


def check_snapshots(file: h5py.File) -> None:
    """Check that a snapshot graph has one node type, one relation and the number of its snapshots."""
    outline = {name: len(file.get(name, ())) for name in ("nodes", "edges")}
    count = int(file.attrs.get("num_snapshots", 0))
    if not 1 <= count <= files.MOST_SNAPSHOTS or any(count != 1 for count in outline.values()):
        raise FileFormatError(
            f"{file.filename}: a snapshot graph needs the attribute num_snapshots (1 to {files.MOST_SNAPSHOTS}), one "
            f"node type and one relation; it has {count} and {outline}: write it with data_tools.snapshots"
        )


def endpoint_slabs(
    source: Source, relation: SourceRelation, team: Team | None = None
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield the events of a relation in slabs: (first row, nodes of src [n], nodes of dst [n]), int64.

    With a team every slab is shared out over its ranks, all of which get equally many, some perhaps empty.
    """
    group = source.edges(relation)
    src, dst = group["src"], group["dst"]
    src_base, dst_base = source.types[relation.src_type].base, source.types[relation.dst_type].base
    if team is None:
        slabs = source.edge_slabs(relation, 16)
    else:
        slabs = (team.share(*window) for window in files.slabs(relation.num_edges, 16, window_bytes(team.size)))
    for start, stop in slabs:
        yield start, src[start:stop].astype(np.int64) + src_base, dst[start:stop].astype(np.int64) + dst_base


def window_bytes(num_ranks: int) -> int:
    """Return the bytes of a slab that all ranks share: with more ranks each has less of it in memory."""
    return max(SLAB_BYTES, num_ranks * min(LEAST_BYTES, SLAB_BYTES))
