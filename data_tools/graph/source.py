"""A graph as the partitioner and the verifier see it: nodes of all types numbered together, edges in slabs.

N nodes (all types), E edges of one relation, P parts. ``node`` below is an index in [0, N): row id plus the base of the
type.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from data_tools.reports import plain
from data_tools.team import Team
from hpcgnn.graph import files
from hpcgnn.graph.files import FileFormatError

SLAB_BYTES = files.SLAB_BYTES // 4  # several columns and their permutations are in memory together
LEAST_BYTES = 2 << 20  # of a rank's share of a slab: less would make many small exchanges
STAMPS = {"temporal": ("time",), "snapshots": ("first",)}  # columns of edges that a kind needs
STAMPS_BESIDE = {"snapshots": ("last",)}  # and that it may have
FACTS = ("num_snapshots", "splits", files.CLOCK)  # root attributes of a snapshot graph, which its partition sets carry


@dataclass(frozen=True, slots=True, eq=False)
class NodeType:
    """A node type. index: its position among the types; offsets [P + 1]: the first node of each part, and the end (a
    graph file is one part); columns: of its nodes."""

    index: int
    name: str
    num_nodes: int
    offsets: np.ndarray
    columns: tuple[str, ...] = ()

    @property
    def base(self) -> int:
        """The first node of the type."""
        return int(self.offsets[0])

    def owner(self, nodes: np.ndarray) -> np.ndarray:
        """Find the part [n] of nodes [n] of this type."""
        return np.searchsorted(self.offsets, nodes, side="right") - 1


@dataclass(frozen=True, slots=True, eq=False)
class EdgeType:
    """A relation between two node types; columns: all columns except src and dst; zone: of dates without one, where
    times come from dates."""

    name: str
    num_edges: int
    src_type: NodeType
    dst_type: NodeType
    columns: tuple[str, ...]
    time_scale: np.generic | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Outline:
    """Node types and relations of a graph, in order of their ids; path: of its file, for messages; facts: those FACTS
    that it has."""

    path: pathlib.Path
    kind: str
    types: tuple[NodeType, ...]
    relations: tuple[EdgeType, ...]
    facts: dict[str, Any]

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(node_type.num_nodes for node_type in self.types)

    @property
    def num_edges(self) -> int:
        """Edges of all relations."""
        return sum(relation.num_edges for relation in self.relations)

    def node_column(self, node_type: NodeType, name: str) -> Any:
        """Return a column [num_nodes, ...] of a type's nodes, to be read by slices."""
        raise NotImplementedError

    def ends(self, relation: EdgeType, team: Team | None = None, names: tuple[str, ...] = ()) -> Iterator[tuple]:
        """Yield the edges of a relation in slabs: (how many came before, nodes of src [n], nodes of dst [n], int64, and
        the named columns [n, ...]).

        With a team every slab is shared out over its ranks, all of which get equally many, some perhaps empty.
        """
        raise NotImplementedError

    def types_in(self, nodes: range) -> Iterator[tuple[NodeType, range, slice]]:
        """Yield every node type, the rows that consecutive nodes have of it, and where these lie among those nodes."""
        for node_type in self.types:
            start, stop = (min(max(end - node_type.base, 0), node_type.num_nodes) for end in (nodes.start, nodes.stop))
            first = node_type.base + start - nodes.start
            yield node_type, range(start, stop), slice(first, first + stop - start)


@dataclass(frozen=True, slots=True)
class Source(Outline):
    """An open graph file."""

    file: h5py.File

    def edges(self, relation: EdgeType) -> h5py.Group:
        """Return the columns of a relation's edges by name."""
        return self.file["edges"][relation.name]

    def nodes(self, node_type: NodeType) -> h5py.Group:
        """Return the columns of a type's nodes by name."""
        return self.file["nodes"][node_type.name]

    def edge_slabs(self, relation: EdgeType, row_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield positions (start, stop) of the edges of a relation, in slabs."""
        return files.slabs(relation.num_edges, row_bytes, SLAB_BYTES)

    def node_slabs(self, node_type: NodeType, row_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield positions (start, stop) of the nodes of a type, in slabs."""
        return files.slabs(node_type.num_nodes, row_bytes, SLAB_BYTES)

    def edge_rows(self, relation: EdgeType, start: int, stop: int) -> np.ndarray:
        """Return the row ids [stop - start] of the edges at positions start .. stop - 1."""
        return np.arange(start, stop)

    def node_rows(self, node_type: NodeType, start: int, stop: int) -> np.ndarray:
        """Return the row ids [stop - start] of the nodes at positions start .. stop - 1."""
        return np.arange(start, stop)

    def node_parts(self, layout, node_type: NodeType, start: int, stop: int) -> np.ndarray:
        """Return the parts [stop - start] of the nodes at positions start .. stop - 1."""
        return layout.part[node_type.base + start : node_type.base + stop]

    def node_column(self, node_type: NodeType, name: str) -> Any:
        """Return a column of a type's nodes."""
        return self.nodes(node_type)[name]

    def ends(self, relation: EdgeType, team: Team | None = None, names: tuple[str, ...] = ()) -> Iterator[tuple]:
        """Yield the edges of a relation in slabs, in order of row."""
        columns = self.edges(relation)
        src, dst = columns["src"], columns["dst"]
        if team is None:
            slabs = self.edge_slabs(relation, 16)
        else:
            slabs = (team.share(*window) for window in files.slabs(relation.num_edges, 16, window_bytes(team.size)))
        for start, stop in slabs:
            first, second = src[start:stop].astype(np.int64), dst[start:stop].astype(np.int64)
            further = (columns[name][start:stop] for name in names)
            yield start, first + relation.src_type.base, second + relation.dst_type.base, *further


def open_source(path: str | os.PathLike) -> Source:
    """Open a graph file and read its outline; the caller closes it. FileFormatError names what is wrong."""
    file = files.open_checked(path, files.GRAPH)
    try:
        with files.naming(path, "write it anew with hpcgnn convert"):
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
            raise FileFormatError(f"{file.filename}: group /{name} is missing; write it anew with hpcgnn convert")
    types: dict[str, NodeType] = {}
    base = 0
    for name in files.node_types(file):
        count = checked_count(file["nodes"][name], "num_nodes")
        columns = tuple(sorted(file["nodes"][name]))
        types[name] = NodeType(len(types), name, count, np.array([base, base + count]), columns)
        base += count
    relations = tuple(read_relation(file, name, types, kind) for name in files.relations(file))
    return Source(pathlib.Path(file.filename), kind, tuple(types.values()), relations, read_facts(file), file)


def read_facts(file: h5py.File) -> dict[str, Any]:
    """Read the facts of a snapshot graph, or of its partition set; other kinds have none."""
    present = [name for name in FACTS if name in file.attrs and file.attrs.get("kind") == "snapshots"]
    return {name: plain(file.attrs[name]) for name in present}


def read_relation(file: h5py.File, name: str, types: dict[str, NodeType], kind: str) -> EdgeType:
    """Read the outline of one relation and check its required columns."""
    group = file["edges"][name]
    src, _, dst = files.split_relation(name)
    for endpoint in (src, dst):
        if endpoint not in types:
            raise FileFormatError(f"{file.filename}: {group.name}: node type {endpoint!r} is not in /nodes")
    needed = ("src", "dst", *STAMPS.get(kind, ()))
    remedy = f"write the file anew with hpcgnn {'snapshots' if kind == 'snapshots' else 'convert'}"
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
    return EdgeType(name, count, types[src], types[dst], columns, time_scale(group), group.attrs.get("zone"))


def time_scale(group: h5py.Group) -> np.generic | None:
    """Read the time scale of a relation of a graph file, None where it has no times."""
    return group.attrs.get("time_scale", group["time"].attrs.get("time_scale") if "time" in group else None)


def stamps(group: h5py.Group, start: int = 0, stop: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Read the first and last snapshot [k] int64 of rows start .. stop - 1 of a relation (default: all)."""
    first = group["first"][start:stop].astype(np.int64)
    return first, group["last"][start:stop].astype(np.int64) if "last" in group else first


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
            f"node type and one relation; it has {count} and {outline}: write it with hpcgnn snapshots"
        )


def window_bytes(num_ranks: int) -> int:
    """Return the bytes of a slab that all ranks share: with more ranks each has less of it in memory."""
    return max(SLAB_BYTES, num_ranks * min(LEAST_BYTES, SLAB_BYTES))
