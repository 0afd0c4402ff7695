"""Reads graphs of PyTorch Geometric that torch.save wrote, without running their code, and without the package."""

from __future__ import annotations

import pathlib
from typing import Any

from data_tools.source.object_columns import array_of
from data_tools.source.object_spec import GraphTables
from data_tools.source.objects import of_store, of_stores
from hpcgnn.graph.files import FileFormatError
from hpcgnn.graph.unpickle import Attributes, NotAdmitted, load_torch, plain

PACKAGES = ("torch_geometric.data.", "torch_geometric.datasets.")  # whose classes are read as their attributes


def load_pyg(path: str | pathlib.Path, fold: int = 0) -> GraphTables:
    """Read Data, HeteroData or TemporalData, also the first of the pair (data, slices) that data sets keep. fold: of
    masks [n, folds]. Raises FileFormatError for a file that holds anything else."""
    graph = _load(path)
    if isinstance(graph, tuple | list) and graph and isinstance(graph[0], Attributes | dict):
        graph = graph[0]
    try:
        return _tables(graph, fold)
    except (KeyError, AttributeError, IndexError, TypeError) as error:
        raise FileFormatError(f"{path}: not a graph of PyTorch Geometric ({error!r})") from None
    except ValueError as error:
        raise FileFormatError(f"{path}: {error}") from None


def load_attributes(path: str | pathlib.Path) -> dict[str, Any]:
    """Read the attributes of a homogeneous graph by name, also of the first of a pair (data, slices). Raises
    FileFormatError for a file that holds anything else."""
    graph = _load(path)
    graph = graph[0] if isinstance(graph, tuple | list) and graph else graph
    if not isinstance(graph, Attributes):
        raise FileFormatError(f"{path}: not a graph of PyTorch Geometric, but a {type(graph).__name__}")
    return _mapping(graph._store) if hasattr(graph, "_store") else plain(vars(graph))


def _load(path: str | pathlib.Path) -> Any:
    if not pathlib.Path(path).is_file():
        raise FileFormatError(f"{path}: no such file")
    try:
        return load_torch(path, PACKAGES)
    except NotAdmitted as error:
        raise FileFormatError(f"{path}: {error}: save the graph without it") from None
    except Exception as error:  # a damaged pickle raises nearly anything
        raise FileFormatError(f"{path}: not a readable pt file ({' '.join(str(error).split())[:200]})") from None


def _mapping(store: Any) -> dict[str, Any]:
    """Return the attributes of a store of PyTorch Geometric."""
    return plain(vars(store)["_mapping"])


def _tables(graph: Any, fold: int) -> GraphTables:
    """Make tables of the stores of a graph, or of the dictionary that ``to_dict`` makes of one."""
    if isinstance(graph, dict):
        return of_store(plain(graph), graph.get("num_nodes"), fold)
    if "_node_store_dict" in vars(graph):
        nodes = {kind: _mapping(store) for kind, store in graph._node_store_dict.items()}
        edges = {kind: _mapping(store) for kind, store in graph._edge_store_dict.items()}
        further = vars(graph).get("_global_store")
        return of_stores(nodes, edges, fold, {} if further is None else _mapping(further))
    store = _mapping(graph._store)
    count = store.get("num_nodes")
    return of_store(store, None if count is None else int(array_of(count)), fold)
