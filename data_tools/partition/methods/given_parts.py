"""Assignments from elsewhere: a file, a class of the user's, or KaMinPar (Gottesbüren et al., "Deep multilevel graph
partitioning", 2021).

N nodes of all types numbered together, in the order of the types; P parts.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import tempfile
from collections.abc import Callable

import numpy as np

from data_tools.graph.source import Source
from data_tools.partition.methods.metis_file import pair_slabs, write_metis
from data_tools.partition.pair_graph import PairGraph
from data_tools.source.formats.npz_arrays import open_npy
from hpcgnn.graph import files

TOLERANCE = 0.03  # that KaMinPar is asked for


def checked_parts(part: np.ndarray, num_nodes: int, num_parts: int, origin: str) -> np.ndarray:
    """Return an assignment as [N] int32; ValueError unless it is one."""
    part = np.asarray(part)
    if part.shape != (num_nodes,) or part.dtype.kind not in "iu":
        raise ValueError(
            f"{origin}: {part.dtype} of shape {part.shape}, expected one integer a node, {num_nodes} in all, the "
            "types of nodes one after the other"
        )
    wrong = (part < 0) | (part >= num_parts)
    if wrong.any():
        node = int(np.argmax(wrong))
        raise ValueError(f"{origin}: node {node} is in part {part[node]}, expected 0 to {num_parts - 1} (--parts)")
    return part.astype(np.int32)


def file_parts(source: Source, path: str | os.PathLike, num_parts: int) -> np.ndarray:
    """Read the part per node [N] int32 from a file. It is a text file with one part a line, as METIS and ParMETIS write
    it, or with lines `node part`, as ParMETIS writes it for DGL; an npy file; an npz file with one array per node type;
    or a graph file whose nodes have the column ``part``."""
    path = pathlib.Path(path)
    if path.suffix in (".npz", ".h5"):
        read = by_type if path.suffix == ".npz" else by_column
        return checked_parts(read(source, path), source.num_nodes, num_parts, str(path))
    try:
        part = open_npy(path) if path.suffix == ".npy" else np.loadtxt(path, np.int64, ndmin=1)
    except ValueError as error:
        raise ValueError(f"{path}: not a list of part numbers ({error})") from None
    if path.suffix != ".npy" and part.shape == (source.num_nodes, 2):
        part = in_order(part, path)
    return checked_parts(part, source.num_nodes, num_parts, str(path))


def in_order(lines: np.ndarray, path: pathlib.Path) -> np.ndarray:
    """Return the parts [N] of lines (node, part) [N, 2] in order of the nodes."""
    order = np.argsort(lines[:, 0], kind="stable")
    wrong = np.flatnonzero(lines[order, 0] != np.arange(len(lines)))
    if len(wrong):
        raise ValueError(f"{path}: lines of node and part: node {wrong[0]} is missing, or another one is there twice")
    return lines[order, 1]


def by_column(source: Source, path: pathlib.Path) -> np.ndarray:
    """Join the columns ``part`` of the node types of a graph file."""
    with files.open_checked(path, files.GRAPH) as file:
        names = [node_type.name for node_type in source.types]
        lacking = [name for name in names if f"nodes/{name}/part" not in file]
        if lacking:
            raise ValueError(
                f"{path}: node type {lacking[0]} has no column part, which graphs of parts of other systems have"
            )
        return np.concatenate([file[f"nodes/{name}/part"][:] for name in names])


def by_type(source: Source, path: pathlib.Path) -> np.ndarray:
    """Join the arrays of an npz file, one a node type."""
    with np.load(path) as arrays:
        expected = {node_type.name: (node_type.num_nodes,) for node_type in source.types}
        shapes = {name: arrays[name].shape for name in arrays.files}
        if shapes != expected:
            raise ValueError(f"{path}: arrays {shapes}, expected one of every node type: {expected}")
        return np.concatenate([arrays[name] for name in expected])


def load_partitioner(name: str) -> Callable:
    """Import a partitioner by a path such as ``package.module.MyPartitioner``: a function, or an object of a class
    without arguments. ValueError where there is none."""
    module, _, attribute = name.rpartition(".")
    try:
        partitioner = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"method={name}: no such class or function ({error})") from None
    partitioner = partitioner() if isinstance(partitioner, type) else partitioner
    if not callable(partitioner):
        raise ValueError(f"method={name}: cannot be called; expected a class with __call__, or a function")
    return partitioner


def code_hash(name: str) -> str | None:
    """Compute the hash of the file that a partitioner of the user's is in, None where there is no file."""
    try:
        module = importlib.util.find_spec(name.rpartition(".")[0])
    except (ImportError, AttributeError, ValueError):
        return None  # `load_partitioner` says so when it is needed
    return files.file_hash(module.origin) if module and module.origin and os.path.isfile(module.origin) else None


def user_parts(name: str, graph: PairGraph, weights: dict[str, np.ndarray], num_parts: int, seed: int) -> np.ndarray:
    """Call a custom partitioner with the pair graph, the weights [N] int64 by constraint, the number of parts and the
    seed. It returns the part of every node [N] int32."""
    part = load_partitioner(name)(graph, weights, num_parts, seed)
    return checked_parts(part, graph.num_nodes, num_parts, name)


def kaminpar_parts(graph: PairGraph, weight: np.ndarray, num_parts: int, seed: int, folder: pathlib.Path) -> np.ndarray:
    """Cut by KaMinPar on all cores, balanced by one weight [N]; returns the part per node [N] int32. With several
    threads its answer differs from run to run."""
    try:
        import kaminpar
    except ImportError:
        raise ValueError("method=kaminpar needs KaMinPar: pip install kaminpar") from None
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        path = os.path.join(scratch, "graph.metis")
        write_metis(path, len(graph.neighbor) // 2, pair_slabs(graph), weight[:, None])
        loaded = kaminpar.load_graph(path, kaminpar.GraphFileFormat.METIS)
    kaminpar.reseed(seed)
    partitioner = kaminpar.KaMinPar(len(os.sched_getaffinity(0)), kaminpar.default_context())
    part = np.array(partitioner.compute_partition(loaded, num_parts, TOLERANCE), np.int64)
    return checked_parts(part, graph.num_nodes, num_parts, "kaminpar")
